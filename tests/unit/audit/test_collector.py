"""Reading the audit topic of a cluster that comes and goes."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.audit.collector import Collector, ReadingState
from pipeline.audit.counting.audit_topic import ensure_audit_topic
from pipeline.audit.message import AUDIT_TOPIC, Tier
from pipeline.audit.publisher import publish_load
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import HostPort, TopicPartition
from pipeline.processes import free_port
from pipeline.records.tally import Counts
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import clock, serving_cluster

DEADLINE_S = 60
CLICKS = TopicPartition("clicks", 0)


async def tell(cluster: Cluster, records: int) -> None:
    counts = {CLICKS: {0: Counts(records, 10, 1, 7)}}
    await publish_load(
        cluster,
        "hub",
        counts,
        quarantined={},
        lost_offsets={},
        up_to={CLICKS: records},
        window_ms=600_000,
        clock=clock,
        rng=Random(1),
    )


async def until(condition: Callable[..., Any]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.01)


async def test_a_cluster_that_goes_away_is_said_and_read_on_when_it_is_back(tmp_path: Path) -> None:
    address = HostPort("127.0.0.1", free_port())
    zookeeper = MemoryZooKeeper()
    listeners = f"PLAINTEXT://{address}"
    config = ClientConfig(bootstrap=(address,), retry_backoff_ms=10, retry_backoff_max_ms=100)
    async with open_cluster(config) as cluster, trio.open_nursery() as nursery:
        collector = Collector({"hub": cluster}, retry_backoff_s=0.05)
        state = collector.states["hub"]
        async with serving_cluster(tmp_path, zookeeper=zookeeper, listeners=listeners) as broker:
            nursery.start_soon(collector.run)
            await tell(broker, 3)
            await until(lambda: (state.position, state.lag, state.error) == (1, 0, None))
        await until(lambda: state.error is not None)
        async with serving_cluster(tmp_path, zookeeper=zookeeper, listeners=listeners) as broker:
            await tell(broker, 5)
            await until(lambda: (state.position, state.lag, state.error) == (2, 0, None))
        nursery.cancel_scope.cancel()
    found = collector.ledger.counts("hub", Tier.LOAD, CLICKS, 600_000)
    assert found is not None
    assert found.at(0).counts.records == 5


async def test_a_cluster_is_not_complete_before_it_was_read(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        await tell(cluster, 3)
        collector = Collector({"hub": cluster}, retry_backoff_s=0.05)
        state = collector.states["hub"]
        assert (state.is_complete, state.problem) == (False, "not read yet")
        nursery.start_soon(collector.run)
        await until(lambda: state.is_complete)
        assert state.problem is None
        nursery.cancel_scope.cancel()


async def test_a_cluster_that_was_never_there_is_soon_said_to_be_away() -> None:
    nobody = ClientConfig(bootstrap=(HostPort("127.0.0.1", 1),), default_api_timeout_ms=60_000)
    async with open_cluster(nobody) as cluster, trio.open_nursery() as nursery:
        collector = Collector({"hub": cluster}, retry_backoff_s=0.05)
        nursery.start_soon(collector.run)
        with trio.fail_after(50):
            await until(lambda: "no broker" in str(collector.states["hub"].error))
        nursery.cancel_scope.cancel()


def test_events_that_come_all_the_time_leave_a_cluster_complete() -> None:
    state = ReadingState(position=5)
    state.ends_at(7)
    assert (state.is_complete, state.problem) == (False, "2 events are not read yet")
    state.position = 7
    state.ends_at(9)
    assert (state.is_complete, state.problem, state.lag) == (True, None, 2)
    state.ends_at(9)
    assert not state.is_complete


@pytest.mark.parametrize(("value", "unreadable"), [(b"", 1), (b"{}", 1), (None, 0)])
async def test_records_that_are_no_events_are_skipped_and_counted(
    tmp_path: Path, value: bytes | None, unreadable: int
) -> None:
    async with serving_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        await ensure_audit_topic(cluster)
        async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            await producer.send(AUDIT_TOPIC, value)
        await tell(cluster, 3)
        collector = Collector({"hub": cluster}, retry_backoff_s=0.05)
        nursery.start_soon(collector.run)
        await until(lambda: collector.states["hub"].position == 2)
        nursery.cancel_scope.cancel()
    assert collector.ledger.partitions("hub", Tier.LOAD) == [CLICKS]
    assert collector.states["hub"].unreadable == unreadable
