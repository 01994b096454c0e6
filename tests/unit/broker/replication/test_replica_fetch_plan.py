import random
import uuid
from dataclasses import dataclass, field

import pytest

from pipeline.broker.replication.replica_fetch_plan import (
    FIRST_BACKOFF_S,
    REACTIONS,
    FetchLimits,
    FetchPlan,
    FollowedPartition,
    FollowerPhase,
    Reaction,
    Truncation,
)
from pipeline.broker.requests.fetch_sessions import FetchSessions
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.log.leader_epochs import EpochStart, LeaderEpochs
from pipeline.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pipeline.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

NOWHERE = Offset(0)
EPOCH = 3
TOPIC_ID = uuid.UUID(int=7)
LIMITS = FetchLimits(
    own_id=BrokerId(2),
    min_bytes=1,
    max_wait_ms=500,
    max_partition_bytes=1_048_576,
    max_response_bytes=10_485_760,
    max_backoff_s=1.0,
)


@dataclass
class MemoryLog:
    """A log, as far as the plan looks at it."""

    log_end_offset: Offset = NOWHERE
    log_start_offset: Offset = NOWHERE
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)

    @property
    def last_epoch(self) -> LeaderEpoch:
        return self.epochs.epoch_at(Offset(self.log_end_offset - 1))

    def end_offset_for(self, epoch: LeaderEpoch) -> EpochStart:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)


def log_of(*starts: tuple[int, int], end: int) -> MemoryLog:
    """A log with these epochs and their start offsets."""
    return MemoryLog(Offset(end), Offset(0), LeaderEpochs(EpochStart(LeaderEpoch(e), Offset(s)) for e, s in starts))


def followed(index: int = 0, log: MemoryLog | None = None, epoch: int = 5) -> FollowedPartition:
    return FollowedPartition(TopicPartition("t", index), TOPIC_ID, LeaderEpoch(epoch), log or MemoryLog())


def begin_session(plan: FetchPlan, session_id: int = 9) -> FetchRequest:
    request = plan.fetch_request(hold_back=False, replica_epoch=EPOCH)
    assert request is not None
    assert plan.take_response(FetchResponse(session_id=session_id), 0.0, plan.requests) == []
    return request


def asked(request: FetchRequest | None) -> list[FetchPartition]:
    return [] if request is None else [partition for topic in request.topics for partition in topic.partitions]


def answer(index: int = 0, code: ErrorCode = ErrorCode.NONE, start: int = 0) -> FetchResponse:
    data = PartitionData(partition_index=index, error_code=code, high_watermark=0, log_start_offset=start)
    return FetchResponse(session_id=9, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])


def epochs_answer(epoch: int, end: int, code: ErrorCode = ErrorCode.NONE) -> OffsetForLeaderEpochResponse:
    found = EpochEndOffset(partition=0, leader_epoch=epoch, end_offset=end, error_code=code)
    return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[found])])


def compare(plan: FetchPlan, epoch: int, end: int, code: ErrorCode = ErrorCode.NONE) -> tuple[int, list[Truncation]]:
    """Ask about the epoch; which one was asked about, and what is to be truncation."""
    question = plan.epochs_request()
    assert question is not None
    request, about = question
    (topic,) = request.topics
    (partition,) = topic.partitions
    truncations, _ = plan.take_epochs(about, epochs_answer(epoch, end, code), 0.0)
    return partition.leader_epoch, truncations


# Sessions


def test_a_request_tells_only_what_changed() -> None:
    plan = FetchPlan(LIMITS)
    partitions = [followed(index) for index in range(3)]
    for partition in partitions:
        plan.add(partition)
    first = begin_session(plan)
    assert (first.session_epoch, first.max_wait_ms) == (0, 0)  # a session is wanted, not yet data
    assert [partition.partition for partition in asked(first)] == [0, 1, 2]
    assert [partition.current_leader_epoch for partition in asked(first)] == [5, 5, 5]
    partitions[1].log.log_end_offset = Offset(10)  # type: ignore[misc]
    plan.note_appended(partitions[1])
    plan.note_appended(partitions[2])
    request = plan.fetch_request(hold_back=False, replica_epoch=EPOCH)
    assert request is not None
    assert (request.session_id, request.session_epoch, request.max_wait_ms) == (9, 1, 500)
    assert [(partition.partition, partition.fetch_offset) for partition in asked(request)] == [(1, 10)]
    request = plan.fetch_request(hold_back=False, replica_epoch=EPOCH)
    assert request is not None
    assert (request.session_epoch, request.topics, request.forgotten_topics_data) == (2, [], [])


def test_a_new_start_of_the_log_is_told() -> None:
    plan = FetchPlan(LIMITS)
    partition = followed()
    plan.add(partition)
    begin_session(plan)
    partition.log.log_start_offset = Offset(4)  # type: ignore[misc]
    plan.note_appended(partition)
    assert [
        partition.log_start_offset for partition in asked(plan.fetch_request(hold_back=False, replica_epoch=EPOCH))
    ] == [4]


def test_a_partition_that_left_is_forgotten_and_may_come_back() -> None:
    plan = FetchPlan(LIMITS)
    for index in range(2):
        plan.add(followed(index))
    begin_session(plan)
    plan.remove(TopicPartition("t", 0))
    request = plan.fetch_request(hold_back=False, replica_epoch=EPOCH)
    assert request is not None
    assert [(topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data] == [(TOPIC_ID, [0])]
    plan.add(followed(0, epoch=6))
    assert [
        partition.current_leader_epoch for partition in asked(plan.fetch_request(hold_back=False, replica_epoch=EPOCH))
    ] == [6]


def test_a_partition_that_left_before_it_was_told_is_nobodys_business() -> None:
    plan = FetchPlan(LIMITS)
    plan.add(followed(0))
    begin_session(plan)
    plan.add(followed(1))
    plan.remove(TopicPartition("t", 1))
    request = plan.fetch_request(hold_back=False, replica_epoch=EPOCH)
    assert request is not None
    assert (request.topics, request.forgotten_topics_data) == ([], [])


def test_a_lost_session_begins_anew_with_all_partitions() -> None:
    plan = FetchPlan(LIMITS)
    plan.add(followed(0))
    plan.add(followed(1))
    begin_session(plan)
    plan.remove(TopicPartition("t", 1))
    assert (
        plan.take_response(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), 0.0, plan.requests) is None
    )
    request = plan.fetch_request(hold_back=False, replica_epoch=EPOCH)
    assert request is not None
    assert (request.session_id, request.session_epoch) == (9, 0)  # which ends the old one
    assert [partition.partition for partition in asked(request)] == [0]


def test_requests_without_room_for_a_session_are_whole_and_wait() -> None:
    plan = FetchPlan(LIMITS)
    plan.add(followed(0))
    begin_session(plan, session_id=0)
    request = plan.fetch_request(hold_back=False, replica_epoch=EPOCH)
    assert request is not None
    assert (request.session_id, request.session_epoch, request.max_wait_ms) == (0, 0, 500)
    assert len(asked(request)) == 1
    assert not plan.can_overtake


@pytest.mark.parametrize("seed", range(20))
def test_the_session_of_the_leader_holds_what_the_plan_fetches(seed: int) -> None:
    rng = random.Random(seed)
    plan = FetchPlan(LIMITS)
    sessions = FetchSessions(10, rng, KeptMemory(1 << 20))
    now_s = 0.0
    for step in range(120):
        now_s += rng.random()
        index = rng.randrange(8)
        partition = plan.partitions.get(TopicPartition("t", index))
        chance = rng.random()
        if partition is None:
            plan.add(followed(index, epoch=step))
        elif chance < 0.2:
            plan.remove(partition.topic_partition)
        elif chance < 0.4:
            plan.throttle(partition.topic_partition, is_throttled=rng.random() < 0.5)
        elif chance < 0.5 and plan.is_fetching(partition):
            plan.wait(partition, now_s, FollowerPhase.FETCHING)
        elif chance < 0.55:
            plan.lose_session()
        elif plan.is_fetching(partition):
            partition.log.log_end_offset = Offset(partition.log.log_end_offset + 3)  # type: ignore[misc]
            plan.note_appended(partition)
        plan.resume(now_s)
        holds_back = rng.random() < 0.3
        request = plan.fetch_request(hold_back=holds_back, replica_epoch=EPOCH)
        if request is None:
            continue
        session = sessions.begin(
            request.session_id,
            request.session_epoch,
            request.topics,
            request.forgotten_topics_data,
            uses_topic_ids=True,
            is_follower=True,
            now_s=step,
        )
        assert session is not None
        plan.take_response(FetchResponse(session_id=session.id), now_s, plan.requests)
        wanted = {
            (partition.topic_partition.partition, partition.log.log_end_offset, partition.leader_epoch)
            for partition in plan.partitions.values()
            if partition.phase is FollowerPhase.FETCHING and not (holds_back and partition.is_throttled)
        }
        assert wanted == {
            (known.asked.partition, known.asked.fetch_offset, known.asked.current_leader_epoch)
            for known in session.partitions.values()
        }
        assert len(sessions.sessions) == 1


# Answers


def test_each_error_of_a_fetch_has_its_reaction() -> None:
    for code in ErrorCode:
        plan = FetchPlan(LIMITS)
        partition = followed()
        plan.add(partition)
        begin_session(plan)
        answers = plan.take_response(answer(code=code), 0.0, plan.requests)
        assert answers is not None
        reaction = REACTIONS.get(code, Reaction.COMPLAIN)
        is_waiting = reaction in {Reaction.WAIT, Reaction.COMPLAIN}
        assert (partition.phase is FollowerPhase.WAITING) == is_waiting
        assert [given.reaction for given in answers] == ([] if reaction is Reaction.WAIT else [reaction])
        assert plan.is_fetching(partition) != is_waiting


def test_a_refused_partition_backs_off_longer_each_time_outside_the_session() -> None:
    plan = FetchPlan(LIMITS)
    partition, other = followed(0), followed(1)
    plan.add(partition)
    plan.add(other)
    begin_session(plan)
    now_s, waits = 100.0, []
    for _ in range(8):
        plan.take_response(answer(code=ErrorCode.UNKNOWN_LEADER_EPOCH), now_s, plan.requests)
        request = plan.fetch_request(hold_back=False, replica_epoch=EPOCH)
        assert request is not None
        assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]
        due_s = plan.resume(now_s)
        assert due_s is not None
        waits.append(due_s - now_s)
        now_s = due_s
        assert plan.resume(now_s) is None
        assert [asked.partition for asked in asked(plan.fetch_request(hold_back=False, replica_epoch=EPOCH))] == [0]
    assert waits[0] == pytest.approx(FIRST_BACKOFF_S)
    assert waits[1] == pytest.approx(2 * FIRST_BACKOFF_S)
    assert waits[-1] == pytest.approx(LIMITS.max_backoff_s)
    plan.note_appended(partition)
    assert partition.failures == 0


def test_an_answer_does_not_count_for_a_partition_that_left_or_begins_a_new_epoch() -> None:
    plan = FetchPlan(LIMITS)
    plan.add(followed(0))
    plan.add(followed(1))
    begin_session(plan)
    plan.remove(TopicPartition("t", 0))
    assert plan.take_response(answer(0), 0.0, plan.requests) == []
    plan.add(followed(1, epoch=6))
    assert plan.take_response(answer(1), 0.0, plan.requests) == []
    assert plan.take_response(answer(1, ErrorCode.FENCED_LEADER_EPOCH), 0.0, plan.requests) == []
    earlier = plan.requests
    plan.fetch_request(hold_back=False, replica_epoch=EPOCH)
    assert plan.take_response(answer(1), 0.0, earlier) == []  # of elsewhere: its log may have been truncated since
    answers = plan.take_response(answer(1), 0.0, plan.requests)
    assert answers is not None
    assert [given.partition.leader_epoch for given in answers] == [6]


# Rate of reassignments


def test_throttled_partitions_stand_back_while_the_rate_is_used_up() -> None:
    plan = FetchPlan(LIMITS)
    for index in range(2):
        plan.add(followed(index))
    plan.throttle(TopicPartition("t", 1), is_throttled=True)
    begin_session(plan)
    request = plan.fetch_request(hold_back=True, replica_epoch=EPOCH)
    assert request is not None
    assert [topic.partitions for topic in request.forgotten_topics_data] == [[1]]
    assert asked(plan.fetch_request(hold_back=True, replica_epoch=EPOCH)) == []
    assert [partition.partition for partition in asked(plan.fetch_request(hold_back=False, replica_epoch=EPOCH))] == [1]
    plan.fetch_request(hold_back=True, replica_epoch=EPOCH)
    plan.throttle(TopicPartition("t", 1), is_throttled=False)  # it is in sync now
    assert [partition.partition for partition in asked(plan.fetch_request(hold_back=True, replica_epoch=EPOCH))] == [1]


def test_no_fetch_is_sent_while_all_partitions_back_off() -> None:
    plan = FetchPlan(LIMITS)
    plan.add(followed())
    plan.throttle(TopicPartition("t", 0), is_throttled=True)
    assert plan.fetch_request(hold_back=True, replica_epoch=EPOCH) is None


# Truncating


def test_an_empty_log_has_nothing_to_compare() -> None:
    plan = FetchPlan(LIMITS)
    partition = followed()
    plan.add(partition)
    assert plan.epochs_request() is None
    assert plan.is_fetching(partition)


def test_logs_that_agree_are_fetched_at_once() -> None:
    plan = FetchPlan(LIMITS)
    partition = followed(log=log_of((1, 0), (3, 40), end=100))
    plan.add(partition)
    assert plan.fetch_request(hold_back=False, replica_epoch=EPOCH) is None
    assert compare(plan, 3, 120) == (3, [])
    assert plan.is_fetching(partition)


def test_records_that_the_leader_never_had_are_truncated() -> None:
    plan = FetchPlan(LIMITS)
    partition = followed(log=log_of((1, 0), (3, 40), end=100))
    plan.add(partition)
    _, truncations = compare(plan, 3, 90)
    assert truncations == [Truncation(partition, Offset(90), None)]
    assert partition.phase is FollowerPhase.SET_ASIDE
    assert plan.fetch_request(hold_back=False, replica_epoch=EPOCH) is None
    partition.log.log_end_offset = Offset(90)  # type: ignore[misc]
    plan.go_on(partition, None)
    assert [
        partition.fetch_offset for partition in asked(plan.fetch_request(hold_back=False, replica_epoch=EPOCH))
    ] == [90]


def test_leader_epochs_are_compared_until_they_agree() -> None:
    """KIP-279: leaders followed each other quickly, and each log has epochs that the other one lacks."""
    log = log_of((0, 0), (2, 20), (4, 60), end=100)
    plan = FetchPlan(LIMITS)
    partition = followed(log=log)
    plan.add(partition)
    epoch, truncations = compare(plan, 3, 80)  # the leader: 0 from 0, 1 from 10, 3 from 30, 5 from 80
    assert epoch == 4
    assert truncations == [Truncation(partition, Offset(60), LeaderEpoch(2))]
    log.log_end_offset = Offset(60)
    log.epochs.truncate_from_end(Offset(60))
    plan.go_on(partition, truncations[0].compare_next)
    epoch, truncations = compare(plan, 1, 30)
    assert epoch == 2
    assert truncations == [Truncation(partition, Offset(20), LeaderEpoch(0))]
    log.log_end_offset = Offset(20)
    log.epochs.truncate_from_end(Offset(20))
    plan.go_on(partition, truncations[0].compare_next)
    epoch, truncations = compare(plan, 0, 10)
    assert (epoch, truncations) == (0, [Truncation(partition, Offset(10), None)])


def test_an_epoch_without_records_is_compared_by_the_one_before() -> None:
    log = log_of((2, 0), (5, 100), end=100)  # led in epoch 5, nothing was written
    plan = FetchPlan(LIMITS)
    partition = followed(log=log)
    plan.add(partition)
    epoch, truncations = compare(plan, 2, 90)
    assert (epoch, truncations) == (2, [Truncation(partition, Offset(90), None)])


@pytest.mark.parametrize("seed", range(30))
def test_comparing_epochs_finds_the_end_that_both_logs_share(seed: int) -> None:
    rng = random.Random(seed)
    shared = rng.randrange(0, 60)
    epoch, starts = 0, [(0, 0)]
    for offset in sorted(rng.sample(range(1, 60), 4)):
        epoch += rng.randrange(1, 3)
        if offset < shared:
            starts.append((epoch, offset))
    own, theirs = (
        log_of(*starts, *branch, end=end) for branch, end in (_branch(rng, shared, parity, epoch) for parity in (0, 1))
    )
    plan = FetchPlan(LIMITS)
    partition = followed(log=own, epoch=99)
    plan.add(partition)
    while partition.phase is FollowerPhase.TRUNCATING:
        question = plan.epochs_request()
        assert question is not None
        asked_epoch = LeaderEpoch(question[0].topics[0].partitions[0].leader_epoch)
        found = theirs.end_offset_for(min(asked_epoch, theirs.epochs.latest))
        truncations, _ = plan.take_epochs(question[1], epochs_answer(found.epoch, found.start_offset), 0.0)
        for truncation in truncations:
            own.log_end_offset = truncation.offset
            own.epochs.truncate_from_end(truncation.offset)
            plan.go_on(partition, truncation.compare_next)
    assert own.log_end_offset == min(shared, own.log_end_offset)
    assert own.log_end_offset >= min(shared, theirs.log_end_offset)


def _branch(rng: random.Random, start: int, parity: int, newest: int) -> tuple[list[tuple[int, int]], int]:
    """Epochs that one of two logs has for itself: those of one are even, those of the other odd."""
    epoch = 2 * newest + 2 + parity
    starts, offset = [], start
    for _ in range(rng.randrange(1, 4)):
        starts.append((epoch, offset))
        offset += rng.randrange(1, 9)
        epoch += 2 * rng.randrange(1, 4)
    return starts, offset


def test_a_leader_that_knows_less_than_we_is_asked_again_later() -> None:
    plan = FetchPlan(LIMITS)
    partition = followed(log=log_of((3, 0), end=100))
    plan.add(partition)
    assert compare(plan, -1, -1) == (3, [])
    assert partition.phase is FollowerPhase.WAITING
    plan.resume(10.0)
    assert compare(plan, 0, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER) == (3, [])
    assert partition.phase is FollowerPhase.WAITING
    plan.resume(20.0)
    question = plan.epochs_request()
    assert question is not None
    _, complaints = plan.take_epochs(question[1], OffsetForLeaderEpochResponse(), 20.0)
    assert complaints == [(partition, ErrorCode.UNKNOWN_SERVER_ERROR)]


def test_an_answer_about_epochs_does_not_count_for_a_partition_that_left_meanwhile() -> None:
    plan = FetchPlan(LIMITS)
    plan.add(followed(log=log_of((3, 0), end=100)))
    question = plan.epochs_request()
    assert question is not None
    plan.add(followed(log=log_of((3, 0), end=100), epoch=6))
    assert plan.take_epochs(question[1], epochs_answer(3, 50), 0.0) == ([], [])
