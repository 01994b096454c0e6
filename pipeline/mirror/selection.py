"""Selection of the topics that are mirrored. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Topics whose whole name matches one of `include` and none of `exclude`; never internal ones (`_...`).

    A replica topic bears the name of its source topic, so that topics of equal name in all live clusters become one
    aggregate topic.
    """

    include: Sequence[re.Pattern[str]]
    exclude: Sequence[re.Pattern[str]] = ()

    def selects(self, topic: str) -> bool:
        """Return True if the topic is mirrored."""
        if topic.startswith("_"):
            return False
        return any(p.fullmatch(topic) for p in self.include) and not any(p.fullmatch(topic) for p in self.exclude)


def compile_patterns(key: str, patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Compile the patterns of the setting `key`. Raises ConfigurationError that names it."""
    try:
        return tuple(re.compile(pattern) for pattern in patterns)
    except re.error as error:
        raise ConfigurationError(key, f"{error.pattern!r} is not a regular expression: {error.msg}") from error
