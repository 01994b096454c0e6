from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.client.producer.accumulator import Accumulator, record_charge
from pipeline.client.producer.batches import DeliveryError, ProducerBatch, ProducerIdentity
from pipeline.model import BrokerId, TopicPartition
from pipeline.records.batch import read_header, verify_crc
from pipeline.records.builder import BatchBuilder, Header
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
LEADER = BrokerId(1)
BATCH_BYTES = 200
MEMORY_BYTES = 1500
LINGER_MS = 10
TIMEOUT_MS = 1000
WINDOW_MS = 100


def accumulator(*, window_ms: int | None = None, idempotent: bool = True, linger_ms: int = LINGER_MS) -> Accumulator:
    made = Accumulator(
        new_builder=lambda: BatchBuilder(Codec.NONE, BATCH_BYTES),
        memory_bytes=MEMORY_BYTES,
        max_request_bytes=2 * BATCH_BYTES,
        linger_ms=linger_ms,
        delivery_timeout_ms=TIMEOUT_MS,
        window_ms=window_ms,
        idempotent=idempotent,
    )
    made.identity = ProducerIdentity(7, 0)
    return made


def add(
    memory: Accumulator, value: bytes, *, partition: int = 0, timestamp_ms: int = 0, now_ms: int = 0
) -> ProducerBatch:
    return append(memory, PARTITIONS[partition], value, timestamp_ms, now_ms)


def append(
    memory: Accumulator, partition: TopicPartition, value: bytes, timestamp_ms: int, now_ms: int
) -> ProducerBatch:
    charge = record_charge(None, value, ())
    for batch in reversed(memory.incomplete()):
        if batch.topic_partition == partition:
            if not batch.closed and memory.append(batch, None, value, (), timestamp_ms, charge):
                return batch
            break
    return memory.append_to_new(partition, None, value, (), timestamp_ms, charge, now_ms)


def drain(memory: Accumulator, now_ms: int, *, pressed: bool = False) -> list[ProducerBatch]:
    drained = memory.drain(lambda _: LEADER, lambda _: True, now_ms, pressed=pressed)
    return drained.requests.get(LEADER, [])


def values(batch: ProducerBatch) -> list[bytes | None]:
    assert batch.data is not None
    return [record.value for record in iterate_records(batch.data)]


def test_a_batch_is_due_when_it_lingered() -> None:
    memory = accumulator()
    add(memory, b"one", now_ms=100)
    waiting = memory.drain(lambda _: LEADER, lambda _: True, 109)
    assert not waiting.requests
    assert waiting.wake_ms == 110
    (batch,) = drain(memory, 110)
    assert values(batch) == [b"one"]


def test_a_full_batch_is_due_at_once_and_its_successor_waits_for_its_answer() -> None:
    memory = accumulator()
    for number in range(20):
        add(memory, b"%020d" % number)
    (first,) = drain(memory, 0)
    assert drain(memory, 0) == []
    memory.complete(first)
    (second,) = drain(memory, 0)
    assert values(first) + values(second) == [
        b"%020d" % number for number in range(len(values(first) + values(second)))
    ]


def test_a_send_that_waits_for_memory_ends_all_lingering() -> None:
    memory = accumulator()
    add(memory, b"one")
    assert drain(memory, 0) == []
    assert len(drain(memory, 0, pressed=True)) == 1


def test_a_request_stays_within_its_bound_but_takes_one_batch_of_any_size() -> None:
    memory = accumulator(linger_ms=0)
    for partition in range(3):
        add(memory, b"x" * 100, partition=partition)
    drained = memory.drain(lambda _: LEADER, lambda _: True, 0)
    assert [batch.topic_partition.partition for batch in drained.requests[LEADER]] == [0, 1]
    assert drained.wake_ms == 0
    assert len(drain(memory, 0)) == 1


def test_a_retry_goes_first_with_the_same_bytes_after_its_backoff() -> None:
    memory = accumulator(linger_ms=0)
    add(memory, b"one")
    (batch,) = drain(memory, 0)
    sent = bytes(batch.data or b"")
    add(memory, b"two")
    memory.retry(batch, RuntimeError("broken"), 50, outcome_unknown=True)
    assert drain(memory, 49) == []
    assert drain(memory, 50) == [batch]
    assert bytes(batch.data or b"") == sent
    assert batch.attempts == 2


def test_sequences_follow_on_each_other_per_partition() -> None:
    memory = accumulator(linger_ms=0)
    for partition, count in ((0, 2), (1, 3)):
        for _ in range(count):
            add(memory, b"v", partition=partition)
    for batch in drain(memory, 0):
        memory.complete(batch)
    add(memory, b"v", partition=0)
    add(memory, b"v", partition=1)
    first, second = drain(memory, 0)
    assert (first.base_sequence, second.base_sequence) == (2, 3)


def test_a_refused_producer_id_is_replaced_and_the_same_records_stamped_anew() -> None:
    memory = accumulator(linger_ms=0)
    memory.complete(_sent(memory, b"zero"))
    batch = _sent(memory, b"one")
    assert batch.base_sequence == 1
    memory.renew_identity(batch)
    memory.retry(batch, RuntimeError("refused"), 0, outcome_unknown=False)
    assert memory.drain(lambda _: LEADER, lambda _: True, 0).identity_missing
    memory.identity = ProducerIdentity(8, 0)
    assert drain(memory, 0) == [batch]
    assert batch.data is not None
    header = read_header(batch.data)
    verify_crc(batch.data, 0, header)
    assert (header.producer_id, header.base_sequence, header.record_count) == (8, 0, 1)
    assert values(batch) == [b"one"]


def test_other_partitions_keep_their_producer_id() -> None:
    memory = accumulator(linger_ms=0)
    add(memory, b"a", partition=0)
    add(memory, b"b", partition=1)
    lost, kept = drain(memory, 0)
    memory.retry(lost, RuntimeError(), 0, outcome_unknown=True)
    memory.fail(lost, 0)
    memory.complete(kept)
    memory.identity = ProducerIdentity(8, 0)
    add(memory, b"a", partition=0)
    add(memory, b"b", partition=1)
    after_lost, after_kept = drain(memory, 0)
    assert (after_lost.identity, after_lost.base_sequence) == (ProducerIdentity(8, 0), 0)
    assert (after_kept.identity, after_kept.base_sequence) == (ProducerIdentity(7, 0), 1)


def test_a_batch_that_was_surely_not_written_gives_its_sequence_to_the_next() -> None:
    memory = accumulator(linger_ms=0)
    memory.complete(_sent(memory, b"zero"))
    memory.fail(_sent(memory, b"too large"), 0)
    assert _sent(memory, b"next").base_sequence == 1


def test_expiry_names_what_was_in_the_way() -> None:
    memory = accumulator()
    batch = add(memory, b"one", now_ms=100)
    assert memory.expire(100 + TIMEOUT_MS - 1, None) == []
    ((expired, error),) = memory.expire(100 + TIMEOUT_MS, RuntimeError("no leader"))
    assert expired is batch
    assert isinstance(error, DeliveryError)
    assert (error.topic_partition, error.age_ms, error.outcome_unknown) == (PARTITIONS[0], TIMEOUT_MS, False)
    assert "t-0" in str(error)
    assert "1000 ms" in str(error)
    assert "no leader" in str(error)
    assert memory.used_bytes == 0


def test_batches_in_flight_do_not_expire() -> None:
    memory = accumulator(linger_ms=0)
    batch = _sent(memory, b"one")
    assert memory.expire(10 * TIMEOUT_MS, None) == []
    memory.complete(batch)


def test_a_leader_that_is_busy_or_unknown_is_left_alone() -> None:
    memory = accumulator(linger_ms=0)
    add(memory, b"one")
    assert not memory.drain(lambda _: LEADER, lambda _: False, 0).requests
    unknown = memory.drain(lambda _: None, lambda _: True, 0)
    assert unknown.leader_missing
    assert not unknown.requests


def _sent(memory: Accumulator, value: bytes) -> ProducerBatch:
    add(memory, value)
    (batch,) = drain(memory, 0)
    return batch


@given(st.lists(st.integers(0, 5 * WINDOW_MS), min_size=1, max_size=40))
def test_no_batch_crosses_a_window(timestamps: list[int]) -> None:
    memory = accumulator(window_ms=WINDOW_MS, linger_ms=0)
    sent: list[int] = []
    for timestamp in timestamps:
        while not memory.has_room(record_charge(None, b"v", ())):
            sent += _complete_one(memory)
        add(memory, b"v", timestamp_ms=timestamp)
    while memory.incomplete():
        sent += _complete_one(memory)
    assert sent == timestamps


def _complete_one(memory: Accumulator) -> Iterator[int]:
    (batch,) = drain(memory, 0)
    assert batch.data is not None
    timestamps = [record.timestamp_ms for record in iterate_records(batch.data)]
    header = read_header(batch.data)
    assert {timestamp // WINDOW_MS for timestamp in timestamps} == {header.base_timestamp // WINDOW_MS}
    memory.complete(batch)
    return iter(timestamps)


@given(
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=300),
    st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=200)), max_size=4),
    st.integers(0, 2**50),
)
def test_the_charge_is_an_upper_bound(
    key: bytes | None, value: bytes | None, headers: list[Header], timestamp_ms: int
) -> None:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    assert builder.append(None, None, (), 0)
    before = builder.size_bytes
    assert builder.append(key, value, tuple(headers), timestamp_ms)
    assert builder.size_bytes - before <= record_charge(key, value, headers)


class AccumulatorMachine(RuleBasedStateMachine):
    """Anything may happen to a batch; order, sequences and memory must hold all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = accumulator(window_ms=WINDOW_MS)
        self.now_ms = 0
        self.next_value = 0
        self.next_identity = 8
        self.on_their_way: list[ProducerBatch] = []
        self.accepted: dict[TopicPartition, list[int]] = {partition: [] for partition in PARTITIONS}
        self.delivered: dict[TopicPartition, list[int]] = {partition: [] for partition in PARTITIONS}
        self.failed: set[int] = set()
        self.next_sequence: dict[tuple[TopicPartition, ProducerIdentity], int] = {}

    @rule(partition=st.sampled_from(PARTITIONS), size=st.integers(10, 300), timestamp_ms=st.integers(0, 1000))
    def send(self, partition: TopicPartition, size: int, timestamp_ms: int) -> None:
        value = b"%010d" % self.next_value + b"x" * (size - 10)
        charge = record_charge(None, value, ())
        if self.memory.has_room(charge):
            append(self.memory, partition, value, timestamp_ms, self.now_ms)
            self.accepted[partition].append(self.next_value)
            self.next_value += 1

    @rule(pressed=st.booleans())
    def send_due(self, pressed: bool) -> None:
        drained = self.memory.drain(lambda _: LEADER, lambda _: True, self.now_ms, pressed=pressed)
        if drained.identity_missing:
            self.memory.identity = ProducerIdentity(self.next_identity, 0)
            self.next_identity += 1
        batches = drained.requests.get(LEADER, [])
        partitions = [batch.topic_partition for batch in (*batches, *self.on_their_way)]
        assert len(partitions) == len(set(partitions))
        self.on_their_way += batches

    @precondition(lambda self: self.on_their_way)
    @rule(index=st.integers(0, 10))
    def acknowledge(self, index: int) -> None:
        batch = self._take(index)
        assert batch.identity is not None
        assert batch.data is not None
        key = (batch.topic_partition, batch.identity)
        assert batch.base_sequence == self.next_sequence.get(key, 0)
        self.next_sequence[key] = batch.base_sequence + batch.record_count
        self.delivered[batch.topic_partition] += self._numbers(batch)
        self.memory.complete(batch)

    @precondition(lambda self: self.on_their_way)
    @rule(index=st.integers(0, 10), backoff_ms=st.integers(0, 50), unknown=st.booleans(), refused=st.booleans())
    def break_off(self, index: int, backoff_ms: int, unknown: bool, refused: bool) -> None:
        batch = self._take(index)
        if refused:
            self.memory.renew_identity(batch)
        self.memory.retry(batch, RuntimeError(), self.now_ms + backoff_ms, outcome_unknown=unknown)

    @precondition(lambda self: self.on_their_way)
    @rule(index=st.integers(0, 10))
    def refuse(self, index: int) -> None:
        batch = self._take(index)
        self.failed.update(self._numbers(batch))
        self.memory.fail(batch, self.now_ms)

    @rule(passed_ms=st.integers(1, TIMEOUT_MS))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for batch, error in self.memory.expire(self.now_ms, None):
            assert error.age_ms >= TIMEOUT_MS
            assert batch not in self.on_their_way
            self.failed.update(self._numbers(batch))

    def _take(self, index: int) -> ProducerBatch:
        return self.on_their_way.pop(index % len(self.on_their_way))

    def _numbers(self, batch: ProducerBatch) -> list[int]:
        data = batch.data if batch.data is not None else batch.stamp(None, -1)
        records = list(iterate_records(data))
        assert len({record.timestamp_ms // WINDOW_MS for record in records}) == 1
        return [int((record.value or b"")[:10]) for record in records]

    @invariant()
    def memory_is_within_its_bound(self) -> None:
        assert 0 <= self.memory.used_bytes <= MEMORY_BYTES
        assert self.memory.used_bytes == sum(batch.charged_bytes for batch in self.memory.incomplete())
        assert bool(self.memory.used_bytes) == bool(self.memory.incomplete())

    @invariant()
    def order_is_kept(self) -> None:
        for partition, delivered in self.delivered.items():
            expected = [number for number in self.accepted[partition] if number not in self.failed]
            assert delivered == expected[: len(delivered)]


TestAccumulatorMachine = AccumulatorMachine.TestCase
TestAccumulatorMachine.settings = settings(max_examples=60, stateful_step_count=50)


def test_a_record_larger_than_a_batch_gets_one_of_its_own() -> None:
    memory = accumulator(linger_ms=0)
    batch = add(memory, b"x" * 1000)
    assert batch.record_count == 1
    assert not memory.has_room(500)
    with pytest.raises(ValueError, match="oldest batch"):
        memory.complete(add(memory, b"y", partition=0))
