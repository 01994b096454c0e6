"""Fetch sessions (KIP-227): a client names its partitions once and then only changes; the broker reports only changes.

Pure: sessions are values in memory; random numbers and trio's time are passed in.

Invariants
  A. `FetchSession.due` holds every partition that may have news for the client: it was never reported, the client moved
     its position, it got records or a new log start offset, it fails, or a limit cut it off. Other partitions cost an
     empty poll nothing.
  B. `due` is in reading order: a partition that gave records goes to the end, so that limits starve no partition.
  C. A session that left the cache watches no partition any more.
  D. There are at most `max_sessions` sessions, within the memory for clients' state (`kept_memory`). A new session
     replaces one that was silent for `EVICTION_S`; else a smaller one that is older than that; or, if it is a
     follower's, which polls forever, a consumer's of any age. Without a session a client is served all the same.
  E. A session that was silent for `EVICTION_S` ends at the next `end_silent`; its client, if alive, asks for a new one.
"""

import random
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.broker.replication.waiters import Waiter
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.model import ANONYMOUS
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
"""Approximate memory of a partition of a session, without the name of its topic."""
NOT_TOLD = -1

Owner = tuple[str, str]
"""The name of a user, and the address of a host."""
NOBODY: Owner = (ANONYMOUS, "")

PartitionKey = tuple[str | uuid.UUID, int]
"""A topic, as the client names it, and the index of the partition."""


def memory_of(topics: Iterable[FetchTopic]) -> int:
    """Return the approximate memory of new partitions; each counts the topic's name, which clients may repeat."""
    return sum(len(topic.partitions) * _memory_of_one(topic.topic) for topic in topics)


def _memory_of_one(topic: str) -> int:
    return PARTITION_BYTES + sys.getsizeof(topic)


class Watched(Protocol):
    """A partition that notifies its waiters."""

    def stop_waiting(self, waiter: "SessionPartition") -> None:
        """Notify this waiter no longer."""


@dataclass(slots=True, eq=False)
class SessionPartition:
    """A partition in a session: what the client requests, and what it was told last."""

    session: "FetchSession"
    topic: str
    topic_id: uuid.UUID
    asked: FetchPartition
    high_watermark: int = NOT_TOLD
    log_start_offset: int = NOT_TOLD
    watched: Watched | None = None
    has_news: bool = False
    """True if there is news since the last read: the answer that is being built may lack it."""

    def arrived(self, size_bytes: int) -> None:
        """Note that at most so much more can be read; 0: a log start offset or a high watermark has moved."""
        self.has_news = True
        session = self.session
        session.due[self] = None
        if session.waiting is not None:
            session.waiting.arrived(size_bytes)

    def wake(self) -> None:
        """Note that the partition is closed, led elsewhere, or its disk failed."""
        self.has_news = True
        session = self.session
        session.due[self] = None
        if session.waiting is not None:
            session.waiting.wake()

    def watch(self, partition: Watched | None) -> None:
        """Watch this partition, which was just read, and no other; the caller adds the waiter to the partition."""
        self.has_news = False
        if self.watched is not None and self.watched is not partition:
            self.watched.stop_waiting(self)
        self.watched = partition

    def tell(self, *, high_watermark: int, log_start_offset: int, is_failure: bool, has_more: bool, size: int) -> bool:
        """Take over the present state as told. Return True if the answer must name the partition.

        A failure is told every time, and the state after it is news. `has_more`: there are records behind the client's
        position, so that its next request reads again.
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
    owner: Owner = NOBODY
    """The user who opened the session, and from where: it serves no other, and nobody elsewhere."""
    epoch: int = FIRST_EPOCH
    """The epoch of the next request."""
    partitions: dict[PartitionKey, SessionPartition] = field(default_factory=dict)
    due: dict[SessionPartition, None] = field(default_factory=dict)
    waiting: Waiter | None = None
    """The request that waits in the session."""
    held_bytes: int = 0
    """Approximate memory of the partitions."""

    def update(self, topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]) -> None:
        """Add, change and remove partitions as a request says."""
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
        """Watch no partition any more, and wake a request that waits."""
        self.epoch = FINAL_EPOCH
        for partition in self.partitions.values():
            partition.watch(None)
        if self.waiting is not None:
            self.waiting.wake()

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Order in which sessions make room for new ones: consumers before followers, small before large."""
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
        """All sessions, the one that was silent for longest first."""
        return self._sessions

    @property
    def held_bytes(self) -> int:
        """Approximate memory of all sessions."""
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
        owner: Owner = NOBODY,
    ) -> FetchSession | None:
        """Return the session of a request; None if the request names all its partitions and gets no session.

        `all_topics` are the request's topics, if `topics` are only the first of them and `add` adds the others.
        Raises KafkaError (FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR).
        """
        session = self._sessions.get(session_id)
        if session is not None and session.owner != owner:
            session = None
        if epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            if session is not None:
                self._remove(session_id)
            if epoch == FINAL_EPOCH:
                return None
            named = topics if all_topics is None else all_topics
            created = self._create(topics, named, uses_topic_ids=uses_topic_ids, is_follower=is_follower, now_s=now_s)
            if created is not None:
                created.owner = owner
            return created
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

    def end_all(self) -> None:
        """End all sessions: their clients name their partitions again, and are judged anew."""
        for session_id in list(self._sessions):
            self._remove(session_id)

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
