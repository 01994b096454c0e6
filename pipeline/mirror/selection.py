"""Selection of the topics and groups that are mirrored. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.errors import ConfigurationError, PipelineError

UNDERSCORE = "_"
"""First character of the names of internal topics."""
_OF_ITS_CLUSTER = ("__", "_mirror_")
_AUDIT_TOPIC = "_audit"
_PLAIN_NAME = re.compile(r"(?:[A-Za-z0-9_-]|\\[.-])+")


MAX_SLOW = 10
"""Number of names on which a pattern may take too long before it is tried on no others."""


class SlowPatternError(PipelineError):
    """A pattern takes too long on a name."""

    def __init__(self, pattern: str, name: str) -> None:
        super().__init__(f"the pattern {pattern[:100]} takes too long on the name {name}: simplify it")
        self.pattern = pattern


Matches = Callable[[re.Pattern[str], str], bool]
"""Returns True if a pattern matches a whole name. Raises SlowPatternError."""


def matches_whole(pattern: re.Pattern[str], name: str) -> bool:
    """Return True if the pattern matches the whole name, however long that takes."""
    return pattern.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class NameSelection:
    """Names that match one of `include` and none of `exclude`, as a whole."""

    include: Sequence[re.Pattern[str]]
    exclude: Sequence[re.Pattern[str]] = ()
    matches: Matches = matches_whole
    slow: dict[str, str] = field(default_factory=dict, compare=False)
    """Names on which a pattern took too long, with the reason. They are not selected."""
    _slow_patterns: Counter[str] = field(default_factory=Counter, compare=False)

    def selects(self, name: str) -> bool:
        """Return True if the name is selected."""
        if name in self.slow:
            return False
        try:
            return self._matches_one(self.include, name) and not self._matches_one(self.exclude, name)
        except SlowPatternError as error:
            self.slow[name] = str(error)
            return False

    def _matches_one(self, patterns: Sequence[re.Pattern[str]], name: str) -> bool:
        for pattern in patterns:
            if self._slow_patterns[pattern.pattern] >= MAX_SLOW:
                raise SlowPatternError(pattern.pattern, name)
            try:
                if self.matches(pattern, name):
                    return True
            except SlowPatternError:
                self._slow_patterns[pattern.pattern] += 1
                raise
        return False


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
