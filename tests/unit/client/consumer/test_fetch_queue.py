"""Requests to one broker: which partitions they hold, how many are under way, and what bounds them."""

import math
from dataclasses import replace

import pytest

from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.byte_rate import ByteRate, FetchLimit
from pipeline.client.consumer.fetch_plan import FetchState, begin_at
from pipeline.client.consumer.fetch_queue import (
    IDLE_AFTER_MS,
    IDLE_JOINS_MS,
    NEAR_REQUESTS,
    FetchQueue,
    HeldPartitions,
    Pace,
    PlannedFetch,
    begin_next,
    end_limits,
    in_turn,
    is_held,
)
from pipeline.model import TopicPartition

MIB = 1024 * 1024
NOW_MS = 1_000_000
SETTINGS = ConsumerConfig(max_bytes=16 * MIB, max_partition_bytes=16 * MIB, max_wait_ms=500, max_in_flight=4)


def state_of(number: int, pace: Pace) -> FetchState:
    state = begin_at(TopicPartition("t", number), 0)
    state.high_watermark = 10
    state.is_behind = pace is Pace.BEHIND
    state.moved_at_ms = NOW_MS - (IDLE_AFTER_MS if pace is Pace.IDLE else 1)
    return state


def queue_of(*paces: Pace, settings: ConsumerConfig = SETTINGS) -> FetchQueue:
    queue = FetchQueue(settings)
    for number, pace in enumerate(paces):
        queue.add(state_of(number, pace), NOW_MS)
    return queue


def begun(queue: FetchQueue, now_ms: int = NOW_MS) -> list[PlannedFetch]:
    found = []
    while (planned := queue.begin(now_ms)) is not None:
        found.append(planned)
    return found


def finish(queue: FetchQueue, planned: PlannedFetch, now_ms: int = NOW_MS) -> None:
    queue.end(planned, now_ms)
    for state in in_turn(planned.states):
        queue.add(state, now_ms)


def numbers(planned: PlannedFetch) -> list[int]:
    return [state.topic_partition.partition for state in planned.states]


def test_partitions_with_a_backlog_do_not_share_requests_with_others() -> None:
    queue = queue_of(*[Pace.BEHIND] * 6, Pace.LIVE, Pace.LIVE, Pace.IDLE, Pace.IDLE)
    planned = begun(queue)
    assert [(each.pace, numbers(each)) for each in planned] == [
        (Pace.LIVE, [6, 7]),
        (Pace.BEHIND, [0, 1]),
        (Pace.BEHIND, [2, 3]),
        (Pace.BEHIND, [4]),
        (Pace.BEHIND, [5]),
        (Pace.IDLE, [8, 9]),
    ]
    assert [each.lane for each in planned] == list(range(6))


def test_requests_of_a_backlog_share_the_bytes() -> None:
    assert [each.bounds.max_bytes for each in begun(queue_of(*[Pace.BEHIND] * 9))] == [4 * MIB] * 4
    (alone,) = begun(queue_of(Pace.BEHIND))
    assert (alone.bounds.max_bytes, alone.bounds.max_partition_bytes) == (16 * MIB, 16 * MIB)
    (both,) = begun(queue_of(Pace.BEHIND, Pace.BEHIND, settings=ConsumerConfig(max_bytes=16 * MIB)))
    assert (both.bounds.max_bytes, both.bounds.max_partition_bytes) == (16 * MIB, 4 * MIB)
    many = begun(queue_of(*[Pace.BEHIND] * 4000))
    assert [(len(each.states), each.bounds.max_partition_bytes) for each in many] == [(1000, MIB)] * 4


def test_more_requests_share_the_backlog_of_a_broker_that_is_far_away() -> None:
    queue = queue_of(*[Pace.BEHIND] * 64, settings=replace(SETTINGS, max_in_flight=32))
    near = begun(queue)
    assert len(near) == NEAR_REQUESTS
    for planned in near:
        finish(queue, planned)
    queue.is_far = True
    assert [(len(each.states), each.bounds.max_bytes) for each in begun(queue)] == [(2, MIB // 2)] * 32


def test_a_full_buffer_of_a_backlog_holds_up_no_others() -> None:
    queue = queue_of(Pace.BEHIND, Pace.LIVE)
    queue.buffered_bytes[True] = SETTINGS.max_bytes
    assert [each.pace for each in begun(queue)] == [Pace.LIVE]
    queue.buffered_bytes[True] -= 1
    assert [each.pace for each in begun(queue)] == [Pace.BEHIND]


def test_what_waits_to_be_taken_counts_with_what_is_on_its_way() -> None:
    queue = queue_of(*[Pace.BEHIND] * 4)
    queue.buffered_bytes[True] = 9 * MIB
    assert [each.bounds.max_bytes for each in begun(queue)] == [4 * MIB] * 2
    queue.buffered_bytes[True] = 0
    assert [each.bounds.max_bytes for each in begun(queue)] == [4 * MIB] * 2


def test_partitions_without_a_backlog_ask_for_the_share_of_one_request() -> None:
    assert [each.bounds.max_bytes for each in begun(queue_of(Pace.LIVE, Pace.IDLE))] == [4 * MIB] * 2


def test_a_full_buffer_of_others_holds_up_no_backlog() -> None:
    queue = queue_of(Pace.BEHIND, Pace.LIVE, Pace.IDLE)
    queue.buffered_bytes[False] = SETTINGS.max_bytes
    assert [each.pace for each in begun(queue)] == [Pace.BEHIND]


def test_a_partition_that_comes_while_others_wait_at_the_broker_is_asked_for_at_once() -> None:
    queue = queue_of(Pace.LIVE)
    (first,) = begun(queue)
    queue.add(state_of(1, Pace.LIVE), NOW_MS)
    (second,) = begun(queue)
    queue.add(state_of(2, Pace.LIVE), NOW_MS)
    assert begun(queue) == []
    finish(queue, second)
    (third,) = begun(queue)
    assert (numbers(third), third.lane) == ([2, 1], 1)
    assert (numbers(first), first.lane) == ([0], 0)


def test_what_came_least_recently_is_first_in_the_next_request() -> None:
    queue = queue_of(Pace.LIVE, Pace.LIVE, Pace.LIVE)
    (planned,) = begun(queue)
    planned.states[0].moved_at_ms = planned.states[1].moved_at_ms = NOW_MS
    finish(queue, planned)
    assert [numbers(each) for each in begun(queue)] == [[2, 0, 1]]


def test_a_partition_is_called_idle_only_if_it_can_be_asked_for_soon() -> None:
    queue = queue_of(*[Pace.IDLE] * 100)
    (idle,) = begun(queue)
    assert idle.pace is Pace.IDLE
    ends_ms = NOW_MS + idle.bounds.max_wait_ms
    queue.add(state_of(100, Pace.IDLE), ends_ms - IDLE_JOINS_MS - 1)
    (live,) = begun(queue)
    assert (live.pace, numbers(live)) == (Pace.LIVE, [100])
    finish(queue, live, ends_ms - IDLE_JOINS_MS)
    assert begun(queue) == []
    finish(queue, idle)
    assert queue.wakes_at_ms(NOW_MS) == NOW_MS + 2
    assert begun(queue) == []
    assert [len(each.states) for each in begun(queue, NOW_MS + 2)] == [101]


def test_unchanged_partitions_wait_again_as_they_are() -> None:
    queue = queue_of(*[Pace.IDLE] * 100)
    (idle,) = begun(queue)
    with_news, *unchanged = idle.states
    queue.end(idle, NOW_MS, unchanged)
    with_news.moved_at_ms = NOW_MS
    queue.add(with_news, NOW_MS)
    assert [(each.pace, len(each.states)) for each in begun(queue, NOW_MS + 2)] == [(Pace.LIVE, 1), (Pace.IDLE, 99)]


def test_very_many_idle_partitions_are_asked_for_less_often() -> None:
    (few,) = begun(queue_of(Pace.IDLE))
    assert few.bounds.max_wait_ms == 500
    (many,) = begun(queue_of(*[Pace.IDLE] * 10_000))
    assert many.bounds.max_wait_ms == 1000


def test_an_end_that_is_not_known_is_asked_for_without_waiting() -> None:
    queue = FetchQueue(SETTINGS)
    queue.add(begin_at(TopicPartition("t", 0), 0), NOW_MS)
    assert [(each.pace, each.bounds.max_wait_ms) for each in begun(queue)] == [(Pace.LIVE, 0)]


@pytest.mark.parametrize("partitions", [1, 75, 150])
def test_whoever_waits_for_the_next_idle_request_wakes_once(partitions: int) -> None:
    queue = queue_of(*[Pace.IDLE] * partitions)
    (planned,) = begun(queue)
    finish(queue, planned)
    wakes_at_ms = queue.wakes_at_ms(NOW_MS)
    assert wakes_at_ms > NOW_MS
    assert begun(queue, round(wakes_at_ms))
    assert queue.wakes_at_ms(round(wakes_at_ms)) == math.inf


def test_whoever_waits_for_a_limit_wakes_once() -> None:
    limit = FetchLimit([ByteRate(7000)])
    limit.charge(12_345, 0.0)
    state = state_of(0, Pace.LIVE)
    held = HeldPartitions(lambda _: limit)
    held.add([state])
    wakes_at_ms = round(held.first_at_ms)
    assert held.take(wakes_at_ms) == [state]
    assert not is_held(lambda _: limit, wakes_at_ms, state)


@pytest.mark.long
@pytest.mark.parametrize("takes_ms", [5, 60, 2_000])
@pytest.mark.parametrize("batch", [50, 400, 5_000])
def test_partitions_that_share_a_limit_below_a_few_batches_take_turns(takes_ms: int, batch: int) -> None:
    """Partitions 0 to 5 of a broker, and 6 of another one."""
    limit = FetchLimit([ByteRate(1_000)])
    limit_of, held = lambda _: limit, HeldPartitions(lambda _: limit)
    queues = {broker: FetchQueue(SETTINGS, broker) for broker in (1, 2)}
    taken = dict.fromkeys(range(7), 0)
    unplaced = [state_of(number, Pace.BEHIND) for number in taken]
    under_way: list[tuple[int, FetchQueue, PlannedFetch]] = []
    for now_ms in range(0, 150_000, 5):
        unplaced += held.take(now_ms)
        for ends_ms, queue, planned in list(under_way):
            if ends_ms <= now_ms:
                under_way.remove((ends_ms, queue, planned))
                for state in planned.states:
                    limit.charge(batch, now_ms / 1000)
                    taken[state.topic_partition.partition] += 1
                    state.moved_at_ms = now_ms
                end_limits(planned)
                queue.end(planned, now_ms)
                unplaced += in_turn(planned.states)
        for state in unplaced:
            if is_held(limit_of, now_ms, state):
                held.add([state])
            else:
                queues[1 if state.topic_partition.partition < 6 else 2].add(state, now_ms)
        unplaced = []
        for queue in queues.values():
            while (begun := begin_next(queue, held, limit_of, now_ms)) is not None:
                under_way.append((now_ms + takes_ms, queue, begun))
    assert min(taken.values()) >= max(taken.values()) // 2 > 0
    assert sum(taken.values()) * batch >= 140_000 or takes_ms == 2_000
