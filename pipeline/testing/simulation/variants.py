"""The code broken on purpose, one rule at a time, to see that the checks notice. For tests of the simulation alone.

Each variant replaces a method for the length of a run.
"""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import trio

from pipeline.broker.cluster import own_states
from pipeline.broker.cluster.view import PartitionView
from pipeline.broker.controller import controller_plan, reign
from pipeline.broker.groups.entries import GroupEntries
from pipeline.broker.membership.membership import Membership
from pipeline.broker.replicas import lost_replicas, replicas, strays
from pipeline.broker.replicas.assigner import ReplicaAssigner
from pipeline.broker.replicas.replicas import Replicas
from pipeline.broker.replication import leadership
from pipeline.broker.replication.in_sync_replicas import UNKNOWN, LeaderState
from pipeline.broker.replication.isr_writer import IsrWriter
from pipeline.broker.replication.partition import Partition
from pipeline.broker.replication.replica_fetch_plan import FetchPlan, FollowerPhase
from pipeline.broker.replication.replica_fetcher import ReplicaFetcher
from pipeline.broker.requests.context import BrokerContext
from pipeline.broker.requests.fetch_reading import FetchReading
from pipeline.broker.topics import changes as topic_changes
from pipeline.coordination.cluster_znodes import STATE_CHANGE_PREFIX, encode_state_change
from pipeline.coordination.interface import CoordinationClient, CreateNode, SetNode
from pipeline.coordination.partition_states import StateChange, Written, write_states
from pipeline.coordination.znodes import PartitionState
from pipeline.errors import CoordinationLostError, CoordinationUnavailableError, StorageError
from pipeline.log import expiry
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.directories.logs_set_aside import HeldLog
from pipeline.log.producer_state import ProducerStates
from pipeline.log.truncation import truncate_to
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.net.signals import Wakeup
from pipeline.testing.faulty_files import FaultyFile
from pipeline.testing.simulation.broken_variant import BrokenVariant, both, do_nothing, giving, replacing
from pipeline.testing.simulation.process import PROCESS


def _truncating_to_high_watermark(follow: Any) -> Any:
    def broken(fetcher: Any, replica: Any, partition: Any) -> None:
        log: UnifiedLog = replica.log
        if log.log_end_offset > replica.high_watermark:
            truncate_to(log, max(replica.high_watermark, log.log_start_offset))
        follow(fetcher, replica, partition)

    return broken


def _comparing_nothing(begin: Any) -> Any:
    def broken(plan: FetchPlan, partition: Any, _phase: FollowerPhase) -> None:
        begin(plan, partition, FollowerPhase.FETCHING)

    return broken


def _knowing_followers_of_older_epochs(begin: Any) -> Any:
    def broken(state: LeaderState, *args: Any) -> None:
        begin(state, *args)
        for progress in state.followers.values():
            progress.log_end_offset = state.epoch_start

    return broken


def _reading_to_the_end(_end_of: Any) -> Any:
    def broken(_reading: Any, partition: Partition) -> Offset:
        return partition.log.log_end_offset

    return broken


def _advancing_to_the_end(advance: Any) -> Any:
    def broken(partition: Partition) -> None:
        advance(partition)
        if partition.leadership is not None:
            partition.leadership.advance_visible_end(partition.log.log_end_offset)

    return broken


def _ignoring(error_kind: type[Exception]) -> Callable[[Any], Any]:
    def replacement(act: Any) -> Any:
        def broken(*args: Any) -> None:
            try:
                act(*args)
            except error_kind:
                return

        return broken

    return replacement


def _electing_any_live_one(judge: Any) -> Any:
    def broken(name: TopicPartition, partition: PartitionView, state: Any, **options: Any) -> PartitionView:
        if partition.leader not in state.live:
            alive = tuple(replica for replica in partition.replicas if replica in state.live)
            partition = replace(partition, isr=alive)
        judged: PartitionView = judge(name, partition, state, **options)
        return judged

    return broken


def _claiming_no_epoch(state: PartitionState, own: BrokerId, _spent: LeaderEpoch) -> PartitionState | None:
    return state if state.leader == own else None


async def _leave_nothing(*_args: Any) -> Sequence[Any]:
    return ()


def _finding_in_any_epoch(find: Any) -> Any:
    def broken(broker: Any, topic: Any, topic_partition: TopicPartition, _epoch: LeaderEpoch) -> Partition:
        partition: Partition = find(broker, topic, topic_partition, NO_LEADER_EPOCH)
        return partition

    return broken


def _writing_over_anything(_write_states: Any) -> Any:
    """Does not look at what was written instead when an answer is lost, either."""

    async def broken(
        zookeeper: CoordinationClient, changes: Sequence[StateChange], _checks: Any
    ) -> Mapping[TopicPartition, Written | None]:
        new = [change for change in changes if change.version is None]
        known = [change for change in changes if change.version is not None]
        results: dict[TopicPartition, Written | None] = await write_states(zookeeper, new)
        operations = [SetNode(path=change.state.path, data=change.state.encode()) for change in known]
        told = encode_state_change([change.topic_partition for change in known])
        while known:
            try:
                await zookeeper.transaction(
                    [*operations, CreateNode(path=STATE_CHANGE_PREFIX, data=told, sequential=True)]
                )
            except (CoordinationLostError, CoordinationUnavailableError):
                continue
            break
        results.update({change.topic_partition: Written(change.state, change.version or 0) for change in known})
        return results

    return broken


def _finding_all_deleted(_find: Any) -> Any:
    async def broken(_zookeeper: Any, topic_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
        await trio.lowlevel.checkpoint()
        return set(topic_ids)

    return broken


def _lacking_by_name(lacks: Any) -> Any:
    def broken(known: Replicas, topic_partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        if lacks(known, topic_partition, topic_id):
            return True
        found = None if topic_partition in known.partitions else known.directories.get(topic_partition)
        return found is not None and found.may_lack_tail

    return broken


async def _release_all(_keeper: Any, confirmed: Sequence[HeldLog]) -> Sequence[HeldLog]:
    await trio.lowlevel.checkpoint()
    return confirmed


def _deleting_what_is_not_committed(_delete_records: Any) -> Any:
    async def broken(partition: Partition, before: Offset) -> Offset:
        before = min(before, partition.log.log_end_offset)
        log_start_offset = partition.log.delete_records(before)
        await partition.upkeep.checkpoint_log_start(partition)
        partition.log_start_moved()
        return log_start_offset

    return broken


def _one_more(count_expired: Any) -> Any:
    def broken(segments: Sequence[Any], *args: Any, **options: Any) -> int:
        count: int = count_expired(segments, *args, **options)
        return min(count + 1, len(segments) - 1)

    return broken


def _knowing_no_older_states(_taken: Any) -> Any:
    def broken(known: PartitionView, state: PartitionState, version: int, _asked: int) -> PartitionView | None:
        return known.with_state(state, version) if version > known.state_version else None

    return broken


def _spending_no_epochs(_taken: Any) -> Any:
    def broken(known: PartitionView, state: PartitionState, version: int, asked: int) -> PartitionView | None:
        found = known.with_state(state, version)
        is_newer = version > known.state_version and state.leader_epoch >= known.leader_epoch
        return found if found != known and (is_newer or known.moment <= asked) else None

    return broken


def _demanding_no_epochs(state_change: Any) -> Any:
    def broken(*args: Any) -> StateChange:
        change: StateChange = state_change(*args)
        return replace(change, checks=[])

    return broken


class _WallTime:
    """trio, with the wall clock of the process in the place of its own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(trio, name)

    def current_time(self) -> float:
        process = PROCESS.get()
        return trio.current_time() + (0.0 if process is None else process.clock_error_s)


def _replacing_wakeup(name: str) -> Callable[[Any], Any]:
    def replacement(act: Any) -> Any:
        async def broken(owner: Any) -> None:
            setattr(owner, name, Wakeup())
            await act(owner)

        return broken

    return replacement


def _holding_any_of_the_name(_holds: Any) -> Any:
    def broken(entries: GroupEntries, entry: Any) -> bool:
        return entries.find(entry.group.id, entry.partition) is not None

    return broken


VARIANTS: Mapping[str, BrokenVariant] = {
    "acknowledges before replication": BrokenVariant(
        rule="acks=all waits until all in-sync replicas have the record",
        breaks=replacing(leadership.Leadership, "commit_wait", giving(None)),
    ),
    "truncates to the high watermark": BrokenVariant(
        rule="a follower cuts its log where its leader's differs, never at its high watermark (KIP-101)",
        breaks=replacing(ReplicaFetcher, "follow", _truncating_to_high_watermark),
    ),
    "does not truncate": BrokenVariant(
        rule="a follower compares its log with its leader's before it fetches (KIP-101)",
        breaks=replacing(FetchPlan, "_begin", _comparing_nothing),
        first_seed=5,
    ),
    "joins the ISR too early": BrokenVariant(
        rule="a replica joins the ISR when it has all that is committed, and the start of the leader's epoch",
        breaks=replacing(
            LeaderState,
            "_can_join",
            lambda _: lambda state, replica, _end, _now_s: state.followers[replica].log_end_offset != UNKNOWN,
        ),
    ),
    "counts followers of older epochs": BrokenVariant(
        rule="the high watermark counts what followers fetched in this leader epoch",
        breaks=replacing(LeaderState, "__post_init__", _knowing_followers_of_older_epochs),
    ),
    "counts a removal before it is written": BrokenVariant(
        rule="a member of the ISR counts until ZooKeeper has it no more",
        breaks=replacing(
            LeaderState,
            "maximal_isr",
            lambda _: property(lambda state: state.isr if state.pending is None else state.pending.isr),
        ),
        first_seed=2,
    ),
    "shows what is not committed": BrokenVariant(
        rule="consumers see nothing behind the high watermark",
        breaks=replacing(FetchReading, "_end_of", _reading_to_the_end),
    ),
    "shows what is not flushed": BrokenVariant(
        rule="consumers of a topic with visibility=flushed see nothing that a loss of power takes away",
        breaks=replacing(Partition, "advance_high_watermark", _advancing_to_the_end),
        first_seed=20,
        every=10,
    ),
    "leads on without its tail": BrokenVariant(
        rule="a replica that may have lost its tail leaves the ISR before it registers (KIP-966)",
        breaks=replacing(lost_replicas, "leave_lost", lambda _: _leave_nothing),
        first_seed=9,
        every=16,
    ),
    "leads on without a claim": BrokenVariant(
        rule="a broker begins another epoch before it leads on after a start or a lost session",
        breaks=replacing(own_states, "claimed_state", lambda _: _claiming_no_epoch),
    ),
    "epoch not checked": BrokenVariant(
        rule="a leader answers those alone who know its leader epoch (KIP-320)",
        breaks=replacing(BrokerContext, "find_partition_of", _finding_in_any_epoch),
        first_seed=158,
        every=16,
    ),
    "controller epoch not checked": BrokenVariant(
        rule="a controller writes only while it is the last one, and over the states that it has seen",
        breaks=replacing(reign, "write_states", _writing_over_anything),
        first_seed=9,
    ),
    "elects a replica that is not in sync": BrokenVariant(
        rule="a leader is elected from the ISR",
        breaks=replacing(controller_plan, "judge", _electing_any_live_one),
        first_seed=3,
    ),
    "answers its end too early": BrokenVariant(
        rule="a new leader tells its end once its high watermark has reached the start of its epoch (KIP-207)",
        breaks=replacing(leadership.Leadership, "is_behind_epoch", lambda _: property(lambda _partition: False)),
        first_seed=2,
    ),
    "takes a missing znode for a deletion": BrokenVariant(
        rule="a log is removed for a record of its topic's deletion alone",
        breaks=replacing(strays, "find_deleted", _finding_all_deleted),
        first_seed=68,
        every=12,
    ),
    "takes a replica that was never here for a lost one": BrokenVariant(
        rule="a topic that is created while its brokers are dead gets a leader when these are back",
        breaks=replacing(LogDirectories, "may_have_served", giving(True)),
        first_seed=9,
        every=16,
    ),
    "takes the log of a deleted topic for its successor's": BrokenVariant(
        rule="a recreated topic lacks nothing because a log of the deleted one lacks its tail",
        breaks=replacing(Replicas, "lacks", _lacking_by_name),
        first_seed=9,
        every=16,
    ),
    "removes a log that an ISR counts on": BrokenVariant(
        rule="a broker leaves the ISR before it removes a log that was moved away",
        breaks=replacing(strays.StrayKeeper, "_released", lambda _: _release_all),
        first_seed=5,
        every=2,
    ),
    "trusts the wall clock": BrokenVariant(
        rule="who is in sync is measured with a clock that never goes back",
        breaks=replacing(leadership, "trio", lambda _: _WallTime()),
        first_seed=3,
    ),
    "a stale timer removes a living group": BrokenVariant(
        rule="a timer of a group that went away touches no later group of its name",
        breaks=replacing(GroupEntries, "holds", _holding_any_of_the_name),
        first_seed=6,
    ),
    "waits for what was replaced": BrokenVariant(
        rule="a broker that loses sessions again before it has joined follows the cluster afterwards",
        breaks=both(
            replacing(ReplicaAssigner, "pause", _replacing_wakeup("_resumed")),
            replacing(Membership, "_lost", _replacing_wakeup("_registered")),
        ),
        first_seed=7,
        every=16,
    ),
    "does not follow its broker epoch": BrokenVariant(
        rule="a broker registers with the broker epoch that ZooKeeper has, also after others changed it",
        breaks=replacing(Membership, "keep_epoch", lambda _: do_nothing),
        first_seed=71,
        every=16,
    ),
    "counts fetches of a former life": BrokenVariant(
        rule="what a replica fetched counts for the broker epoch in which it fetched alone (KIP-903)",
        breaks=both(
            replacing(LeaderState, "counts", giving(True)),
            replacing(IsrWriter, "_state_change", _demanding_no_epochs),
        ),
        first_seed=9,
        every=16,
    ),
    "adds partitions during a move": BrokenVariant(
        rule="a topic does not grow while one of its partitions is moved",
        breaks=replacing(topic_changes, "check_not_reassigned", giving(None)),
        first_seed=31,
        every=2,
    ),
    "counts replicas that a move adds": BrokenVariant(
        rule="the only replica of a partition leads on with what is left, moved or not",
        breaks=replacing(PartitionView, "origin_replicas", lambda _: property(lambda view: view.replicas)),
        first_seed=41,
        every=16,
    ),
    "ignores older states": BrokenVariant(
        rule="states that go back are followed",
        breaks=replacing(PartitionView, "with_newer", _knowing_no_older_states),
        first_seed=8,
        every=12,
    ),
    "uses spent leader epochs again": BrokenVariant(
        rule="a leader epoch that was used before ZooKeeper went back is not used again",
        breaks=both(
            replacing(PartitionView, "with_newer", _spending_no_epochs),
            replacing(replicas, "spent_epoch", giving(None)),
        ),
        first_seed=8,
        every=12,
    ),
    "does not look for lost states": BrokenVariant(
        rule="the state of a partition that ZooKeeper lost is written again within 30 s",
        breaks=replacing(reign.Reign, "_check_states_for_ever", lambda _: do_nothing),
        first_seed=8,
        every=12,
    ),
    "deletes what is not committed": BrokenVariant(
        rule="DeleteRecords takes nothing behind the high watermark",
        breaks=replacing(Partition, "delete_records", _deleting_what_is_not_committed),
        first_seed=3,
        every=4,
    ),
    "retention takes too much": BrokenVariant(
        rule="what retention leaves reaches retention.bytes",
        breaks=replacing(expiry, "count_expired", _one_more),
        first_seed=3,
        every=4,
    ),
    "forgets its producers": BrokenVariant(
        rule="a batch that was taken before is not taken again",
        breaks=replacing(ProducerStates, "check", giving(None)),
    ),
    "ignores failed syncs": BrokenVariant(
        rule="nothing is acknowledged that the disk refused to sync",
        breaks=replacing(FaultyFile, "sync", _ignoring(StorageError)),
        first_seed=10,
        every=10,
    ),
}
