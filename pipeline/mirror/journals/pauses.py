"""Pauses: sources, flows, topics and partitions that a user paused. Pure: a fold over a compacted topic of the hub.

Invariant: a pause lasts until its record is removed. So it survives restarts, and counts for all mirrors of the hub.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.errors import PipelineError
from pipeline.mirror.journals.record_document import MAX_TIME_MS, RecordDocument
from pipeline.model import TopicPartition
from pipeline.provenance import MAX_NAME_LENGTH, MAX_PARTITIONS

PAUSES_TOPIC = "_mirror_pauses"
RECORD_VERSION = 1
MAX_PAUSES = 100_000
"""Bound of the pauses of a hub."""
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAME_LENGTH}}}")


class PauseRecordError(PipelineError):
    """A record of the topic is no pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseScope:
    """Scope of a pause: a flow, or a source, a topic of a source, or a partition of such a topic."""

    flow: str | None = None
    source: str | None = None
    topic: str | None = None
    partition: int | None = None

    @property
    def key(self) -> bytes:
        """The key of the scope's records."""
        if self.flow is not None:
            return f"flow/{self.flow}".encode()
        parts = [part for part in (self.source, self.topic, self.partition) if part is not None]
        return "/".join([("source", "topic", "partition")[len(parts) - 1], *map(str, parts)]).encode()

    def __str__(self) -> str:
        if self.flow is not None:
            return f"flow {self.flow}"
        if self.topic is None:
            return f"source {self.source}"
        place = self.topic if self.partition is None else TopicPartition(self.topic, self.partition)
        return f"{place} of {self.source}"

    def to_json(self) -> dict[str, Any]:
        """Return the scope as commands show it."""
        return {"flow": self.flow, "source": self.source, "topic": self.topic, "partition": self.partition}


def decode_scope(key: bytes | None) -> PauseScope:
    """Return the scope of a record's key. Raises PauseRecordError."""
    try:
        kind, *names = (key or b"").decode("ascii").split("/")
    except UnicodeDecodeError:
        raise PauseRecordError("the key is not text") from None
    number = names.pop() if kind == "partition" and names else None
    if all(_NAME.fullmatch(name) for name in names):
        match kind, names:
            case "flow", [flow]:
                return PauseScope(flow=flow)
            case "source", [source]:
                return PauseScope(source=source)
            case "topic", [source, topic]:
                return PauseScope(source=source, topic=topic)
            case "partition", [source, topic] if number is not None and re.fullmatch(r"[0-9]{1,9}", number):
                if int(number) < MAX_PARTITIONS:
                    return PauseScope(source=source, topic=topic, partition=int(number))
    raise PauseRecordError("the key is no flow, source, topic or partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause, and the time in ms at which it was asked for."""

    scope: PauseScope
    time_ms: int

    def encode(self) -> tuple[bytes, bytes]:
        """Return key and value of the record."""
        document = {"version": RECORD_VERSION, "time_ms": self.time_ms}
        return self.scope.key, json.dumps(document, separators=(",", ":")).encode()

    def to_json(self) -> dict[str, Any]:
        """Return the pause as the status shows it."""
        return {**self.scope.to_json(), "time_ms": self.time_ms}


class Pauses:
    """The pauses of a hub, as far as their topic was read."""

    def __init__(self) -> None:
        self._by_scope: dict[PauseScope, Pause] = {}

    def __iter__(self) -> Iterator[Pause]:
        return iter(list(self._by_scope.values()))

    def __contains__(self, scope: PauseScope) -> bool:
        return scope in self._by_scope

    def __len__(self) -> int:
        return len(self._by_scope)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply the next record; one without value ends a pause. Raises PauseRecordError, and changes nothing then."""
        scope = decode_scope(key)
        if value is None:
            self._by_scope.pop(scope, None)
            return
        document = RecordDocument(value, PauseRecordError)
        document.version(newest=RECORD_VERSION)
        time_ms = document.number("time_ms", MAX_TIME_MS)
        if scope not in self._by_scope and len(self._by_scope) >= MAX_PAUSES:
            raise PauseRecordError(f"there are {MAX_PAUSES} pauses already")
        self._by_scope[scope] = Pause(scope=scope, time_ms=time_ms)

    def covering(self, source: str, partition: TopicPartition, flow: str | None) -> Pause | None:
        """Return a pause that holds a source partition, the widest if there are several; None if there is none."""
        if not self._by_scope:
            return None
        topic, number = partition
        scopes = [
            PauseScope(source=source),
            PauseScope(source=source, topic=topic),
            PauseScope(source=source, topic=topic, partition=number),
        ]
        if flow is not None:
            scopes.insert(1, PauseScope(flow=flow))
        return next((self._by_scope[scope] for scope in scopes if scope in self._by_scope), None)
