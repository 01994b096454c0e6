"""Decides which committed offsets of a group are written to the hub. Pure: values in, values out.

A mark stands for a committed offset with its metadata and leader epoch. The journal (`offset_journal.py`) holds
for each group and replica partition the marks of the last commits that mirrors wrote or were about to write.

Invariants:
A. The mark of a commit is in the journal before the commit is sent. So an offset of the hub whose mark is not in the
   journal was committed by somebody else: the group moved on at the hub, and the offset is left alone.
B. An offset is copied as it is, or not yet: only once the replica's log end offset has reached the offset.
C. A commit of a mirror has the leader epoch -1, since the source's epochs mean nothing at the hub. An offset of the hub
   with another epoch was not written by a mirror.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.client.admin.groups import CommittedOffset
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition

GROUP_OFFSETS_TOPIC = "_mirror_group_offsets"
MARKS_VERSION = 1
MAX_MARKS = 4
"""Marks of one offset: the commit that the hub has, the newest one, and two whose answers were lost or that another
mirror wrote."""
MAX_MARKS_BYTES = 900_000
"""Maximum size of a record, which holds a group's marks of one topic: some 15,000 partitions."""
MAX_COMMIT_PARTITIONS = 500
MAX_COMMIT_BYTES = 256 * 1024
"""Partitions and metadata of one OffsetCommit request."""
NO_EPOCH = -1

Marks = Mapping[int, Sequence[str]]
"""Marks by partition of a replica topic, oldest first."""


class GroupMarksError(PipelineError):
    """A record of the journal of group offsets is unreadable or would be too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarksKey:
    """The key of a journal record: a group of a source, and a replica topic."""

    source: str
    group: str
    topic: str

    def encode(self) -> bytes:
        """Return the key of the journal record."""
        return json.dumps([self.source, self.group, self.topic], separators=(",", ":")).encode()


def decode_marks_key(key: bytes) -> MarksKey:
    """Return the key of a journal record. Raises GroupMarksError."""
    try:
        source, group, topic = json.loads(key)
        return MarksKey(source=str(source), group=str(group), topic=str(topic))
    except (ValueError, TypeError, RecursionError) as error:
        raise GroupMarksError(f"{GROUP_OFFSETS_TOPIC} holds a record with an unreadable key: {error!r}") from error


def encode_marks(marks: Marks) -> bytes:
    """Return the value of a journal record. Raises GroupMarksError if it would be too large."""
    document = {"version": MARKS_VERSION, "marks": {str(number): list(of_one) for number, of_one in marks.items()}}
    value = json.dumps(document, separators=(",", ":")).encode()
    if len(value) > MAX_MARKS_BYTES:
        raise GroupMarksError(f"the group has offsets of too many partitions of one topic ({len(marks)})")
    return value


def decode_marks(value: bytes) -> dict[int, list[str]]:
    """Return the marks of a journal record's value. Raises GroupMarksError."""
    try:
        document = json.loads(value)
        if document["version"] != MARKS_VERSION:
            reason = f"{GROUP_OFFSETS_TOPIC} holds version {document['version']}; this is {MARKS_VERSION}"
            raise GroupMarksError(reason)
        return {int(number): [str(mark) for mark in of_one] for number, of_one in document["marks"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GroupMarksError(f"{GROUP_OFFSETS_TOPIC} holds an unreadable record: {error!r}") from error


def merge_marks(known: Marks, newer: Marks) -> dict[int, list[str]]:
    """Return the marks of a record and of a newer record of the same key, which another mirror may have written."""
    return {number: append_marks(known.get(number, ()), *newer.get(number, ())) for number in {**known, **newer}}


def append_marks(known: Sequence[str], *newer: str) -> list[str]:
    """Return the marks with newer ones at the end, each once, at most MAX_MARKS."""
    return list(dict.fromkeys([*newer[::-1], *known[::-1]]))[:MAX_MARKS][::-1]


def mark_of(committed: CommittedOffset) -> str:
    """Return the mark of a committed offset; offsets of other metadata or leader epoch have other marks."""
    mark = str(committed.offset)
    if committed.metadata:
        mark += ":" + hashlib.sha256(committed.metadata.encode(errors="surrogatepass")).hexdigest()[:16]
    return mark if committed.leader_epoch == NO_EPOCH else f"{mark}@{committed.leader_epoch}"


@dataclass(slots=True)
class GroupPlan:
    """Result for one group: the commits to write, and the partitions without one."""

    writes: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    waiting: list[TopicPartition] = field(default_factory=list)
    """Partitions whose replica has not reached the offset (invariant B)."""
    moved_on: list[TopicPartition] = field(default_factory=list)
    """Partitions whose offset at the hub was written by somebody else (invariant A)."""


def plan_group(
    source: Mapping[TopicPartition, CommittedOffset],
    hub: Mapping[TopicPartition, CommittedOffset | None],
    marks: Mapping[str, Marks],
    ends: Mapping[TopicPartition, int],
) -> GroupPlan:
    """Compare a group's offsets at the source with those at the hub, both by replica partition.

    `marks` are the journal's, by replica topic. `ends` are log end offsets of replicas; a replica without waits. A
    partition that `hub` leaves out waits as well.
    """
    plan = GroupPlan()
    for partition, committed in source.items():
        wanted = replace(committed, leader_epoch=NO_EPOCH)
        there = hub.get(partition)
        if there is not None and mark_of(there) not in marks.get(partition.topic, {}).get(partition.partition, ()):
            plan.moved_on.append(partition)
        elif partition not in hub or wanted.offset > ends.get(partition, -1):
            plan.waiting.append(partition)
        elif there is None or mark_of(there) != mark_of(wanted):
            plan.writes[partition] = wanted
    return plan


def marks_after(
    writes: Mapping[TopicPartition, CommittedOffset],
    hub: Mapping[TopicPartition, CommittedOffset | None],
    marks: Mapping[str, Marks],
) -> dict[str, dict[int, list[str]]]:
    """Return the marks of each topic with writes: what the hub has and what is about to be written come last."""
    after: dict[str, dict[int, list[str]]] = {}
    for partition, wanted in writes.items():
        of_topic = after.setdefault(
            partition.topic, {number: list(known) for number, known in marks.get(partition.topic, {}).items()}
        )
        there = hub.get(partition)
        newer = [mark_of(wanted)] if there is None else [mark_of(there), mark_of(wanted)]
        of_topic[partition.partition] = append_marks(of_topic.get(partition.partition, ()), *newer)
    return after


def commits_of(writes: Mapping[TopicPartition, CommittedOffset]) -> list[dict[TopicPartition, CommittedOffset]]:
    """Divide writes into OffsetCommit requests of bounded size."""
    requests: list[dict[TopicPartition, CommittedOffset]] = []
    size = MAX_COMMIT_BYTES
    for partition, committed in sorted(writes.items()):
        more = len(partition.topic) + len((committed.metadata or "").encode(errors="surrogatepass"))
        if size + more > MAX_COMMIT_BYTES or len(requests[-1]) == MAX_COMMIT_PARTITIONS:
            requests.append({})
            size = 0
        requests[-1][partition] = committed
        size += more
    return requests
