"""Claims the leadership of partitions in ZooKeeper: many partitions of a topic by one request to read and one to write.

Invariants:

- Each claim writes the leader epoch after the one it found, on the condition that nobody wrote meanwhile.
- A write whose answer was lost is read back: what it wrote counts, and is not written again.
- Where somebody else wrote, all of the request was refused: then each partition is claimed by a request of its own.
- Znodes are made below a topic's znode, never that itself: nothing is claimed of a topic that is gone.
"""

from collections.abc import Mapping, Sequence

import structlog
import trio

from pipeline.coordination.interface import CoordinationClient, CreateNode, NodeValue, Operation, SetNode
from pipeline.coordination.znodes import (
    PartitionState,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_path,
)
from pipeline.errors import (
    BadVersionError,
    CoordinationLostError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from pipeline.model import BrokerId, LeaderEpoch

RETRY_S = 0.1
NO_CONTROLLER_EPOCH = 0

log = structlog.get_logger()


async def claim(
    zookeeper: CoordinationClient, leader: BrokerId, topic: str, indexes: Sequence[int]
) -> Mapping[int, PartitionState]:
    """Write this broker as the leader of at most `MAX_AT_ONCE` partitions; none of a topic that is gone meanwhile.

    Goes on until it is answered. Raises CoordinationError for a znode that cannot be read.
    """
    claims = _Claims(zookeeper, leader, topic)
    pending = list(indexes)
    while pending:
        at_once = pending[:1] if claims.is_disputed else pending
        try:
            if not await claims.write(at_once):
                break
        except (BadVersionError, NoNodeError, NodeExistsError):
            continue
        except (CoordinationLostError, CoordinationUnavailableError) as error:
            log.warning("claim_repeated", topic=topic, partitions=len(at_once), reason=error.reason)
            await trio.sleep(RETRY_S)
        else:
            pending = pending[len(at_once) :]
    return claims.written


class _Claims:
    """What is known while the claims of one topic are written."""

    def __init__(self, zookeeper: CoordinationClient, leader: BrokerId, topic: str) -> None:
        self._zookeeper = zookeeper
        self._leader = leader
        self._topic = topic
        self._lost: dict[int, NodeValue] = {}
        """What the states hold if writes whose answer was lost were carried out."""
        self._half_made: set[str] = set()
        """Znodes of partitions that are there without a state."""
        self.written: dict[int, PartitionState] = {}
        self.is_disputed = False

    async def write(self, indexes: Sequence[int]) -> bool:
        """Read and write once; False if the topic is gone. Raises as a transaction does."""
        paths = [partition_state_path(self._topic, index) for index in indexes]
        found = dict(zip(indexes, await self._zookeeper.get_each(paths), strict=True))
        for index, value in found.items():
            if value is not None and value == self._lost.get(index):
                self.written[index] = PartitionState.decode(self._topic, index, value.data)
        states = {index: self._next(index, value) for index, value in found.items() if index not in self.written}
        operations = [operation for index in states for operation in self._operations(states[index], found[index])]
        try:
            await self._zookeeper.transaction(operations)
        except NodeExistsError as error:
            self._half_made.add(error.path)
            self.is_disputed = True
            raise
        except NoNodeError:
            return await self._make_parent()
        except BadVersionError:
            self.is_disputed = True
            raise
        except CoordinationLostError:
            for index, state in states.items():
                before = found[index]
                self._lost[index] = NodeValue(state.encode(), 0 if before is None else before.version + 1)
            raise
        self.written.update(states)
        return True

    def _next(self, index: int, found: NodeValue | None) -> PartitionState:
        epoch = 0
        if found is not None:
            epoch = PartitionState.decode(self._topic, index, found.data).leader_epoch + 1
        return PartitionState(
            topic=self._topic,
            partition=index,
            leader=self._leader,
            leader_epoch=LeaderEpoch(epoch),
            isr=(self._leader,),
            controller_epoch=NO_CONTROLLER_EPOCH,
        )

    def _operations(self, state: PartitionState, found: NodeValue | None) -> Sequence[Operation]:
        if found is not None:
            return [SetNode(path=state.path, data=state.encode(), version=found.version)]
        make_state = CreateNode(path=state.path, data=state.encode())
        parent = partition_path(self._topic, state.partition)
        return [make_state] if parent in self._half_made else [CreateNode(path=parent), make_state]

    async def _make_parent(self) -> bool:
        """Something is not there: False if it is the topic. Raises NoNodeError if something else, to begin again."""
        parent = partitions_path(self._topic)
        if await self._zookeeper.exists(topic_path(self._topic)) is None:
            return False
        self._half_made.clear()
        await self._zookeeper.create(parent, make_parents=False)
        raise NoNodeError(parent, "was not there")
