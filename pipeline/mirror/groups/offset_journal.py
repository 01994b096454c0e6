"""The journal of copied group offsets: a compacted topic of the hub, which this module reads and appends to.

A record holds the marks (`offset_plan.py`) of a group of a source in one replica topic; a record without value
removes them. Marks of a record that two mirrors wrote at once are merged, so that each mirror knows the commits of the
other. A record that is skipped can hide marks; then the offsets at the hub are left alone.
"""

from collections.abc import Mapping, Sequence
from random import Random

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.groups.offset_plan import (
    GROUP_OFFSETS_TOPIC,
    GroupMarksError,
    Marks,
    MarksKey,
    decode_marks,
    decode_marks_key,
    encode_marks,
    merge_marks,
)
from pipeline.mirror.journals.journal_topic import LAST_OF_EACH_KEY, JournalRecordError, JournalTopic
from pipeline.model import Clock
from pipeline.records.record import Record


class GroupOffsetJournal:
    """The marks, and the door to their topic. All sources of a mirror share it."""

    def __init__(self, destination: Cluster, *, clock: Clock, rng: Random) -> None:
        self._topic = JournalTopic(destination, GROUP_OFFSETS_TOPIC, LAST_OF_EACH_KEY, self._apply)
        self._is_open = False
        self._clock = clock
        self._rng = rng
        self._values: dict[tuple[str, str], dict[str, bytes]] = {}
        """Values of records by source and group, then by topic: encoded, as they take less memory."""

    def groups_of(self, source: str) -> list[str]:
        """Return the groups of a source that have marks."""
        return [group for name, group in self._values if name == source]

    def marks_of(self, source: str, group: str) -> Mapping[str, Marks]:
        """Return the marks of a group by replica topic."""
        return {topic: decode_marks(value) for topic, value in self._values.get((source, group), {}).items()}

    async def read_on(self) -> None:
        """Read up to the present end, and create the topic first if necessary. Raises as `JournalTopic.open`."""
        if self._is_open:
            await self._topic.read_on()
        else:
            await self._topic.open()
            self._is_open = True

    async def append(self, records: Sequence[tuple[MarksKey, bytes | None]]) -> None:
        """Append records and read them, durably. Raises as `JournalTopic.append`."""
        if records:
            encoded = [(key.encode(), value) for key, value in records]
            await self._topic.append(encoded, clock=self._clock, rng=self._rng)

    def _apply(self, record: Record) -> None:
        try:
            self._take(record)
        except GroupMarksError as error:
            raise JournalRecordError(str(error)) from error

    def _take(self, record: Record) -> None:
        key = decode_marks_key(record.key or b"")
        group = (key.source, key.group)
        values = self._values.get(group, {})
        if record.value is None:
            values.pop(key.topic, None)
            if not values:
                self._values.pop(group, None)
            return
        marks = decode_marks(record.value)
        known = values.get(key.topic)
        if known is None:
            self._values.setdefault(group, {})[key.topic] = record.value
        elif known != record.value:
            values[key.topic] = encode_marks(merge_marks(decode_marks(known), marks))
