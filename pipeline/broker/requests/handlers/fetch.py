"""Fetch (1), v4 to v18: read batches as they lie in the log (KIP-98). v7: sessions (KIP-227), v9: epoch fencing
(KIP-320), v12: the present leader of a partition that moved (KIP-951), v13: topic ids (KIP-516).

- The first batch is always whole, so that a consumer makes progress whatever its limits (KIP-74). A read_committed
  reader gets records below the last stable offset, and the aborted transactions among them.
- A session reads only partitions that may have news, and reports only those that have (`fetch_sessions`).
- A follower names itself (`replica_id`, from v15 on `replica_state`), reads up to the log end offset, and reports by
  its fetch offset what it has. This counts only under the broker epoch (KIP-903) with which that broker is registered
  in ZooKeeper: neither a client nor a former life of the follower advances a high watermark.
- Long poll: the request waits until `min_bytes` were appended or `max_wait_ms` have passed. Appends wake it, and it
  waits on if it cannot see the new records yet. If the event loop is late, a request without a session that names many
  partitions gathers records for a while: each of its answers costs as much as it has partitions, and writes and
  followers must not wait behind the polls of consumers.
"""

import uuid
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

import trio

from pipeline.broker.replication.partition import Partition
from pipeline.broker.replication.waiters import FetchWaiter
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.requests.fetch_reading import FetchReading, fetching_replica
from pipeline.broker.requests.fetch_sessions import FetchSession, SessionPartition
from pipeline.broker.runtime.slicing import OF_PARTITIONS, give_way
from pipeline.log.log_snapshot import LogSlice
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import (
    FINAL_EPOCH,
    FIRST_VERSION_OF_TOPIC_IDS,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

MAX_WAIT_MS = 60_000
MAX_WAIT_OF_MANY_MS = 500
"""Longest wait of a request that names very many partitions: other requests lack its memory."""
GATHERED_PARTITIONS = 50
"""A Fetch without a session that names fewer partitions is too cheap to gather records."""
LATE_S = 0.002
"""The event loop is late if a task that could run waits for this long."""
GATHER_FACTOR = 20
"""Ratio of the time in which records are gathered to the delay of the event loop."""
MAX_GATHER_S = 0.1

OF_READS = replace(OF_PARTITIONS, size=500)
"""Reading a partition's records takes about four times as long as looking it up."""

_Parts = Iterable[Sequence[tuple[FetchTopic, bool]]]
_NO_PARTS: _Parts = ()


def handle(
    broker: BrokerContext, request: FetchRequest, version: int, caller: Caller
) -> FetchResponse | Awaitable[FetchResponse]:
    """Answer at once if there are enough records or an error, unless there are very many partitions."""
    if request.session_id == NO_SESSION and request.session_epoch == FINAL_EPOCH:
        return _fetch(broker, request, version)
    first, rest = request.topics, _NO_PARTS
    if OF_PARTITIONS.is_large(request):
        rest = slices = OF_PARTITIONS.slices(request.topics)
        first = _topics_of(next(slices))
    try:
        session = broker.fetch.sessions.begin(
            request.session_id,
            request.session_epoch,
            first,
            request.forgotten_topics_data,
            all_topics=request.topics,
            uses_topic_ids=version >= FIRST_VERSION_OF_TOPIC_IDS,
            is_follower=fetching_replica(request, version) >= 0,
            now_s=trio.current_time(),
            owner=(caller.principal, caller.host),
        )
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    if session is None:
        return _fetch(broker, request, version)
    if first is not request.topics or len(session.due) > OF_PARTITIONS.size:
        return _take_in_turns(broker, request, version, session, session.epoch, rest)
    return _fetch_in_session(broker, request, version, session)


def _topics_of(part: Sequence[tuple[FetchTopic, bool]]) -> Sequence[FetchTopic]:
    return [topic for topic, _ in part]


# Without a session


class _Watched:
    """A partition that a waiting request has read; `has_news` is true if that has changed since."""

    __slots__ = ("_request", "data", "has_news", "partition")

    def __init__(self, request: FetchWaiter, partition: Partition, data: PartitionData, has_news: bool) -> None:
        self._request = request
        self.partition = partition
        self.data = data
        self.has_news = has_news

    def arrived(self, size_bytes: int) -> None:
        """Note that at most so much more can be read."""
        self.has_news = True
        self._request.arrived(size_bytes)

    def wake(self) -> None:
        """Note that the partition is closed, led elsewhere, or its disk failed."""
        self.has_news = True
        self._request.wake()


def _fetch(broker: BrokerContext, request: FetchRequest, version: int) -> FetchResponse | Awaitable[FetchResponse]:
    if OF_PARTITIONS.is_large(request):
        return _fetch_in_turns(broker, request, version)
    reading = FetchReading(broker, request, version)
    topics = _read(reading, request.topics)
    if reading.openings:
        return _open_and_fetch(reading)
    if reading.is_complete or request.max_wait_ms <= 0 or not reading.served:
        return _answer(reading, topics)
    return _wait_and_answer(reading, topics)


async def _open_and_fetch(unopened: FetchReading) -> FetchResponse:
    """Fetch again when files are open; a file that is not open by then counts as missing."""
    await unopened.wait_for_files()
    reading = unopened.again()
    topics = _read(reading, reading.request.topics)
    if reading.is_complete or reading.request.max_wait_ms <= 0 or not reading.served:
        return _answer(reading, topics)
    return await _wait_and_answer(reading, topics)


async def _wait_and_answer(reading: FetchReading, topics: Sequence[FetchableTopicResponse]) -> FetchResponse:
    deadline = _deadline(reading.request)
    while True:
        waiter = reading.waiter()
        watched = _watch(reading, waiter, topics, reading.served)
        try:
            may_wait_on = await _wait_and_gather(waiter, deadline, len(watched))
        finally:
            _stop_watching(watched)
        reading = reading.again()
        topics = _read_again(reading, reading.request.topics, watched)
        if reading.is_complete or not may_wait_on:
            return _answer(reading, topics)


async def _fetch_in_turns(broker: BrokerContext, request: FetchRequest, version: int) -> FetchResponse:
    """Fetch, wait and answer, yielding to other requests between slices; each slice is watched once it is read."""
    deadline = _deadline(request, MAX_WAIT_OF_MANY_MS)
    may_wait = request.max_wait_ms > 0
    parts = list(OF_READS.slices(request.topics))
    watched: list[Sequence[_Watched]] = [()] * len(parts)
    reading = FetchReading(broker, request, version)
    try:
        while True:
            waiter = reading.waiter()
            answers: list[FetchableTopicResponse] = []
            for number, part in enumerate(parts):
                await give_way()
                topics = _topics_of(part)
                before, served = watched[number], len(reading.served)
                _stop_watching(before)
                answered = _read_again(reading, topics, before) if before else _read(reading, topics)
                if may_wait and not reading.has_failure:
                    watched[number] = _watch(reading, waiter, answered, reading.served[served:])
                OF_READS.join(answers, part, answered)
            if reading.is_complete or not may_wait:
                return _answer(reading, answers)
            if not reading.is_committed:
                waiter.arrived(reading.read_bytes)
            may_wait = await _wait_and_gather(waiter, deadline, len(reading.served))
            reading = reading.again()
    finally:
        for some in watched:
            _stop_watching(some)


def _stop_watching(watched: Sequence[_Watched]) -> None:
    for each in watched:
        each.partition.stop_waiting(each)


def _watch(
    reading: FetchReading,
    waiter: FetchWaiter,
    topics: Sequence[FetchableTopicResponse],
    read: Sequence[tuple[Partition, LogSlice | None]],
) -> Sequence[_Watched]:
    """Watch the partitions of a waiting request: none has failed, so `read` has all of them in order."""
    answered = chain.from_iterable(topic.partitions for topic in topics)
    watched = [
        _Watched(waiter, partition, data, found is not None)
        for (partition, found), data in zip(read, answered, strict=True)
    ]
    for each in watched:
        reading.watch(each.partition, each)
    return watched


def _deadline(request: FetchRequest, max_wait_ms: int = MAX_WAIT_MS) -> float:
    return trio.current_time() + min(request.max_wait_ms, max_wait_ms) / 1000


async def _wait(waiter: FetchWaiter, deadline: float) -> bool:
    """Wait until `waiter` is woken or the time is over. Return True if the request may wait once more."""
    with trio.move_on_at(deadline):
        await waiter.woken.wait()
        return not waiter.is_over
    return False


async def _wait_and_gather(waiter: FetchWaiter, deadline: float, partitions: int) -> bool:
    """Wait as `_wait`; for many partitions `gather_s` longer, but not past the deadline."""
    if not await _wait(waiter, deadline):
        return False
    now_s = trio.current_time()
    pause_s = gather_s(partitions, now_s - waiter.woken_s)
    if pause_s:
        await trio.sleep_until(min(deadline, now_s + pause_s))
    return not waiter.is_over


def gather_s(partitions: int, late_s: float) -> float:
    """Return for how many seconds a Fetch gathers records, if it ran `late_s` after it was woken."""
    if partitions < GATHERED_PARTITIONS or late_s < LATE_S:
        return 0.0
    return min(GATHER_FACTOR * late_s, MAX_GATHER_S)


def _read(reading: FetchReading, topics: Sequence[FetchTopic]) -> list[FetchableTopicResponse]:
    answers = []
    for topic in topics:
        found = reading.find_topic(topic.topic, topic.topic_id)
        partitions = [reading.read(found, topic.topic, asked) for asked in topic.partitions]
        answers.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))
    return answers


def _read_again(
    reading: FetchReading, topics: Sequence[FetchTopic], watched: Sequence[_Watched]
) -> list[FetchableTopicResponse]:
    """Read the partitions with news, and keep the data of the other ones: a client may name hundreds."""
    answers, end = [], 0
    for topic in topics:
        start, end = end, end + len(topic.partitions)
        of_topic = watched[start:end]
        if any(each.has_news for each in of_topic):
            found = reading.find_topic(topic.topic, topic.topic_id)
            partitions = []
            for each, asked in zip(of_topic, topic.partitions, strict=True):
                if each.has_news:
                    partitions.append(reading.read(found, topic.topic, asked))
                else:
                    reading.keep(each.partition)
                    partitions.append(each.data)
        else:
            reading.served += [(each.partition, None) for each in of_topic]
            partitions = [each.data for each in of_topic]
        answers.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))
    return answers


def _answer(reading: FetchReading, topics: Sequence[FetchableTopicResponse]) -> FetchResponse:
    told = sum(len(topic.partitions) for topic in topics)
    reading.count(told, told - len(reading.served))
    return FetchResponse(responses=topics, node_endpoints=list(reading.leaders.values()))


# In a session

_Found = list[tuple[SessionPartition, PartitionData, bool]]
"""Partitions, the data to report, and True for each partition with records behind the client's position."""


def _fetch_in_session(
    broker: BrokerContext, request: FetchRequest, version: int, session: FetchSession
) -> FetchResponse | Awaitable[FetchResponse]:
    reading = FetchReading(broker, request, version)
    found = _read_due(reading, tuple(session.due))
    if reading.openings:
        return _open_and_fetch_in_session(reading, session)
    if reading.is_complete or request.max_wait_ms <= 0:
        return _answer_in_session(reading, session, found)
    return _wait_and_answer_in_session(reading, session)


async def _open_and_fetch_in_session(unopened: FetchReading, session: FetchSession) -> FetchResponse:
    epoch = session.epoch
    await unopened.wait_for_files()
    if session.epoch != epoch:
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    reading = unopened.again()
    found = _read_due(reading, tuple(session.due))
    if reading.is_complete or reading.request.max_wait_ms <= 0:
        return _answer_in_session(reading, session, found)
    return await _wait_and_answer_in_session(reading, session)


async def _wait_and_answer_in_session(reading: FetchReading, session: FetchSession) -> FetchResponse:
    epoch, deadline = session.epoch, _deadline(reading.request)
    while True:
        waiter = session.waiting = reading.waiter()
        try:
            may_wait_on = await _wait(waiter, deadline)
        finally:
            if session.waiting is waiter:
                session.waiting = None
        if session.epoch != epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        reading = reading.again()
        if len(session.due) > OF_PARTITIONS.size:
            return await _fetch_in_turns_in_session(reading, session, epoch, deadline)
        found = _read_due(reading, tuple(session.due))
        if reading.is_complete or not may_wait_on:
            return _answer_in_session(reading, session, found)


async def _take_in_turns(
    broker: BrokerContext, request: FetchRequest, version: int, session: FetchSession, epoch: int, rest: _Parts
) -> FetchResponse:
    """Add the partitions that the session lacks, a slice at a time, and read it."""
    for part in rest:
        await give_way()
        if session.epoch != epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        try:
            broker.fetch.sessions.add(session, _topics_of(part))
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
    reading = FetchReading(broker, request, version)
    return await _fetch_in_turns_in_session(reading, session, epoch, _deadline(request, MAX_WAIT_OF_MANY_MS))


async def _fetch_in_turns_in_session(
    reading: FetchReading, session: FetchSession, epoch: int, deadline: float
) -> FetchResponse:
    """Fetch in a session, yielding to other requests between slices; stop if another request advances the session."""
    may_wait = trio.current_time() < deadline
    while True:
        waiter = session.waiting = reading.waiter()
        found: _Found = []
        try:
            due = tuple(session.due)
            for start in range(0, len(due), OF_READS.size):
                await give_way()
                if session.epoch != epoch:
                    return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
                found += _read_due(reading, due[start : start + OF_READS.size])
            if reading.is_complete or not may_wait:
                return await _answer_in_turns(reading, session, found)
            if not reading.is_committed:
                waiter.arrived(reading.read_bytes)
            may_wait = await _wait(waiter, deadline)
        finally:
            if session.waiting is waiter:
                session.waiting = None
        if session.epoch != epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        reading = reading.again()


async def _answer_in_turns(reading: FetchReading, session: FetchSession, found: _Found) -> FetchResponse:
    epoch, answer = session.epoch, _SessionAnswer(reading.request)
    for start in range(0, len(found), OF_PARTITIONS.size):
        answer.add(found[start : start + OF_PARTITIONS.size])
        await give_way()
        if session.epoch != epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    return answer.response(reading, session)


def _read_due(reading: FetchReading, partitions: Sequence[SessionPartition]) -> _Found:
    found = []
    for due in partitions:
        data = reading.read(reading.find_topic(due.topic, due.topic_id), due.topic, due.asked)
        if data.error_code != ErrorCode.NONE:
            due.watch(None)
        else:
            partition, _ = reading.served[-1]
            due.watch(partition)
            reading.watch(partition, due)
        found.append((due, data, reading.has_more))
    return found


def _answer_in_session(reading: FetchReading, session: FetchSession, found: _Found) -> FetchResponse:
    answer = _SessionAnswer(reading.request)
    answer.add(found)
    return answer.response(reading, session)


class _SessionAnswer:
    """The partitions of a session that an answer reports."""

    __slots__ = ("_count", "_failed", "_is_first", "_topics")

    def __init__(self, request: FetchRequest) -> None:
        self._is_first = request.session_epoch == INITIAL_EPOCH
        self._topics: dict[tuple[str, uuid.UUID], list[PartitionData]] = {}
        self._count = self._failed = 0

    def add(self, found: _Found) -> None:
        """Report the partitions that have news; in the first answer of a session, all."""
        for due, data, has_more in found:
            is_failure = data.error_code != ErrorCode.NONE
            is_news = due.tell(
                high_watermark=data.high_watermark,
                log_start_offset=data.log_start_offset,
                is_failure=is_failure,
                has_more=has_more,
                size=0 if data.records is None else len(data.records),
            )
            if is_news or self._is_first:
                self._topics.setdefault((due.topic, due.topic_id), []).append(data)
                self._count += 1
                self._failed += is_failure

    def response(self, reading: FetchReading, session: FetchSession) -> FetchResponse:
        """Count what the answer reports, and return the answer."""
        reading.count(self._count, self._failed)
        return FetchResponse(
            session_id=session.id,
            responses=[
                FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=partitions)
                for (topic, topic_id), partitions in self._topics.items()
            ],
            node_endpoints=list(reading.leaders.values()),
        )
