"""Selects the topics of a stream by their names: a white list or a black list, as one regular expression. Pure.

The texts have Kafka's meaning: the expression matches whole names, and commas separate alternatives (`a,b` is `a|b`).
Kafka's internal topics are never selected. Source: Kafka's TopicFilter.
"""

import re
from dataclasses import dataclass, field

from pipeline.errors import ConfigurationError

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

_COUNT = re.compile(r"(\{[0-9]*,[0-9]*\})")
"""A comma within bounds of a repetition separates nothing."""


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """A regular expression over topic names; `WhiteList` or `BlackList`. Raises ConfigurationError for a bad one."""

    regex: str
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        text = self.regex.strip().strip("\"'").replace(" ", "") if isinstance(self.regex, str) else ""
        if not text:
            raise ConfigurationError(
                "topic filter", f"is {self.regex!r}: write a regular expression, .* for all topics"
            )
        parts = [part if _COUNT.fullmatch(part) else part.replace(",", "|") for part in _COUNT.split(text)]
        try:
            object.__setattr__(self, "_pattern", re.compile("".join(parts)))
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigurationError("topic filter", f"{self.regex!r} is no regular expression: {error}") from error

    def allows(self, topic: str) -> bool:
        """True if streams of this filter carry the topic."""
        return topic not in INTERNAL_TOPICS and self._selects(topic)

    def _selects(self, topic: str) -> bool:
        raise NotImplementedError

    def _matches(self, topic: str) -> bool:
        return self._pattern.fullmatch(topic) is not None


class WhiteList(TopicFilter):
    """Topics whose whole names match the regular expression."""

    __slots__ = ()

    def _selects(self, topic: str) -> bool:
        return self._matches(topic)


class BlackList(TopicFilter):
    """Topics whose whole names do not match the regular expression."""

    __slots__ = ()

    def _selects(self, topic: str) -> bool:
        return not self._matches(topic)
