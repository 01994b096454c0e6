import random
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.broker.requests.fetch_sessions import EVICTION_S, FetchSession, FetchSessions, SessionPartition, memory_of
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.protocol.codec import decode_from, encode
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_EPOCH,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from tests.support.wire import joined

Begin = Callable[..., FetchSession | None]


def _topics(*numbers: int, name: str = "t", offset: int = 0) -> list[FetchTopic]:
    return [
        FetchTopic(topic=name, partitions=[FetchPartition(partition=number, fetch_offset=offset) for number in numbers])
    ]


def _forgotten(*numbers: int, name: str = "t") -> list[ForgottenTopic]:
    return [ForgottenTopic(topic=name, partitions=numbers)]


def _begin(
    sessions: FetchSessions, session_id: int, epoch: int, *, now_s: float = 0, **more: Any
) -> FetchSession | None:
    given = {"topics": (), "forgotten": (), "uses_topic_ids": False, "is_follower": False, **more}
    return sessions.begin(session_id, epoch, given.pop("topics"), given.pop("forgotten"), now_s=now_s, **given)


def _made(sessions: FetchSessions, *numbers: int, **more: Any) -> FetchSession:
    session = _begin(sessions, 0, 0, topics=_topics(*numbers), **more)
    assert session is not None
    return session


def _refused(sessions: FetchSessions, session_id: int, epoch: int, **more: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refusal:
        _begin(sessions, session_id, epoch, **more)
    return refusal.value.code


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(2, random.Random(1), KeptMemory(32 << 20))


def test_epochs_count_up_and_partitions_come_and_go(sessions: FetchSessions) -> None:
    session = _made(sessions, 0, 1)
    assert session.id > 0
    assert [due.asked.partition for due in session.due] == [0, 1]
    assert _begin(sessions, session.id, 1, topics=_topics(2), forgotten=_forgotten(0)) is session
    assert [due.asked.partition for due in session.due] == [1, 2]
    assert _begin(sessions, session.id, 2, topics=_topics(1, offset=7)) is session
    assert [due.asked.fetch_offset for due in session.due] == [7, 0]
    assert sessions.held_bytes == session.held_bytes == memory_of(_topics(1, 2))
    session.epoch = MAX_EPOCH
    assert _begin(sessions, session.id, MAX_EPOCH) is session
    assert session.epoch == 1


def test_requests_that_do_not_fit_their_session_are_refused(sessions: FetchSessions) -> None:
    session = _made(sessions, 0)
    assert _refused(sessions, session.id + 1, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert _refused(sessions, session.id, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert _refused(sessions, session.id, 1, uses_topic_ids=True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_topics_are_known_by_the_name_that_the_client_uses(sessions: FetchSessions) -> None:
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    topics = [FetchTopic(topic_id=topic_id, partitions=[FetchPartition()]) for topic_id in (first, second)]
    session = _begin(sessions, 0, 0, topics=topics, uses_topic_ids=True)
    assert session is not None
    assert session is not None
    _begin(sessions, session.id, 1, forgotten=[ForgottenTopic(topic_id=first, partitions=[0])], uses_topic_ids=True)
    assert [due.topic_id for due in session.due] == [second]


def test_a_session_ends_by_its_last_epoch_a_new_start_or_its_last_partition(sessions: FetchSessions) -> None:
    session = _made(sessions, 0)
    assert _begin(sessions, session.id, -1) is None
    session = _made(sessions, 0)
    again = _begin(sessions, session.id, 0, topics=_topics(0))
    assert again is not None
    assert again is not None and list(sessions.sessions) == [again.id] != [session.id]
    assert _begin(sessions, again.id, 1, forgotten=_forgotten(0)) is None
    assert (len(sessions.sessions), sessions.held_bytes) == (0, 0)


def test_room_is_made_as_in_kafka(sessions: FetchSessions) -> None:
    small, large = _made(sessions, 0), _made(sessions, 0, 1, 2)
    assert _begin(sessions, 0, 0, topics=_topics(0, 1)) is None  # nobody has been there long enough
    later = EVICTION_S + 1
    for session in (small, large):
        _begin(sessions, session.id, 1, now_s=later)
    assert _begin(sessions, 0, 0, topics=_topics(0), now_s=later) is None  # smaller than none of them
    middle = _made(sessions, 0, 1, now_s=later)
    assert set(sessions.sessions) == {large.id, middle.id}
    silent = _made(sessions, 0, now_s=2 * later)  # whoever was silent has to go, whatever the size
    assert set(sessions.sessions) == {middle.id, silent.id}
    follower = _made(sessions, 0, is_follower=True, now_s=2 * later)
    other = _made(sessions, 0, is_follower=True, now_s=2 * later)
    assert set(sessions.sessions) == {follower.id, other.id}
    assert _begin(sessions, 0, 0, topics=_topics(0, 1, 2), now_s=2 * later) is None


def test_there_is_a_bound_on_memory() -> None:
    sessions = FetchSessions(2, random.Random(1), KeptMemory(memory_of(_topics(0, 1, 2))))
    assert _begin(sessions, 0, 0, topics=_topics(0, 1, 2, 3)) is None
    assert _begin(sessions, 0, 0, topics=_topics(0, 1), all_topics=_topics(0, 1, 2, 3)) is None
    assert _begin(sessions, 0, 0, topics=_topics(0, 1, 2, name="t" * 240)) is None, "names count"
    session = _made(sessions, 0, 1)
    code = _refused(sessions, session.id, 1, topics=_topics(2, 3))
    assert (code, sessions.held_bytes) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    assert _begin(FetchSessions(0, random.Random(1), KeptMemory(1 << 20)), 0, 0, topics=_topics(0)) is None


@pytest.mark.parametrize("per_topic", [1, 8])
def test_the_estimate_is_about_what_sessions_take(sessions: FetchSessions, per_topic: int) -> None:
    topics = [
        FetchTopic(
            topic=f"{number:08}{'x' * 240}",
            partitions=[FetchPartition(partition=part, fetch_offset=number << 20) for part in range(per_topic)],
        )
        for number in range(4000 // per_topic)
    ]
    raw = memoryview(joined(encode(FetchRequest(topics=topics), 11)))
    tracemalloc.start()
    try:
        session = _begin(sessions, 0, 0, topics=decode_from(FetchRequest, 11, raw, 0, 100_000)[0].topics)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert session is not None
    assert 0.8 * taken < session.held_bytes < 2.5 * taken


def test_silent_sessions_end(sessions: FetchSessions) -> None:
    silent, used = _made(sessions, 0), _made(sessions, 1)
    _begin(sessions, used.id, 1, now_s=1)
    sessions.end_silent(EVICTION_S)
    assert len(sessions.sessions) == 2
    sessions.end_silent(EVICTION_S + 1)
    assert list(sessions.sessions) == [used.id]
    assert _refused(sessions, silent.id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.end_silent(EVICTION_S + 2)
    assert (len(sessions.sessions), sessions.held_bytes) == (0, 0)


class _Place:
    """A partition at which some wait."""

    def __init__(self) -> None:
        self.waiters: set[SessionPartition] = set()

    def stop_waiting(self, waiter: SessionPartition) -> None:
        self.waiters.discard(waiter)


def test_a_session_that_ended_watches_nothing(sessions: FetchSessions) -> None:
    session, place = _made(sessions, 0, 1), _Place()
    for due in session.due:
        due.watch(place)
        place.waiters.add(due)
    _begin(sessions, session.id, 1, forgotten=_forgotten(1))
    assert len(place.waiters) == 1
    _begin(sessions, session.id, -1)
    assert not place.waiters


def _tell(due: SessionPartition, end: int, *, start: int = 0, fails: bool = False, size: int = 0) -> bool:
    has_more = due.asked.fetch_offset < end
    due.watch(due.watched)  # as a Fetch does when it reads
    return due.tell(high_watermark=end, log_start_offset=start, is_failure=fails, has_more=has_more, size=size)


def test_a_session_reports_only_partitions_with_news(sessions: FetchSessions) -> None:
    session = _made(sessions, 0)
    (due,) = session.due
    assert _tell(due, 0)
    assert not session.due
    due.arrived(0)
    assert list(session.due) == [due]
    assert not _tell(due, 0)
    assert _tell(due, 0, start=1)
    assert _tell(due, 0, fails=True) and _tell(due, 0, fails=True)
    due.wake()
    assert _tell(due, 0, start=1)
    assert not session.due


def test_partitions_with_data_go_to_the_end_and_those_cut_off_stay_first(sessions: FetchSessions) -> None:
    session = _made(sessions, 0, 1, 2)
    first, second, third = session.due
    _tell(first, 10, size=100)
    _tell(second, 10)
    _tell(third, 0)
    assert list(session.due) == [second, first]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("axfpm"), st.integers(0, 3), st.integers(1, 3)), max_size=40))
def test_a_session_never_forgets_a_readable_partition(steps: list[tuple[str, int, int]]) -> None:
    """Against a model that looks at everything: what a client may read is due, and what is due is bounded by it."""
    sessions = FetchSessions(1, random.Random(1), KeptMemory(1 << 20))
    session = _made(sessions, 0, 1, 2, 3)
    ends, told = [0, 0, 0, 0], [-1, -1, -1, -1]
    for kind, number, amount in steps:
        partition = session.partitions["t", number]
        if kind == "a":  # an append
            ends[number] += amount
            partition.arrived(amount)
        elif kind == "x":  # the client moves
            offset = min(ends[number], partition.asked.fetch_offset + amount)
            _begin(sessions, session.id, session.epoch, topics=_topics(number, offset=offset))
        elif kind == "f":  # the client forgets and comes back
            _begin(sessions, session.id, session.epoch, topics=(), forgotten=_forgotten(number))
            _begin(sessions, session.id, session.epoch, topics=_topics(number))
            told[number] = -1
        else:  # a poll that has room for one partition with data
            room = 1
            for due in tuple(session.due):
                index = due.asked.partition
                size = int(room > 0 and due.asked.fetch_offset < ends[index])
                room -= size
                assert _tell(due, ends[index], size=size) == (size > 0 or told[index] != ends[index])
                told[index] = ends[index]
        due_now = {due.asked.partition for due in session.due}
        for index, end in enumerate(ends):
            has_news = told[index] != end or session.partitions["t", index].asked.fetch_offset < end
            assert not has_news or index in due_now


def test_news_between_reading_and_telling_keeps_a_partition_due(sessions: FetchSessions) -> None:
    session = _made(sessions, 0)
    (due,) = session.due
    due.watch(None)
    due.arrived(10)
    due.tell(high_watermark=0, log_start_offset=0, is_failure=False, has_more=False, size=0)
    assert list(session.due) == [due]
    assert not _tell(due, 0)
    assert not session.due


def test_a_session_serves_and_is_ended_by_its_owner_alone() -> None:
    sessions = FetchSessions(10, random.Random(0), KeptMemory(10**6))
    topics = (FetchTopic(topic="t", partitions=(FetchPartition(partition=0),)),)

    def begin(session_id: int, epoch: int, user: str, host: str = "10.0.0.1") -> FetchSession | None:
        return sessions.begin(
            session_id, epoch, topics, (), uses_topic_ids=False, is_follower=False, now_s=0.0, owner=(user, host)
        )

    session = begin(0, INITIAL_EPOCH, "alice")
    assert session is not None
    with pytest.raises(KafkaError, match="session"):
        begin(session.id, session.epoch, "bob")
    with pytest.raises(KafkaError, match="session"):  # rules name hosts, too
        begin(session.id, session.epoch, "alice", "10.0.0.2")
    begin(session.id, FINAL_EPOCH, "bob")
    assert begin(session.id, session.epoch, "alice") is session
    begin(session.id, FINAL_EPOCH, "alice")
    assert not sessions.sessions


def test_all_sessions_end_when_rules_change() -> None:
    sessions = FetchSessions(10, random.Random(0), KeptMemory(10**6))
    topics = (FetchTopic(topic="t", partitions=(FetchPartition(partition=0),)),)
    session = sessions.begin(0, INITIAL_EPOCH, topics, (), uses_topic_ids=False, is_follower=False, now_s=0.0)
    assert session is not None
    sessions.end_all()
    assert not sessions.sessions
    assert session.epoch == FINAL_EPOCH
