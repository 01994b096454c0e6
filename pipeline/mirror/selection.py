"""Selection of the topics and groups that are mirrored. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import ConfigurationError

UNDERSCORE = "_"
"""First character of the names of internal topics."""
_OF_ITS_CLUSTER = ("__", "_mirror_")
_AUDIT_TOPIC = "_audit"
_PLAIN_NAME = re.compile(r"(?:[A-Za-z0-9_-]|\\[.-])+")


@dataclass(frozen=True, slots=True)
class NameSelection:
    """Names that match one of `include` and none of `exclude`, as a whole."""

    include: Sequence[re.Pattern[str]]
    exclude: Sequence[re.Pattern[str]] = ()

    def selects(self, name: str) -> bool:
        """Return True if the name is selected."""
        return any(p.fullmatch(name) for p in self.include) and not any(p.fullmatch(name) for p in self.exclude)


class TopicSelection(NameSelection):
    """Topics whose whole name matches one of `include` and none of `exclude`.

    An internal topic (`_...`) is selected only by a pattern that is its name, such as `_schemas`, so that `.*` copies
    no topic that has a meaning in its own cluster alone.
    """

    __slots__ = ()

    def selects(self, name: str) -> bool:
        """Return True if the topic is mirrored."""
        if not NameSelection.selects(self, name):
            return False
        is_named = any(without_escapes(p.pattern) == name and p.fullmatch(name) for p in self.include)
        return not name.startswith(UNDERSCORE) or (is_named and not is_of_its_cluster(name))


def is_of_its_cluster(topic: str) -> bool:
    """Return True if the topic is never mirrored: state of brokers (`__...`), of mirrors, or counts of an audit."""
    return topic.startswith(_OF_ITS_CLUSTER) or topic == _AUDIT_TOPIC


def without_escapes(pattern: str) -> str:
    r"""Return the pattern without backslashes: the name that `page\.views` stands for."""
    return pattern.replace("\\", "")


def is_plain_name(pattern: str) -> bool:
    """Return True if the pattern can match a single name only."""
    return _PLAIN_NAME.fullmatch(pattern) is not None


def compile_patterns(key: str, patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Compile the patterns of the setting `key`. Raises ConfigurationError that names it."""
    try:
        return tuple(re.compile(pattern) for pattern in patterns)
    except re.error as error:
        raise ConfigurationError(key, f"{error.pattern!r} is not a regular expression: {error.msg}") from error
    except (RecursionError, OverflowError) as error:
        raise ConfigurationError(key, f"has a regular expression that cannot be read: {error}; simplify it") from error
