"""What a broker writes of its own partitions when it joins the cluster: it leaves the ISRs of those whose log it cannot
vouch for, and claims anew what it led.

Invariants:

- A broker leads only in an epoch that it was given, or that it claimed, since it joined: nobody takes the log of an
  earlier life, which may have lost its unflushed end, for that of the present one (KIP-320).
- The last in-sync replica of several does not lead on without its tail: then nobody leads but by an unclean election
  (KIP-966, decision 0022). A partition that has one replica is led on with what is left of it.
- Everything is conditional on the version that was read; what somebody else wrote meanwhile is read and decided anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog

from pipeline.broker.cluster_view import NO_BROKER, ClusterView
from pipeline.broker.state_watcher import patiently
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.partition_states import StateChange, Written, read_states, write_states
from pipeline.coordination.znodes import PartitionState
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition

log = structlog.get_logger()


def left_state(state: PartitionState, own: BrokerId, replica_count: int) -> PartitionState | None:
    """The state once this broker has left the ISR; None if it stays. Pure.

    One in whose ISR it is not is written as it is: a leader that is just letting it in, by what it told in its former
    life, is then refused.
    """
    if replica_count == 1:
        return None
    isr = tuple(replica for replica in state.isr if replica != own)
    if state.leader != own:
        return replace(state, isr=isr)
    return replace(state, isr=isr, leader=NO_BROKER, leader_epoch=LeaderEpoch(state.leader_epoch + 1))


def claimed_state(state: PartitionState, own: BrokerId) -> PartitionState | None:
    """The state in the next epoch, if this broker leads; else None. Pure."""
    if state.leader != own:
        return None
    return replace(state, leader_epoch=LeaderEpoch(state.leader_epoch + 1))


async def leave(
    zookeeper: CoordinationClient, view: ClusterView, own: BrokerId, lacking: Sequence[TopicPartition]
) -> Sequence[TopicPartition]:
    """Leave the ISR of each of these, and the leadership. Returns those of one replica, which are led on uncleanly."""
    counts = {name: len(found.replicas) for name in lacking if (found := view.partition(name)) is not None}
    in_sync = {name for name in counts if _is_in_sync(view, name, own)}
    written = await _rewrite(zookeeper, view, list(counts), lambda name, state: left_state(state, own, counts[name]))
    for name, (state, _) in written.items():
        if name not in in_sync:
            continue
        log.warning("isr_left", topic_partition=str(name), epoch=state.leader_epoch, isr=state.isr)
    alone = [name for name, count in counts.items() if count == 1 and _is_in_sync(view, name, own)]
    for name in alone:
        log.warning(
            "unclean_leadership_claimed", topic_partition=str(name), reason="its log is missing, or lost its tail"
        )
    return alone


def _is_in_sync(view: ClusterView, name: TopicPartition, own: BrokerId) -> bool:
    found = view.partition(name)
    return found is not None and own in found.isr


async def claim(zookeeper: CoordinationClient, view: ClusterView, own: BrokerId) -> Sequence[TopicPartition]:
    """Begin the next epoch of each partition that this broker leads, in ZooKeeper and in the view."""
    names = own_partitions(view, own)
    return list(await _rewrite(zookeeper, view, names, lambda _, state: claimed_state(state, own)))


def own_partitions(view: ClusterView, own: BrokerId) -> list[TopicPartition]:
    """Those of which this broker holds a replica."""
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
    """Write what is decided of each state that is known; where it was another by then, read it and decide again."""
    written: dict[TopicPartition, Written] = {}
    known = {name: state for name in names if (state := _known_state(view, name)) is not None}
    while known:
        ids = view.topic_ids(known)
        changes = [
            StateChange(state=decided, version=version)
            for name, (state, version) in known.items()
            if (decided := decide(name, state)) is not None
        ]
        results = await write_states(zookeeper, changes)
        done = {name: result for name, result in results.items() if result is not None}
        written.update(done)
        known = await patiently(partial(read_states, zookeeper, [name for name in results if name not in done]))
        view.accept_states(ids, {**known, **done})
    return written


def _known_state(view: ClusterView, name: TopicPartition) -> Written | None:
    found = view.partition(name)
    if found is None or found.state_version < 0:
        return None
    state = PartitionState(
        topic=name.topic,
        partition=name.partition,
        leader=found.leader,
        leader_epoch=found.leader_epoch,
        isr=found.isr,
        controller_epoch=found.controller_epoch,
    )
    return Written(state, found.state_version)
