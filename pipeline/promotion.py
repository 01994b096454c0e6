"""Promotion of a replica topic: the mark in the topic's settings that ends its copying. Pure.

The topic setting `mirror.promoted` holds the promotion as JSON. `ends` has for each partition, in order, the log end
offset at which its copy ended. While `ends` is missing, the promotion is under way.

    {"at":1700000000000,"ends":[1200,1187]}

Invariants:
A. A topic with a promotion accepts no copies. So copies end at `ends` for good, also if a mirror does not know of it.
B. A promotion never changes: brokers accept the addition of `ends` and the removal of the whole setting, nothing else.
   So a second promotion cannot move `ends` behind records of other producers.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pipeline.errors import ConfigurationError
from pipeline.model import MAX_INT64
from pipeline.provenance import MAX_TEXT_BYTES

MIRROR_PROMOTED = "mirror.promoted"
"""The topic setting that holds the promotion."""
MAX_TIME_MS = 253_402_300_799_999
"""The end of the year 9999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A promotion that began at `at_ms`, in ms since 1970 UTC. `ends` is None while the promotion is under way."""

    at_ms: int
    ends: tuple[int, ...] | None = None

    @staticmethod
    def parse(text: str) -> "Promotion":
        """Return the promotion in this text. Raises ConfigurationError."""
        if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
            raise _refusal(f"is longer than {MAX_TEXT_BYTES} bytes")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _refusal("is not JSON") from error
        if not (isinstance(document, dict) and _is_number(document.get("at"), MAX_TIME_MS)):
            raise _refusal("is not an object with a time in ms, `at`")
        ends = document.get("ends")
        if ends is None:
            return Promotion(at_ms=document["at"])
        if not (isinstance(ends, list) and all(_is_number(end, MAX_INT64) for end in ends)):
            raise _refusal("has `ends` that are not a list of offsets")
        return Promotion(at_ms=document["at"], ends=tuple(ends))

    def encode(self) -> str:
        """Return the text of the setting. Raises ConfigurationError if it would be too long."""
        document = {"at": self.at_ms} | ({} if self.ends is None else {"ends": list(self.ends)})
        text = json.dumps(document, separators=(",", ":"))
        if len(text) > MAX_TEXT_BYTES:
            raise _refusal(f"would be longer than {MAX_TEXT_BYTES} bytes: the topic has too many partitions")
        return text

    @property
    def time(self) -> str:
        """The time of the promotion for users, `2023-11-14T22:13:20Z`."""
        return datetime.fromtimestamp(self.at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def refusal_of(self, topic: str) -> str:
        """Return the reason why the topic accepts no copies."""
        return f"{topic} was promoted at {self.time}: it is no longer a replica"

    def may_become(self, changed: "Promotion") -> bool:
        """True if a change of the setting keeps invariant B."""
        return self == changed or (self.ends is None and self.at_ms == changed.at_ms)


def _refusal(reason: str) -> ConfigurationError:
    return ConfigurationError(MIRROR_PROMOTED, reason)


def _is_number(value: Any, bound: int) -> bool:
    return type(value) is int and 0 <= value <= bound  # not True, which is an int to isinstance
