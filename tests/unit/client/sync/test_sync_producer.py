"""The producer for threads, against a broker on another thread: outcomes, order, memory, ends of all kinds."""

import _thread
import multiprocessing
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.encoding.encoders import JsonEncoder, StrEncoder
from pipeline.client.producer.batches import DeliveryError
from pipeline.client.producer.delivery import PartlyAcceptedError
from pipeline.client.simple.simple_consumer import open_simple_consumer
from pipeline.client.sync.core_thread import ProducerThreadError
from pipeline.client.sync.deliveries import ResultTimeoutError
from pipeline.client.sync.sync_producer import SyncProducer
from pipeline.errors import ConfigurationError, DeadlineExceededError, PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import KafkaError
from pipeline.settings import parse_addresses
from tests.unit.client.sync.conftest import DEADLINE_S

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def records_of(bootstrap: str, topic_partition: TopicPartition = T0) -> list[Any]:
    """All records of a partition."""

    async def read() -> list[Any]:
        config = ClientConfig(bootstrap=parse_addresses(bootstrap))
        async with open_cluster(config) as cluster, open_simple_consumer(cluster, ConsumerConfig(max_wait_ms=0)) as one:
            found: list[Any] = []
            fetched = await one.fetch(topic_partition, 0)
            while fetched.data:
                found += await one.records(fetched)
                fetched = await one.fetch(topic_partition, fetched.next_offset)
            return found

    return trio.run(read)


def values_of(bootstrap: str, topic_partition: TopicPartition = T0) -> list[Any]:
    return [record.value for record in records_of(bootstrap, topic_partition)]


def test_a_record_has_a_place(bootstrap: str) -> None:
    with SyncProducer(bootstrap, ProducerConfig(), clock=lambda: 77) as producer:
        sent = producer.send("t", b"v", b"k", partition=1, headers=[("h", b"1")])
        found = sent.result(DEADLINE_S)
        assert (found.topic_partition, found.offset, found.timestamp_ms) == (T1, 0, 77)
        assert sent.done()
        assert sent.exception() is None
        assert producer.send_and_wait("t", b"w", partition=1).offset == 1
    (record, _) = records_of(bootstrap, T1)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"1"),))


def test_records_of_each_thread_keep_their_order_and_none_is_lost(bootstrap: str) -> None:
    threads, count = 4, 3000
    with SyncProducer(bootstrap) as producer, ThreadPoolExecutor(threads) as pool:

        def send(number: int) -> list[Any]:
            return [producer.send("t", b"%d %d" % (number, index), partition=0) for index in range(count)]

        sent = [each for future in [pool.submit(send, number) for number in range(threads)] for each in future.result()]
        assert producer.flush(DEADLINE_S) == []
        assert all(each.done() for each in sent)
        assert sorted(each.result().offset for each in sent) == list(range(threads * count))
    values = values_of(bootstrap)
    for number in range(threads):
        mine = [int(value.split()[1]) for value in values if value.split()[0] == b"%d" % number]
        assert mine == list(range(count))


def test_lists_encoders_and_callbacks(bootstrap: str) -> None:
    told: list[Any] = []
    arrived = threading.Event()
    with SyncProducer(bootstrap, key_encoder=StrEncoder(), value_encoder=JsonEncoder()) as producer:
        places = producer.send_many("t", [{"n": 1}, {"n": 2}], keys=["a", "b"], partition=0).result(DEADLINE_S)
        assert [place.offset for place in places] == [0, 1]
        sent = producer.send("t", {"n": 3}, "c", partition=0, callback=lambda place, error: told.append((place, error)))

        def note(done: Any) -> None:
            told.append(done)
            arrived.set()

        sent.add_done_callback(note)
        assert arrived.wait(DEADLINE_S)
        assert told == [(sent.result(), None), sent]
        refused = producer.send("t", {1, 2}, callback=lambda place, error: told.append((place, type(error).__name__)))
        with pytest.raises(PipelineError, match="set"):
            refused.result(DEADLINE_S)
        assert told[2:] == [(None, "SerializationError")]
        assert [record.value for record in producer.flush(DEADLINE_S)] == [{1, 2}]
        assert producer.flush(DEADLINE_S) == []
    assert [(record.key, record.value) for record in records_of(bootstrap)] == [
        (b"a", b'{"n":1}'),
        (b"b", b'{"n":2}'),
        (b"c", b'{"n":3}'),
    ]


def test_what_is_not_accepted_is_an_error_of_that_record_alone(bootstrap: str) -> None:
    producer = SyncProducer(bootstrap, ProducerConfig(max_request_size=2000))
    large = producer.send("t", bytes(3000), partition=0)
    small = producer.send("t", b"small", partition=0)
    part = producer.send_many("t", [b"a", b"b", bytes(3000)], keys=[b"1", b"2", b"3"], partition=0)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        large.result(DEADLINE_S)
    assert small.result(DEADLINE_S).offset == 0
    with pytest.raises(PartlyAcceptedError):
        part.result(DEADLINE_S)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        producer.flush()
    producer.send("t", bytes(4000), partition=1)
    undelivered = producer.close(DEADLINE_S)
    assert [(record.topic_partition, record.value) for record in undelivered] == [
        (T0, bytes(3000)),
        (T0, bytes(3000)),
        (T1, bytes(4000)),
    ]
    assert [type(record.error) for record in undelivered] == [KafkaError, PartlyAcceptedError, KafkaError]
    assert values_of(bootstrap) == [b"small", b"a", b"b"]


def test_a_broker_that_does_not_answer_leaves_each_record_reported_once(nowhere: str) -> None:
    client = ClientConfig(bootstrap=parse_addresses(nowhere))
    producer = SyncProducer(config=ProducerConfig(max_block_ms=600_000), client=client)
    sent = [producer.send("t", b"%d" % number) for number in range(2500)]
    with pytest.raises(ResultTimeoutError):
        sent[0].result(0.01)
    with pytest.raises(TimeoutError):
        sent[1].exception(0)
    pending = producer.flush(0.05)
    assert [(record.value, record.error) for record in pending] == [(b"%d" % number, None) for number in range(2500)]
    undelivered = producer.close(0.05)
    assert sorted(int(record.value or b"") for record in undelivered) == list(range(2500))
    assert all(record.error is not None for record in undelivered)
    assert all(isinstance(each.exception(), PipelineError) for each in sent)
    assert producer.close() == []
    for call in (lambda: producer.send("t", b""), producer.flush, lambda: producer.send_and_wait("t", b"")):
        with pytest.raises(PipelineError, match="closed"):
            call()


def test_a_producer_whose_memory_is_full_blocks_and_then_raises(nowhere: str) -> None:
    config = ProducerConfig(buffer_memory=20_000, batch_size=10_000, max_block_ms=50)
    client = ClientConfig(bootstrap=parse_addresses(nowhere))
    producer = SyncProducer(config=config, client=client)
    with pytest.raises(DeadlineExceededError, match=r"buffer\.memory"):
        for _ in range(1000):
            producer.send("t", bytes(5000))
    producer.close(0)


def test_an_exception_in_the_block_gives_up_what_is_not_delivered(nowhere: str) -> None:
    sent: list[Any] = []
    with pytest.raises(ZeroDivisionError), SyncProducer(nowhere) as producer:
        sent.append(producer.send("t", b""))
        raise ZeroDivisionError
    assert isinstance(sent[0].exception(DEADLINE_S), PipelineError)


def test_an_interrupt_ends_a_wait_and_the_producer_goes_on(bootstrap: str, nowhere: str) -> None:
    stuck = SyncProducer(nowhere)
    sent = stuck.send("t", b"")
    timer = threading.Timer(0.1, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sent.result(DEADLINE_S)
    timer = threading.Timer(0.1, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        stuck.close(DEADLINE_S)
    assert len(stuck.close(0)) == 1
    with SyncProducer(bootstrap) as producer:
        assert producer.send("t", b"", partition=0).result(DEADLINE_S).offset == 0


def test_an_error_on_the_core_thread_is_raised_by_every_call(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.client.producer.sender import Sender

    broken = threading.Event()

    async def fail(_self: Sender) -> None:
        while not broken.is_set():
            await trio.sleep(0.001)
        raise RuntimeError("a fault")

    monkeypatch.setattr(Sender, "run", fail)
    producer = SyncProducer(bootstrap)
    sent = producer.send("t", b"1")
    broken.set()
    with pytest.raises((ProducerThreadError, DeliveryError)):
        sent.result(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    with pytest.raises(ProducerThreadError, match="a fault") as caught:
        while time.monotonic() < deadline:
            producer.send("t", b"2")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(ProducerThreadError, match="a fault"):
        producer.flush()
    assert [record.value for record in producer.close()].count(b"1") == 1


def test_a_callback_must_not_wait_for_its_own_thread(bootstrap: str) -> None:
    found: list[Any] = []
    with SyncProducer(bootstrap) as producer:

        def ask(_place: Any, _error: Any) -> None:
            for call in (producer.flush, producer.close, producer.send("t", b"from a callback", partition=1).result):
                try:
                    call()
                except PipelineError as error:
                    found.append(str(error))

        producer.send("t", b"", partition=0, callback=ask).result(DEADLINE_S)
    assert found == ["a callback must not wait for the producer, which calls it"] * 3
    assert values_of(bootstrap, T1) == [b"from a callback"]


def _send_in_child(producer: SyncProducer, sent: Any, found: Any) -> None:
    for call in (lambda: producer.send("t", b""), sent.result, producer.flush, producer.close):
        try:
            call()
        except PipelineError as error:
            found.put(str(error))


def test_a_forked_process_gets_a_clear_error(nowhere: str) -> None:
    context = multiprocessing.get_context("fork")
    producer = SyncProducer(nowhere)
    sent = producer.send("t", b"")
    found = context.Queue()
    with producer._core.handover._lock:  # as if another thread held it
        child = context.Process(target=_send_in_child, args=(producer, sent, found))
        child.start()
    errors = [found.get(timeout=DEADLINE_S) for _ in range(4)]
    child.join(DEADLINE_S)
    assert all("forked" in error for error in errors)
    producer.close(0)


@pytest.mark.long
@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "1 / 0"])
def test_a_program_that_ends_without_close_delivers_its_records(bootstrap: str, end: str) -> None:
    program = f"""
from pipeline.client import SyncProducer
producer = SyncProducer({bootstrap!r})
for number in range(100):
    producer.send("t", b"%d" % number, partition=0)
{end}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == {"": 0, "raise SystemExit(3)": 3, "1 / 0": 1}[end]
    assert values_of(bootstrap) == [b"%d" % number for number in range(100)]


def test_settings_that_cannot_be_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        SyncProducer()
    with pytest.raises(ConfigurationError, match="interceptor"):
        SyncProducer("127.0.0.1:1", interceptors=[3])  # type: ignore[list-item]
    with SyncProducer("127.0.0.1:1") as producer, pytest.raises(ValueError, match="1 keys for 2 values"):
        producer.send_many("t", [b"", b""], keys=[b""])
