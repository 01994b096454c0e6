"""The state of a source's partitions: where each stands, why it rests, and when it is tried again."""

from dataclasses import dataclass

import structlog
import trio

from pipeline.mirror.gaps import Gap
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.table import Assignment
from pipeline.model import TopicPartition
from pipeline.net.signals import Wakeup

logger = structlog.get_logger()


@dataclass(slots=True)
class PartitionCopy:
    """State of one partition. `position` is None while the replica's log end offset is not certain (invariant A)."""

    assignment: Assignment
    position: int | None = None
    replica_end: int = 0
    """Log end offset of the replica when last seen: `position`, or 0 for an empty replica of a later start."""
    high_watermark: int | None = None
    error: str | None = None
    retry_at: float = 0.0
    is_rejected: bool = False
    """True if the partition must not be copied (reason: `error`). Never reset: a new state replaces this one."""
    is_being_located: bool = False
    is_out_of_range: bool = False
    """True if the source refused the position as outside of its log, until the partition is located."""
    halt: Gap | None = None
    """Gap that a user must skip before the partition continues."""

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return self.assignment.source.partition

    @property
    def lag(self) -> int | None:
        """Offsets up to the source's last known high watermark that the replica lacks; None if either is not known."""
        if self.position is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.position)


class SourceCopies:
    """The partitions of one source, by name. `assign` and `reject` may be called while they are copied."""

    def __init__(self, source: str, metrics: MirrorMetrics, *, retry_backoff_s: float) -> None:
        self.source = source
        self.states: dict[TopicPartition, PartitionCopy] = {}
        self.uncertain = Wakeup()
        """Set when a partition must be located."""
        self._metrics = metrics
        self._retry_backoff_s = retry_backoff_s

    def assign(self, assignment: Assignment) -> None:
        """Copy a partition, also one that was rejected before."""
        partition = assignment.source.partition
        copy = self.states.get(partition)
        if copy is None or copy.is_rejected:
            # A new state: requests under way for the rejected one must not change it.
            self.states[partition] = PartitionCopy(assignment)
            self.uncertain.set()

    def reject(self, assignment: Assignment, reason: str) -> None:
        """Stop copying a partition until it is assigned again; the status shows `reason`."""
        copy = self.states.setdefault(assignment.source.partition, PartitionCopy(assignment))
        if not (copy.is_rejected and copy.error == reason):
            logger.warning("copy_rejected", source=self.source, partition=str(copy.source), error=reason)
        copy.is_rejected, copy.position, copy.high_watermark, copy.error = True, None, None, reason

    def reject_all(self, reason: str) -> None:
        """Stop copying all partitions until they are assigned again."""
        for copy in list(self.states.values()):
            self.reject(copy.assignment, reason)

    def rest(self, copy: PartitionCopy, reason: str) -> None:
        """Show the reason in the status, and have the partition located again after the back-off."""
        self._metrics.count_failure(copy.assignment.source)
        logger.warning("copy_failed", source=self.source, partition=str(copy.source), error=reason)
        if not copy.is_rejected:
            copy.position, copy.high_watermark, copy.error = None, None, reason
            copy.retry_at = trio.current_time() + self._retry_backoff_s
            self.uncertain.set()

    def halt(self, copy: PartitionCopy, gap: Gap, reason: str, *, recheck_s: float) -> None:
        """Stop copying a partition until the gap is skipped; located again in `recheck_s`, as the gap may change."""
        self._metrics.count_failure(copy.assignment.source)
        if not copy.is_rejected:
            if copy.error != reason:
                logger.warning("copy_halted", source=self.source, partition=str(copy.source), error=reason)
            copy.position, copy.high_watermark, copy.error, copy.halt = None, None, reason, gap
            copy.retry_at = trio.current_time() + recheck_s
            self.uncertain.set()

    def locate_again(self, copy: PartitionCopy) -> None:
        """Have the partition located at once."""
        copy.position, copy.retry_at = None, 0.0
        self.uncertain.set()
