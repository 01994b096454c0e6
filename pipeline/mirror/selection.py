"""Selection of the topics and groups that are mirrored. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class NameSelection:
    """Names that match one of `include` and none of `exclude`, as a whole."""

    include: Sequence[re.Pattern[str]]
    exclude: Sequence[re.Pattern[str]] = ()

    def selects(self, name: str) -> bool:
        """Return True if the name is selected."""
        return any(p.fullmatch(name) for p in self.include) and not any(p.fullmatch(name) for p in self.exclude)


class TopicSelection(NameSelection):
    """Topics whose whole name matches one of `include` and none of `exclude`; never internal ones (`_...`).

    A replica topic bears the name of its source topic, so that topics of equal name in all live clusters become one
    aggregate topic.
    """

    __slots__ = ()

    def selects(self, name: str) -> bool:
        """Return True if the topic is mirrored."""
        return not name.startswith("_") and NameSelection.selects(self, name)


def compile_patterns(key: str, patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Compile the patterns of the setting `key`. Raises ConfigurationError that names it."""
    try:
        return tuple(re.compile(pattern) for pattern in patterns)
    except re.error as error:
        raise ConfigurationError(key, f"{error.pattern!r} is not a regular expression: {error.msg}") from error
