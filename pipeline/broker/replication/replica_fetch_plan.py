"""Plan of a replica fetcher: makes the next requests to its leader, and decides what the answers mean. Pure.

A partition is in one of four phases:

    TRUNCATING -- the leader must first say where our last epoch ends in its log (KIP-101, KIP-279)
    SET_ASIDE  -- the log is being truncated, or flushed, in a thread; nothing is appended meanwhile
    FETCHING   -- part of the fetch session (KIP-227)
    WAITING    -- after a refusal, for a while; then it begins with TRUNCATING again, for the leader may have restarted,
                  or (CORRUPT, ...) with FETCHING

Invariants
  A. `_members` is what the leader's session holds once the next request has arrived there, `_in_session` what it holds
     now: the session does not know the positions of `_changed` yet, and must drop `_forgotten`. So partitions without
     news cost nothing, neither in a request nor here.
  B. A log is truncated to where both logs agree, never to the high watermark, and never beyond the answer of the
     leader whose epoch the question bore. The fetcher fetches only when the epochs agree.
  C. An answer counts only for a partition that is still fetching, in the epoch and from the place that was asked.
"""

import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count
from types import MappingProxyType
from typing import NamedTuple, Protocol

from pipeline.log.leader_epochs import EpochStart
from pipeline.model import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import (
    FIRST_EPOCH,
    INITIAL_EPOCH,
    MAX_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from pipeline.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

FIRST_BACKOFF_S = 0.02
"""First wait after a refusal: within milliseconds the leader most often learns what we know already."""


class FollowedLog(Protocol):
    """The log of a follower, as the plan uses it."""

    @property
    def log_start_offset(self) -> Offset:
        """The first offset of the log."""

    @property
    def log_end_offset(self) -> Offset:
        """The offset of the next record."""

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The leader epoch of the last record, -1 if the log is empty."""

    def end_offset_for(self, epoch: LeaderEpoch) -> EpochStart:
        """Return the newest leader epoch that is not above this one, and the offset at which it ends."""


class FollowerPhase(Enum):
    """Phase of a partition, see the module."""

    TRUNCATING = auto()
    SET_ASIDE = auto()
    FETCHING = auto()
    WAITING = auto()


class Reaction(Enum):
    """Reaction to an error code of the leader for a partition."""

    TAKE = auto()
    """No error: take the answer."""
    COMPARE = auto()
    """The leader's log does not have our log end offset: begin at its start, or compare epochs again."""
    WAIT = auto()
    """The leader or this broker does not know the newest state of the cluster yet, and soon will."""
    COMPLAIN = auto()
    """Wait, and log the error for the operator."""


REACTIONS: Mapping[ErrorCode, Reaction] = MappingProxyType(
    {
        ErrorCode.NONE: Reaction.TAKE,
        ErrorCode.OFFSET_OUT_OF_RANGE: Reaction.COMPARE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER: Reaction.WAIT,
        ErrorCode.FENCED_LEADER_EPOCH: Reaction.WAIT,
        ErrorCode.UNKNOWN_LEADER_EPOCH: Reaction.WAIT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Reaction.WAIT,
        ErrorCode.UNKNOWN_TOPIC_ID: Reaction.WAIT,
        ErrorCode.INCONSISTENT_TOPIC_ID: Reaction.WAIT,
        ErrorCode.LEADER_NOT_AVAILABLE: Reaction.WAIT,
        ErrorCode.REPLICA_NOT_AVAILABLE: Reaction.WAIT,
    }
)
"""Reactions by error code; COMPLAIN to all others."""

_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

PartitionKey = tuple[uuid.UUID, int]


@dataclass(slots=True, eq=False)
class FollowedPartition:
    """A partition that is followed, in one leader epoch."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID
    leader_epoch: LeaderEpoch
    log: FollowedLog
    is_throttled: bool = False
    """True if it is not fetched while the rate of reassignments is used up."""
    phase: FollowerPhase = FollowerPhase.TRUNCATING
    resumes: FollowerPhase = FollowerPhase.TRUNCATING
    """The phase after WAITING."""
    compare_next: LeaderEpoch | None = None
    """The epoch to ask about, if it is not that of the last record."""
    failures: int = 0
    """Refusals in a row."""
    reported_in: int | None = None
    """Number of the first request with the present position; answers to earlier requests are of another position."""
    asked_offset: int = -1
    asked_start: int = -1
    lag: int = 0
    """Records that this log was behind the leader's high watermark, as of the last answer."""

    @property
    def key(self) -> PartitionKey:
        """Key of the partition in the fetch session."""
        return self.topic_id, self.topic_partition.partition


class Answer(NamedTuple):
    """Answer of the leader for a partition. `reaction` is TAKE, COMPARE, or COMPLAIN if the partition waits already."""

    partition: FollowedPartition
    reaction: Reaction
    data: PartitionData


class Truncation(NamedTuple):
    """The offset at which a log must end. Then both logs agree, or the epoch `compare_next` must be compared."""

    partition: FollowedPartition
    offset: Offset
    compare_next: LeaderEpoch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The settings `replica.fetch.*`."""

    own_id: BrokerId
    min_bytes: int
    max_wait_ms: int
    max_partition_bytes: int
    max_response_bytes: int
    max_backoff_s: float


@dataclass(slots=True)
class FetchPlan:
    """The partitions of one fetcher, all of one leader. `now_s` never goes back."""

    limits: FetchLimits
    requests: int = 0
    """Number of Fetches made so far."""
    _partitions: dict[TopicPartition, FollowedPartition] = field(default_factory=dict)
    _members: dict[PartitionKey, FollowedPartition] = field(default_factory=dict)
    _changed: dict[FollowedPartition, None] = field(default_factory=dict)
    _forgotten: dict[PartitionKey, None] = field(default_factory=dict)
    _in_session: set[PartitionKey] = field(default_factory=set)
    """Partitions that the leader's session holds now, in any leader epoch."""
    _to_compare: deque[FollowedPartition] = field(default_factory=deque)
    _waiting: list[tuple[float, int, FollowedPartition]] = field(default_factory=list)
    _held_back: dict[FollowedPartition, None] = field(default_factory=dict)
    """Partitions that would fetch if the rate of reassignments were not used up."""
    _sequence: Iterator[int] = field(default_factory=count)
    _session_id: int = NO_SESSION
    _session_epoch: int = INITIAL_EPOCH
    _is_refused: bool = False
    """True if the leader had no room for a session."""

    @property
    def partitions(self) -> Mapping[TopicPartition, FollowedPartition]:
        """All partitions (a live view)."""
        return MappingProxyType(self._partitions)

    @property
    def has_news(self) -> bool:
        """True if the leader's session lacks the position of a partition."""
        return bool(self._changed)

    @property
    def can_overtake(self) -> bool:
        """True if a Fetch may be sent while another waits for data: in a session the newer one ends that wait."""
        return self._session_epoch != INITIAL_EPOCH

    def is_current(self, partition: FollowedPartition) -> bool:
        """Return True if the partition is still followed in this epoch."""
        return self._partitions.get(partition.topic_partition) is partition

    # Coming and going

    def add(self, partition: FollowedPartition) -> None:
        """Follow this partition, in place of an older epoch of it."""
        self.remove(partition.topic_partition)
        self._partitions[partition.topic_partition] = partition
        self._begin(partition, FollowerPhase.TRUNCATING)

    def remove(self, topic_partition: TopicPartition) -> FollowedPartition | None:
        """Follow this partition no more: no answer counts for it from now on."""
        partition = self._partitions.pop(topic_partition, None)
        if partition is not None:
            self._leave(partition)
        return partition

    def throttle(self, topic_partition: TopicPartition, *, is_throttled: bool) -> None:
        """Throttle a partition, or stop that: a throttled one is not fetched while the rate is used up."""
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.is_throttled != is_throttled:
            partition.is_throttled = is_throttled
            if not is_throttled and partition in self._held_back:
                self._enter(partition)

    def _begin(self, partition: FollowedPartition, phase: FollowerPhase) -> None:
        """Begin TRUNCATING or FETCHING; an empty log has nothing to compare."""
        if phase is FollowerPhase.TRUNCATING and partition.log.last_epoch != NO_LEADER_EPOCH:
            self._leave(partition)
            partition.phase = FollowerPhase.TRUNCATING
            self._to_compare.append(partition)
        else:
            partition.phase, partition.compare_next = FollowerPhase.FETCHING, None
            self._enter(partition)

    def _enter(self, partition: FollowedPartition) -> None:
        self._held_back.pop(partition, None)
        partition.reported_in = None
        self._members[partition.key] = partition
        self._changed[partition] = None
        self._forgotten.pop(partition.key, None)

    def _leave(self, partition: FollowedPartition) -> None:
        self._held_back.pop(partition, None)
        if self._members.get(partition.key) is partition:
            del self._members[partition.key]
            self._changed.pop(partition, None)
            if partition.key in self._in_session:
                self._forgotten[partition.key] = None

    # Back-off

    def wait(
        self, partition: FollowedPartition, now_s: float, resumes: FollowerPhase = FollowerPhase.TRUNCATING
    ) -> None:
        """Do not ask for this partition for a while, longer with each refusal in a row; then begin with `resumes`."""
        self._leave(partition)
        partition.phase, partition.resumes = FollowerPhase.WAITING, resumes
        backoff_s = min(FIRST_BACKOFF_S * 2 ** min(partition.failures, 16), self.limits.max_backoff_s)
        partition.failures += 1
        heappush(self._waiting, (now_s + backoff_s, next(self._sequence), partition))

    def resume(self, now_s: float) -> float | None:
        """Go on with partitions that waited long enough. Return when the next one is due, None if none waits."""
        while self._waiting and self._waiting[0][0] <= now_s:
            _, _, partition = heappop(self._waiting)
            if self.is_current(partition) and partition.phase is FollowerPhase.WAITING:
                self._begin(partition, partition.resumes)
        return self._waiting[0][0] if self._waiting else None

    # Truncating

    def epochs_request(self) -> tuple[OffsetForLeaderEpochRequest, list[FollowedPartition]] | None:
        """Return the request for the ends of our last epochs, and its partitions; None if there is nothing to ask."""
        asked = [item for item in self._to_compare if self.is_current(item) and item.phase is FollowerPhase.TRUNCATING]
        self._to_compare.clear()
        if not asked:
            return None
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for partition in asked:
            name, index = partition.topic_partition
            topics.setdefault(name, []).append(
                OffsetForLeaderPartition(
                    partition=index,
                    current_leader_epoch=partition.leader_epoch,
                    leader_epoch=partition.log.last_epoch if partition.compare_next is None else partition.compare_next,
                )
            )
        named = [OffsetForLeaderTopic(topic=topic, partitions=found) for topic, found in topics.items()]
        return OffsetForLeaderEpochRequest(replica_id=self.limits.own_id, topics=named), asked

    def take_epochs(
        self, asked: Sequence[FollowedPartition], response: OffsetForLeaderEpochResponse, now_s: float
    ) -> tuple[list[Truncation], list[tuple[FollowedPartition, ErrorCode]]]:
        """Return the truncations that are due, and partitions to complain about. All others fetch or wait."""
        answers = {
            (topic.topic, partition.partition): partition for topic in response.topics for partition in topic.partitions
        }
        truncations: list[Truncation] = []
        complaints: list[tuple[FollowedPartition, ErrorCode]] = []
        for partition in asked:
            if not self.is_current(partition) or partition.phase is not FollowerPhase.TRUNCATING:
                continue
            answer = answers.get(partition.topic_partition, EpochEndOffset(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
            code = ErrorCode.of(answer.error_code)
            if code is ErrorCode.NONE and answer.end_offset < 0:
                code = ErrorCode.UNKNOWN_LEADER_EPOCH
            reaction = REACTIONS.get(code, Reaction.COMPLAIN)
            if reaction is Reaction.TAKE:
                truncation = find_truncation(partition, LeaderEpoch(answer.leader_epoch), Offset(answer.end_offset))
                if truncation.offset < partition.log.log_end_offset:
                    self.set_aside(partition)
                    truncations.append(truncation)
                else:
                    self.go_on(partition, truncation.compare_next)
            else:
                self.wait(partition, now_s)
                if reaction is not Reaction.WAIT:
                    complaints.append((partition, code))
        return truncations, complaints

    def set_aside(self, partition: FollowedPartition) -> None:
        """Take a partition out of the session: its log is about to be truncated, restarted or flushed."""
        self._leave(partition)
        partition.phase = FollowerPhase.SET_ASIDE

    def go_on(self, partition: FollowedPartition, compare_next: LeaderEpoch | None) -> None:
        """Fetch a partition whose log ends where it should, or compare its epochs once more."""
        if self.is_current(partition):
            partition.compare_next = compare_next
            self._begin(partition, FollowerPhase.FETCHING if compare_next is None else FollowerPhase.TRUNCATING)

    # Fetching

    def fetch_request(self, *, hold_back: bool, replica_epoch: int) -> FetchRequest | None:
        """Return the next Fetch, None if there is nothing to fetch. `hold_back`: leave throttled partitions out."""
        self._hold_back(hold_back=hold_back)
        if not self._members:
            return None
        is_full = self._session_epoch == INITIAL_EPOCH
        self.requests += 1
        reported: Iterable[FollowedPartition] = self._members.values() if is_full else self._changed
        topics: dict[tuple[str, uuid.UUID], list[FetchPartition]] = {}
        for partition in reported:
            topics.setdefault((partition.topic_partition.topic, partition.topic_id), []).append(self._ask(partition))
        forgotten: dict[uuid.UUID, list[int]] = {}
        if not is_full:
            for topic_id, index in self._forgotten:
                forgotten.setdefault(topic_id, []).append(index)
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self.limits.own_id, replica_epoch=replica_epoch),
            max_wait_ms=0 if is_full and not self._is_refused else self.limits.max_wait_ms,
            min_bytes=self.limits.min_bytes,
            max_bytes=self.limits.max_response_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[FetchTopic(topic=name, topic_id=id_, partitions=found) for (name, id_), found in topics.items()],
            forgotten_topics_data=[ForgottenTopic(topic_id=id_, partitions=found) for id_, found in forgotten.items()],
        )
        self._in_session.difference_update(self._forgotten)
        self._in_session.update(partition.key for partition in reported)
        self._changed.clear()
        self._forgotten.clear()
        if not is_full:
            self._session_epoch = self._session_epoch + 1 if self._session_epoch < MAX_EPOCH else FIRST_EPOCH
        return request

    def _ask(self, partition: FollowedPartition) -> FetchPartition:
        log = partition.log
        partition.reported_in = self.requests if partition.reported_in is None else partition.reported_in
        partition.asked_offset, partition.asked_start = log.log_end_offset, log.log_start_offset
        return FetchPartition(
            partition=partition.topic_partition.partition,
            current_leader_epoch=partition.leader_epoch,
            fetch_offset=partition.asked_offset,
            log_start_offset=partition.asked_start,
            partition_max_bytes=self.limits.max_partition_bytes,
        )

    def _hold_back(self, *, hold_back: bool) -> None:
        if hold_back:
            for partition in [member for member in self._members.values() if member.is_throttled]:
                self._leave(partition)
                self._held_back[partition] = None
        elif self._held_back:
            for partition in list(self._held_back):
                self._enter(partition)

    def take_response(self, response: FetchResponse, now_s: float, number: int) -> list[Answer] | None:
        """Return what the answer to the Fetch of this number has for partitions that still fetch.

        None if the session is over: the next Fetch begins another one.
        """
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            self.lose_session()
            if code not in _SESSION_ERRORS:
                for partition in list(self._members.values()):
                    self.wait(partition, now_s)
            return None
        if self._session_epoch == INITIAL_EPOCH:
            self._is_refused = response.session_id == NO_SESSION
            if not self._is_refused:
                self._session_id, self._session_epoch = response.session_id, FIRST_EPOCH
        answers = []
        for topic in response.responses:
            for data in topic.partitions:
                found = self._members.get((topic.topic_id, data.partition_index))
                if found is None or found.reported_in is None or number < found.reported_in:
                    continue
                reaction = REACTIONS.get(ErrorCode.of(data.error_code), Reaction.COMPLAIN)
                if reaction in {Reaction.WAIT, Reaction.COMPLAIN}:
                    self.wait(found, now_s)
                if reaction is not Reaction.WAIT:
                    answers.append(Answer(found, reaction, data))
        return answers

    def note_appended(self, partition: FollowedPartition) -> None:
        """Note that an answer was appended: the next Fetch reports the new log end offset."""
        partition.failures = 0
        log = partition.log
        is_moved = (log.log_end_offset, log.log_start_offset) != (partition.asked_offset, partition.asked_start)
        if is_moved and self._members.get(partition.key) is partition:
            self._changed[partition] = None

    def is_fetching(self, partition: FollowedPartition) -> bool:
        """Return True if fetched records of the partition may be appended."""
        return partition.phase is FollowerPhase.FETCHING and self.is_current(partition)

    def lose_session(self) -> None:
        """Begin another session by the next Fetch, with all positions: the leader's session is gone or in doubt."""
        self._session_epoch = INITIAL_EPOCH
        self._forgotten.clear()
        self._in_session.clear()
        for partition in self._members.values():
            partition.reported_in = None


def find_truncation(partition: FollowedPartition, epoch: LeaderEpoch, end_offset: Offset) -> Truncation:
    """Return where a follower's log must end (KIP-279).

    `epoch` is the newest one of the leader's log that is not above the requested one; it ends at `end_offset` there.
    """
    log = partition.log
    own_epoch, own_end = log.end_offset_for(epoch)
    if own_epoch == NO_LEADER_EPOCH:
        return Truncation(partition, min(end_offset, log.log_end_offset), None)
    offset = min(end_offset, own_end, log.log_end_offset)
    return Truncation(partition, offset, None if own_epoch == epoch else own_epoch)
