"""Decisions of the controller: leaders, replicas in sync, ends of reassignments. Pure.

`plan(state, event)` depends on the present partitions, not on their past: planned again after it was carried out, the
plan is empty. Partitions that get another leader come first. Rules, in the order in which a partition is judged:

1. A partition without a state gets its first live replica as leader, all live ones as ISR, epoch 0. Replicas that are
   shutting down are taken only if there are no others.
2. A broker that is in the ISR but no replica any more leaves the ISR. So do brokers that are dead or shutting down, as
   long as some member is left; the leader itself is the last to go.
3. A leader that is dead, is shutting down, is no replica any more, or whose replica was lost to a disk (or may be) is
   succeeded by the first replica that is alive and in sync, if possible one that is not shutting down.
4. Without any such replica the partition has no leader, and the ISR stays as it is, until a member or its disk returns:
   a log that cannot be read now may be whole, and a dead replica may have what was lost. Where unclean elections are
   allowed, the first live replica whose log dir did not fail leads, alone in sync; a replica that a reassignment adds
   comes last.
   A partition of replication factor 1 whose ISR is empty is led by that replica, alone in sync: no other can have more.
5. A reassignment whose target replicas are all in sync ends: a leader that is not among them hands over, and then the
   topic's znode names the target alone.
6. A state that ZooKeeper lost is judged as it was last known, and written again in the next leader epoch.
7. A decision that names a leader relies on what the registrations of the live ISR members say: that each of them is
   alive, and which replicas it lost. `relies_on` names these brokers. The decision holds only while their registrations
   are unchanged: a member that lost its log must not stay in an ISR that dead members leave, who may have it all.

Each change of the leader raises the leader epoch by one; a change of the ISR alone does not.
Sources: Kafka's partition state machine; KIP-455 (reassignment), KIP-460 (elections by hand), KIP-966.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.broker.cluster.view import NO_BROKER, PartitionView, TopicView
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The cluster as far as a decision needs it: some topics, and the brokers."""

    topics: Sequence[TopicView]
    live: frozenset[BrokerId]
    shutting_down: frozenset[BrokerId] = frozenset()
    offline_replicas: Mapping[BrokerId, frozenset[TopicPartition]] = field(default_factory=dict)
    """Replicas on live brokers that were lost to a disk, or may lack their tail."""

    def without_disk(self, topic_partition: TopicPartition) -> frozenset[BrokerId]:
        """Return the live brokers that lost their replica of this partition to a disk."""
        return frozenset(broker for broker, offline in self.offline_replicas.items() if topic_partition in offline)


@dataclass(frozen=True, slots=True)
class Look:
    """Correct all partitions that break a rule: something has changed."""


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """Elect the preferred replica of each of these (by hand); None stands for all."""

    partitions: Sequence[TopicPartition] | None = None


@dataclass(frozen=True, slots=True)
class ElectUnclean:
    """Elect any live replica of each of these that has no leader (by hand); None stands for all."""

    partitions: Sequence[TopicPartition] | None = None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Elect preferred replicas of brokers if others lead more than so many percent of their partitions."""

    allowed_percentage: int


_Choice = Callable[[TopicPartition, PartitionView, ClusterState], PartitionView | ErrorCode]

Event = Look | ElectPreferred | ElectUnclean | Rebalance


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The state of a partition as it is to be. `before` is the state that was judged."""

    topic_partition: TopicPartition
    before: PartitionView
    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    relies_on: tuple[BrokerId, ...] = ()
    """Live members of the ISR, if there is a leader."""

    @property
    def is_election(self) -> bool:
        """True if another broker leads than before."""
        return self.leader not in {self.before.leader, NO_BROKER}

    @property
    def is_unclean(self) -> bool:
        """True if the new leader was not in sync: records that it lacks are lost."""
        return self.is_election and self.before.has_state and self.leader not in self.before.isr


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerPlan:
    """Decisions that are to be written. `over`: replicas of the partitions whose reassignment ends.

    `results` answer an election by hand, for each requested partition.
    """

    decisions: Sequence[Decision] = ()
    over: Mapping[TopicPartition, tuple[BrokerId, ...]] = field(default_factory=dict)
    results: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if nothing is to be written."""
        return not self.decisions and not self.over


def plan(state: ClusterState, event: Event) -> ControllerPlan:
    """Decide. Topics and partitions are judged in their order, so that the same state gives the same plan."""
    match event:
        case Look():
            return _look(state)
        case ElectPreferred(partitions=partitions):
            return _elect(state, partitions, prefer)
        case ElectUnclean(partitions=partitions):
            return _elect(state, partitions, elect_any)
        case Rebalance(allowed_percentage=percentage):
            return _rebalance(state, percentage)


def target_replicas(partition: PartitionView) -> tuple[BrokerId, ...]:
    """Return the replicas without those that a reassignment removes; the first is the preferred leader."""
    return tuple(replica for replica in partition.replicas if replica not in partition.removing)


def judge(
    topic_partition: TopicPartition, partition: PartitionView, state: ClusterState, *, allow_unclean: bool
) -> PartitionView:
    """Return the partition as it should be by rules 1 to 6, but for the end of a reassignment."""
    judged = _judge(partition, state, state.without_disk(topic_partition), allow_unclean=allow_unclean)
    return replace(judged, leader_epoch=partition.next_epoch) if judged.is_spent else judged


def _judge(
    partition: PartitionView, state: ClusterState, without_disk: Collection[BrokerId], *, allow_unclean: bool
) -> PartitionView:
    replicas = partition.replicas
    alive = [replica for replica in replicas if replica in state.live]
    staying = [replica for replica in alive if replica not in state.shutting_down and replica not in without_disk]
    if not partition.has_state:
        first = staying or alive
        return _with(partition, first[0], first, epoch=partition.next_epoch) if first else partition
    in_sync = [replica for replica in partition.isr if replica in replicas]
    able = [replica for replica in alive if replica in in_sync and replica not in without_disk]
    able_staying = [replica for replica in able if replica in staying]
    isr = able_staying or able
    leader = partition.leader
    if leader in isr and not _is_handing_over(partition, leader, isr):
        return _with(partition, leader, [replica for replica in partition.isr if replica in isr])
    if isr:
        candidates = [replica for replica in target_replicas(partition) if replica in isr] or isr
        return _with(partition, candidates[0], [replica for replica in partition.isr if replica in isr])
    origin = partition.origin_replicas
    if not partition.isr and len(origin) == 1 and origin[0] in alive and origin[0] not in without_disk:
        return _with(partition, origin[0], origin)
    electable = staying or [replica for replica in alive if replica not in without_disk]
    if allow_unclean and electable:
        return elect_uncleanly(partition, electable)
    return _with(partition, NO_BROKER, in_sync or partition.isr)


def elect_uncleanly(partition: PartitionView, alive: Sequence[BrokerId]) -> PartitionView:
    """Return the partition led by its first live replica, alone in sync; one that is being added comes last."""
    first = next((replica for replica in alive if replica not in partition.adding), alive[0])
    return _with(partition, first, [first])


def _is_handing_over(partition: PartitionView, leader: BrokerId, isr: Collection[BrokerId]) -> bool:
    """True if a reassignment removes the leader, and all replicas that stay are in sync."""
    return leader in partition.removing and all(replica in isr for replica in target_replicas(partition))


def _with(
    partition: PartitionView, leader: BrokerId, isr: Iterable[BrokerId], epoch: LeaderEpoch | None = None
) -> PartitionView:
    members = tuple(isr)
    if epoch is None and leader == partition.leader:
        # Most partitions are as they should be: a copy of each would cost the controller more than all the rest.
        return partition if members == partition.isr else replace(partition, isr=members)
    epoch = partition.next_epoch if epoch is None else epoch
    return replace(partition, leader=leader, leader_epoch=epoch, isr=members)


def _look(state: ClusterState) -> ControllerPlan:
    decisions: list[Decision] = []
    over = {}
    for topic in state.topics:
        allow_unclean = topic.settings.unclean_leader_election
        for index, partition in topic.partitions.items():
            topic_partition = TopicPartition(topic.name, index)
            judged = judge(topic_partition, partition, state, allow_unclean=allow_unclean)
            if judged is not partition and judged != partition:
                decisions.append(_decision(topic_partition, partition, judged, state))
            elif is_reassigned(partition):
                over[topic_partition] = target_replicas(partition)
    # Clients wait for new leaders, not for members that leave an ISR: elections go into the first of many writes.
    return ControllerPlan(decisions=sorted(decisions, key=lambda decision: not decision.is_election), over=over)


def is_reassigned(partition: PartitionView) -> bool:
    """True if a reassignment has come to its end."""
    if not (partition.adding or partition.removing) or partition.state_version < 0 or partition.is_spent:
        return False
    target = target_replicas(partition)
    return partition.leader in target and set(target) <= set(partition.isr)


def _decision(
    topic_partition: TopicPartition, before: PartitionView, after: PartitionView, state: ClusterState
) -> Decision:
    members = after.isr if after.leader != NO_BROKER else ()
    return Decision(
        topic_partition=topic_partition,
        before=before,
        leader=after.leader,
        leader_epoch=after.leader_epoch,
        isr=after.isr,
        relies_on=tuple(member for member in members if member in state.live),
    )


def _elect(state: ClusterState, partitions: Sequence[TopicPartition] | None, choose: _Choice) -> ControllerPlan:
    topics = {topic.name: topic for topic in state.topics}
    if partitions is None:
        partitions = [TopicPartition(topic.name, index) for topic in state.topics for index in topic.partitions]
    decisions = []
    results: dict[TopicPartition, ErrorCode] = {}
    for topic_partition in dict.fromkeys(partitions):
        topic = topics.get(topic_partition.topic)
        partition = None if topic is None else topic.partitions.get(topic_partition.partition)
        if partition is None:
            results[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        chosen = choose(topic_partition, partition, state)
        if isinstance(chosen, ErrorCode):
            results[topic_partition] = chosen
        else:
            results[topic_partition] = ErrorCode.NONE
            decisions.append(_decision(topic_partition, partition, chosen, state))
    return ControllerPlan(decisions=decisions, results=results)


def prefer(topic_partition: TopicPartition, partition: PartitionView, state: ClusterState) -> PartitionView | ErrorCode:
    """Return the partition led by its preferred replica, or why that is impossible."""
    preferred = target_replicas(partition)[0]
    if partition.leader == preferred:
        return ErrorCode.ELECTION_NOT_NEEDED
    is_able = preferred in partition.isr and preferred in state.live and preferred not in state.shutting_down
    if not is_able or preferred in state.without_disk(topic_partition):
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    return _with(partition, preferred, [replica for replica in partition.isr if replica in partition.replicas])


def elect_any(
    topic_partition: TopicPartition, partition: PartitionView, state: ClusterState
) -> PartitionView | ErrorCode:
    """Return the partition led by a live replica, in sync or not, or why that is impossible."""
    if partition.leader in state.live and partition.leader not in state.without_disk(topic_partition):
        return ErrorCode.ELECTION_NOT_NEEDED
    judged = judge(topic_partition, partition, state, allow_unclean=True)
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if judged.leader == NO_BROKER else judged


def is_catching_up(state: ClusterState) -> bool:
    """True if a live preferred replica is not in sync, but may be soon: then leaders can be spread better later."""
    for topic in state.topics:
        for index, partition in topic.partitions.items():
            preferred = target_replicas(partition)[0]
            is_coming = preferred in state.live and preferred not in partition.isr and preferred not in partition.adding
            if is_coming and preferred not in state.without_disk(TopicPartition(topic.name, index)):
                return True
    return False


def _rebalance(state: ClusterState, allowed_percentage: int) -> ControllerPlan:
    preferred: dict[BrokerId, list[tuple[TopicPartition, PartitionView]]] = {}
    for topic in state.topics:
        for index, partition in topic.partitions.items():
            owner = target_replicas(partition)[0]
            preferred.setdefault(owner, []).append((TopicPartition(topic.name, index), partition))
    decisions = []
    for owner in sorted(preferred):
        led_by_others = [item for item in preferred[owner] if item[1].leader != owner]
        if len(led_by_others) * 100 <= allowed_percentage * len(preferred[owner]):
            continue
        for topic_partition, partition in led_by_others:
            chosen = prefer(topic_partition, partition, state)
            if not isinstance(chosen, ErrorCode):
                decisions.append(_decision(topic_partition, partition, chosen, state))
    return ControllerPlan(decisions=decisions)
