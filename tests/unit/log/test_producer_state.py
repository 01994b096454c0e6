import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import OutOfOrderSequenceError, StaleProducerEpochError, TooManyProducersError
from pipeline.log.known_producers import KnownProducers
from pipeline.log.producer_state import ProducedBatch, ProducerStates
from pipeline.records.batch import CONTROL, MAX_SEQUENCE, TRANSACTIONAL, BatchHeader

HEADER = BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, 7, 0, 0, 1)


def header(sequence: int, *, count: int = 1, offset: int = 0, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    return HEADER._replace(
        base_offset=offset,
        last_offset_delta=count - 1,
        record_count=count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def states(known: KnownProducers | None = None) -> ProducerStates:
    return ProducerStates(expiration_ms=1000, known=known or KnownProducers(100))


def append(producers: ProducerStates, *headers: BatchHeader, now_ms: int = 0) -> ProducedBatch | None:
    duplicate = producers.check(headers)
    if duplicate is None:
        for one in headers:
            producers.update(one, now_ms)
    return duplicate


@pytest.mark.parametrize(("producer_id", "epoch", "sequence"), [(-1, -1, -1), (-2, 3, 0), (-(2**63), -5, 9)])
def test_batches_without_producer_are_not_remembered(producer_id: int, epoch: int, sequence: int) -> None:
    producers = states()
    for _ in range(2):
        assert append(producers, header(sequence, producer_id=producer_id, epoch=epoch)) is None
        assert append(producers, *[header(sequence, producer_id=producer_id, epoch=epoch)] * 2) is None
    assert len(producers) == 0


def test_the_last_five_are_known() -> None:
    producers = states()
    for number in range(10):
        assert append(producers, header(number * 3, count=3, offset=100 + number * 3)) is None
    for number in range(5, 10):
        assert getattr(producers.check([header(number * 3, count=3)]), "first_offset", None) == 100 + number * 3
    for wrong in (header(12, count=3), header(15, count=2), header(16, count=2), header(31), header(29)):
        with pytest.raises(OutOfOrderSequenceError) as caught:
            producers.check([wrong])
        assert (caught.value.expected, caught.value.got) == (30, wrong.base_sequence)


def test_a_producer_takes_about_what_its_bound_counts_with() -> None:
    producers, count = states(KnownProducers(2000)), 2000
    tracemalloc.start()
    try:
        for sequence in range(5):
            for number in range(count):
                told = header(sequence, offset=1 << 40 | sequence * count + number, producer_id=1 << 40 | number)
                assert append(producers, told, now_ms=1 << 40 | number) is None
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(producers) == count and taken < 650 * count


def test_sequence_numbers_start_again_behind_the_largest() -> None:
    producers = states()
    append(producers, header(MAX_SEQUENCE - 1, count=1))
    append(producers, header(MAX_SEQUENCE, count=3, offset=1))
    assert getattr(producers.check([header(MAX_SEQUENCE, count=3)]), "first_offset", None) == 1
    assert producers.check([header(2)]) is None
    with pytest.raises(OutOfOrderSequenceError):
        producers.check([header(0)])


def test_a_newer_epoch_starts_at_zero_and_ends_the_older() -> None:
    producers = states()
    append(producers, header(5))
    with pytest.raises(OutOfOrderSequenceError):
        append(producers, header(6, epoch=1))
    append(producers, header(0, epoch=1, offset=1))
    with pytest.raises(StaleProducerEpochError) as caught:
        append(producers, header(6))
    assert caught.value.current_epoch == 1


def test_several_batches_of_one_append() -> None:
    producers = states()
    both = (header(0, count=2), header(2, count=2, offset=2))
    assert append(producers, *both) is None
    assert getattr(append(producers, *both), "first_offset", None) == 0
    for wrong in ((header(4), header(6)), (both[1], header(4)), (both[0], header(-1, producer_id=-1, epoch=-1))):
        with pytest.raises(OutOfOrderSequenceError):
            producers.check(wrong)
    assert append(producers, header(4), header(0, producer_id=8), header(5, offset=1)) is None
    with pytest.raises(OutOfOrderSequenceError):
        producers.check((header(3, producer_id=9), header(5, producer_id=9)))


def test_the_silent_are_forgotten_by_age() -> None:
    producers = states()
    for producer_id in range(3):
        append(producers, header(0, producer_id=producer_id), now_ms=producer_id)
    append(producers, header(1, producer_id=0), now_ms=3)
    append(producers, header(0, producer_id=4), now_ms=1002)
    assert len(producers) == 4
    producers.forget_silent(1002)
    assert len(producers) == 3
    assert producers.check([header(5, producer_id=1)]) is None
    with pytest.raises(OutOfOrderSequenceError):
        producers.check([header(5, producer_id=0)])
    producers.forget_silent(1004)
    assert len(producers) == 1


def test_a_clock_that_is_ahead_for_a_moment_lets_no_retry_be_appended_again() -> None:
    producers = states()
    append(producers, header(0, producer_id=1), now_ms=5000)
    append(producers, header(0, producer_id=2), now_ms=10**12)
    assert append(producers, header(0, producer_id=1), now_ms=5001) is not None


def test_producers_of_a_clock_that_was_ahead_keep_no_others_from_being_forgotten() -> None:
    producers = states()
    append(producers, header(0, producer_id=0), header(0, producer_id=1), now_ms=10**12)
    for number in range(2, 50):
        append(producers, header(0, producer_id=number), now_ms=1000 * number)
        producers.forget_silent(1000 * number)
        assert len(producers) <= 4
    again = states()
    again.restore(producers.snapshot())
    again.forget_silent(49_000)
    assert again.ids == producers.ids == [48, 49]
    again.forget_silent(51_000)
    assert not again.ids


def test_new_producers_are_refused_at_the_bound_and_none_is_forgotten() -> None:
    known = KnownProducers(3)
    logs = [states(known), states(known)]
    append(logs[0], header(0, producer_id=1))
    append(logs[1], header(0, producer_id=1), header(0, producer_id=2))
    assert known.count == 3
    for new in ([header(0, producer_id=2)], [header(1, producer_id=1), header(0, producer_id=3)]):
        with pytest.raises(TooManyProducersError, match=r"known\.producers\.max"):
            append(logs[0], *new)
    assert append(logs[0], header(0, producer_id=1)) is not None
    assert append(logs[0], header(1, producer_id=1), header(2, producer_id=1)) is None
    assert append(logs[0], header(-1, producer_id=-1, epoch=-1)) is None


def test_producers_found_in_a_log_are_taken_beyond_the_bound_and_counted() -> None:
    known = KnownProducers(2)
    producers = states(known)
    for producer_id in range(5):
        producers.update(header(0, producer_id=producer_id), now_ms=producer_id)
    again = states(known)
    again.restore(producers.snapshot())
    again.restore(producers.snapshot())
    assert known.count == 10
    del producers
    assert known.count == 5
    again.forget_silent(1003)
    assert known.count == len(again) == 2
    del again
    assert known.count == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5), st.booleans()), max_size=60))
def test_a_snapshot_brings_everything_back(steps: Any) -> None:
    producers = states()
    sequences: dict[int, tuple[int, int]] = {}
    for now_ms, (producer_id, count, renewed) in enumerate(steps):
        epoch, sequence = sequences.get(producer_id, (0, 0))
        if renewed:
            epoch, sequence = epoch + 1, 0
        append(
            producers, header(sequence, count=count, producer_id=producer_id, epoch=epoch, offset=now_ms), now_ms=now_ms
        )
        sequences[producer_id] = (epoch, sequence + count)
    other = states()
    other.restore(producers.snapshot())
    assert other.snapshot() == producers.snapshot()
    append(producers, header(0, producer_id=99), now_ms=len(steps))
    append(other, header(0, producer_id=99), now_ms=len(steps))
    assert other.snapshot() == producers.snapshot()


@given(st.binary(max_size=80), st.integers(0, 200), st.integers(0, 7))
def test_a_damaged_snapshot_is_refused(junk: bytes, position: int, bit: int) -> None:
    producers = states()
    append(producers, header(0), header(1))
    good = bytearray(producers.snapshot())
    if position < len(good):
        good[position] ^= 1 << bit
        with pytest.raises(ValueError, match="snapshot"):
            producers.restore(bytes(good))
    with pytest.raises(ValueError, match="snapshot"):
        producers.restore(junk)
    assert len(producers) == 1


def transactional(sequence: int, **fields: int) -> BatchHeader:
    return header(sequence, **fields)._replace(attributes=TRANSACTIONAL)


def test_open_transactions_and_known_producers_make_no_append_slower() -> None:
    """Turned over at each append, so many would take longer than the test may."""
    producers = states(KnownProducers(100_000))
    for number in range(20_000):
        append(producers, transactional(0, offset=number, producer_id=number))
    for number in range(10_000):
        append(producers, header(number, offset=40_000 + number, producer_id=50_000))
        assert producers.first_unstable_offset == 0
    for number in range(20_000):
        append(producers, header(0, offset=50_000 + number, producer_id=20_000 + number))
    assert len(producers) == 40_001
    append(producers, header(10_000, offset=70_000, producer_id=50_000), now_ms=1001)
    producers.forget_silent(1001)
    assert len(producers) == 20_001
    for number in range(20_000):
        assert producers.first_unstable_offset == number
        producers.end_transaction(transactional(-1, offset=70_001 + number, producer_id=number))
    assert producers.first_unstable_offset is None
    append(producers, header(10_001, offset=99_000, producer_id=50_000), now_ms=1001)
    producers.forget_silent(1001)
    assert len(producers) == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["plain", "open", "end", "restore"]), st.integers(0, 700)),
        max_size=40,
    )
)
def test_known_producers_follow_from_the_last_appends_and_open_transactions(
    steps: Any,
) -> None:
    """Against a model that looks at all of them each time."""
    producers, now_ms, offset = states(), 0, 0
    known: dict[Any, Any] = {}
    open_since: dict[Any, Any] = {}
    for producer_id, kind, later_ms in steps:
        now_ms, offset = now_ms + later_ms, offset + 1
        if kind == "restore":
            again = states()
            again.restore(producers.snapshot())
            producers = again
            continue
        made = header(0, offset=offset, producer_id=producer_id)
        made = made._replace(
            base_sequence=-1 if kind == "end" else 0, attributes=TRANSACTIONAL if kind != "plain" else 0
        )
        producers.update(made._replace(attributes=made.attributes | CONTROL) if kind == "end" else made, now_ms)
        producers.forget_silent(now_ms)
        known.pop(producer_id, None)
        known[producer_id] = now_ms
        if kind == "open":
            open_since.setdefault(producer_id, offset)
        idle = [name for name in known if name not in open_since]
        while idle and now_ms - known[idle[0]] > 1000:
            del known[idle.pop(0)]
        if kind == "end":
            ended = producers.end_transaction(made)
            assert (ended is not None) == (producer_id in open_since)
            open_since.pop(producer_id, None)
        assert {one.producer_id: one.last_append_ms for one in producers.active()} == known
        assert producers.first_unstable_offset == min(open_since.values(), default=None)
