"""Strays: removes logs that this broker holds and does not serve, or keeps them as strays.

Invariants:

- A log is removed if there is a record that its topic, by its id, was deleted (`deleted_topics`), and no topic of that
  id in the view. A topic's absence from ZooKeeper is no reason: ZooKeeper may have lost it, or hold an older backup.
- A log of a living topic that is assigned to other brokers alone is removed once the leader of the partition has
  reported that it holds all that the log holds, and this broker has left the ISR (`leave_moved_away`). An assignment
  alone is no reason: it may be an old one. A log that could not be removed then is removed later without leaving again.
- Every other log is a stray: kept, named in `strays` and in the log of the broker, opened when its topic returns.
- A replica that is about to be opened is neither removed nor a stray.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import trio

from pipeline.broker.cluster.own_states import leave_moved_away
from pipeline.broker.cluster.state_watcher import patiently
from pipeline.broker.cluster.view import ClusterView, PartitionView
from pipeline.broker.replicas.replicas import Replicas
from pipeline.coordination.deleted_topics import find_deleted
from pipeline.coordination.interface import CoordinationClient
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.log.directories.logs_set_aside import HeldLog, LogName
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.net.connection_pool import ConnectionPool, open_connection_pool
from pipeline.net.dialing import Dialer
from pipeline.net.signals import Wakeup
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

FIRST_RETRY_S = 0.2
LOOK_AGAIN_S = 10.0
ASK_TIMEOUT_S = 10.0
ASKED_AT_ONCE = 1_000
NAMED_IN_LOG = 20

UNKNOWN_TOPIC = "ZooKeeper has no topic of this id, and no record of its deletion"
OTHER_TOPIC = "another topic has this name, and there is no record that the topic of this id was deleted"
NOT_REMOVED = "the log could not be removed; the broker's log says why, and the broker tries again"
WITHOUT_ID = "the log has no topic id, and no topic of this name is assigned to this broker"
ASSIGNED_ELSEWHERE = (
    "the partition is assigned to other brokers, whose leader has not reported that it holds all of this log"
)

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A log that is kept and not served, and why."""

    name: LogName
    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question to a leader whether it holds all of this log."""

    held: HeldLog
    leader: BrokerId
    request: OffsetForLeaderPartition
    end_offset: int

    def is_answered(self, answer: EpochEndOffset) -> bool:
        """Return True if the leader's log has the last record of this one, and so all before it."""
        return (
            answer.error_code == ErrorCode.NONE
            and answer.leader_epoch == self.request.leader_epoch
            and answer.end_offset >= self.end_offset
        )


class Release(NamedTuple):
    """The assignment of a topic when its log was released, and the first leader epoch in which no ISR has that log."""

    assignment_version: int
    leader_epoch: LeaderEpoch


@dataclass(slots=True, eq=False)
class StrayKeeper:
    """The task that decides. `strays` are the logs that are kept now."""

    zookeeper: CoordinationClient
    view: ClusterView
    replicas: Replicas
    own_id: BrokerId
    dialer: Dialer
    strays: Sequence[Stray] = ()
    looked: Wakeup = field(default_factory=Wakeup)
    """Set after each look."""
    _covered: frozenset[LogName] = frozenset()
    """Logs that their leaders held completely at the last look."""
    _releases: dict[LogName, Release] = field(default_factory=dict)
    _waits: int = 0
    """Looks in a row after which logs waited for their leaders."""
    _looking: trio.Lock = field(default_factory=trio.Lock)
    """Held during a look: logs that another look is removing would be missing in `strays`."""

    def topic_ids(self, topic: str) -> Set[uuid.UUID | None]:
        """Return the topic ids of the strays that belong to topics of this name."""
        return {stray.name.topic_id for stray in self.strays if stray.name.topic_partition.topic == topic}

    async def run(self) -> None:
        """Decide until cancelled, whenever the strays have changed, and from time to time."""
        while True:
            with trio.move_on_after(self._pause_s()):
                await self.replicas.strays_changed.wait_and_clear()
                self._waits = 0
            await self.look()

    def _pause_s(self) -> float:
        if not self.strays:
            return float("inf")
        return min(FIRST_RETRY_S * (1 << min(self._waits, 16)), LOOK_AGAIN_S)

    async def look(self) -> None:
        """Remove the logs that may be removed, and name the others in `strays`."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        held = [found for found in await self.replicas.strays() if not self._is_wanted(found.name)]
        self._releases = {found.name: self._releases[found.name] for found in held if self._is_released(found.name)}
        ids = {found.name.topic_id for found in held if found.name.topic_id is not None}
        deleted = await patiently(lambda: find_deleted(self.zookeeper, ids)) if ids else set()
        confirmed = await self._confirmed([found for found in held if self._is_elsewhere(found.name)])
        released = await self._released([found for found in confirmed if self._is_elsewhere(found.name)])
        doomed = [found for found in held if found.name.topic_id in deleted and not self._lives(found.name)]
        doomed += [found for found in released if self._is_elsewhere(found.name)]
        if doomed:
            await self.replicas.remove(doomed)
            looked_at = {found.name for found in held}  # logs of topics deleted meanwhile are for the next look
            held = [found for found in await self.replicas.strays() if found.name in looked_at]
            kept = {found.path for found in held}
            _report_removed([found for found in doomed if found.path not in kept])
        self._keep([found for found in held if not self._is_wanted(found.name)], {found.name for found in doomed})
        self.looked.set()

    def _lives(self, name: LogName) -> bool:
        topic = self.view.topic(name.topic_partition.topic)
        return topic is not None and topic.topic_id == name.topic_id

    def _is_wanted(self, name: LogName) -> bool:
        """True if the partition of this log is assigned to this broker, which is about to open the log."""
        found = self._partition(name)
        return found is not None and self.own_id in found.replicas

    def _is_elsewhere(self, name: LogName) -> bool:
        found = self._partition(name)
        return name.topic_id is not None and found is not None and self.own_id not in found.replicas

    def _partition(self, name: LogName) -> PartitionView | None:
        """Return the partition that the log belongs to; a log without a topic id belongs to any topic of its name."""
        topic = self.view.topic(name.topic_partition.topic)
        if topic is None or name.topic_id not in {None, topic.topic_id}:
            return None
        return topic.partitions.get(name.topic_partition.partition)

    def _reason(self, name: LogName, doomed: Set[LogName]) -> str:
        if name in doomed:
            return NOT_REMOVED
        if name.topic_id is None:
            return WITHOUT_ID
        if self._is_elsewhere(name):
            return ASSIGNED_ELSEWHERE
        return UNKNOWN_TOPIC if self.view.topic(name.topic_partition.topic) is None else OTHER_TOPIC

    def _keep(self, held: Iterable[HeldLog], doomed: Set[LogName]) -> None:
        known = {stray.name for stray in self.strays}
        self.strays = [
            Stray(name=found.name, path=found.path, reason=self._reason(found.name, doomed)) for found in held
        ]
        self._waits += 1
        new = [stray for stray in self.strays if stray.name not in known]
        for stray in new[:NAMED_IN_LOG]:
            logger.warning("stray_log", path=str(stray.path), topic_id=str(stray.name.topic_id), reason=stray.reason)
        if len(new) > NAMED_IN_LOG:
            logger.warning("stray_logs", count=len(new), advice="`pipeline cluster describe` names all")

    # Replicas that are assigned elsewhere

    async def _confirmed(self, held: Sequence[HeldLog]) -> Sequence[HeldLog]:
        """Return the logs whose records are all held by the leaders of their partitions."""
        confirmed: list[HeldLog] = []
        questions: dict[BrokerId, list[Question]] = {}
        for found in held:
            question = self._question(found)
            if isinstance(question, Question):
                questions.setdefault(question.leader, []).append(question)
            elif question:
                confirmed.append(found)
        if questions:
            async with open_connection_pool(f"broker-{self.own_id}-strays", self.dialer) as pool:
                for leader, asked in questions.items():
                    for start in range(0, len(asked), ASKED_AT_ONCE):
                        confirmed += await self._ask(pool, leader, asked[start : start + ASKED_AT_ONCE])
        self._covered = frozenset(found.name for found in confirmed)
        return confirmed

    async def _released(self, confirmed: Sequence[HeldLog]) -> Sequence[HeldLog]:
        """Leave the ISRs of these logs and return those left; else an empty log could lead after another reassignment.

        A log that could not be removed then is not released again: each time raises the leader epoch.
        """
        names = dict.fromkeys(found.name.topic_partition for found in confirmed if found.name not in self._releases)
        released = await leave_moved_away(self.zookeeper, self.view, self.own_id, list(names)) if names else ()
        for found in confirmed:
            partition, topic = self._partition(found.name), self.view.topic(found.name.topic_partition.topic)
            if found.name.topic_partition in released and partition is not None and topic is not None:
                self._releases[found.name] = Release(topic.assignment_version, partition.leader_epoch)
        return [found for found in confirmed if found.name in self._releases]

    def _is_released(self, name: LogName) -> bool:
        """True if no ISR has had this log since its release: the partition was not assigned to this broker since."""
        then, partition = self._releases.get(name), self._partition(name)
        topic = self.view.topic(name.topic_partition.topic)
        return (
            then is not None
            and partition is not None
            and topic is not None
            and topic.assignment_version == then.assignment_version
            and partition.leader_epoch >= then.leader_epoch
            and not partition.is_spent
            and self.own_id not in partition.isr
        )

    def _question(self, found: HeldLog) -> Question | bool:
        """Return the question for the leader; True if it is not needed, False if no leader can be asked."""
        partition = self._partition(found.name)
        open_log = found.log
        if partition is not None and open_log is None:  # it could not be removed, and nothing was appended since
            return found.name in self._covered
        if partition is None or open_log is None or open_log.failure is not None:
            return False
        if open_log.log_start_offset == open_log.log_end_offset:
            return True
        request = OffsetForLeaderPartition(
            partition=found.name.topic_partition.partition,
            current_leader_epoch=partition.leader_epoch,
            leader_epoch=open_log.last_epoch,
        )
        if partition.leader not in self.view.brokers:
            return False
        return Question(held=found, leader=partition.leader, request=request, end_offset=open_log.log_end_offset)

    async def _ask(self, pool: ConnectionPool, leader: BrokerId, asked: Sequence[Question]) -> Sequence[HeldLog]:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for question in asked:
            topics.setdefault(question.held.name.topic_partition.topic, []).append(question.request)
        request = OffsetForLeaderEpochRequest(
            replica_id=self.own_id,
            topics=[OffsetForLeaderTopic(topic=topic, partitions=wanted) for topic, wanted in topics.items()],
        )
        endpoint = self.view.brokers.get(leader)
        if endpoint is None:
            return ()
        try:
            response = await pool.request(endpoint.address, request, timeout_s=ASK_TIMEOUT_S)
        except PipelineError as error:
            logger.info("leader_not_asked", leader=leader, error=str(error))
            return ()
        assert isinstance(response, OffsetForLeaderEpochResponse)
        answers: Mapping[TopicPartition, EpochEndOffset] = {
            TopicPartition(topic.topic, answer.partition): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        return [
            question.held
            for question in asked
            if (answer := answers.get(question.held.name.topic_partition)) is not None and question.is_answered(answer)
        ]


def _report_removed(doomed: Sequence[HeldLog]) -> None:
    for found in doomed[:NAMED_IN_LOG]:
        logger.info("replica_removed", path=str(found.path), topic_id=str(found.name.topic_id))
    if len(doomed) > NAMED_IN_LOG:
        logger.info("replicas_removed", count=len(doomed))
