"""Reading the audit topics of clusters that come and go, with real brokers."""

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import trio

from pipeline.audit.collecting.collector import EventCollector
from pipeline.audit.collecting.reading import ReadingState
from pipeline.audit.events.encoding import encode_count_report
from pipeline.audit.events.report import ROW, CountReport, LifeSign, ReportedTopic
from pipeline.audit.events.tiers import AUDIT_TOPIC, Counter, Tier
from pipeline.audit.ledger.ledger import SeriesKey
from pipeline.client.admin.offsets import delete_records, list_offsets
from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.producer.producer import open_producer
from pipeline.errors import NetworkError
from pipeline.model import HostPort, TopicPartition
from pipeline.processes import free_port
from pipeline.records.batch import place_batch
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import clock, serving_cluster

DEADLINE_S = 60
EVENTS = TopicPartition(AUDIT_TOPIC, 0)


def report(records: int, *, topic: str = "clicks", cluster: str = "hub", created_ms: int = 5) -> CountReport:
    rows = np.zeros(1, ROW)
    rows[["span_ms", "revision", "records", "bytes", "batches", "last_offset"]] = (
        HOUR_MS, records, records, 10 * records, 1, records - 1,
    )  # fmt: skip
    return CountReport(
        counter=Counter(tier=Tier.BROKER, cluster=cluster),
        process="1",
        created_ms=created_ms,
        window_ms=600_000,
        topics=[ReportedTopic(topic, "id")],
        rows=rows,
    )


async def publish(cluster: Cluster, *values: bytes | None, timestamp_ms: int | None = None) -> None:
    topic = NewTopic(name=AUDIT_TOPIC, partitions=1)
    await create_topics(cluster, [topic], exist_ok=True)
    async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
        for value in values:
            delivery = await producer.send(AUDIT_TOPIC, value, timestamp_ms=timestamp_ms)
            await producer.flush()  # a batch for each
            await delivery.wait()


def records_of(collector: EventCollector, cluster: str = "hub") -> int:
    series = collector.ledger.series.get(SeriesKey(Tier.BROKER, cluster))
    return 0 if series is None else sum(int(table.rows["records"].sum()) for table in series.hours.values())


async def until(condition: Callable[[], Any]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.005)


@asynccontextmanager
async def collecting(**clusters: Cluster) -> AsyncIterator[EventCollector]:
    collector = EventCollector(clusters, retry_backoff_s=0.05, clock=clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collector.run)
        yield collector
        nursery.cancel_scope.cancel()


def place(state: ReadingState) -> tuple[int, int | None, str | None]:
    return state.position, state.lag, state.error


async def test_a_cluster_that_goes_away_is_said_and_read_on_when_it_is_back(tmp_path: Path) -> None:
    address = HostPort("127.0.0.1", free_port())
    zookeeper = MemoryZooKeeper()
    listeners = f"PLAINTEXT://{address}"
    config = ClientConfig(bootstrap=(address,), retry_backoff_ms=10, retry_backoff_max_ms=100)
    async with open_cluster(config) as cluster, collecting(hub=cluster) as collector:
        async with serving_cluster(tmp_path, zookeeper=zookeeper, listeners=listeners) as broker:
            await publish(broker, encode_count_report(report(3)))
            await until(lambda: place(collector.states["hub"]) == (1, 0, None))
        died_ms = clock()
        # The hole of some 6 s until the death is noticed: nothing may be promised for it.
        while collector.states["hub"].error is None:
            assert collector.read_to_ms["hub"] <= died_ms
            await trio.sleep(0.01)
        assert collector.read_to_ms["hub"] <= died_ms
        async with serving_cluster(tmp_path, zookeeper=zookeeper, listeners=listeners) as broker:
            await publish(broker, encode_count_report(report(5)))
            await until(lambda: place(collector.states["hub"]) == (2, 0, None))
            await until(lambda: collector.read_to_ms["hub"] > died_ms)
        assert records_of(collector) == 5
        assert collector.losses == []


async def test_a_cluster_is_read_to_the_time_of_a_question_and_not_before(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path) as cluster:
        await publish(cluster, encode_count_report(report(3)))
        began_ms = clock()
        async with collecting(hub=cluster) as collector:
            assert (collector.read_to_ms, collector.states["hub"].problem) == ({}, "not read yet")
            await until(lambda: "hub" in collector.read_to_ms)
            assert collector.read_to_ms["hub"] >= began_ms
            assert records_of(collector) == 3


async def test_a_cluster_without_counters_is_read_at_once(tmp_path: Path) -> None:
    """The topic is created with the first event."""
    async with serving_cluster(tmp_path) as cluster, collecting(hub=cluster) as collector:
        await until(lambda: collector.states["hub"].is_complete)
        await publish(cluster, encode_count_report(report(3)))
        await until(lambda: records_of(collector) == 3)
        assert collector.losses == []


async def test_a_cluster_that_was_never_there_is_soon_said_to_be_away_and_delays_no_other(tmp_path: Path) -> None:
    nobody = ClientConfig(bootstrap=(HostPort("127.0.0.1", 1),), default_api_timeout_ms=60_000)
    async with open_cluster(nobody) as away, serving_cluster(tmp_path) as cluster:
        await publish(cluster, encode_count_report(report(3)))
        async with collecting(east=away, hub=cluster) as collector:
            await until(lambda: records_of(collector) == 3)
            with trio.fail_after(50):
                await until(lambda: "no broker" in str(collector.states["east"].error))
            assert "east" not in collector.read_to_ms


@pytest.mark.parametrize(("value", "unreadable"), [(b"", 1), (b"{}", 1), (None, 0)])
async def test_records_that_are_no_events_are_skipped_and_counted(
    tmp_path: Path, value: bytes | None, unreadable: int
) -> None:
    async with serving_cluster(tmp_path) as cluster:
        await publish(cluster, value, encode_count_report(report(3)))
        async with collecting(hub=cluster) as collector:
            await until(lambda: collector.states["hub"].position == 2)
            assert records_of(collector) == 3
            assert collector.states["hub"].unreadable == unreadable
            assert collector.losses == []


async def test_events_that_retention_deleted_are_a_loss_that_a_new_collector_finds_as_well(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path) as cluster:
        await publish(cluster, encode_count_report(report(3)), encode_count_report(report(4)))
        async with collecting(hub=cluster) as before:
            await until(lambda: records_of(before) == 4)
            await delete_records(cluster, {EVENTS: 2}, timeout_s=DEADLINE_S)
            async with collecting(hub=cluster) as behind:
                await until(lambda: behind.states["hub"].open_gap is not None)
                await until(lambda: behind.states["hub"].error is None)
                assert "hub" not in behind.read_to_ms  # nobody knows yet what is missing
                written_ms = clock() - 1_000
                await publish(cluster, encode_count_report(report(5)), timestamp_ms=written_ms)
                await until(lambda: "hub" in behind.read_to_ms)
                (loss,) = behind.losses
                assert (loss.cluster, loss.before_ms) == ("hub", written_ms)
                assert "events 0 to 1" in str(loss.witness)
                assert records_of(behind) == 5


async def test_a_counter_tells_of_lost_events_and_each_new_collector_learns_of_it(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path) as cluster:
        told = replace(report(4), is_after_loss=True)
        of_another = replace(report(5, cluster="east"), is_after_loss=True)
        values = [report(3), of_another, told, report(5)]
        await publish(cluster, *map(encode_count_report, values))
        told_ms = clock()
        for _ in range(2):
            async with collecting(hub=cluster) as collector:
                await until(lambda: collector.states["hub"].is_complete and collector.states["hub"].position == 4)
                (loss,) = collector.losses
                assert (loss.cluster, loss.witness.name) == ("hub", "audit topic of hub")
                assert told_ms - 60_000 < loss.before_ms <= told_ms
                assert "earlier reports are gone" in loss.witness.reason


async def test_hours_before_a_counter_that_could_not_read_back_its_reports_are_in_doubt_until_it_can(
    tmp_path: Path,
) -> None:
    sign = LifeSign(host="h", started_ms=1, interval_ms=1_000, closed_ms=0)
    blind = [replace(report(3, created_ms=created_ms), life=sign, unseen=1) for created_ms in (5, 6)]
    stale = replace(report(3, created_ms=4), life=sign)
    another = replace(report(4, created_ms=9), process="2", life=sign)
    async with serving_cluster(tmp_path) as cluster:
        await publish(cluster, *map(encode_count_report, blind[:1]))
        told_ms = clock()
        await publish(cluster, *map(encode_count_report, [blind[1], stale, another]))
        async with collecting(hub=cluster) as collector:
            await until(lambda: collector.states["hub"].is_complete and collector.states["hub"].position == 4)
            (loss,) = collector.losses
            assert loss.before_ms <= told_ms
            assert "broker 1 could not see whether its reports are still there" in loss.witness.reason
            await publish(cluster, encode_count_report(replace(report(3, created_ms=7), life=sign)))
            await until(lambda: not collector.losses)


@pytest.mark.parametrize("recreated", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_an_audit_topic_that_is_replaced_is_read_again_and_said(tmp_path: Path, recreated: bool) -> None:
    async with serving_cluster(tmp_path / "hub") as hub, serving_cluster(tmp_path / "east") as east:
        await publish(east, encode_count_report(report(7, cluster="east")))
        await publish(hub, encode_count_report(report(3)), encode_count_report(report(9, topic="old")))
        async with collecting(hub=hub, east=east) as collector:
            await until(lambda: (records_of(collector), records_of(collector, "east")) == (12, 7))
            await until(lambda: "hub" in collector.read_to_ms)
            began_ms = clock()
            await delete_topics(hub, [AUDIT_TOPIC])
            if recreated:
                await publish(hub, encode_count_report(report(4)))
                await until(lambda: (records_of(collector), records_of(collector, "east")) == (4, 7))
                (loss,) = collector.losses
                assert (loss.cluster, loss.witness.name) == ("hub", "audit topic of hub")
                assert began_ms <= loss.before_ms <= clock()
                assert "was replaced at" in loss.witness.reason
                assert collector.generation == 1
                await until(lambda: min(collector.read_to_ms.values(), default=0) > loss.before_ms)
            else:
                deleted_ms = clock()
                await until(lambda: collector.states["hub"].error is not None)
                assert collector.read_to_ms["hub"] <= deleted_ms
                assert "was deleted" in str(collector.states["hub"].error)


async def test_a_collector_that_starts_at_any_event_comes_to_the_same_counts(tmp_path: Path) -> None:
    values = [encode_count_report(report(number, topic=f"t{number % 7}")) for number in range(1, 60)]
    async with serving_cluster(tmp_path) as cluster:
        await publish(cluster, *values)
        found: set[int] = set()
        for _ in range(3):
            async with collecting(hub=cluster) as collector:
                await until(lambda: "hub" in collector.read_to_ms)
                found.add(records_of(collector))
    assert len(found) == 1


async def test_two_failures_at_once_are_said_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of errors is no PipelineError: it ended the service."""
    failures = iter([ExceptionGroup("both", [NetworkError("one is away"), NetworkError("so is the other")])])

    async def fail_once(*arguments: Any, **options: Any) -> Any:
        for failure in failures:
            raise failure
        return await list_offsets(*arguments, **options)

    monkeypatch.setattr("pipeline.audit.collecting.collector.list_offsets", fail_once)
    async with serving_cluster(tmp_path) as cluster:
        await publish(cluster, encode_count_report(report(3)))
        async with collecting(hub=cluster) as collector:
            await until(lambda: collector.states["hub"].error == "one is away")
            await until(lambda: "hub" in collector.read_to_ms)
            assert records_of(collector) == 3


@pytest.mark.long
async def test_little_is_fetched_ahead_while_events_are_decoded(tmp_path: Path) -> None:
    size, count = 500_000, 40  # 20 MB
    noise = Random(3)
    async with serving_cluster(tmp_path) as cluster:
        await publish(cluster, *(noise.randbytes(size) for _ in range(count)))
        most = 0
        async with collecting(hub=cluster) as collector:
            async with collector.turn:  # what is fetched waits
                await until(lambda: fetched_bytes() >= 2 * size)
            with trio.fail_after(DEADLINE_S):
                while collector.states["hub"].position < count:
                    most = max(most, fetched_bytes())
                    await trio.sleep(0.001)
    assert most < 8 << 20


def fetched_bytes() -> int:
    """Return the bytes of fetched batches in this process."""
    return sum(len(each.data) for each in gc.get_objects() if isinstance(each, FetchedBatches))


async def test_a_snapshot_between_two_leader_epochs_has_the_epoch_of_its_last_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an older one the log would look truncated to the process that goes on: everything would be read again."""
    monkeypatch.setattr("pipeline.audit.collecting.collector.PORTION_BYTES", 1)
    data = bytearray()
    for offset, epoch in enumerate((3, 4, 4, 6)):
        builder = BatchBuilder(Codec.NONE, 1 << 20)
        assert builder.append(None, encode_count_report(report(1)), (), 0)
        batch = builder.build()
        place_batch(batch, 0, offset, epoch)
        data += batch
    epochs = ((3, 0), (4, 1), (6, 3))
    batches = FetchedBatches(
        topic_partition=EVENTS,
        data=memoryview(data),
        position=0,
        next_offset=4,
        high_watermark=4,
        log_start_offset=0,
        leader_epochs=epochs,
    )
    collector = EventCollector({}, 1.0, clock)
    known = ReadingState("hub")
    seen = set()

    async def look() -> None:
        while known.position < 4:
            async with collector.turn:
                seen.add((known.position, known.to_continue().leader_epoch))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await collector._take(known, batches)
    seen.add((known.position, known.leader_epoch))
    assert len(seen) > 2
    assert seen <= {(0, None), (1, 3), (2, 4), (3, 4), (4, 6)}
    collector._pass_over(_NoConsumer(), known, 9)  # type: ignore[arg-type]
    assert (known.position, known.leader_epoch) == (9, None)  # nobody knows the epoch of the event before


class _NoConsumer:
    def add(self, *_: object) -> None:
        """Fetch nothing."""
