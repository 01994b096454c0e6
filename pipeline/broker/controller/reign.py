"""Reign of one controller: looks at what has changed, has `controller_plan` decide, and writes the decisions.

Invariants:

- One plan is written at a time, each on what the view said when it was made. A state that another broker wrote
  meanwhile is left out, read, and planned again.
- Every write demands the version of `/controller_epoch`. Once the version is another, this reign writes nothing more.
- Replicas are dropped only while the states are those by which others are in sync: a dropped replica deletes its log.
  A state is written only while the assignment is the one that it was planned for: no dropped replica is elected.
- A state that names a leader is written only while the brokers that it relies on (rule 7 of `controller_plan`) are in
  the lives, and have the registrations, that the view knows: the view may lag behind a broker that lost its log.
- Before an unclean election is written, ZooKeeper is asked again which brokers are alive. A partition with an in-sync
  replica that is registered waits for it, however little is known of that broker, and is judged after `HELD_BACK_S`.
- A state that ZooKeeper lost is left to its leader for `LEADER_FIRST_S`: no other broker knows its ISR as well.
"""

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from pipeline.broker.cluster.own_states import ElectionCounts
from pipeline.broker.cluster.spent_epochs import LEADER_FIRST_S
from pipeline.broker.cluster.state_watcher import StateWatcher, patiently
from pipeline.broker.cluster.view import ClusterView, TopicView
from pipeline.broker.controller.controller_plan import (
    ClusterState,
    ControllerPlan,
    Decision,
    ElectPreferred,
    ElectUnclean,
    Event,
    Look,
    Rebalance,
    is_catching_up,
    is_reassigned,
    plan,
    target_replicas,
)
from pipeline.broker.controller.deletions import tend_deletions
from pipeline.broker.controller.reassignment import Reassigned, Target, TargetResult, ended, reassign
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.coordination.cluster_znodes import STATE_CHANGES, ControllerEpoch
from pipeline.coordination.deleted_topics import demand_not_deleted, make_records_directory
from pipeline.coordination.interface import MAX_AT_ONCE, CheckNode, CoordinationClient, DeleteNode, Operation, SetNode
from pipeline.coordination.partition_states import RETRY_S, StateChange, write_states
from pipeline.coordination.znodes import (
    PartitionState,
    TopicAssignment,
    broker_epoch_path,
    broker_path,
    partition_state_path,
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
from pipeline.model import BROKER_IDS, NO_BROKER_EPOCH, BrokerId, Clock, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.settings import MAX_INT32

NOTIFICATIONS_KEPT = 100
PURGE_INTERVAL_S = 5.0
REFUSED_S = 1.0
HELD_BACK_S = 1.0
STATES_CHECK_INTERVAL_S = 30.0
"""Period in which states are compared with those in ZooKeeper, where they may have been removed or overwritten."""
NEVER_A_VERSION = MAX_INT32
"""A version that no znode reaches."""
QUIET_S = 10.0
"""Time without a change of the live brokers after which leaders are spread."""

logger = get_logger(__name__)


def _lives(view: ClusterView) -> object:
    """Return the live brokers with their epochs, and those that are shutting down."""
    return {broker: endpoint.epoch for broker, endpoint in view.brokers.items()}, view.shutting_down


class _Dethroned(Exception):
    """Another controller has begun."""


@dataclass(slots=True, eq=False)
class Reign:
    """The work of a controller in one controller epoch."""

    zookeeper: CoordinationClient
    settings: DynamicSettings
    view: ClusterView
    states: StateWatcher
    epoch: int
    check: CheckNode
    """The demand that `/controller_epoch` is unchanged, part of every write."""
    counts: ElectionCounts
    clock: Clock
    _writing: trio.Lock = field(default_factory=trio.Lock)
    _held_back: set[str] = field(default_factory=set)
    """Topics to judge again, for their decisions wait or were refused."""
    _waited_for: Mapping[TopicPartition, Sequence[BrokerId]] = field(default_factory=dict)
    """The in-sync replicas for which unclean elections waited last."""
    _is_over: bool = False

    async def run(self) -> None:
        """Reign until cancelled, or until another controller has begun."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._purge_for_ever)
                nursery.start_soon(self._rebalance_for_ever)
                nursery.start_soon(tend_deletions, self.zookeeper, self.view, self.clock)
                nursery.start_soon(self._rebalance_after_returns)
                nursery.start_soon(self._check_states_for_ever)
                nursery.start_soon(self._look_for_ever, nursery.cancel_scope)
                await self._wait_until_superseded()
                nursery.cancel_scope.cancel()
        finally:
            self._is_over = True

    # Looking

    async def _wait_until_superseded(self) -> None:
        """Return when another epoch is written: in a cluster at rest no refused write would show that."""
        async for value in self.zookeeper.watch_data(ControllerEpoch.PATH):
            if value is None or value.version != self.check.version:
                logger.warning("controller_superseded", epoch=self.epoch)
                self._is_over = True
                return

    async def _look_for_ever(self, reign: trio.CancelScope) -> None:
        """Judge what has changed until a write shows that another controller has begun, then end the reign."""
        changes = self.view.changes()
        brokers: object = None
        try:
            while not self._is_over:
                with trio.move_on_after(HELD_BACK_S if self._held_back else math.inf):
                    await changes.wait()
                names: Sequence[str] = sorted({*changes.take(), *self._held_back})
                self._held_back.clear()
                if brokers != (brokers := (*self._brokers(), self.view.offline_replicas)):
                    names = [topic.name for topic in self.view.topics()]
                try:
                    await self._act(Look(), names)
                except CoordinationError as error:  # waiting for ZooKeeper would not help
                    logger.error("controller_cannot_write", error=str(error))
                    changes.note(*names)
                    await trio.sleep(REFUSED_S)
        except _Dethroned:
            logger.warning("controller_superseded", epoch=self.epoch)
            reign.cancel()
        finally:
            self.view.stop_noting(changes)

    def _brokers(self) -> tuple[frozenset[BrokerId], frozenset[BrokerId]]:
        return frozenset(self.view.brokers), self.view.shutting_down

    async def _act(
        self, event: Event, names: Sequence[str] | None = None
    ) -> tuple[ControllerPlan, Sequence[TopicPartition]]:
        """Plan for these topics (None: all), write the plan, read refused states. Return both. Raises _Dethroned."""
        async with self._writing:
            state = self._state(names)
            planned = self._left_to_leaders(plan(state, event))
            if planned.is_empty:
                return planned, ()
            topics = {topic.name: topic for topic in state.topics}
            asking = self.view.asking(decision.topic_partition for decision in planned.decisions)
            if any(decision.is_unclean for decision in planned.decisions):
                planned = await self._confirmed(planned, topics)
            changes = [self._change(decision, topics[decision.topic_partition.topic]) for decision in planned.decisions]
            try:
                results = await write_states(self.zookeeper, changes, [self.check])
            except (BadVersionError, NoNodeError) as error:
                raise self._dethroned() from error
            self.view.accept_states(
                asking, {topic_partition: found for topic_partition, found in results.items() if found is not None}
            )
            written = [item for item in planned.decisions if results[item.topic_partition] is not None]
            self._report(written)
            refused = [topic_partition for topic_partition, found in results.items() if found is None]
            if refused:
                await self.states.read(refused)
                # Judge them again even if what was read is unchanged: a record of a deletion may refuse states for some
                # minutes.
                self._held_back.update(topic_partition.topic for topic_partition in refused)
            await self._end_reassignments(planned.over)
            return planned, refused

    def _state(self, names: Sequence[str] | None) -> ClusterState:
        found = self.view.topics() if names is None else map(self.view.topic, names)
        topics = [topic for topic in found if topic is not None]
        live, shutting_down = self._brokers()
        return ClusterState(
            topics=topics, live=live, shutting_down=shutting_down, offline_replicas=self.view.offline_replicas
        )

    def _left_to_leaders(self, planned: ControllerPlan) -> ControllerPlan:
        """Return the plan without states that ZooKeeper lost just now. They are judged again."""
        now_s = trio.current_time()
        waiting = {
            item.topic_partition
            for item in planned.decisions
            if item.before.is_spent and now_s < item.before.lost_s + LEADER_FIRST_S
        }
        self._held_back.update(topic_partition.topic for topic_partition in waiting)
        return replace(planned, decisions=[item for item in planned.decisions if item.topic_partition not in waiting])

    async def _confirmed(self, planned: ControllerPlan, topics: Mapping[str, TopicView]) -> ControllerPlan:
        """Return the plan without unclean elections of partitions with an in-sync replica that is registered and has
        its disk, and without topics that were deleted or recreated meanwhile.
        """
        names = await patiently(partial(self.zookeeper.children, BROKER_IDS))
        registered = {BrokerId(int(name)) for name in names if name.isascii() and name.isdecimal()}
        offline = self.view.offline_replicas
        held_back = {
            item.topic_partition: waited_for
            for item in planned.decisions
            if item.is_unclean
            and (
                waited_for := [
                    broker
                    for broker in sorted(registered & set(item.before.isr))
                    if item.topic_partition not in offline.get(broker, ())
                ]
            )
        }
        for topic_partition, waited_for in held_back.items():
            if self._waited_for.get(topic_partition) != waited_for:
                logger.warning(
                    "unclean_election_held_back", topic_partition=str(topic_partition), registered=waited_for
                )
        self._waited_for = held_back
        self._held_back.update(topic_partition.topic for topic_partition in held_back)
        gone = {name for name, topic in topics.items() if not self._is_known(topic)}
        results = dict(planned.results)
        for topic_partition in results:
            if topic_partition in held_back:
                results[topic_partition] = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            elif topic_partition.topic in gone:
                results[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        decisions = [
            item
            for item in planned.decisions
            if item.topic_partition not in held_back and item.topic_partition.topic not in gone
        ]
        return replace(planned, decisions=decisions, results=results)

    def _is_known(self, topic: TopicView) -> bool:
        """True if the topic was neither deleted nor recreated since it was read."""
        found = self.view.topic(topic.name)
        return found is not None and found.topic_id == topic.topic_id

    def _change(self, decision: Decision, topic: TopicView) -> StateChange:
        topic_partition = decision.topic_partition
        state = PartitionState(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            leader=decision.leader,
            leader_epoch=decision.leader_epoch,
            isr=decision.isr,
            controller_epoch=self.epoch,
        )
        known = decision.before.state_version
        return StateChange(
            topic_id=topic.topic_id,
            state=state,
            version=known if known >= 0 else None,
            topic_version=topic.assignment_version,
            checks=[check for broker in decision.relies_on for check in self._life_checks(broker)],
        )

    def _life_checks(self, broker: BrokerId) -> Sequence[CheckNode]:
        """Return the demand that a broker is in the life, and has the registration, that the view knows."""
        version, known = self.view.registrations.get(broker), self.view.brokers.get(broker)
        # This broker is in the view before its own registration is.
        checks = [CheckNode(path=broker_path(broker), version=NEVER_A_VERSION if version is None else version)]
        if known is not None and known.epoch != NO_BROKER_EPOCH:
            checks.append(CheckNode(path=broker_epoch_path(broker), version=known.epoch))
        return checks

    def _dethroned(self) -> _Dethroned:
        self._is_over = True
        return _Dethroned()

    def _report(self, written: Sequence[Decision]) -> None:
        elected = [decision for decision in written if decision.is_election and decision.before.has_state]
        self.counts.leader_elections += len(elected)
        for decision in elected:
            if decision.is_unclean:
                self.counts.unclean_elections += 1
                logger.warning(
                    "unclean_leader_election",
                    topic_partition=str(decision.topic_partition),
                    leader=decision.leader,
                    epoch=decision.leader_epoch,
                    lost_isr=decision.before.isr,
                )
        if written:
            offline = sum(1 for decision in written if decision.leader < 0)
            logger.info("states_written", count=len(written), elections=len(elected), offline=offline)

    # By hand

    async def elect(self, event: ElectPreferred | ElectUnclean) -> Mapping[TopicPartition, ErrorCode]:
        """Elect leaders by hand. Raises KafkaError (NOT_CONTROLLER)."""
        results: dict[TopicPartition, ErrorCode] = {}
        try:
            while True:
                planned, refused = await self._act(event)
                results.update(planned.results)
                if not refused:
                    return results
                event = replace(event, partitions=refused)
                await trio.sleep(RETRY_S)  # the view may be about to learn why
        except _Dethroned as error:
            raise KafkaError(ErrorCode.NOT_CONTROLLER) from error

    async def reassign(
        self, targets: Mapping[TopicPartition, Target], *, may_change_factor: bool
    ) -> Mapping[TopicPartition, TargetResult]:
        """Begin or stop reassignments. Raises KafkaError (NOT_CONTROLLER)."""
        wanted: dict[str, dict[int, Target]] = {}
        for (topic, index), target in targets.items():
            wanted.setdefault(topic, {})[index] = target
        outcomes = {}
        for topic, of_topic in sorted(wanted.items()):
            try:
                async with self._writing:
                    found = await self._reassign_topic(topic, of_topic, may_change_factor=may_change_factor)
            except _Dethroned as error:
                raise KafkaError(ErrorCode.NOT_CONTROLLER) from error
            outcomes.update({TopicPartition(topic, index): outcome for index, outcome in found.items()})
        return outcomes

    async def _reassign_topic(
        self, name: str, targets: Mapping[int, Target], *, may_change_factor: bool
    ) -> Mapping[int, TargetResult]:
        decided: Reassigned | None = None
        while True:
            if self.view.topic(name) is None:  # an illegal name could make the path of another topic's znode
                return dict.fromkeys(targets, TargetResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            value = await patiently(partial(self.zookeeper.get_or_none, topic_path(name)))
            topic = self.view.topic(name)
            if value is None or topic is None:
                return dict.fromkeys(targets, TargetResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            current = TopicAssignment.decode(name, value.data)
            if current.id != topic.topic_id:  # recreated, which is about to be seen
                return dict.fromkeys(targets, TargetResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            if decided is not None and current == decided.assignment:  # written, but the answer was lost
                return decided.results
            decided = reassign(
                current, topic.partitions, targets, self.view.brokers, may_change_factor=may_change_factor
            )
            if decided.assignment == current:
                return decided.results
            checks = [
                CheckNode(path=partition_state_path(name, index), version=topic.partitions[index].state_version)
                for index in decided.losing_replicas
                if topic.partitions[index].state_version >= 0
            ]
            write = SetNode(path=decided.assignment.path, data=decided.assignment.encode(), version=value.version)
            try:
                is_written = await self._write([*checks, write], current.id)
            except NodeExistsError:
                return dict.fromkeys(targets, TargetResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            if is_written:
                logger.info("reassignment_begun", topic=name, partitions=sorted(targets))
                return decided.results
            await self.states.read([TopicPartition(name, index) for index in decided.losing_replicas])

    async def _end_reassignments(self, over: Iterable[TopicPartition]) -> None:
        by_topic: dict[str, list[int]] = {}
        for topic_partition in over:
            by_topic.setdefault(topic_partition.topic, []).append(topic_partition.partition)
        for topic, indexes in by_topic.items():
            while not await self._end_of_topic(topic, indexes):
                logger.info("reassignment_end_repeated", topic=topic)

    async def _end_of_topic(self, topic: str, indexes: Sequence[int]) -> bool:
        """Write the end of the reassignments that are over, unless their states have changed; False to try again.

        True also if there are none, or the topic was deleted or recreated, which the view is about to show.
        """
        value = await patiently(partial(self.zookeeper.get_or_none, topic_path(topic)))
        known = self.view.topic(topic)
        if value is None or known is None or value.version != known.assignment_version:
            return True
        found = {index: known.partitions[index] for index in indexes if index in known.partitions}
        over = {index: partition for index, partition in found.items() if is_reassigned(partition)}
        if not over:
            return True
        assignment = TopicAssignment.decode(topic, value.data)
        if assignment.id != known.topic_id:
            return True
        assignment = ended(assignment, {index: target_replicas(partition) for index, partition in over.items()})
        checks = [
            CheckNode(path=partition_state_path(topic, index), version=partition.state_version)
            for index, partition in over.items()
        ]
        write = SetNode(path=assignment.path, data=assignment.encode(), version=value.version)
        try:
            is_written = await self._write([*checks, write], assignment.id)
        except NodeExistsError:
            return True
        if is_written:
            logger.info("reassignment_over", topic=topic, partitions=sorted(over))
        else:
            await self.states.read([TopicPartition(topic, index) for index in over])
        return is_written

    async def _write(self, operations: Sequence[Operation], topic_id: uuid.UUID) -> bool:
        """Return True if the operations were written; if not, the caller must read and decide again.

        Raises _Dethroned, and NodeExistsError if the topic of this id was deleted.
        """
        try:
            await make_records_directory(self.zookeeper)
            await self.zookeeper.transaction([self.check, *demand_not_deleted(topic_id), *operations])
        except (BadVersionError, NoNodeError) as error:
            if error.path == self.check.path:
                raise self._dethroned() from error
            return False
        except (CoordinationLostError, CoordinationUnavailableError):
            await trio.sleep(RETRY_S)
            return False
        return True

    # Periodic work

    async def _rebalance_for_ever(self) -> None:
        while not self._is_over:
            config = self.settings.current
            await trio.sleep(config.leader_imbalance_check_interval_seconds)
            if config.auto_leader_rebalance:
                with suppress(CoordinationError, _Dethroned):  # tried again the next time; `_Dethroned` ends the loop
                    await self._act(Rebalance(config.leader_imbalance_per_broker_percentage))

    async def _rebalance_after_returns(self) -> None:
        """Spread the leaders once after each change of the live brokers, when the cluster is quiet and in sync.

        While brokers are restarted one after the other no leader is moved: the next restart would move it again.
        """
        spread: object = None
        while not self._is_over:
            lives = _lives(self.view)

            def has_changed(view: ClusterView, known: object = lives) -> bool:
                return _lives(view) != known

            with trio.move_on_after(math.inf if lives == spread else QUIET_S) as quiet:
                await self.view.wait_until(has_changed)
            config = self.settings.current
            if quiet.cancelled_caught and config.auto_leader_rebalance and not is_catching_up(self._state(None)):
                with suppress(CoordinationError, _Dethroned):  # tried again after the next while, or over
                    await self._act(Rebalance(config.leader_imbalance_per_broker_percentage))
                    spread = lives

    async def _check_states_for_ever(self) -> None:
        while not self._is_over:
            await trio.sleep(STATES_CHECK_INTERVAL_S)
            await self.states.read_all()

    async def _purge_for_ever(self) -> None:
        """Delete all but the newest notifications: a broker that missed an older one reads all states again."""
        while not self._is_over:
            await trio.sleep(PURGE_INTERVAL_S)
            try:
                old = (await self.zookeeper.children(STATE_CHANGES))[:-NOTIFICATIONS_KEPT]
                for start in range(0, len(old), MAX_AT_ONCE):
                    part = old[start : start + MAX_AT_ONCE]
                    await self.zookeeper.transaction([DeleteNode(path=f"{STATE_CHANGES}/{name}") for name in part])
            except CoordinationError as error:
                logger.info("notifications_not_purged", reason=error.reason)
