"""Deletes topics in ZooKeeper: first writes a record with the topic id, then removes the znodes in transactions.

Invariants:

- One transaction deletes a topic: it writes `/admin/deleted_topics/<topic id>` and marks the topic's znode. A missing
  znode is no deletion: brokers remove a log only if the record of its topic id exists.
- A marked topic has no partitions and is unknown to clients. Its znodes are removed children first. The topic's own
  znode and its settings are removed last, in the transaction that completes the record. Any broker may continue.
- Each of these transactions requires the version of the record, which the last one raises. So a broker that was
  suspended in the middle of a deletion removes nothing of a later topic of the same name.
- Writes of partition states and assignments require that no record of the topic's id exists (`demand_not_deleted`).
  So a broker that was isolated or suspended changes nothing of a recreated topic, even if versions are equal.
- Records are kept for RECORD_AGE_MS, and at most MAX_RECORDS of them, whose names easily fit into one answer of
  ZooKeeper. A broker that returns later keeps the log as a stray, which loses nothing.
"""

import uuid
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar, Self, TypeVar

import trio
from pydantic import BaseModel

from pipeline.coordination.interface import (
    MAX_AT_ONCE,
    CheckNode,
    CoordinationClient,
    CreateNode,
    DeleteNode,
    Operation,
    SetNode,
)
from pipeline.coordination.update import update
from pipeline.coordination.znodes import (
    TopicAssignment,
    decode_uuid,
    encode_uuid,
    from_json,
    partitions_path,
    to_json,
    topic_config_path,
    topic_path,
)
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    BadVersionError,
    CoordinationError,
    CoordinationLostError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

MAX_RECORDS = 10_000
STATE = "state"
"""Name of the state znode below a partition's znode."""
RECORD_AGE_MS = 90 * 24 * 3600 * 1000
VIEW_AGE_MS = 600 * 1000
"""Upper bound of the age of a view of the living topics."""
REMOVED_AT_ONCE = 100
"""Znodes that one transaction removes: other requests, the election of a leader among them, wait some 10 ms for it."""
ATTEMPTS = 10

_Item = TypeVar("_Item")

logger = get_logger(__name__)


class _RecordJson(BaseModel):
    version: int
    topic: str
    timestamp: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """The record of a deletion: `/admin/deleted_topics/<topic id>`. Ours; Kafka has none."""

    PARENT: ClassVar[str] = "/admin/deleted_topics"

    topic_id: uuid.UUID
    topic: str
    timestamp_ms: int
    is_complete: bool = False
    """True if nothing of the topic is left in ZooKeeper."""

    @property
    def path(self) -> str:
        """`/admin/deleted_topics/<topic id>`."""
        return record_path(self.topic_id)

    def encode(self) -> bytes:
        """JSON version 1."""
        return to_json(
            {"version": 1, "topic": self.topic, "timestamp": self.timestamp_ms, "complete": self.is_complete}
        )

    @classmethod
    def decode(cls, topic_id: uuid.UUID, data: bytes) -> Self:
        """JSON version 1. Raises CoordinationError."""
        fields = from_json(record_path(topic_id), data, _RecordJson)
        return cls(topic_id=topic_id, topic=fields.topic, timestamp_ms=fields.timestamp, is_complete=fields.complete)


def record_path(topic_id: uuid.UUID) -> str:
    """`/admin/deleted_topics/<topic id>`."""
    return f"{DeletedTopic.PARENT}/{encode_uuid(topic_id)}"


def demand_not_deleted(topic_id: uuid.UUID) -> Sequence[Operation]:
    """Return operations that fail a transaction with NodeExistsError if the topic of this id was deleted.

    ZooKeeper cannot check that a znode does not exist. So the operations create the record and delete it again. Without
    the parent of all records (`make_records_directory`) they fail with NoNodeError. Both errors have the record's path.
    """
    path = record_path(topic_id)
    return CreateNode(path=path), DeleteNode(path=path)


async def make_records_directory(zookeeper: CoordinationClient) -> None:
    """Create the parent of all records unless it exists. Raises CoordinationError."""
    if await zookeeper.exists(DeletedTopic.PARENT) is None:
        try:
            await zookeeper.create(DeletedTopic.PARENT)
        except NodeExistsError:
            await trio.lowlevel.checkpoint()


async def find_deleted(zookeeper: CoordinationClient, topic_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return the ids of deleted topics, as far as records are kept. Raises CoordinationUnavailableError."""
    return set(await find_deletions(zookeeper, topic_ids))


async def find_deletions(
    zookeeper: CoordinationClient, topic_ids: Collection[uuid.UUID]
) -> dict[uuid.UUID, DeletedTopic]:
    """Return the records of these ids, as far as they are kept. Raises CoordinationUnavailableError."""
    found: dict[uuid.UUID, DeletedTopic] = {}
    for part in _parts(sorted(topic_ids)):
        values = await zookeeper.get_each([record_path(topic_id) for topic_id in part])
        found |= {
            topic_id: record
            for topic_id, value in zip(part, values, strict=True)
            if value is not None and (record := _decode(record_path(topic_id), value.data)) is not None
        }
    return found


async def mark_deleted(zookeeper: CoordinationClient, name: str, topic_id: uuid.UUID, now_ms: int) -> None:
    """Delete the topic of this name and id, if it exists, except for its znodes.

    Raises CoordinationError. After CoordinationUnavailableError the topic may or may not be deleted.
    """
    for _ in range(ATTEMPTS):
        found = await zookeeper.get_or_none(topic_path(name))
        if found is None:
            return
        assignment = TopicAssignment.decode(name, found.data)
        if assignment.id != topic_id or assignment.is_deleted:
            return
        marked = replace(assignment, partitions={}, adding_replicas={}, removing_replicas={}, is_deleted=True)
        record = DeletedTopic(topic_id=topic_id, topic=name, timestamp_ms=now_ms)
        try:
            await zookeeper.transaction(
                [
                    SetNode(path=marked.path, data=marked.encode(), version=found.version),
                    await _write_record(zookeeper, record),
                ]
            )
        except (BadVersionError, NoNodeError, NodeExistsError, CoordinationLostError):
            continue
        return
    raise CoordinationError(topic_path(name), "is changed by others all the time; try again")


async def write_record(zookeeper: CoordinationClient, record: DeletedTopic) -> None:
    """Write the record of a deletion, also over an existing one. Raises CoordinationError."""
    await update(zookeeper, record.path, lambda _found: record.encode())


async def _write_record(zookeeper: CoordinationClient, record: DeletedTopic) -> Operation:
    """Create the parent, and return the operation that writes the record."""
    known = await zookeeper.exists(record.path)
    if known is not None:
        return SetNode(path=record.path, data=record.encode(), version=known.version)
    await make_records_directory(zookeeper)
    return CreateNode(path=record.path, data=record.encode())


async def remove_znodes(zookeeper: CoordinationClient, name: str, now_ms: int) -> None:
    """Remove all znodes of a topic, if it is marked as deleted. Raises CoordinationError."""
    is_usual = True
    for _ in range(ATTEMPTS):
        found = await zookeeper.get_or_none(topic_path(name))
        if found is None or not (marked := TopicAssignment.decode(name, found.data)).is_deleted:
            return
        record = DeletedTopic(topic_id=marked.id, topic=name, timestamp_ms=now_ms)
        known = await zookeeper.exists(record.path)
        if known is None:  # removed by hand
            await write_record(zookeeper, record)
            continue
        try:
            paths = await (_usual_paths(zookeeper, name) if is_usual else _tree(zookeeper, topic_path(name)))
            await _remove(zookeeper, record, paths, topic_version=found.version, record_version=known.version)
        except (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError, CoordinationLostError) as error:
            is_usual = is_usual and not isinstance(error, NotEmptyError)
            logger.info("topic_deletion_repeated", topic=name, reason=str(error))
            continue
        return
    raise CoordinationError(topic_path(name), "is deleted, but its znodes are changed by others all the time")


async def _remove(
    zookeeper: CoordinationClient,
    record: DeletedTopic,
    paths: Sequence[str],
    *,
    topic_version: int,
    record_version: int,
) -> None:
    guard = CheckNode(path=record.path, version=record_version)
    for part in _parts(paths, REMOVED_AT_ONCE):
        await zookeeper.transaction([guard, *(DeleteNode(path=path) for path in part)])
    complete = replace(record, is_complete=True)
    operations: list[Operation] = [SetNode(path=record.path, data=complete.encode(), version=record_version)]
    if await zookeeper.exists(topic_config_path(record.topic)) is not None:
        operations.append(DeleteNode(path=topic_config_path(record.topic)))
    await zookeeper.transaction([*operations, DeleteNode(path=topic_path(record.topic), version=topic_version)])


async def _usual_paths(zookeeper: CoordinationClient, topic: str) -> list[str]:
    """Return the znodes that brokers write below a topic's znode, children before their parents."""
    if partitions_path(topic) not in await _children(zookeeper, topic_path(topic)):
        return []
    partitions = await _children(zookeeper, partitions_path(topic))
    states: list[str] = []
    for part in _parts(f"{path}/{STATE}" for path in partitions):
        found = await zookeeper.get_each(part)
        states += [path for path, value in zip(part, found, strict=True) if value is not None]
    return [*states, *partitions, partitions_path(topic)]


async def _tree(zookeeper: CoordinationClient, path: str) -> list[str]:
    """Return all znodes below this path, children before their parents."""
    children = await _children(zookeeper, path)
    below: dict[str, list[str]] = {}

    async def walk(child: str) -> None:
        below[child] = await _tree(zookeeper, child)

    async with trio.open_nursery() as nursery:
        for child in children:
            nursery.start_soon(walk, child)
    return [found for child in children for found in (*below[child], child)]


async def _children(zookeeper: CoordinationClient, path: str) -> list[str]:
    try:
        return [f"{path}/{name}" for name in await zookeeper.children(path)]
    except NoNodeError:
        return []


async def prune_records(zookeeper: CoordinationClient, living: Container[uuid.UUID], now_ms: int) -> int:
    """Remove old or surplus records, and records of topics that exist again; return their number.

    An incomplete record is kept: it guards a deletion under way. Raises CoordinationError.
    """
    try:
        names = await zookeeper.children(DeletedTopic.PARENT)
    except NoNodeError:
        return 0
    complete: list[tuple[int, str]] = []
    doomed: list[str] = []
    for part in _parts(f"{DeletedTopic.PARENT}/{name}" for name in names):
        for path, value in zip(part, await zookeeper.get_each(part), strict=True):
            if value is None:
                continue
            record = _decode(path, value.data)
            if record is None or not record.is_complete:
                continue
            age_ms = now_ms - record.timestamp_ms
            if age_ms > RECORD_AGE_MS or (record.topic_id in living and age_ms > VIEW_AGE_MS):
                doomed.append(path)
            else:
                complete.append((record.timestamp_ms, path))
    doomed += [path for _, path in sorted(complete)[: max(len(complete) - MAX_RECORDS, 0)]]
    for part in _parts(doomed):
        await zookeeper.transaction([DeleteNode(path=path) for path in part])
    return len(doomed)


def _decode(path: str, data: bytes) -> DeletedTopic | None:
    """Return the record in the znode at this path; None if it is unreadable."""
    try:
        return DeletedTopic.decode(decode_uuid(path, path.rpartition("/")[2]), data)
    except CoordinationError as error:
        logger.warning("deletion_record_unreadable", error=str(error))
        return None


def _parts(items: Iterable[_Item], size: int = MAX_AT_ONCE) -> Iterator[list[_Item]]:
    """Split the items into lists that each fit one request."""
    left = iter(items)
    while part := list(islice(left, size)):
        yield part
