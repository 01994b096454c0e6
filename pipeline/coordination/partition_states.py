"""Writes the states of many partitions conditionally, a few hundred per transaction, and notifies every broker.

Invariants:

- A state is written only over the version that its writer has read, or created if there was none.
- A state is written only if the topic was not deleted: versions of a recreated topic begin at 0 again, so equal
  versions prove nothing. The transaction requires that no record of the deletion of the topic id exists.
- The same transaction creates a sequential znode below `/isr_change_notification`, which names exactly the partitions
  that it wrote. So a broker that watches this directory misses no change.
- If the answer to a write is lost, the states are read back. States that were written are not written again.
- Partitions that another client wrote meanwhile are left out; they do not stop the others.
- Znodes are created below a topic's znode, but never this znode itself: nothing is written for a deleted topic.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import trio
import trio.lowlevel

from pipeline.coordination.cluster_znodes import STATE_CHANGE_PREFIX, STATE_CHANGES, encode_state_change
from pipeline.coordination.deleted_topics import demand_not_deleted, make_records_directory, record_path
from pipeline.coordination.interface import (
    MAX_AT_ONCE,
    CheckNode,
    CoordinationClient,
    CreateNode,
    NodeValue,
    Operation,
    SetNode,
)
from pipeline.coordination.znodes import (
    PartitionState,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_path,
)
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    BadVersionError,
    CoordinationError,
    CoordinationLostError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from pipeline.model import TopicPartition

NO_ZNODE = -1
RETRY_S = 0.1
WRITTEN_AT_ONCE = MAX_AT_ONCE // 2
"""A new state takes two znodes."""

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """A state to write over `version` (None: create it). `topic_version` from 0 on is required of the topic's znode."""

    topic_id: uuid.UUID
    """Id of the state's topic. Nothing is written once this topic is deleted."""
    state: PartitionState
    version: int | None
    topic_version: int = -1
    checks: Sequence[CheckNode] = ()
    """Further conditions, without which the state is not written."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition whose state it is."""
        return TopicPartition(self.state.topic, self.state.partition)


class Written(NamedTuple):
    """A state and the version of the znode that holds it."""

    state: PartitionState
    version: int


async def write_states(
    zookeeper: CoordinationClient, changes: Sequence[StateChange], checks: Sequence[CheckNode] = ()
) -> dict[TopicPartition, Written | None]:
    """Write the states; return None for each that had another version, or whose checks do not hold. Retries until done.

    Raises BadVersionError or NoNodeError, with its path, for the first of `checks` that does not hold. The transaction
    with this check then wrote nothing; earlier ones may have written theirs.
    """
    results: dict[TopicPartition, Written | None] = {}
    for start in range(0, len(changes), WRITTEN_AT_ONCE):
        batch = _Batch(zookeeper, changes[start : start + WRITTEN_AT_ONCE], checks)
        await batch.write()
        results.update(batch.results)
    return results


async def read_states(
    zookeeper: CoordinationClient, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Written]:
    """Return the states that exist and can be read. Raises CoordinationUnavailableError."""
    found, _ = await look_up_states(zookeeper, partitions)
    return found


async def look_up_states(
    zookeeper: CoordinationClient, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, Written], dict[TopicPartition, int]]:
    """Return as `read_states`, and the znode versions of unreadable states (NO_ZNODE: there is none)."""
    found: dict[TopicPartition, Written] = {}
    others: dict[TopicPartition, int] = {}
    for start in range(0, len(partitions), MAX_AT_ONCE):
        part = partitions[start : start + MAX_AT_ONCE]
        values = await zookeeper.get_each([partition_state_path(*topic_partition) for topic_partition in part])
        for topic_partition, value in zip(part, values, strict=True):
            if value is None:
                others[topic_partition] = NO_ZNODE
                continue
            try:
                found[topic_partition] = Written(PartitionState.decode(*topic_partition, value.data), value.version)
            except CoordinationError as error:
                logger.error("partition_state_unreadable", error=str(error))
                others[topic_partition] = value.version
    return found, others


class _Batch:
    """The states that one transaction writes, and its results."""

    def __init__(
        self, zookeeper: CoordinationClient, changes: Sequence[StateChange], checks: Sequence[CheckNode]
    ) -> None:
        self._zookeeper = zookeeper
        self._checks = checks
        self._pending = {change.state.path: change for change in changes}
        self._is_lost = False
        self.results: dict[TopicPartition, Written | None] = {}

    async def write(self) -> None:
        """Write until each change is written or refused."""
        while self._pending:
            try:
                await self._zookeeper.transaction(await self._operations())
            except (BadVersionError, NoNodeError, NodeExistsError) as error:
                if any(check.path == error.path for check in self._checks):
                    raise
                await self._resolve(error)
            except (CoordinationLostError, CoordinationUnavailableError) as error:
                logger.warning("states_written_again", partitions=len(self._pending), reason=error.reason)
                self._is_lost = self._is_lost or isinstance(error, CoordinationLostError)
                await trio.sleep(RETRY_S)
                await self._read_back()
            else:
                for change in list(self._pending.values()):
                    self._written(change)

    async def _operations(self) -> list[Operation]:
        new = [change.state for change in self._pending.values() if change.version is None]
        operations: list[Operation] = [*self._checks]
        versions = {
            change.state.topic: change.topic_version for change in self._pending.values() if change.topic_version >= 0
        }
        operations += [CheckNode(path=topic_path(topic), version=version) for topic, version in versions.items()]
        for topic_id in dict.fromkeys(change.topic_id for change in self._pending.values()):
            operations += demand_not_deleted(topic_id)
        operations += dict.fromkeys(check for change in self._pending.values() for check in change.checks)
        operations += [CreateNode(path=path) for path in await self._missing_parents(new)]
        for change in self._pending.values():
            path, data = change.state.path, change.state.encode()
            if change.version is None:
                operations.append(CreateNode(path=path, data=data))
            else:
                operations.append(SetNode(path=path, data=data, version=change.version))
        notice = encode_state_change([change.topic_partition for change in self._pending.values()])
        return [*operations, CreateNode(path=STATE_CHANGE_PREFIX, data=notice, sequential=True)]

    async def _missing_parents(self, states: Sequence[PartitionState]) -> list[str]:
        paths = list(dict.fromkeys(partitions_path(state.topic) for state in states))
        paths += [partition_path(state.topic, state.partition) for state in states]
        missing = []
        for start in range(0, len(paths), MAX_AT_ONCE):
            part = paths[start : start + MAX_AT_ONCE]
            found = await self._zookeeper.get_each(part)
            missing += [path for path, value in zip(part, found, strict=True) if value is None]
        return missing

    async def _resolve(self, error: CoordinationError) -> None:
        """Take out the changes because of which a transaction was refused, or create the directory that it missed."""
        if error.path == STATE_CHANGE_PREFIX:
            await self._make_directory()
            return
        record_paths = {record_path(change.topic_id) for change in self._pending.values()}
        if isinstance(error, NoNodeError) and error.path in record_paths:
            await self._make_records_directory()
            return
        gone = [
            change
            for change in self._pending.values()
            if error.path in {topic_path(change.state.topic), record_path(change.topic_id)}
            or any(check.path == error.path for check in change.checks)
            or (isinstance(error, NoNodeError) and error.path == partitions_path(change.state.topic))
        ]
        for change in gone:
            self._refused(change)
        await self._read_back()

    async def _make_directory(self) -> None:
        try:
            await self._zookeeper.create(STATE_CHANGES)
        except (NodeExistsError, CoordinationLostError, CoordinationUnavailableError):
            await trio.lowlevel.checkpoint()

    async def _make_records_directory(self) -> None:
        try:
            await make_records_directory(self._zookeeper)
        except (CoordinationLostError, CoordinationUnavailableError):
            await trio.lowlevel.checkpoint()

    async def _read_back(self) -> None:
        """Take out the changes that are written, and those that cannot be written any more."""
        try:
            found = await self._zookeeper.get_each(list(self._pending))
        except CoordinationUnavailableError:
            return
        for change, value in zip(list(self._pending.values()), found, strict=True):
            if value is None and change.version is not None:
                self._refused(change)
            elif value is not None and value.version != change.version:
                if self._is_lost and value == NodeValue(change.state.encode(), _next_version(change)):
                    self._written(change)
                else:
                    self._refused(change)

    def _written(self, change: StateChange) -> None:
        del self._pending[change.state.path]
        self.results[change.topic_partition] = Written(change.state, _next_version(change))

    def _refused(self, change: StateChange) -> None:
        del self._pending[change.state.path]
        self.results[change.topic_partition] = None


def _next_version(change: StateChange) -> int:
    return 0 if change.version is None else change.version + 1
