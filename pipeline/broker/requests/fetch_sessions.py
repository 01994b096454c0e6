"""Fetch sessions (KIP-227): a client tells its partitions once and then only what changed; so does the broker.

Pure: sessions are values in memory, random numbers are passed in, and times of a clock that never goes back.

Invariants
  A. `FetchSession.due` holds every partition of the session of which an answer may have news: those that were never
     told, whose position the client moved, that got data or a new start, that fail, or that a limit cut off. All others
     are known to have nothing for the client, so an empty poll costs nothing for them.
  B. `due` is in the order in which the partitions are to be read: one that gave data goes to the end, so that limits
     starve nobody.
  C. A session that left the cache watches no partition any more.
  D. There are at most `max_sessions` sessions, within the memory for what clients have kept (`kept_memory`). A newcomer
     takes the place of one that was silent for `EVICTION_S`; else of a smaller one that is older than that, or, being a
     follower, which comes back at every poll, of a consumer's of any age. A client that gets no session is served
     without one.
  E. A session that was silent for `EVICTION_S` ends at the next `end_silent`: its client may have left, and if it did
     not, asks for a new one.
"""

import random
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    INITIAL_EPOCH,
    MAX_EPOCH,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
)

MAX_ID = 2**31 - 1
EVICTION_S = 120.0
PARTITION_BYTES = 512
"""About what a partition of a session takes beside the name of its topic."""
NOT_TOLD = -1

PartitionKey = tuple[str | uuid.UUID, int]
"""A topic, as the client names it, and the number of the partition."""


def memory_of(topics: Iterable[FetchTopic]) -> int:
    """Return about how many bytes these partitions take in a session, if it has none of them yet.

    Each partition pays for the name: a client may repeat the topic for each of them.
    """
    return sum(len(topic.partitions) * _memory_of_one(topic.topic) for topic in topics)


def _memory_of_one(topic: str) -> int:
    return PARTITION_BYTES + sys.getsizeof(topic)


class Watched(Protocol):
    """A partition that notifies its waiters."""

    def stop_waiting(self, waiter: "SessionPartition") -> None:
        """Tell it nothing any more."""
        ...


class Waiting(Protocol):
    """A request that waits for bytes."""

    def arrived(self, size_bytes: int) -> None:
        """So much more can be read."""
        ...

    def wake(self) -> None:
        """Look again."""
        ...


@dataclass(slots=True, eq=False)
class SessionPartition:
    """A partition in a session: what the client asks of it, and what it was told last."""

    session: "FetchSession"
    topic: str
    topic_id: uuid.UUID
    asked: FetchPartition
    high_watermark: int = NOT_TOLD
    log_start_offset: int = NOT_TOLD
    watched: Watched | None = None
    has_news: bool = False
    """True if there was news since it was read: an answer in the making may not be told yet."""

    def arrived(self, size_bytes: int) -> None:
        """The partition has so much more, or a new start."""
        self.has_news = True
        session = self.session
        session.due[self] = None
        if session.waiting is not None:
            session.waiting.arrived(size_bytes)

    def wake(self) -> None:
        """The partition may not be what it was."""
        self.has_news = True
        session = self.session
        session.due[self] = None
        if session.waiting is not None:
            session.waiting.wake()

    def watch(self, partition: Watched | None) -> None:
        """Watch this partition, which was just read, and no other; the caller adds this waiter to the partition."""
        self.has_news = False
        if self.watched is not None and self.watched is not partition:
            self.watched.stop_waiting(self)
        self.watched = partition

    def tell(self, *, high_watermark: int, log_start_offset: int, is_failure: bool, has_more: bool, size: int) -> bool:
        """Return True if an answer must name the partition, given its present state; that state counts as told then.

        A failure is told every time, and what follows it is news. `has_more`: there is something behind the client's
        position, so that its next request looks again.
        """
        is_news = is_failure or size > 0
        is_news = is_news or (high_watermark, log_start_offset) != (self.high_watermark, self.log_start_offset)
        self.high_watermark = NOT_TOLD if is_failure else high_watermark
        self.log_start_offset = NOT_TOLD if is_failure else log_start_offset
        due = self.session.due
        if size > 0 or not (is_failure or has_more):
            due.pop(self, None)
        if self.has_news or (size > 0 and not is_failure):
            due[self] = None
        return is_news


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions that a client fetches."""

    id: int
    uses_topic_ids: bool
    is_follower: bool
    created_s: float
    used_s: float
    epoch: int = FIRST_EPOCH
    """The epoch of the next request."""
    partitions: dict[PartitionKey, SessionPartition] = field(default_factory=dict)
    due: dict[SessionPartition, None] = field(default_factory=dict)
    waiting: Waiting | None = None
    """The request that waits, if one does."""
    held_bytes: int = 0
    """About what its partitions take in memory."""

    def update(self, topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]) -> None:
        """Take what a request adds, changes and leaves out."""
        for topic in topics:
            name = self._name(topic)
            for asked in topic.partitions:
                known = self.partitions.get((name, asked.partition))
                if known is None:
                    known = SessionPartition(self, topic.topic, topic.topic_id, asked)
                    self.partitions[name, asked.partition] = known
                    self.held_bytes += _memory_of_one(known.topic)
                else:
                    known.asked = asked
                self.due[known] = None
        for left in forgotten:
            for number in left.partitions:
                gone = self.partitions.pop((self._name(left), number), None)
                if gone is not None:
                    self.due.pop(gone, None)
                    gone.watch(None)
                    self.held_bytes -= _memory_of_one(gone.topic)

    def _name(self, topic: FetchTopic | ForgottenTopic) -> str | uuid.UUID:
        return topic.topic_id if self.uses_topic_ids else topic.topic

    def end(self) -> None:
        """Watch nothing any more; a request that waits is told that it is over."""
        self.epoch = FINAL_EPOCH
        for partition in self.partitions.values():
            partition.watch(None)
        if self.waiting is not None:
            self.waiting.wake()

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Order in which sessions make room for others: consumers before followers, small before large."""
        return self.is_follower, len(self.partitions), self.id


class FetchSessions:
    """The sessions of a broker."""

    def __init__(self, max_sessions: int, rng: random.Random, kept: KeptMemory) -> None:
        self._max_sessions = max_sessions
        self._rng = rng
        self._sessions: dict[int, FetchSession] = {}
        self._held_bytes = 0
        self._most_bytes = kept.add_use("fetch_sessions", lambda: self._held_bytes)

    @property
    def sessions(self) -> Mapping[int, FetchSession]:
        """All of them, the one that was silent for longest first."""
        return self._sessions

    @property
    def held_bytes(self) -> int:
        """About what the partitions of all sessions take in memory."""
        return self._held_bytes

    def begin(
        self,
        session_id: int,
        epoch: int,
        topics: Sequence[FetchTopic],
        forgotten: Sequence[ForgottenTopic],
        *,
        all_topics: Sequence[FetchTopic] | None = None,
        uses_topic_ids: bool,
        is_follower: bool,
        now_s: float,
    ) -> FetchSession | None:
        """The session that a request belongs to; None for one that names all its partitions and gets no session.

        `all_topics` are those of the request, if `topics` are only the first of them and `add` adds the others.

        Raises KafkaError (FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR).
        """
        if epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            self._remove(session_id)
            if epoch == FINAL_EPOCH:
                return None
            named = topics if all_topics is None else all_topics
            return self._create(topics, named, uses_topic_ids=uses_topic_ids, is_follower=is_follower, now_s=now_s)
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.waiting is not None:
            session.waiting.wake()
        self._update(session, topics, forgotten)
        if not session.partitions:
            self._remove(session_id)
            return None
        session.epoch = epoch + 1 if epoch < MAX_EPOCH else FIRST_EPOCH
        session.used_s = now_s
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def end_silent(self, now_s: float) -> None:
        """End the sessions that were silent for `EVICTION_S` at the time `now_s`."""
        while self._sessions:
            silent = next(iter(self._sessions.values()))
            if now_s - silent.used_s <= EVICTION_S:
                return
            self._remove(silent.id)

    def add(self, session: FetchSession, topics: Sequence[FetchTopic]) -> None:
        """Add partitions to a session that has not ended. Raises KafkaError (FETCH_SESSION_ID_NOT_FOUND)."""
        self._update(session, topics, ())

    def _update(self, session: FetchSession, topics: Sequence[FetchTopic], forgotten: Sequence[ForgottenTopic]) -> None:
        held_bytes = session.held_bytes
        session.update(topics, forgotten)
        self._held_bytes += session.held_bytes - held_bytes
        if self._held_bytes > self._most_bytes():
            self._remove(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def _create(
        self,
        topics: Sequence[FetchTopic],
        named: Sequence[FetchTopic],
        *,
        uses_topic_ids: bool,
        is_follower: bool,
        now_s: float,
    ) -> FetchSession | None:
        size = sum(len(topic.partitions) for topic in named)
        if not size or self._held_bytes + memory_of(named) > self._most_bytes():
            return None
        if len(self._sessions) >= self._max_sessions and not self._make_room(is_follower, size, now_s):
            return None
        number = self._rng.randint(1, MAX_ID)
        while number in self._sessions:
            number = self._rng.randint(1, MAX_ID)
        session = FetchSession(number, uses_topic_ids, is_follower, created_s=now_s, used_s=now_s)
        session.update(topics, ())
        self._sessions[number] = session
        self._held_bytes += session.held_bytes
        return session

    def _make_room(self, is_follower: bool, size: int, now_s: float) -> bool:
        if not self._sessions:
            return False
        silent = next(iter(self._sessions.values()))
        if now_s - silent.used_s > EVICTION_S:
            self._remove(silent.id)
            return True
        evictable = (
            session
            for session in self._sessions.values()
            if now_s - session.created_s > EVICTION_S or (is_follower and not session.is_follower)
        )
        least = min(evictable, key=lambda session: session.rank, default=None)
        if least is None or least.rank[:2] >= (is_follower, size):
            return False
        self._remove(least.id)
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._held_bytes -= session.held_bytes
            session.end()
