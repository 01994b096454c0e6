"""Fetch requests to one broker: the partitions that wait for one, and the next request. Pure; `fetcher.py` acts.

A partition has at most one request under way, since its next offset is known only from the answer. Requests of three
paces leave side by side, each on a connection of its own, so that none waits behind another:

- BEHIND: the last answer left records at the broker. Several requests share these partitions and `max_bytes`:
  `NEAR_REQUESTS` at a near broker, where more would only make answers smaller, and `max_in_flight` at a far one, where
  a lost packet slows down its connection for many round trips.
- LIVE: partitions at the end of their logs that had records lately. A second request takes partitions that come
  while the first one waits at the broker.
- IDLE: partitions without records for a while. They wait in one request, so that the requests of a few busy partitions
  among thousands stay short. The broker remembers them from one request to the next (`fetch_session.py`).

Invariants:
A. All answers of BEHIND on their way together hold no more than `max_bytes`, or one batch each; while the number of
   requests grows, up to twice that. When a request of them leaves, these and the bytes that were fetched and not taken
   are less than `max_bytes`, unless none are left to take. For the others, which have a share of their own so that a
   backlog does not hold them up, only the bytes that were fetched and not taken count: their answers are small.
B. Partitions of one pace take turns: the one whose records came least recently is the first of its next request, and
   gets a whole batch (KIP-74). Partitions of a backlog whose limit has no room keep their places, and brokers whose
   requests share a limit take turns (`byte_rate.py`). So a partition with a limit below a few batches is not held up
   by others for ever.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.byte_rate import FetchLimit
from pipeline.client.consumer.fetch_plan import MAX_INT32, FetchBounds, FetchedBatches, FetchState
from pipeline.client.consumer.fetch_session import IdleFetchSession
from pipeline.model import BrokerId, TopicPartition

LIVE_REQUESTS = 2
NEAR_REQUESTS = 4
FAR_S = 0.01
"""Time there and back from which on a broker is far away."""
IDLE_AFTER_MS = 2_000
"""Time without records after which a partition is idle."""
IDLE_JOINS_MS = 100
"""Longest time for which an idle partition waits for the end of the request of the others. Until it happens to be as
short, the partition is in requests of LIVE: nobody would ask for it meanwhile."""
IDLE_WAIT_MS = 500
"""Longest time beyond `max_wait_ms` that a request for very many idle partitions waits."""
IDLE_WAITING_PER_MS = 10
"""Idle partitions for which their request waits at the broker 1 ms longer."""
IDLE_RESTING_PER_MS = 50
"""Idle partitions for which their next request leaves 1 ms later: one of 10,000 takes some 20 ms of CPU, and 100 ms if
the broker does not remember them."""
ROOM_POLL_MS = 50
"""Interval at which a backlog looks whether other requests of its limit have ended."""
LEAST_SHARE_BYTES = 1024 * 1024
"""Least bytes of a partition in an answer that has room for them: batches are seldom larger."""


LimitOf = Callable[[TopicPartition], FetchLimit | None]
"""Returns the limit that a partition shares with others, None if it has none. Asked at each request."""


def unlimited(_topic_partition: TopicPartition) -> None:
    """Return no limit."""


class Pace(Enum):
    """Kind of request for which a partition waits."""

    LIVE = auto()
    BEHIND = auto()
    IDLE = auto()


class Fetched(NamedTuple):
    """Fetched batches, and where they came from."""

    broker: BrokerId
    is_backlog: bool
    state: FetchState
    batches: FetchedBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFetch:
    """A request to send: its partitions in order, its bounds, and the number of its connection."""

    lane: int
    pace: Pace
    states: Sequence[FetchState]
    bounds: FetchBounds
    ends_ms: int
    """Time at which the broker answers at the latest."""
    limits: list[FetchLimit] = field(default_factory=list)
    """Limits in which the request counts as under way."""

    @property
    def is_backlog(self) -> bool:
        """True if the answer counts as backlog in the buffer."""
        return self.pace is Pace.BEHIND


@dataclass(slots=True)
class FetchQueue:
    """Partitions of one broker that may be fetched, and its requests under way."""

    config: ConsumerConfig
    asker: Hashable = None
    """Name of the requests at limits that they share with those of other queues."""
    failures: int = 0
    """Failed requests in a row."""
    is_far: bool = False
    """True if the broker is far away (`FAR_S`)."""
    session: IdleFetchSession = field(default_factory=IdleFetchSession)
    """Session of the requests for idle partitions."""
    buffered_bytes: Counter[bool] = field(default_factory=Counter)
    """Fetched bytes that were not taken yet, of a backlog (True) and of all others."""
    _waiting: dict[Pace, dict[TopicPartition, FetchState]] = field(default_factory=lambda: {pace: {} for pace in Pace})
    _under_way: dict[int, PlannedFetch] = field(default_factory=dict)
    _idle_from_ms: int = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing waits and nothing is under way."""
        return not self._under_way and not any(self._waiting.values())

    def add(self, state: FetchState, now_ms: int) -> None:
        """Have a partition wait for a request."""
        pace = _pace_of(state, now_ms)
        if pace is Pace.IDLE and any(
            planned.pace is Pace.IDLE and not now_ms <= planned.ends_ms <= now_ms + IDLE_JOINS_MS
            for planned in self._under_way.values()
        ):
            pace = Pace.LIVE
        self._waiting[pace][state.topic_partition] = state

    def take_all(self, is_taken: Callable[[FetchState], bool] = lambda _: True) -> list[FetchState]:
        """Return the partitions that wait and are to be taken. They wait no longer."""
        found = []
        for waiting in self._waiting.values():
            taken = [state for state in waiting.values() if is_taken(state)]
            for state in taken:
                del waiting[state.topic_partition]
            found += taken
        return found

    def begin(self, now_ms: int, limit_of: LimitOf = unlimited) -> PlannedFetch | None:
        """Return the next request to send, None if none may leave now. Its partitions wait no longer."""
        for pace in Pace:
            if not self._waiting[pace] or not self._has_room(pace, now_ms):
                continue
            waiting = list(self._waiting[pace].values())
            if pace is Pace.BEHIND:
                waiting = self._with_room(waiting, limit_of, now_ms)
            if waiting:
                planned = self._plan(pace, waiting, now_ms)
                for state in planned.states:
                    del self._waiting[pace][state.topic_partition]
                self._under_way[planned.lane] = planned
                return planned
        return None

    def end(self, planned: PlannedFetch, now_ms: int, unchanged: Iterable[FetchState] = ()) -> None:
        """Take note that a request has ended. Its `unchanged` partitions wait again; the caller adds the others."""
        del self._under_way[planned.lane]
        self._waiting[planned.pace].update((state.topic_partition, state) for state in unchanged)
        if planned.pace is Pace.IDLE:
            self._idle_from_ms = now_ms + math.ceil(len(planned.states) / IDLE_RESTING_PER_MS)

    def under_way(self) -> list[PlannedFetch]:
        """Return the requests under way."""
        return list(self._under_way.values())

    def wakes_at_ms(self, now_ms: int) -> float:
        """Return the time at which a request may leave that may not now; infinite if none does by time alone."""
        is_resting = self._waiting[Pace.IDLE] and self._idle_from_ms > now_ms
        has_no_room = self._waiting[Pace.BEHIND] and self._has_room(Pace.BEHIND, now_ms)  # in its limits, then
        return min(
            self._idle_from_ms if is_resting else math.inf,
            now_ms + ROOM_POLL_MS if has_no_room else math.inf,
        )

    def _max_requests(self) -> int:
        """Return the number of requests that share a backlog."""
        return self.config.max_in_flight if self.is_far else min(NEAR_REQUESTS, self.config.max_in_flight)

    def _count(self, pace: Pace) -> int:
        """Return the number of requests under way."""
        return sum(planned.pace is pace for planned in self._under_way.values())

    def _has_room(self, pace: Pace, now_ms: int) -> bool:
        under_way = self._count(pace)
        if pace is Pace.BEHIND:
            buffered = self.buffered_bytes[True]
            promised = sum(each.bounds.max_bytes for each in self._under_way.values() if each.pace is Pace.BEHIND)
            has_bytes = not buffered or buffered + promised < self.config.max_bytes
            return has_bytes and under_way < self._max_requests()
        if self.buffered_bytes[False] >= self.config.max_bytes:
            return False
        return under_way < LIVE_REQUESTS if pace is Pace.LIVE else not under_way and self._idle_from_ms <= now_ms

    def _with_room(self, states: Sequence[FetchState], limit_of: LimitOf, now_ms: int) -> list[FetchState]:
        """Return the partitions of a backlog whose limits let another request leave."""
        rooms: dict[int, bool] = {}
        found = []
        for state in states:
            limit = limit_of(state.topic_partition)
            if limit is not None and id(limit) not in rooms:
                rooms[id(limit)] = limit.has_room(self.asker, now_ms / 1000)
            if limit is None or rooms[id(limit)]:
                found.append(state)
        return found

    def _plan(self, pace: Pace, waiting: list[FetchState], now_ms: int) -> PlannedFetch:
        most_bytes, max_wait_ms = self.config.max_bytes, self.config.max_wait_ms
        max_bytes = max(most_bytes // self._max_requests(), min(most_bytes, LEAST_SHARE_BYTES))
        if pace is Pace.BEHIND:
            others = [len(planned.states) for planned in self._under_way.values() if planned.pace is Pace.BEHIND]
            requests = min(self._max_requests(), sum(others) + len(waiting))
            waiting = waiting[: math.ceil(len(waiting) / (requests - len(others)))]
            max_bytes = max(1, most_bytes // requests)
        elif pace is Pace.IDLE:
            max_wait_ms += min(IDLE_WAIT_MS, len(waiting) // IDLE_WAITING_PER_MS)
        share = max(LEAST_SHARE_BYTES, max_bytes // len(waiting))
        if any(state.high_watermark is None for state in waiting):
            max_wait_ms = 0  # that they are at the end shall be known before there are records
        return PlannedFetch(
            lane=next(lane for lane in range(len(self._under_way) + 1) if lane not in self._under_way),
            pace=pace,
            states=waiting,
            bounds=FetchBounds(
                max_bytes=max_bytes,
                max_partition_bytes=min(self.config.max_partition_bytes, max_bytes, share),
                max_wait_ms=max_wait_ms,
            ),
            ends_ms=now_ms + max_wait_ms,
        )


def opens_at_ms(limit_of: LimitOf, state: FetchState) -> float:
    """Return the time from which on a partition may be requested."""
    limit = limit_of(state.topic_partition)
    return state.not_before_ms if limit is None else max(state.not_before_ms, _whole_ms(limit.opens_at))


def _whole_ms(time_s: float) -> float:
    """Return a time of `now_ms`, which has no fractions: a task that woke before such a time would wake for nothing."""
    return time_s if math.isinf(time_s) else math.ceil(time_s * 1000)


def is_held(limit_of: LimitOf, now_ms: int, state: FetchState) -> bool:
    """Return True if a partition may not be requested yet."""
    return opens_at_ms(limit_of, state) > now_ms


class HeldPartitions:
    """Partitions that may not be requested before a time, in the order of their turns (invariant B)."""

    def __init__(self, limit_of: LimitOf) -> None:
        self._limit_of = limit_of
        self._heap: list[tuple[float, int, int, FetchState]] = []
        self._numbers = itertools.count()

    @property
    def first_at_ms(self) -> float:
        """Time of the first of them; infinite if there are none."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, states: Iterable[FetchState]) -> None:
        """Hold partitions until their back-off and their limit have passed."""
        for state in states:
            opens_at = opens_at_ms(self._limit_of, state)
            heapq.heappush(self._heap, (opens_at, state.moved_at_ms, next(self._numbers), state))

    def take(self, now_ms: float) -> list[FetchState]:
        """Return the partitions whose time has come, which are held no longer."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            found.append(heapq.heappop(self._heap)[-1])
        return found


def share_limits(states: Sequence[FetchState], limit_of: LimitOf) -> None:
    """Divide what each limit allows in one request among its partitions."""
    limits = [limit_of(state.topic_partition) for state in states]
    counts = Counter(map(id, limits))
    for state, limit in zip(states, limits, strict=True):
        bound = None if limit is None else limit.max_bytes()
        state.max_bytes = MAX_INT32 if bound is None else max(1, min(MAX_INT32, bound // counts[id(limit)]))


def begin_next(queue: FetchQueue, held: HeldPartitions | None, limit_of: LimitOf, now_ms: int) -> PlannedFetch | None:
    """Return the next request to send, None if none may leave now. It is the request of its partitions then.

    Partitions whose limit other requests have closed meanwhile go to `held`, which is None if there are no limits. The
    caller ends the request in `FetchQueue.end` and `end_limits`.
    """
    if held is not None:
        held.add(queue.take_all(partial(is_held, limit_of, now_ms)))
    planned = queue.begin(now_ms, unlimited if held is None else limit_of)
    if planned is not None:
        for state in planned.states:
            state.request = planned
        _begin_limits(planned, limit_of, queue.asker, now_ms)
    return planned


def _begin_limits(planned: PlannedFetch, limit_of: LimitOf, asker: Hashable, now_ms: int) -> None:
    """Have a request count as under way in the limits of its partitions, until `end_limits`.

    Requests of partitions without a backlog do not count: they wait at the broker for long, and bring little.
    """
    if planned.is_backlog:
        found = {id(limit): limit for state in planned.states if (limit := limit_of(state.topic_partition)) is not None}
        for limit in found.values():
            limit.begin(id(planned), asker, now_ms / 1000)
        planned.limits.extend(found.values())


def end_limits(planned: PlannedFetch) -> None:
    """Have a request count as under way no longer."""
    for limit in planned.limits:
        limit.end(id(planned))


def in_turn(states: Iterable[FetchState]) -> list[FetchState]:
    """Return the partitions of a request in the order in which they wait again (invariant B)."""
    return sorted(states, key=lambda state: state.moved_at_ms)


def _pace_of(state: FetchState, now_ms: int) -> Pace:
    if state.is_behind:
        return Pace.BEHIND
    return Pace.LIVE if state.high_watermark is None or now_ms - state.moved_at_ms < IDLE_AFTER_MS else Pace.IDLE
