"""The producer for threads when something goes wrong: unknown topics, interrupts, misuse, a busy thread."""

import _thread
import sys
import threading
import time
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
import structlog.testing
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.sender import Sender
from pipeline.client.sync import sync_producer
from pipeline.client.sync.deliveries import ResultTimeoutError
from pipeline.client.sync.handover import Handover
from pipeline.client.sync.sync_producer import SyncProducer
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.protocol.errors import KafkaError
from pipeline.settings import parse_addresses
from tests.unit.client.sync.conftest import DEADLINE_S
from tests.unit.client.sync.test_sync_producer import T0, T1, records_of, values_of


def until(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_topic_that_does_not_exist_holds_up_no_other(bootstrap: str) -> None:
    producer = SyncProducer(bootstrap, ProducerConfig(max_block_ms=600_000))
    lost = [producer.send("mistyped", b"%d" % number) for number in range(3)]
    assert producer.send("t", b"v", partition=0).result(DEADLINE_S).offset == 0
    assert producer.send_and_wait("t", b"w", partition=0).offset == 1
    assert not any(each.done() for each in lost)
    assert [record.value for record in producer.flush(0.05)] == [b"0", b"1", b"2"]
    undelivered = producer.close(0.05)
    assert [(record.value, record.topic_partition.topic) for record in undelivered] == [
        (b"%d" % number, "mistyped") for number in range(3)
    ]


def test_records_that_wait_for_a_topic_are_refused_together_and_sent_in_order_once_it_exists(bootstrap: str) -> None:
    async def create() -> None:
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster:
            await create_topics(cluster, [NewTopic(name="late", partitions=1)])

    with SyncProducer(bootstrap, ProducerConfig(max_block_ms=600_000)) as producer:
        sent = [producer.send("late", b"%d" % number) for number in range(100)]
        trio.run(create)
        sent += [producer.send("late", b"%d" % number) for number in range(100, 200)]
        assert [each.result(DEADLINE_S).offset for each in sent] == list(range(200))
    with SyncProducer(bootstrap, ProducerConfig(max_block_ms=300)) as producer:
        sent = [producer.send("never", b"") for _ in range(1000)]
        for each in sent:
            assert isinstance(each.exception(DEADLINE_S), KafkaError)  # not 0.3 s for each
        assert len(producer.flush(DEADLINE_S)) == 1000


def test_brokers_that_never_answer_end_all_records_within_the_time_of_one(nowhere: str) -> None:
    producer = SyncProducer(nowhere, ProducerConfig(max_block_ms=200))
    sent = [producer.send("t", b"%d" % number) for number in range(1000)]
    assert all(isinstance(each.exception(DEADLINE_S), PipelineError) for each in sent)
    assert [int(record.value or b"") for record in producer.close()] == list(range(1000))


def interrupted_at(line: int, handover: Handover[str], item: str) -> None:
    """Put an item, with Ctrl-C at the n-th line of `put`."""
    left, last_line = line, 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left, last_line
        if frame.f_code is not Handover.put.__code__:
            return None
        if event == "line":
            left -= 1
            if left < 0 and frame.f_lineno > last_line:  # not on the way back to the `with`, where Python lets none in
                raise KeyboardInterrupt
            last_line = frame.f_lineno
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        handover.put(item, 1, 0)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("line", range(12))
def test_an_interrupt_in_put_leaves_no_record_without_a_wake_up(line: int) -> None:
    woken: list[int] = []
    handover: Handover[str] = Handover(100, lambda: woken.append(1))
    interrupted_at(line, handover, "a")
    assert woken or not handover.waiting()
    if woken:  # the core takes what there is, and sleeps
        found = handover.take()
        assert found in (["a"], [])
        while handover.take():
            pass
    woken.clear()
    handover.put("b", 1, 0)
    assert woken
    assert handover.take()[-1] == "b"


async def hang(*_: object) -> None:
    """Send as to a broker that does not answer."""
    await trio.sleep_forever()


def test_an_interrupted_close_loses_no_record_of_the_report(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sender, "_send", hang)
    producer = SyncProducer(bootstrap)
    sent = [producer.send("t", b"%d" % number, partition=0) for number in range(3)]
    assert len(producer.flush(0.1)) == 3
    threading.Timer(0.1, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        producer.close(1)
    until(lambda: all(each.done() for each in sent))
    assert [record.value for record in producer.close()] == [b"0", b"1", b"2"]


def test_two_threads_close_at_once_and_each_record_is_reported_once(nowhere: str) -> None:
    producer = SyncProducer(nowhere)
    for number in range(10):
        producer.send("t", b"%d" % number)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.extend(producer.close(0.2))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(int(record.value) for record in found) == list(range(10))


def test_odd_arguments_are_errors_of_their_records_and_spoil_no_report(bootstrap: str) -> None:
    producer: Any = SyncProducer(bootstrap)
    odd: list[Any] = [
        producer.send("t", b"headers", headers=5),
        producer.send(["t"], b"topic"),
        producer.send(None, b"no topic"),
        producer.send("t", 3),
        producer.send("t", b"partition", partition="x"),
        producer.send_many("t", [b"a", 4], keys={b"1", b"2"}),
    ]
    good = producer.send("t", b"good", partition=0)
    assert good.result(DEADLINE_S).topic_partition == T0
    assert all(each.exception(DEADLINE_S) is not None for each in odd)
    undelivered = producer.flush(DEADLINE_S)
    refused = [b"headers", b"topic", b"no topic", 3, b"partition", 4]
    assert sorted(map(repr, refused)) == sorted(repr(record.value) for record in undelivered)
    assert producer.close() == []


def test_a_callback_that_takes_too_long_costs_close_its_time_and_no_record(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_producer, "_GRACE_S", 0.1)
    go_on, begun = threading.Event(), threading.Event()

    def block(_place: Any, _error: Any) -> None:
        begun.set()
        go_on.wait(DEADLINE_S)

    producer = SyncProducer(bootstrap)
    producer.send("t", b"1", partition=0, callback=block)
    assert begun.wait(DEADLINE_S)
    producer.send("t", bytes(2_000_000))
    for call in (producer.flush, producer.close):
        with pytest.raises(ResultTimeoutError):
            call(0.1)
    go_on.set()
    assert [len(record.value or b"") for record in producer.close()] == [2_000_000]
    assert values_of(bootstrap) == [b"1"]


def test_a_flush_that_raises_leaves_its_records_to_the_report(bootstrap: str) -> None:
    producer = SyncProducer(bootstrap)
    producer.send("t", bytes(2_000_000), partition=0)
    producer.send("t", bytes(3_000_000), partition=0)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        producer.flush()
    assert producer.flush() == []
    assert [len(record.value or b"") for record in producer.close()] == [2_000_000, 3_000_000]


def test_producers_that_are_closed_leave_no_thread(bootstrap: str) -> None:
    SyncProducer(bootstrap).close()
    before = threading.active_count()
    for number in range(20):
        with SyncProducer(bootstrap) as producer:
            producer.send("t", b"%d" % number, partition=0)
    assert threading.active_count() == before
    assert len(values_of(bootstrap)) == 20


def test_tables_are_sent_in_order_with_records_and_have_places(bootstrap: str) -> None:
    with SyncProducer(bootstrap) as producer:
        producer.send("t", b"first", partition=0)
        table = pa.table({"value": ["a", "b", "c"], "key": [b"k", None, b"k"], "partition": [0, 1, 0]})
        sent = producer.send_columns("t", table)
        producer.send("t", b"last", partition=0)
        places = sent.result(DEADLINE_S)
        assert places.to_pydict() == {"partition": [0, 1, 0], "offset": [1, 0, 2]}
        assert sent.done()
        assert sent.exception() is None
        told = threading.Event()
        producer.send_columns("t", table.to_batches()[0]).add_done_callback(lambda _: told.set())
        assert told.wait(DEADLINE_S)
    assert [(record.key, record.value) for record in records_of(bootstrap, T1)] == [(None, b"b")] * 2
    assert values_of(bootstrap)[:4] == [b"first", b"a", b"c", b"last"]


def test_rows_of_a_table_that_is_refused_are_reported_like_records(bootstrap: str) -> None:
    producer: Any = SyncProducer(bootstrap, ProducerConfig(max_request_size=2000))
    table = pa.table(
        {
            "value": [b"small", bytes(5000)],
            "timestamp": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns")),
            "headers": pa.array([[{"key": "h", "value": b"1"}], None]),
        }
    )
    refused = producer.send_columns("t", table)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        refused.result(DEADLINE_S)
    no_table = producer.send_columns("t", [1, 2])
    with pytest.raises(TypeError):
        no_table.result(DEADLINE_S)
    wrong = producer.send_columns("t", pa.table({"value": [b""], "what": [1], "headers": [3]}))
    assert isinstance(wrong.exception(DEADLINE_S), ValueError | TypeError)
    unknown = producer.send_columns("nowhere", table)
    found = producer.close(0.1)
    assert unknown.exception() is not None
    assert [(record.value, record.timestamp_ms, record.headers) for record in found] == [
        (b"small", 1_700_000_000_123, (("h", b"1"),)),
        (bytes(5000), -1, ()),
        ([1, 2], -1, ()),
        (b"", -1, ()),
        (b"small", 1_700_000_000_123, (("h", b"1"),)),
        (bytes(5000), -1, ()),
    ]


def test_where_to_begin_is_said_once() -> None:
    client = ClientConfig(bootstrap=parse_addresses("127.0.0.1:1"))
    for given in ({"bootstrap": "127.0.0.1:1", "zookeeper": "127.0.0.1:1"}, {"client": client, "zookeeper": "z:1"}):
        with pytest.raises(ConfigurationError, match="zookeeper"):
            SyncProducer(**given)
    with pytest.raises(ConfigurationError, match=r"zookeeper\.connect"):
        SyncProducer(zookeeper="127.0.0.1:port/kafka")


def test_closing_twice_at_once_is_no_failure_that_is_logged(bootstrap: str) -> None:
    producer = SyncProducer(bootstrap)
    with structlog.testing.capture_logs() as logs:
        threads = [threading.Thread(target=producer.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert [entry for entry in logs if entry["log_level"] not in ("debug", "info")] == []
