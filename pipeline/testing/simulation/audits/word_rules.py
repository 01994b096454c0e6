"""Rules of the words that verdicts rest on, judged while a site runs: life signs of producers, checkpoints of brokers.

A. A life sign closes no time at which a record was accepted that has no outcome yet.
B. A broker's checkpoint says that batches are counted only once the audit topic has the reports of them.

A verdict may be right by luck although such a word was false, so verdicts alone do not show it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.audit.counting.broker_counter import BrokerCounter
from pipeline.audit.counting.published_place import READ_PARTITION
from pipeline.audit.events.encoding import encode_count_report, portions
from pipeline.audit.events.report import CountReport, LifeSign
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.broker.replication.partition import Partition
from pipeline.model import Offset, TopicPartition
from pipeline.testing.simulation.cluster import SimulatedCluster, bytes_of_log, records_of
from pipeline.testing.simulation.mirrors.site import leader_of

MAX_BROKEN_WORDS = 5
"""Broken words of one kind that are told."""


@dataclass(eq=False)
class AcceptedRecords:
    """Records of one life of a producer that have no outcome yet, with the wall time by which each was accepted."""

    host: str
    started_ms: int
    """Wall time before the life began."""
    _accepted_ms: dict[bytes, int | None] = field(default_factory=dict)

    def offered(self, value: bytes) -> None:
        """Take note of a record before the producer has it: its outcome may come first."""
        self._accepted_ms[value] = None

    def accepted(self, value: bytes, now_ms: int) -> None:
        """Take note that the producer has accepted a record."""
        if value in self._accepted_ms:
            self._accepted_ms[value] = now_ms

    def has_outcome(self, value: bytes) -> None:
        """Take note that a record was acknowledged or given up."""
        self._accepted_ms.pop(value, None)

    def broken_by(self, sign: LifeSign) -> Iterator[str]:
        """Yield the records that a life sign says nothing is left of (rule A).

        `closed_ms` is never later than the sign. So a record that was accepted before `closed_ms` was accepted before
        the sign.
        """
        if sign.host != self.host or sign.started_ms < self.started_ms:
            return
        for value, accepted_ms in self._accepted_ms.items():
            if accepted_ms is not None and accepted_ms < sign.closed_ms:
                yield (
                    f"{self.host} closed all before {sign.closed_ms}, when {value!r}, accepted at {accepted_ms}, "
                    "had no outcome"
                )


@dataclass(eq=False)
class AuditTopicWatch:
    """Events that the leaders of a cluster's audit topic had, as an outsider reads them."""

    cluster: SimulatedCluster
    broken: list[str] = field(default_factory=list)
    """Reports that counters took for published, and that no leader had."""
    _values: set[bytes] = field(default_factory=set)
    _read: tuple[Partition, Offset] | None = None

    def published(self, name: str, reports: Sequence[CountReport]) -> None:
        """Judge reports that a broker is about to save (rule B). Without a leader nobody can tell."""
        leader = leader_of(self.cluster, TopicPartition(AUDIT_TOPIC, READ_PARTITION))
        if leader is None:
            if self._read is None and len(self.broken) < MAX_BROKEN_WORDS:
                self.broken.append(f"{name} saved counts, and there was no audit topic")
            return
        self._read_on(leader)
        for report in reports:
            missing = sum(encode_count_report(part) not in self._values for part in portions(report))
            if missing and len(self.broken) < MAX_BROKEN_WORDS:
                self.broken.append(
                    f"{name} saved counts of {report.created_ms}, and the audit topic lacked {missing} of their events"
                )

    def _read_on(self, leader: Partition) -> None:
        """Read what a leader's log has more than was read of it; another leader's log is read from its start."""
        end = leader.log.log_end_offset
        start = None if self._read is None or self._read[0] is not leader or end < self._read[1] else self._read[1]
        self._values.update(records_of(bytes_of_log(leader, end, start)).values())
        self._read = leader, end


class WatchedBrokerCounter(BrokerCounter):
    """A broker's counter whose checkpoints are judged before they are written."""

    watch: AuditTopicWatch
    name: str

    def published(self, reports: Sequence[CountReport]) -> None:
        """Judge the reports, and write the checkpoints."""
        self.watch.published(self.name, reports)
        super().published(reports)
