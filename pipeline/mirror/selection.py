"""Which topics are mirrored, and under which name. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Topics whose whole name matches one of `include` and none of `exclude`. Internal ones (`_...`) never do.

    A replica topic bears the name of its source topic, so that the topics of all live clusters that share a name become
    one aggregate topic.
    """

    include: Sequence[re.Pattern[str]]
    exclude: Sequence[re.Pattern[str]] = ()

    def selects(self, topic: str) -> bool:
        """Whether the topic is mirrored."""
        if topic.startswith("_"):
            return False
        return any(p.fullmatch(topic) for p in self.include) and not any(p.fullmatch(topic) for p in self.exclude)


def compile_patterns(key: str, patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Regular expressions from settings. Raises ConfigurationError naming `key`."""
    try:
        return tuple(re.compile(pattern) for pattern in patterns)
    except re.error as error:
        raise ConfigurationError(key, f"{error.pattern!r} is not a regular expression: {error.msg}") from error
