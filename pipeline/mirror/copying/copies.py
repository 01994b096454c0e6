"""The state of a source's partitions: where each stands, why it rests, and when it is tried again."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import trio

from pipeline.diagnostics import get_logger
from pipeline.mirror.copying.progress import CopyProgress
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.epochs import EpochEntries
from pipeline.mirror.journals.gaps import Gap
from pipeline.mirror.journals.pauses import Pause, Pauses
from pipeline.mirror.journals.table import Assignment
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.sharing.assignment import WorkUnit
from pipeline.mirror.sharing.share import ALONE, Share
from pipeline.mirror.topics.flows import SourceFlows
from pipeline.model import BrokerId, TopicPartition
from pipeline.net.signals import Wakeup
from pipeline.protocol.messages.produce import NO_COPIER_EPOCH

SILENCE_S = 5.0
"""Time beyond `fetch.max.wait.ms` after which an answer of the source is outdated. A source without new records answers
after that time; 5 s more are longer than a slow network needs, and short for a person that looks at the lag."""

logger = get_logger(__name__)


class CopyState(Enum):
    """State of a partition, as the status and the metrics show it."""

    LOCATING = "locating"
    """Source or hub have not been asked yet, or have not answered yet."""
    COPYING = "copying"
    CAUGHT_UP = "caught_up"
    SILENT = "silent"
    """The source has not answered for this partition for a while: it may hold any number of new records."""
    WAITING = "waiting"
    """Copying failed, and is tried again after `retry.backoff.ms`."""
    HALTED = "halted"
    """Copying fails again and again until somebody acts on the advice."""
    REJECTED = "rejected"
    """Must not be copied."""
    PAUSED = "paused"
    """A user paused the partition; the lag stays true as long as the source answers."""
    GONE = "gone"
    """The source no longer has the partition."""
    ELSEWHERE = "elsewhere"
    """Another member of the group copies the partition: its status has the lag."""
    UNOWNED = "unowned"
    """No member of the group copies the partition."""


class Advice(Enum):
    """Actions that end a trouble, as the status shows them."""

    LOOK_AT_SOURCE = (
        "check the network and the source's brokers; `pipeline cluster describe` names partitions without leader"
    )
    LOOK_AT_BOTH = "the mirror tries again; if this stays, check the brokers of the source and of the hub"
    LOOK_FOR_LOSS = (
        "a new leader of the source catches up within seconds; if this stays, the source lost records that the replica "
        "has, or the replica is no copy of this topic"
    )
    ALLOW_AT_SOURCE = "let the source's administrator allow this mirror to read the topic"
    SKIP_GAP = (
        "look at the gap with `pipeline mirror resume TOPIC-PARTITION`; with `--skip` it is recorded, and copying "
        "continues behind it"
    )
    RESUME = "a user paused the partition: `pipeline mirror resume` with its topic, flow or source continues copying"
    REPLACE_HUB_TOPIC = "rename or delete the topic of the hub that stands in the way, or exclude it (topics.exclude)"
    LEAVE_PROMOTED = "nothing more to do here: the topic belongs to its producers; exclude it (topics.exclude)"
    JOIN_GROUP = (
        "a member of a group waits for its next share; give a mirror without a group the zookeeper.connect and "
        "mirror.group of the others"
    )
    LOOK_AT_GROUP = (
        "check that ZooKeeper answers, and that all members of the group have the same settings: the leader assigns "
        "the partitions that its own flows select"
    )
    CHECK_SOURCE = "correct the source's bootstrap.servers, or give the other cluster a name of its own"
    EXCLUDE_LOOP = "exclude the topic at this mirror (topics.exclude), or at the mirror that copies it to the source"
    RESTORE_TABLE = (
        "restore the topic _mirror_partitions, or delete the replica to have it copied again from what the sources hold"
    )
    MEND_REPLICA = "do at the destination what the error says; the mirror then continues by itself"
    EXCLUDE = (
        "if the topic was deleted on purpose, exclude it (topics.exclude, `pipeline mirror apply`); else check whether "
        "the source lets this mirror describe it"
    )


_STATES = {Advice.EXCLUDE: CopyState.GONE, Advice.SKIP_GAP: CopyState.HALTED}
"""States of partitions that are rejected, by the advice; all others are REJECTED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Reason why a partition is not copied, as a failure or a rejection left it."""

    reason: str
    advice: Advice
    state: CopyState
    at: float
    """Time of trio's clock."""


class SourceLeader(NamedTuple):
    """Leader of a source partition, and its epoch."""

    broker: BrokerId | None
    epoch: int


class KnownEnd(NamedTuple):
    """A leader of the source that knows all that was committed, and its high watermark at that time."""

    leader: SourceLeader
    high_watermark: int


@dataclass(slots=True)
class PartitionCopy:
    """State of one partition. `position` is None while the replica's log end offset is not certain (invariant A)."""

    assignment: Assignment
    position: int | None = None
    fetch: int = 0
    """Number of times that the partition was located: batches that were fetched before are void."""
    replica_end: int = 0
    """Log end offset of the replica when last seen: `position`, or 0 for an empty replica of a later start."""
    trouble: Trouble | None = None
    """Present trouble: None once copying works again."""
    last_trouble: Trouble | None = None
    """The latest trouble, also after copying worked again."""
    retry_at: float = 0.0
    pause: Pause | None = None
    """Pause that holds the partition."""
    is_rejected: bool = False
    """True if the partition must not be copied (reason: `trouble`). Never reset: a new state replaces this one."""
    is_being_located: bool = False
    is_appending: bool = False
    """True while an append is under way: the replica's end is not certain before it has ended."""
    is_out_of_range: bool = False
    """True if the source refused the position as outside of its log, until the partition is located."""
    is_truncated: bool = False
    """True if the source lost records before the position, until the partition is located."""
    is_confirmed: bool = False
    """True if the source was found to have the replica's last batch, and has not been away since."""
    losses: int = 0
    """Number of times that the connection to the source's leader was lost."""
    straddling_end: int | None = None
    """Offset after a batch of the source that begins before the replica's end, so that it cannot be appended."""
    epochs: EpochEntries = ()
    """The source's leader epochs of the replica's records."""
    fallen_at: float | None = None
    """Time since which the source names a lower leader epoch than the replica's records have; None if it does not."""
    leader_epoch: int | None = None
    """Leader epoch that a leader of the source must have up to `position`; None if unknown."""
    known_end: KnownEnd | None = None
    """The last leader that named its high watermark in answer to ListOffsets."""
    halt: Gap | None = None
    """Gap that a user must skip before the partition continues."""
    is_doubted: bool = False
    """True if an answer of the source had another topic of the name, and no later one had the topic of `assignment`."""
    progress: CopyProgress = field(default_factory=CopyProgress)
    token: str = ""
    """Name of the source partition in Produce requests (`Origin.token`); empty if the hub does not check sources."""
    copier_epoch: int = NO_COPIER_EPOCH
    """Epoch of this copier in Produce requests; -1 if this process has no group."""
    taken_at: float = 0.0
    """Time of trio's clock since which this process has the partition, if it has a group."""
    is_elsewhere: bool = False
    """True if the partition can be copied, and another member of the group has it, or none."""

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return self.assignment.source.partition

    @property
    def error(self) -> str | None:
        """Reason of the present trouble, if any."""
        return None if self.trouble is None else self.trouble.reason


class SourceCopies:
    """The partitions of one source, by name. `assign` and `reject` may be called while they are copied."""

    def __init__(
        self, source: str, flows: SourceFlows, metrics: MirrorMetrics, config: CurrentConfig, pauses: Pauses
    ) -> None:
        self.source = source
        self.flows = flows
        self.states: dict[TopicPartition, PartitionCopy] = {}
        self.uncertain = Wakeup()
        """Set when a partition must be located."""
        self.withdrawn: set[TopicPartition] = set()
        """Partitions that were rejected, for the copier to stop fetching."""
        self.answered_at: float | None = None
        """Time of the source's last answer about any partition."""
        self.share = ALONE
        """The work that this process does."""
        self._accepted: dict[TopicPartition, tuple[Assignment, str]] = {}
        """Partitions that can be copied, here or by another member of the group, with their tokens."""
        self._metrics = metrics
        self._config = config
        self._pauses = pauses

    def expect(self, assignment: Assignment) -> None:
        """Show a partition of the table that the source has not named yet; it is copied once it is assigned."""
        self.states.setdefault(assignment.source.partition, PartitionCopy(assignment, is_rejected=True))

    def assign(self, assignment: Assignment, token: str = "") -> None:
        """Copy a partition if it is in the share, also one that was rejected before. `token` as in PartitionCopy."""
        partition = assignment.source.partition
        copy = self.states.get(partition)
        if copy is not None and copy.assignment != assignment:  # another mirror has replaced a recreated topic
            self.reject(copy.assignment, "the topic was created again", advice=Advice.SKIP_GAP)
        is_taken = copy is not None and (copy.is_elsewhere or not copy.is_rejected)
        if not is_taken or self._accepted.get(partition) != (assignment, token):
            self._take(assignment, token)

    def _take(self, assignment: Assignment, token: str) -> None:
        """Copy a partition if it is in the present share, else leave it to others."""
        partition = assignment.source.partition
        copy = self.states.get(partition)
        self._accepted[partition] = assignment, token
        epoch = self.share.epoch_of(self.unit_of(partition))
        if epoch is None:
            self._leave(assignment)
        elif copy is None or copy.is_rejected or copy.copier_epoch != epoch:
            # A new state: requests under way for the rejected one must not change it.
            if copy is not None:
                copy.is_rejected, copy.position = True, None
            taken_at = 0.0 if epoch == NO_COPIER_EPOCH else trio.current_time()
            self.states[partition] = PartitionCopy(
                assignment, token=token, copier_epoch=epoch, taken_at=taken_at, pause=self.pause_of(partition)
            )
            self.uncertain.set()
        else:
            copy.token = token

    def unit_of(self, partition: TopicPartition) -> WorkUnit:
        """Return the unit of work that a partition is."""
        return WorkUnit(self.source, partition.topic, partition.partition)

    def has(self, partition: TopicPartition) -> bool:
        """Return True if this process is the one to copy the partition."""
        return self.share is ALONE or self.share.epoch_of(self.unit_of(partition)) is not None

    def holder_of(self, partition: TopicPartition) -> str | None:
        """Return the member of the group that has a partition; None if none has it, or without a group."""
        return self.share.holder_of(self.unit_of(partition))

    def take_share(self, share: Share) -> None:
        """Copy the partitions of this share from now on, and no others."""
        self.share = share
        for assignment, token in list(self._accepted.values()):
            self._take(assignment, token)

    def leave(self, assignment: Assignment) -> None:
        """Leave a partition that must not be copied to the member that has it: that one shows the reason."""
        self._accepted.pop(assignment.source.partition, None)
        self._leave(assignment)

    def _leave(self, assignment: Assignment) -> None:
        """Stop copying a partition that another member has."""
        partition = assignment.source.partition
        copy = self.states.get(partition)
        if copy is not None and copy.is_elsewhere:
            return
        if copy is not None:
            copy.is_rejected, copy.position = True, None
            self.withdrawn.add(partition)
        self.states[partition] = PartitionCopy(assignment, is_rejected=True, is_elsewhere=True)

    def reject(self, assignment: Assignment, reason: str, *, advice: Advice) -> None:
        """Stop copying a partition until it is assigned again; the status shows `reason` and `advice`."""
        self._accepted.pop(assignment.source.partition, None)
        copy = self.states.setdefault(assignment.source.partition, PartitionCopy(assignment))
        if copy.assignment != assignment:  # of an earlier topic of the name: requests under way are for its replica
            copy.is_rejected, copy.position = True, None
            copy = self.states[assignment.source.partition] = PartitionCopy(assignment)
        copy.is_elsewhere = False
        if not (copy.is_rejected and copy.error == reason):
            logger.warning("copy_rejected", source=self.source, partition=str(copy.source), error=reason)
            state = _STATES.get(advice, CopyState.REJECTED)
            _note_trouble(copy, Trouble(reason=reason, advice=advice, state=state, at=trio.current_time()))
            self.withdrawn.add(copy.source)
        copy.is_rejected, copy.position = True, None

    def pause_of(self, partition: TopicPartition) -> Pause | None:
        """Return a pause that holds a source partition; None if there is none."""
        flow = self.flows.flow_of(partition.topic)
        return self._pauses.covering(self.source, partition, None if flow is None else flow.name)

    def follow_pauses(self) -> None:
        """Stop copying partitions that are paused now, and continue those that are not paused any more."""
        if not self._pauses and not any(copy.pause for copy in self.states.values()):
            return
        for copy in self.states.values():
            pause = self.pause_of(copy.source)
            was_paused, copy.pause = copy.pause is not None, pause
            if pause is not None and not was_paused:
                self.withdrawn.add(copy.source)
            elif pause is None and was_paused:
                self.locate_again(copy)

    def withdraw(self, copy: PartitionCopy) -> None:
        """Stop copying a partition, and forget it: no flow selects its topic any more."""
        copy.is_rejected, copy.position = True, None  # requests under way must not go on
        self._accepted.pop(copy.source, None)
        self.withdrawn.add(copy.source)
        del self.states[copy.source]

    def is_current(self, copy: PartitionCopy) -> bool:
        """Return True if no newer state has replaced this one."""
        return self.states.get(copy.source) is copy

    def doubt(self, assignment: Assignment, reason: str) -> None:
        """Stop copying a partition whose topic was perhaps created again: the source's next answer decides."""
        self.reject(assignment, reason, advice=Advice.SKIP_GAP)
        copy = self.states[assignment.source.partition]
        copy.is_doubted, copy.halt = True, None

    def end(self, assignment: Assignment, gap: Gap, reason: str) -> None:
        """Halt a partition whose topic was created again. It is assigned anew once the gap is in the ledger."""
        self.reject(assignment, reason, advice=Advice.SKIP_GAP)
        self.states[assignment.source.partition].halt = gap

    def reject_all(self, reason: str) -> None:
        """Stop copying all partitions until they are assigned again."""
        for copy in list(self.states.values()):
            self.reject(copy.assignment, reason, advice=Advice.CHECK_SOURCE)

    def rest(self, copy: PartitionCopy, reason: str, advice: Advice = Advice.LOOK_AT_BOTH) -> None:
        """Show the reason in the status, and have the partition located again after the back-off."""
        self._metrics.count_failure(copy.assignment.source)
        logger.warning("copy_failed", source=self.source, partition=str(copy.source), error=reason)
        if not copy.is_rejected:
            now = trio.current_time()
            is_tried_again = advice is Advice.LOOK_AT_BOTH or (advice is Advice.JOIN_GROUP and copy.copier_epoch >= 0)
            state = CopyState.WAITING if is_tried_again else CopyState.HALTED
            _note_trouble(copy, Trouble(reason=reason, advice=advice, state=state, at=now))
            copy.position = None
            copy.retry_at = now + self._config.retry_backoff_s
            self.uncertain.set()

    def halt(self, copy: PartitionCopy, gap: Gap, reason: str) -> None:
        """Stop copying a partition until the gap is skipped; located again now and then, as the gap may change."""
        self._metrics.count_failure(copy.assignment.source)
        if not copy.is_rejected:
            if copy.error != reason:
                logger.warning("copy_halted", source=self.source, partition=str(copy.source), error=reason)
            now = trio.current_time()
            _note_trouble(copy, Trouble(reason=reason, advice=Advice.SKIP_GAP, state=CopyState.HALTED, at=now))
            if copy.progress.position is None:
                copy.progress.note_position(gap.first)  # so that the lag shows what waits at the source
            copy.position, copy.halt = None, gap
            copy.retry_at = now + self._config.recheck_s
            self.uncertain.set()

    def locate_again(self, copy: PartitionCopy) -> None:
        """Have the partition located at once."""
        copy.position, copy.retry_at = None, 0.0
        self.uncertain.set()

    def note_answer(self, topic_partition: TopicPartition, high_watermark: int, asked_at: float) -> None:
        """Take note of the source's high watermark, the answer to a request of `asked_at` (of trio's clock).

        A partition that has caught up has no trouble.
        """
        copy = self.states.get(topic_partition)
        if copy is not None and not copy.is_rejected:
            copy.progress.note_answer(high_watermark, asked_at)
            if copy.position == high_watermark:
                copy.trouble = None


def _note_trouble(copy: PartitionCopy, trouble: Trouble) -> None:
    """Show a trouble. The time of a trouble that repeats is its first one's."""
    if copy.trouble is not None and copy.trouble.reason == trouble.reason:
        return
    copy.trouble = copy.last_trouble = trouble
