"""Plan and result of a simulation: values."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pipeline.testing.simulation.history import History
from pipeline.testing.simulation.trace import Trace

SETTINGS: Mapping[str, Any] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "num.partitions": 1,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.replication.factor": 3,
    "zookeeper.session.timeout.ms": 4000,
    "replica.lag.time.max.ms": 3000,
    "replica.fetch.wait.max.ms": 400,
    "replica.fetch.backoff.ms": 300,
    "replica.socket.timeout.ms": 3000,
    "replica.high.watermark.checkpoint.interval.ms": 1000,
    "group.min.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 200,
    "log.cleaner.enable": False,
    "leader.imbalance.check.interval.seconds": 10,
}
CLEANER_SETTINGS: Mapping[str, Any] = {
    "log.cleaner.enable": True,
    "log.cleaner.backoff.ms": 700,
    "log.cleaner.dedupe.buffer.size": 1 << 20,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "offsets.topic.segment.bytes": 2000,
}
RETENTION_SETTINGS: Mapping[str, Any] = {"log.retention.check.interval.ms": 700}
MAX_REPLICAS = 3

Variant = Callable[[], AbstractContextManager[None]]
"""Breaks the code for the length of a block, to see whether it is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Cluster, load and faults to simulate."""

    seed: int
    brokers: int = 3
    faults_s: float = 20.0
    topics: tuple[tuple[str, int], ...] = (("orders", 2), ("views", 1))
    settings: Mapping[str, Any] = field(default_factory=dict)
    fault_kinds: tuple[str, ...] = ()
    """Kinds of faults to choose from; all kinds that suit several brokers, if none is named."""
    may_end_offline: bool = False
    """Trouble beyond the promise: a partition may stay without a leader and in-sync replicas, but not lose silently."""
    has_administrator: bool = False
    has_cleaner: bool = False
    """True if there is a compacted topic, and logs are cleaned."""
    has_retention: bool = False
    """True if there is a topic whose oldest records go, by retention and by DeleteRecords."""
    has_sightings: bool = False
    """True if there is a topic that shows only what is on the disk."""
    variant: Variant = nullcontext

    @property
    def is_flushing(self) -> bool:
        """True if nobody is told of a record before it is on the disk."""
        return self.settings.get("log.flush.interval.messages") == 1

    @property
    def replication(self) -> int:
        """The replicas of each partition of its topics."""
        return min(self.brokers, MAX_REPLICAS)

    @property
    def all_settings(self) -> Mapping[str, Any]:
        """The settings of the brokers."""
        cleaner = CLEANER_SETTINGS if self.has_cleaner else {}
        retention = RETENTION_SETTINGS if self.has_retention else {}
        return {**SETTINGS, **cleaner, **retention, **self.settings}


@dataclass(eq=False)
class Result:
    """Result of a run: the trace, the history, and the problems found."""

    seed: int
    trace: Trace
    problems: list[str] = field(default_factory=list)
    history: History = field(default_factory=History)
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems
