"""The code broken on purpose, one rule at a time, to see that the checks notice. For tests of the simulation alone.

Each variant replaces a method for the length of a run. `plan` is where it shows soonest.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pipeline.broker import claims, membership
from pipeline.broker.context import BrokerContext
from pipeline.broker.controller import reign
from pipeline.broker.handlers import fetch
from pipeline.broker.partition import Partition
from pipeline.broker.replication.fetch_plan import FetchPlan, Phase
from pipeline.broker.replication.replica_fetcher import ReplicaFetcher
from pipeline.broker.replication.replica_state import UNKNOWN, ReplicaState
from pipeline.coordination.cluster_znodes import STATE_CHANGE_PREFIX, encode_state_change
from pipeline.coordination.interface import CoordinationClient, CreateNode, SetNode
from pipeline.coordination.partition_states import StateChange, Written, write_states
from pipeline.errors import CoordinationLostError, CoordinationUnavailableError, StorageError
from pipeline.log.producer_state import ProducerStates
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicPartition
from pipeline.testing.faulty_files import FaultyFile
from pipeline.testing.simulation.plans import single_broker_plan
from pipeline.testing.simulation.scenario import Plan, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenVariant:
    """A rule that is not kept. `faults` are those under which it shows; all, if there are none."""

    rule: str
    breaks: Variant
    faults: tuple[str, ...] = ()
    single_broker: bool = False
    first_seed: int = 1
    """Where to begin: it is known to show there, or soon after."""

    def plan(self, seed: int) -> Plan:
        """What to simulate."""
        plan = single_broker_plan(seed) if self.single_broker else Plan(seed=seed)
        return replace(plan, variant=self.breaks, fault_kinds=self.faults or plan.fault_kinds)


def _replacing(owner: Any, name: str, replacement: Callable[[Any], Any]) -> Variant:
    """`replacement` gets what it replaces."""

    @contextmanager
    def replaced() -> Generator[None]:
        known = owner.__dict__.get(name)
        setattr(owner, name, replacement(getattr(owner, name)))
        try:
            yield
        finally:
            if known is None:
                delattr(owner, name)
            else:
                setattr(owner, name, known)

    return replaced


def _truncating_to_high_watermark(follow: Any) -> Any:
    def broken(fetcher: Any, replica: Any, partition: Any) -> None:
        log: UnifiedLog = replica.log
        if log.log_end_offset > replica.high_watermark:
            log.truncate_to(max(replica.high_watermark, log.log_start_offset))
        follow(fetcher, replica, partition)

    return broken


def _comparing_nothing(begin: Any) -> Any:
    def broken(plan: FetchPlan, partition: Any, _phase: Phase) -> None:
        begin(plan, partition, Phase.FETCHING)

    return broken


def _knowing_followers_of_older_epochs(begin: Any) -> Any:
    def broken(*args: Any, **options: Any) -> ReplicaState:
        state: ReplicaState = begin(*args, **options)
        for progress in state.followers.values():
            progress.log_end_offset = options["log_end_offset"]
        return state

    return broken


def _reading_to_the_end(_end_of: Any) -> Any:
    def broken(_reading: Any, partition: Partition) -> Offset:
        return partition.log.log_end_offset

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


def _giving(value: object) -> Callable[[Any], Any]:
    def replacement(_known: Any) -> Any:
        return lambda *_args, **_options: value

    return replacement


CRASHES = ("kill", "crash", "kill all", "pause", "partition", "session")
POWER = ("power",)

VARIANTS: Mapping[str, BrokenVariant] = {
    "acknowledges before replication": BrokenVariant(
        rule="acks=all waits until all in-sync replicas have the record",
        breaks=_replacing(Partition, "commit_wait", _giving(None)),
        faults=CRASHES,
        first_seed=4,
    ),
    "truncates to the high watermark": BrokenVariant(
        rule="a follower cuts its log where its leader's differs, never at its high watermark (KIP-101)",
        breaks=_replacing(ReplicaFetcher, "follow", _truncating_to_high_watermark),
        faults=("kill all", "kill", "session"),
        first_seed=2,
    ),
    "does not truncate": BrokenVariant(
        rule="a follower compares its log with its leader's before it fetches (KIP-101)",
        breaks=_replacing(FetchPlan, "_begin", _comparing_nothing),
        faults=CRASHES,
        first_seed=5,
    ),
    "joins the ISR too early": BrokenVariant(
        rule="a replica joins the ISR when it has all that is committed, and the start of the leader's epoch",
        breaks=_replacing(
            ReplicaState,
            "_can_join",
            lambda _: lambda _state, _replica, progress: progress.log_end_offset != UNKNOWN,
        ),
        faults=("succession",),
    ),
    "counts followers of older epochs": BrokenVariant(
        rule="the high watermark counts what followers fetched in this leader epoch",
        breaks=_replacing(ReplicaState, "begin", _knowing_followers_of_older_epochs),
        faults=("relapse",),
    ),
    "counts a removal before it is written": BrokenVariant(
        rule="a member of the ISR counts until ZooKeeper has it no more",
        breaks=_replacing(
            ReplicaState,
            "maximal_isr",
            lambda _: property(lambda state: state.isr if state.pending is None else state.pending.isr),
        ),
        faults=("island",),
        first_seed=14,
    ),
    "shows what is not committed": BrokenVariant(
        rule="consumers see nothing behind the high watermark",
        breaks=_replacing(fetch._Reading, "_end_of", _reading_to_the_end),
        faults=CRASHES,
        first_seed=6,
    ),
    "leads on without its tail": BrokenVariant(
        rule="a replica that may have lost its tail leaves the ISR before it registers (KIP-966)",
        breaks=_replacing(membership, "leave", lambda _: _leave_nothing),
        faults=POWER,
    ),
    "leads on without a claim": BrokenVariant(
        rule="a broker begins another epoch before it leads on after a start or a lost session",
        breaks=_replacing(claims, "claimed_state", lambda _: lambda state, own: state if state.leader == own else None),
        faults=("kill", "session", "crash"),
    ),
    "epoch not checked": BrokenVariant(
        rule="a leader answers those alone who know its leader epoch (KIP-320)",
        breaks=_replacing(BrokerContext, "_find", _finding_in_any_epoch),
        faults=("return",),
        first_seed=6,
    ),
    "controller epoch not checked": BrokenVariant(
        rule="a controller writes only while it is the last one, and over the states that it has seen",
        breaks=_replacing(reign, "write_states", _writing_over_anything),
        faults=("interregnum",),
        first_seed=2,
    ),
    "forgets its producers": BrokenVariant(
        rule="a batch that was taken before is not taken again",
        breaks=_replacing(ProducerStates, "check", _giving(None)),
        faults=("connections", "pause", "one way", "partition"),
    ),
    "ignores failed syncs": BrokenVariant(
        rule="nothing is acknowledged that the disk refused to sync",
        breaks=_replacing(FaultyFile, "sync", _ignoring(StorageError)),
        faults=("sync and power",),
        single_broker=True,
        first_seed=3,
    ),
}
