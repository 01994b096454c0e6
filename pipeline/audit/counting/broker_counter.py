"""Counts the committed batches of a broker's logs: batch headers in, reports out. No I/O: checkpoints are kept by a
`CheckpointStore`.

Invariants (decision 0026):

A. Each batch below `up_to` of a replica is counted exactly once, and `up_to` never exceeds the high watermark. Later
   batches wait, and are forgotten if they are truncated (`counted_replica.py`).
B. A checkpoint is written only after its counts were published. So a broker killed at any moment counts again, from
   the log itself, what it had counted since, and publishes it again; by the revisions of rows this changes no sum.
C. Each replica of a partition counts for itself and reports all that it counted, so no count is lost with a broker: the
   leader reports at once, followers seldom. A leader first claims its epoch, and reports all rows again in the same
   record: the claim may void any of them, since each says how far its replica had counted in all. So it does with the
   claim of an earlier epoch that it counts into later: that epoch's leader may have died before it reported.
D. Counting that cannot go on from a checkpoint begins at the start of the log. A checkpoint without counts is written
   before that, so that the old one is not taken up when the log has grown again. (A power failure between publishing
   and the checkpoint may remove records that stay reported.)
E. The event loop only notes the headers. They are summed for all partitions together: once MAX_FRESH of them are there,
   and before each report. Memory is bounded by that, by MAX_WAITING, and by the rows of `windows.py`.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Protocol

import numpy as np

from pipeline.audit.counting.checkpoints import SavedCounts
from pipeline.audit.counting.counted_replica import CountedReplica, EpochBegin, TakenCounts
from pipeline.audit.counting.latency_table import TopicWindow
from pipeline.audit.counting.naming import PartitionName
from pipeline.audit.counting.producer_counter import LifeClock
from pipeline.audit.counting.replica_sums import ReplicaSums
from pipeline.audit.counting.reports import latency_reports, replica_reports
from pipeline.audit.counting.windows import NOWHERE, UNKNOWN_OFFSET
from pipeline.audit.events.report import CountReport, LifeSign, ReportedTopic, Rows
from pipeline.audit.events.tiers import Counter, Tier, is_audited
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.observation import ObservedPartition
from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader

MAX_FRESH: Final = 4096
"""Headers that are noted before they are summed."""
MAX_APPENDED: Final = 100
"""Rows that may be appended to a checkpoint before it is replaced: each one makes a start slower."""
MAX_REPLACED: Final = 200
"""Checkpoints that are replaced in one round. A whole checkpoint is a copy of all rows of a partition."""
FOLLOWER_ROUNDS: Final = 30
"""Rounds between two reports of a follower, which matter only if the leader dies before it has reported."""
MAX_TAKEN: Final = 20_000
"""Rows in the reports of one round, or those of one replica; the others have to wait for the next round."""

logger = get_logger(__name__)


class CheckpointStore(Protocol):
    """Keeps, for each partition of a broker, all its counts up to some offset.

    `write` and `append` return True if they succeeded; after a failed `append` the caller writes the whole checkpoint.
    """

    def read(self, topic_partition: TopicPartition) -> SavedCounts | None:
        """Return the checkpoint with all that was appended to it; None if there is no whole one."""

    def write(self, checkpoint: SavedCounts) -> bool:
        """Replace the checkpoint of its partition."""

    def append(self, changed: SavedCounts) -> bool:
        """Add changed rows, and how far was counted, to the checkpoint of their partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLife:
    """A broker's process that counts. `started_ms` distinguishes it from earlier ones."""

    broker_id: int
    host: str
    started_ms: int
    interval_ms: int
    """Time between two reports."""


@dataclass(slots=True)
class _CountedTopic:
    """A topic with replicas here, and the number of its latencies."""

    number: int
    replicas: int = 0


class BrokerCounter:
    """Counts the committed batches of all replicas of a broker, by partition, window and hour; goes on after a restart.

    The broker's observer: the broker calls `loaded`, `appended`, `truncated` and `removed`.
    """

    def __init__(
        self,
        cluster: str,
        window_ms: int,
        checkpoints: CheckpointStore,
        clock: Clock,
        life: BrokerLife,
        *,
        times: LifeClock | None = None,
    ) -> None:
        """Count from now on. `times`: clock of the reports, if they shall not follow each jump of `clock`."""
        self._cluster = cluster
        self._window_ms = window_ms
        self._checkpoints = checkpoints
        self._clock = clock
        self._life = life
        self._times = times
        self._replicas: dict[TopicPartition, CountedReplica] = {}
        self._topics: dict[ReportedTopic, _CountedTopic] = {}
        self._sums = ReplicaSums(window_ms)
        self._touched: list[CountedReplica] = []
        """Replicas with fresh headers."""
        self._fresh = 0
        self._last_number = 0
        self._closed_ms = life.started_ms
        self._is_ending = self._is_ended = False
        self._checkpointing = threading.Lock()
        """Held while a checkpoint is written, since `published` runs in another thread than the rest."""

    def loaded(self, partition: ObservedPartition) -> None:
        """Count the batches of a replica that was opened, from its checkpoint on."""
        name = partition.topic_partition
        if not is_audited(name.topic):
            return
        saved = self._checkpoints.read(name)
        if saved is None:
            self._count_again(partition, is_saved=False)
            return
        reason = self._refuse(saved, partition)
        if reason is not None:
            logger.warning("audit_counted_again", partition=str(name), reason=reason)
            self._count_again(partition, is_saved=True)
            return
        log_start_offset = partition.log.log_start_offset
        counted_from = log_start_offset if saved.counted_from == UNKNOWN_OFFSET else saved.counted_from
        if log_start_offset > saved.up_to:  # what lies between was deleted before it was counted here
            counted_from = log_start_offset
        replica = self._new_replica(partition, saved.up_to, counted_from, saved.leader_epoch)
        self._sums.rows.add_rows(saved.rows, replica.number)
        self._sums.rows.take_changed([replica.number])
        self._count_rest(replica)

    def _refuse(self, saved: SavedCounts, partition: ObservedPartition) -> str | None:
        """Return why a checkpoint is of no use; None if it is of use."""
        if saved.window_ms != self._window_ms:
            return f"the windows of the checkpoint are {saved.window_ms} ms long, audit.window.ms is {self._window_ms}"
        if (saved.cluster, saved.topic_id) != (self._cluster, _topic_of(partition).topic_id):
            return "the checkpoint is of another datacenter, or of an older topic of this name"
        if saved.up_to > partition.log.log_end_offset:  # the log lost records: a power failure
            return f"the log ends at {partition.log.log_end_offset}, before {saved.up_to}, which was counted up to"
        return None

    def _new_replica(
        self, partition: ObservedPartition, up_to: int, counted_from: int, leader_epoch: int
    ) -> CountedReplica:
        """Count a replica by a new object, in place of the one there is."""
        self.removed(partition.topic_partition)
        name = PartitionName(_topic_of(partition), partition.topic_partition.partition)
        self._last_number += 1
        topic = self._topics.setdefault(name.topic, _CountedTopic(self._last_number))
        topic.replicas += 1
        replica = CountedReplica(partition, name, self._last_number, topic.number, up_to, counted_from, leader_epoch)
        self._replicas[partition.topic_partition] = replica
        return replica

    def _count_again(self, partition: ObservedPartition, *, is_saved: bool) -> None:
        start_offset = partition.log.log_start_offset
        replica = self._new_replica(partition, start_offset, start_offset, 0)
        if is_saved:
            self._checkpoints.write(self._saved(replica, self._sums.rows.rows([replica.number])))  # invariant D
        self._count_rest(replica)

    def _count_rest(self, replica: CountedReplica) -> None:
        """Count the batches of the log that are not known yet. A log that cannot be read is not counted at all."""
        log = replica.partition.log
        if replica.end_offset >= log.log_end_offset:
            return
        try:
            headers = iter(log.headers(max(Offset(replica.end_offset), log.log_start_offset)))
            while some := list(islice(headers, MAX_FRESH)):
                replica.note(some, self._clock())
                self._sums.count([replica], is_live=False)
        except PipelineError as error:
            logger.warning("audit_log_unreadable", partition=str(replica.partition.topic_partition), error=str(error))
            self.removed(replica.partition.topic_partition)

    def appended(
        self, topic_partition: TopicPartition, headers: Sequence[BatchHeader], batches: memoryview, now_ms: int
    ) -> None:
        """Take note of batches that were appended (invariant E)."""
        replica = self._replicas.get(topic_partition)
        if replica is None or not headers:
            return
        fresh = replica.fresh
        if not fresh:
            self._touched.append(replica)
        at = 0
        for header in headers:
            fresh += batches[at : at + HEADER_SIZE]
            at += header.batch_length + LOG_OVERHEAD
        replica.fresh_times_ms.append(now_ms)
        replica.fresh_sizes.append(len(headers))
        self._fresh += len(headers)
        if self._fresh >= MAX_FRESH:
            touched, self._touched, self._fresh = self._touched, [], 0
            self._sums.count(touched)

    def truncated(self, topic_partition: TopicPartition) -> None:
        """Take note that a log was truncated to follow its leader, in part or wholly."""
        replica = self._replicas.get(topic_partition)
        if replica is None:
            return
        self._sums.count([replica])
        end_offset = replica.partition.log.log_end_offset
        if end_offset < replica.up_to:
            reason = f"the log was truncated to {end_offset}, before {replica.up_to}, which was counted up to"
            logger.warning("audit_counted_again", partition=str(topic_partition), reason=reason)
            self._count_again(replica.partition, is_saved=True)
        elif self._sums.forget_from(replica, end_offset) is not None:
            self._count_rest(replica)

    def removed(self, topic_partition: TopicPartition) -> None:
        """Forget a replica that is no longer on this broker."""
        replica = self._replicas.get(topic_partition)
        if replica is None:
            return
        with self._checkpointing:  # no checkpoint of the old counts is written from now on
            del self._replicas[topic_partition]
            replica.taken = None
        self._sums.discard(replica)
        topic = self._topics[replica.name.topic]
        topic.replicas -= 1
        if not topic.replicas:
            del self._topics[replica.name.topic]
            self._sums.latencies.discard(topic.number)

    def end(self) -> None:
        """Report all replicas next time, and that this life has ended: the broker stops in order."""
        self._is_ending = True

    def take_reports(self) -> list[CountReport]:
        """Return what changed since the last reports, and a life sign in the last of them."""
        self._touched, self._fresh = [], 0
        self._sums.count(self._replicas.values())
        now_ms = self._clock()
        created_ms, may_close_ms = (now_ms, now_ms) if self._times is None else self._times.tick()
        empty = CountReport(
            counter=Counter(tier=Tier.BROKER, cluster=self._cluster),
            process=str(self._life.broker_id),
            created_ms=created_ms,
            window_ms=self._window_ms,
        )
        due, is_all = self._due()
        rows = self._sums.rows.take_changed([replica.number for replica in due])
        reports, replaced = [], 0
        for report, replicas, by_replica in replica_reports(empty, due, rows):
            reports.append(report)
            for replica, changed_rows in zip(replicas, by_replica, strict=True):
                replaced += self._take(replica, report, changed_rows, may_replace=replaced < MAX_REPLACED)
        topics = {topic.number: name for name, topic in self._topics.items()}
        process = f"{self._life.broker_id}/{self._life.started_ms}"
        reports += latency_reports(empty, self._sums.latencies.take_changed(), topics, process)
        if is_all:
            self._closed_ms = self._closed_at(may_close_ms)
        self._is_ended = is_all and self._is_ending
        return [*reports, replace(empty, life=self._life_sign())]

    def _due(self) -> tuple[list[CountedReplica], bool]:
        """Return the replicas that are to report now, and True if there are no more of them than may report at once."""
        due = [replica for replica in self._replicas.values() if self._is_due(replica)]
        changed = self._sums.rows.changed_partitions()
        taken: list[CountedReplica] = []
        rows = 0
        due.sort(key=lambda replica: -replica.silent_rounds)  # those that had to wait go first
        for replica in due:
            rows += changed.get(replica.number, 0)
            if taken and rows > MAX_TAKEN:
                break
            taken.append(replica)
        return taken, len(taken) == len(due)

    def _is_due(self, replica: CountedReplica) -> bool:
        """True if a replica has something to report now. A new leader claims its epoch (invariant C)."""
        replica.silent_rounds += 1
        if replica.claim_leadership() or replica.claims_for_others():
            self._sums.rows.mark_partition(replica.number)
            return True
        has_left = replica.reported is not None and replica.reported.is_leader and not replica.partition.is_leader
        if has_left or self._is_ending:  # nobody is to wait for the word of this broker any more
            return replica.reported != replica.position or bool(replica.claims)
        if not replica.partition.is_leader and replica.silent_rounds < FOLLOWER_ROUNDS:
            return False
        return replica.reported != replica.position or bool(replica.claims)

    def _take(self, replica: CountedReplica, report: CountReport, changed: Rows, *, may_replace: bool) -> bool:
        """Note that a replica is on its way to the audit topic. Return True if its whole checkpoint will be written."""
        if replica.taken is not None:
            replica.appended_rows = None  # the rows of that report would be missing in the checkpoint
        appended = replica.appended_rows
        is_whole = may_replace and (appended is None or appended + len(changed) > MAX_APPENDED)
        counts = None
        if is_whole:
            counts = self._saved(replica, self._sums.rows.rows([replica.number]))
        elif appended is not None:
            counts = self._saved(replica, changed)
        replica.taken = TakenCounts(report, counts, is_whole)
        replica.claims, replica.reported, replica.silent_rounds = [], replica.position, 0
        return is_whole

    def _closed_at(self, now_ms: int) -> int:
        """Return the time before which all that was appended to leaders is counted."""
        waits = [
            replica.waits_since_ms
            for replica in self._replicas.values()
            if replica.waits_since_ms is not None and replica.partition.is_leader
        ]
        return min([now_ms, *waits])

    def _life_sign(self) -> LifeSign:
        life = self._life
        return LifeSign(
            host=life.host,
            started_ms=life.started_ms,
            interval_ms=life.interval_ms,
            closed_ms=self._closed_ms,
            is_ended=self._is_ended,
        )

    def published(self, reports: Sequence[CountReport]) -> None:
        """Write to the checkpoints how far these logs are counted: the reports are in the audit topic (invariant B).

        May be called in another thread. Blocks while files are written.
        """
        published = set(map(id, reports))
        for replica in list(self._replicas.values()):
            with self._checkpointing:
                taken = replica.taken
                if taken is None or id(taken.report) not in published:
                    continue
                replica.taken = None
                if taken.counts is not None:
                    self._save(replica, taken.counts, is_whole=taken.is_whole)

    def _save(self, replica: CountedReplica, counts: SavedCounts, *, is_whole: bool) -> None:
        if is_whole:
            replica.appended_rows = 0 if self._checkpoints.write(counts) else None
        elif replica.appended_rows is not None:
            is_appended = self._checkpoints.append(counts)
            replica.appended_rows = replica.appended_rows + len(counts.rows) if is_appended else None

    def put_back(self, reports: Sequence[CountReport]) -> None:
        """Take what these reports say, which could not be published, again next time."""
        for report in reports:
            rows = report.rows.copy()
            numbers = np.full(len(rows), NOWHERE)
            for at, (topic, partition) in enumerate(
                zip(rows["topic"].tolist(), rows["partition"].tolist(), strict=True)
            ):
                replica = self._replica(report.topics[topic], partition)
                if replica is not None:
                    numbers[at] = replica.number
            rows["partition"] = numbers
            self._sums.rows.mark_changed(rows)
            claimed: dict[int, list[EpochBegin]] = defaultdict(list)
            for claim in report.claims:
                replica = self._replica(report.topics[claim.topic], claim.partition)
                if replica is not None:
                    claimed[replica.number].append(EpochBegin(claim.leader_epoch, claim.start_offset))
            for position in report.positions:
                replica = self._replica(report.topics[position["topic"]], int(position["partition"]))
                if replica is not None:
                    replica.claims[:0] = claimed[replica.number]
                    replica.reported, replica.silent_rounds = None, FOLLOWER_ROUNDS
                    if replica.taken is not None and replica.taken.report is report:
                        replica.taken = None
            self._sums.latencies.mark_changed(
                TopicWindow(topic.number, latency.start_ms)
                for latency in report.latencies
                if (topic := self._topics.get(report.topics[latency.topic])) is not None
            )

    def report_again(self) -> None:
        """Take all counts again, bit by bit: earlier reports are gone."""
        self._sums.rows.mark_all()
        for replica in self._replicas.values():
            replica.claimed_epoch, replica.reported, replica.silent_rounds = -1, None, FOLLOWER_ROUNDS

    def _replica(self, topic: ReportedTopic, partition: int) -> CountedReplica | None:
        """Return the replica that a report names; None if it is gone, or its topic was recreated."""
        replica = self._replicas.get(TopicPartition(topic.name, partition))
        return replica if replica is not None and replica.name.topic == topic else None

    def _saved(self, replica: CountedReplica, rows: Rows) -> SavedCounts:
        return SavedCounts(
            topic_partition=replica.partition.topic_partition,
            topic_id=replica.name.topic.topic_id,
            cluster=self._cluster,
            window_ms=self._window_ms,
            up_to=replica.up_to,
            counted_from=replica.counted_from,
            leader_epoch=replica.leader_epoch,
            rows=rows,
        )


def _topic_of(partition: ObservedPartition) -> ReportedTopic:
    topic_id = partition.log.topic_id
    return ReportedTopic(partition.topic_partition.topic, "" if topic_id is None else str(topic_id))
