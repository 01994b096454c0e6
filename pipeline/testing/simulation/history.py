"""History of what clients did and saw, and the rules that hold for it. Pure.

The promise (docs/replication.md): what was acknowledged with acks=all is there, once, at the offset that was told, for
every reader alike, in the order of the offsets; nothing that a reader has seen goes away; what a group committed stays.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pipeline.model import Offset, TopicPartition

Logs = Mapping[TopicPartition, Mapping[Offset, bytes]]
"""The records of each partition at the end."""

MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A record that was taken. `offset` is -1 where the broker only said that it had it before."""

    value: bytes
    topic_partition: TopicPartition
    offset: Offset


@dataclass(eq=False)
class History:
    """All that clients did and saw. Readers tell what is wrong with what they see as soon as they see it."""

    sent: dict[bytes, TopicPartition] = field(default_factory=dict)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    refused: dict[bytes, None] = field(default_factory=dict)
    """Values whose producer was told for certain that they were not taken."""
    unclear: dict[bytes, None] = field(default_factory=dict)
    """Values whose producer was told that nobody knows."""
    seen: dict[tuple[TopicPartition, Offset], bytes] = field(default_factory=dict)
    """What a reader found at an offset first."""
    ends: dict[TopicPartition, Offset] = field(default_factory=dict)
    """Behind all that was acknowledged or read, and as far as anybody was told that a partition goes."""
    problems: list[str] = field(default_factory=list)
    records_read: int = 0
    commits: int = 0

    def took(self, record: Acknowledged) -> None:
        """A producer was told that its record was taken."""
        self.acknowledged.append(record)
        self._goes_to(record.topic_partition, Offset(record.offset + 1))

    def acknowledged_counts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Count the acknowledged records of each partition."""
        counts = dict.fromkeys(partitions, 0)
        for record in self.acknowledged:
            if record.topic_partition in counts:
                counts[record.topic_partition] += 1
        return counts

    def _goes_to(self, topic_partition: TopicPartition, end: Offset) -> None:
        self.ends[topic_partition] = max(end, self.ends.get(topic_partition, end))

    def read(self, reader: str, topic_partition: TopicPartition, expected: int, offset: Offset, value: bytes) -> None:
        """A reader that was at `expected` was given a record."""
        self._goes_to(topic_partition, Offset(offset + 1))
        self.records_read += 1
        if offset < expected:
            self.problems.append(f"{reader}: {topic_partition} offset {offset} after {expected - 1}: goes back")
        elif offset > expected:
            self.problems.append(f"{reader}: {topic_partition} skips from {expected} to {offset}")
        known = self.seen.setdefault((topic_partition, offset), value)
        if known != value:
            self.problems.append(f"{reader}: {topic_partition}@{offset} is {value!r}, but was {known!r}")

    def ended(self, reader: str, topic_partition: TopicPartition, least: Offset, now: Offset) -> None:
        """A reader was told where a partition ends. When it asked, somebody had seen it end at `least`."""
        if now < least:
            self.problems.append(f"{reader}: {topic_partition} ended at {least}, and later at {now}")
        self._goes_to(topic_partition, now)

    def fetched_commit(self, group: str, topic_partition: TopicPartition, least: Offset, found: Offset) -> None:
        """A committed offset was asked for, after `least` had been committed."""
        if found < least:
            self.problems.append(f"{group}: {topic_partition} was committed at {least}, and later found at {found}")


def check_history(history: History, logs: Logs) -> Iterator[str]:
    """Yield the faults of the logs at the end."""
    yield from _check_acknowledged(history, logs)
    yield from check_logs(history, logs)


def check_survivors(history: History, topic_partition: TopicPartition, values: Collection[bytes]) -> Iterator[str]:
    """Yield the losses of a partition without a leader, whose replicas' logs together hold these values."""
    for record in history.acknowledged:
        if record.topic_partition == topic_partition and record.value not in values:
            yield f"lost: {record.value!r} in {topic_partition}, acknowledged at {record.offset}, is in no log"


def _check_acknowledged(history: History, logs: Logs) -> Iterator[str]:
    present = {topic_partition: set(records.values()) for topic_partition, records in logs.items()}
    told: dict[tuple[TopicPartition, Offset], bytes] = {}
    for one in history.acknowledged:
        name = f"{one.value!r} in {one.topic_partition}"
        if one.value not in present.get(one.topic_partition, ()):
            yield f"lost: {name}, acknowledged at {one.offset}"
        elif one.offset >= 0:
            found = logs[one.topic_partition].get(one.offset)
            if found != one.value:
                yield f"moved: {name}, acknowledged at {one.offset}, where {found!r} is"
            other = told.setdefault((one.topic_partition, one.offset), one.value)
            if other != one.value:
                yield f"{name} and {other!r} were both acknowledged at {one.offset}"


def check_logs(history: History, logs: Logs) -> Iterator[str]:
    """Yield the faults of the logs, and of what was seen of them, whatever was acknowledged."""
    for topic_partition, records in logs.items():
        places: dict[bytes, Offset] = {}
        last = Offset(-1)
        for offset, value in records.items():
            if offset != last + 1:
                yield f"{topic_partition}: {offset} follows {last} in the log"
            last = offset
            if value in places:
                yield f"doubled: {value!r} in {topic_partition} at {places[value]} and {offset}"
            places[value] = offset
            if history.sent.get(value) != topic_partition:
                yield f"{topic_partition}@{offset}: {value!r}, which nobody sent there"
            if value in history.refused:
                yield f"{topic_partition}@{offset}: {value!r}, of which its producer was told that it was refused"
    for (topic_partition, offset), value in history.seen.items():
        found = logs.get(topic_partition, {}).get(offset)
        if found != value:
            yield f"unseen: {topic_partition}@{offset} was read as {value!r}, and is now {found!r}"
