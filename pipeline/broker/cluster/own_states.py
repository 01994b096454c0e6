"""States that a broker writes for its own partitions. A broker that joins the cluster leaves the ISRs of logs that it
cannot vouch for, and claims a new leader epoch where it leads. A broker also leaves the ISR before it removes a log
that was moved away.

Invariants:

- A broker leads only in a leader epoch that it was given, or that it claimed, since it joined: the log of an earlier
  life, which may have lost its unflushed tail, is never taken for that of the present one (KIP-320).
- The last in-sync replica of several does not lead on without its tail: then only an unclean election gives a leader
  (KIP-966, decision 0022). A partition of replication factor 1 is led on with what is left of it, also while a
  reassignment adds replicas.
- The last in-sync replica whose log cannot be read stays in the ISR and does not lead. It leads again once it is read.
- An epoch is claimed above all that are known to have been used (decision 0034).
- A state that ZooKeeper lost is decided on as the view remembers it, and written in an epoch above it (decision 0045).
- A log of a partition that was moved away is removed in a leader epoch in which its broker is not in the ISR, and has
  fetched nothing: leaders forget what they knew of that log before it is removed (KIP-455 raises the epoch, too).
- Each write is conditional on the version that was read; a state that another broker wrote meanwhile is read, and
  decided on again. States of a deleted topic, or of a recreated one before the view knows it, are left as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipeline.broker.cluster.state_watcher import patiently
from pipeline.broker.cluster.view import NO_BROKER, ClusterView
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.partition_states import (
    NO_ZNODE,
    StateChange,
    Written,
    look_up_states,
    read_states,
    write_states,
)
from pipeline.coordination.znodes import PartitionState
from pipeline.diagnostics import get_logger
from pipeline.model import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, TopicPartition

logger = get_logger(__name__)


@dataclass(slots=True)
class ElectionCounts:
    """Counts of elections that this broker carried out. To lead on alone with what is left of a log is unclean, too."""

    leader_elections: int = 0
    unclean_elections: int = 0


def is_alone(isr: Sequence[BrokerId], own: BrokerId, replication_factor: int) -> bool:
    """True if a partition of replication factor 1 has no in-sync replica but this one. Pure."""
    return replication_factor == 1 and tuple(isr) == (own,)


def left_state(
    state: PartitionState,
    own: BrokerId,
    replication_factor: int,
    spent_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    *,
    may_return: bool = False,
) -> PartitionState | None:
    """Return the state once this broker has left the ISR; None if it stays. Pure.

    A state without this broker in the ISR is written unchanged: that refuses a leader that is just adding the broker
    for what its former life fetched. With `may_return` the log cannot be read now, but may be whole: the last replica
    in sync stays in the ISR, without a leader.
    """
    if may_return and state.isr == (own,):
        if state.leader != own:
            return None
        return replace(state, leader=NO_BROKER, leader_epoch=_next_epoch(state, spent_epoch))
    if is_alone(state.isr, own, replication_factor):
        return None
    isr = tuple(replica for replica in state.isr if replica != own)
    if state.leader != own:  # written even if it is unchanged: see above
        return replace(raised_state(state, spent_epoch) or state, isr=isr)
    return replace(state, isr=isr, leader=NO_BROKER, leader_epoch=_next_epoch(state, spent_epoch))


def claimed_state(
    state: PartitionState, own: BrokerId, spent_epoch: LeaderEpoch = NO_LEADER_EPOCH
) -> PartitionState | None:
    """Return the state in the next epoch, if this broker leads; else None. Pure."""
    return None if state.leader != own else replace(state, leader_epoch=_next_epoch(state, spent_epoch))


def raised_state(state: PartitionState, spent_epoch: LeaderEpoch) -> PartitionState | None:
    """Return the state in an epoch above `spent_epoch`; None if its epoch is above already. Pure."""
    if state.leader_epoch > spent_epoch:
        return None
    return replace(state, leader_epoch=_next_epoch(state, spent_epoch))


def _next_epoch(state: PartitionState, spent_epoch: LeaderEpoch) -> LeaderEpoch:
    return LeaderEpoch(max(state.leader_epoch, spent_epoch) + 1)


def moved_away_state(state: PartitionState, own: BrokerId) -> PartitionState | None:
    """Return the state in the next epoch, without this broker in the ISR; None while it must keep its log. Pure."""
    isr = tuple(replica for replica in state.isr if replica != own)
    if not isr or state.leader in {own, NO_BROKER}:
        return None
    return replace(state, isr=isr, leader_epoch=LeaderEpoch(state.leader_epoch + 1))


async def leave_unreadable(
    zookeeper: CoordinationClient, view: ClusterView, own: BrokerId, names: Sequence[TopicPartition]
) -> None:
    """Give up leading each of these, whose log cannot be read now, and leave the ISR if it has other members."""
    written = await _rewrite(
        zookeeper, view, names, lambda name, state: left_state(state, own, 0, _spent(view, name), may_return=True)
    )
    for name, (state, _) in written.items():
        logger.warning("leadership_left", topic_partition=str(name), epoch=state.leader_epoch, isr=state.isr)


async def leave_lost(
    zookeeper: CoordinationClient, view: ClusterView, own: BrokerId, lacking: Sequence[TopicPartition]
) -> Sequence[TopicPartition]:
    """Leave the ISR of each of these, and stop leading. Return those of one replica, which are led on uncleanly."""
    before = {name: found for name in lacking if (found := view.partition(name)) is not None}
    factors = {name: len(found.origin_replicas) for name, found in before.items()}
    written = await _rewrite(
        zookeeper, view, list(factors), lambda name, state: left_state(state, own, factors[name], _spent(view, name))
    )
    for name, (state, _) in written.items():
        if own in before[name].isr:
            logger.warning("isr_left", topic_partition=str(name), epoch=state.leader_epoch, isr=state.isr)
    alone = [
        name
        for name, factor in factors.items()
        if (found := view.partition(name)) is not None and is_alone(found.isr, own, factor)
    ]
    for name in alone:
        logger.warning(
            "unclean_leadership_claimed", topic_partition=str(name), reason="its log is missing, or lost its tail"
        )
    return alone


async def leave_moved_away(
    zookeeper: CoordinationClient, view: ClusterView, own: BrokerId, names: Sequence[TopicPartition]
) -> frozenset[TopicPartition]:
    """Leave the ISRs of partitions that the view assigns to other brokers alone. Return those whose ISR was left.

    The caller must judge the others again: they were reassigned, another broker wrote their states, or ZooKeeper lost
    them.
    """
    known_names = [name for name in names if (found := view.partition(name)) is not None and not found.is_spent]
    topics = {name: topic for name in known_names if (topic := view.topic(name.topic)) is not None}
    asking = view.asking(topics)
    known = await patiently(partial(read_states, zookeeper, list(topics)))
    changes = [
        StateChange(
            topic_id=topics[name].topic_id,
            state=decided,
            version=version,
            topic_version=topics[name].assignment_version,
        )
        for name, (state, version) in known.items()
        if (decided := moved_away_state(state, own)) is not None
    ]
    results = await write_states(zookeeper, changes)
    written = {name: result for name, result in results.items() if result is not None}
    view.accept_states(asking, written)
    return frozenset(written)


async def claim_leaderships(
    zookeeper: CoordinationClient, view: ClusterView, own: BrokerId, names: Sequence[TopicPartition]
) -> Sequence[TopicPartition]:
    """Begin the next epoch of each of these partitions that this broker leads, in ZooKeeper and in the view."""
    return list(
        await _rewrite(zookeeper, view, names, lambda name, state: claimed_state(state, own, _spent(view, name)))
    )


async def raise_epochs(
    zookeeper: CoordinationClient, view: ClusterView, spent: Mapping[TopicPartition, LeaderEpoch]
) -> Sequence[TopicPartition]:
    """Raise the leader epoch of each of these partitions above its spent one, in ZooKeeper and in the view."""
    return list(await _rewrite(zookeeper, view, list(spent), lambda name, state: raised_state(state, spent[name])))


def _spent(view: ClusterView, topic_partition: TopicPartition) -> LeaderEpoch:
    found = view.partition(topic_partition)
    return NO_LEADER_EPOCH if found is None else found.spent_epoch


def own_partitions(view: ClusterView, own: BrokerId) -> list[TopicPartition]:
    """Return the partitions of which this broker holds a replica."""
    return [
        TopicPartition(topic.name, index)
        for topic in view.topics()
        for index, found in sorted(topic.partitions.items())
        if own in found.replicas
    ]


async def _rewrite(
    zookeeper: CoordinationClient,
    view: ClusterView,
    names: Sequence[TopicPartition],
    decide: Callable[[TopicPartition, PartitionState], PartitionState | None],
) -> Mapping[TopicPartition, Written]:
    """Write the state that `decide` returns for each known one; read a state that was newer, and decide again."""
    written: dict[TopicPartition, Written] = {}
    known = {name: state for name in names if (state := _known_state(view, name)) is not None}
    while known:
        asking = view.asking(known)
        changes = [
            _change(view, name, decided, version)
            for name, (state, version) in known.items()
            if name.topic in asking.topic_ids and (decided := decide(name, state)) is not None
        ]
        results = await write_states(zookeeper, changes)
        done = {name: result for name, result in results.items() if result is not None}
        written.update(done)
        view.accept_states(asking, done)
        refused = [name for name in results if name not in done]
        asking = view.asking(refused)
        found, others = await patiently(partial(look_up_states, zookeeper, refused))
        view.accept_states(asking, found)
        view.accept_lost(asking, others)
        # A write that was refused although the version is still there: the topic was deleted.
        known = {
            name: newer
            for name in refused
            if (newer := _known_state(view, name)) is not None and newer.version != known[name].version
        }
    return written


def _change(view: ClusterView, topic_partition: TopicPartition, state: PartitionState, version: int) -> StateChange:
    topic = view.topic(topic_partition.topic)
    assert topic is not None
    if version == NO_ZNODE:
        return StateChange(topic_id=topic.topic_id, state=state, version=None, topic_version=topic.assignment_version)
    return StateChange(topic_id=topic.topic_id, state=state, version=version)


def _known_state(view: ClusterView, topic_partition: TopicPartition) -> Written | None:
    found = view.partition(topic_partition)
    if found is None or not found.has_state:
        return None
    state = PartitionState(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        leader=found.leader,
        leader_epoch=found.leader_epoch,
        isr=found.isr,
        controller_epoch=found.controller_epoch,
    )
    return Written(state, found.state_version)
