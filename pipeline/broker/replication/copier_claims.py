"""Claims of mirrored partitions by copiers: the highest copier epoch of each partition, kept in ZooKeeper.

Several mirror processes share partitions. Each change of a partition's copier has a higher epoch, which the copier
sends with its batches, and claims before it reads the log end offset. Invariants:

A. A leader appends no batch of a copier epoch below the highest one that any leader of the partition has accepted. A
   leader accepts an epoch once it is in the partition's `copier` znode, and reads that znode before it appends the
   first mirrored batch of its leader epoch.
B. The znode is written only if the state of the partition is the one that this leader knows, so a leader that was
   deposed can accept no epoch which its successor has not read. The successor reads in the session that told it of its
   leadership, so what was written before that is in its answer.
C. The znode of an older topic of the same name does not count.
"""

from collections.abc import Iterable
from uuid import UUID

import trio

from pipeline.broker.replication.partition import Partition
from pipeline.coordination.interface import CheckNode, CoordinationClient, CreateNode, NodeValue, SetNode
from pipeline.coordination.znodes import CopierEpoch, copier_path, partition_state_path
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    BadVersionError,
    CoordinationError,
    CoordinationLostError,
    FencedCopierError,
    NodeExistsError,
)
from pipeline.protocol.messages.produce import NO_COPIER_EPOCH
from pipeline.protocol.schema import ZERO_UUID

CLAIMS_AT_ONCE = 32
ATTEMPTS = 10
RETRY_S = 0.02
TIMEOUT_S = 5.0
"""Shorter than the time-outs of mirrors: without ZooKeeper they get an answer that says so."""

logger = get_logger(__name__)


class CopierClaims:
    """Reads and raises the copier epochs of partitions that this broker leads."""

    def __init__(self, zookeeper: CoordinationClient) -> None:
        self._zookeeper = zookeeper
        self._turns = trio.CapacityLimiter(CLAIMS_AT_ONCE)

    async def settle(self, claims: Iterable[tuple[Partition, int]]) -> None:
        """Have each partition's `copier_epoch` known, and raised to the epoch beside it.

        A partition whose epoch cannot be read or written, or that is no longer led here, is left as it is.
        """
        async with trio.open_nursery() as nursery:
            for partition, epoch in claims:
                nursery.start_soon(self._settle, partition, epoch)

    async def _settle(self, partition: Partition, epoch: int) -> None:
        name = str(partition.topic_partition)
        with trio.move_on_after(TIMEOUT_S) as waiting:
            try:
                async with self._turns:
                    await self._raise(partition, epoch)
            except CoordinationError as error:
                logger.warning("copier_epoch_not_settled", topic_partition=name, epoch=epoch, error=str(error))
        if waiting.cancelled_caught:
            reason = f"ZooKeeper did not answer within {TIMEOUT_S:g} s"
            logger.warning("copier_epoch_not_settled", topic_partition=name, epoch=epoch, error=reason)

    async def _raise(self, partition: Partition, epoch: int) -> None:
        path = copier_path(*partition.topic_partition)
        for _ in range(ATTEMPTS):
            if (leadership := partition.leadership) is None or not awaits_claim(partition, epoch):
                return
            state, leader_epoch, topic_id = (
                leadership.state,
                partition.leader_epoch,
                partition.log.topic_id or ZERO_UUID,
            )
            found = await self._zookeeper.get_or_none(path)
            known = _known(path, found, topic_id)
            if known < epoch:
                data = CopierEpoch(topic_id=topic_id, epoch=epoch).encode()
                write: CreateNode | SetNode = CreateNode(path=path, data=data)
                if found is not None:
                    write = SetNode(path=path, data=data, version=found.version)
                guard = CheckNode(path=partition_state_path(*partition.topic_partition), version=state.version)
                try:
                    await self._zookeeper.transaction([guard, write])  # invariant B
                except (BadVersionError, NodeExistsError, CoordinationLostError):
                    await trio.sleep(RETRY_S)  # the ISR changes, or the answer was lost: read both again
                    continue
                known = epoch
                logger.info("copier_epoch_claimed", topic_partition=str(partition.topic_partition), epoch=epoch)
            if partition.leadership is leadership and partition.leader_epoch == leader_epoch:
                partition.copier_epoch = max(known, partition.copier_epoch or NO_COPIER_EPOCH)
                return
        raise CoordinationError(path, "could not be written: the state of the partition changes all the time")


def awaits_claim(partition: Partition, epoch: int) -> bool:
    """Return True if a copier of this epoch must wait until its claim is settled."""
    return partition.copier_epoch is None or epoch > partition.copier_epoch


def check_copier(partition: Partition, epoch: int) -> None:
    """Raise FencedCopierError if a newer copier has claimed the partition; CoordinationError if that is not known."""
    known = partition.copier_epoch
    if known is None or epoch > known:
        path = copier_path(*partition.topic_partition)
        raise CoordinationError(path, "the copier epoch cannot be read or written: does the broker reach ZooKeeper?")
    if epoch >= known:
        return
    name = partition.topic_partition
    if epoch == NO_COPIER_EPOCH:
        raise FencedCopierError(
            f"{name} belongs to a group of mirrors, copier epoch {known}. Give this mirror their zookeeper.connect and "
            "mirror.group, also if it is the only one now."
        )
    raise FencedCopierError(f"{name} has a newer copier: its epoch is {known}, this copier's is {epoch}.")


def _known(path: str, found: NodeValue | None, topic_id: UUID) -> int:
    """Return the epoch in the znode, -1 if it has none of this topic. Raises CoordinationError."""
    if found is None:
        return NO_COPIER_EPOCH
    kept = CopierEpoch.decode(path, found.data)
    return kept.epoch if kept.topic_id == topic_id else NO_COPIER_EPOCH  # invariant C
