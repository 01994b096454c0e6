"""Throttles: a flow and all flows copy no more than their bounds; others are not delayed, and bounds change live."""

from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.consumer.byte_rate import BURST_S, UNDER_WAY_S
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.service import MirrorService
from pipeline.records.compression import Codec
from tests.support.brokers import clock
from tests.support.mirrors import Site, make, mirror_settings, publish, until

BATCH = 8_000
AHEAD_S = BURST_S + UNDER_WAY_S
"""Time by which copied bytes may be ahead of a bound, which holds on average."""


async def fill(cluster: Cluster, topic: str, size: int, partitions: int = 1) -> None:
    """Publish batches of `BATCH` bytes, `size` bytes in all."""
    config = ProducerConfig(linger_ms=0, batch_size=BATCH, compression=Codec.NONE)
    async with open_producer(cluster, config, clock=clock, rng=Random(1)) as producer:
        for number in range(size // BATCH):
            await producer.send(topic, b"x" * BATCH, partition=number % partitions)
        await producer.flush()


def flow(name: str, *topics: str, rate: int | None = None) -> dict[str, Any]:
    bound = {} if rate is None else {"throttle.bytes.per.second": rate}
    return {"name": name, "source": "east", "topics": list(topics), **bound}


def copied(site: Site, topic: str, partitions: int = 1) -> float:
    found = (
        site.metrics.get_sample_value(
            "mirror_copied_bytes_total", {"source": "east", "topic": topic, "partition": str(number)}
        )
        for number in range(partitions)
    )
    return sum(value or 0 for value in found)


def flow_status(service: MirrorService, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in service.status()["flows"] if one["name"] == name)
    return found


async def change(service: MirrorService, *flows: dict[str, Any], **more: Any) -> None:
    version = service.status()["settings"]["version"]
    await service.settings.apply(mirror_settings("east", "west", flows=list(flows), **more), version)


@pytest.mark.long
async def test_a_throttled_flow_delays_no_other_and_is_released_live(site: Site) -> None:
    await make(site.east, "bulk")
    await make(site.east, "live")
    await fill(site.east, "bulk", 800_000)
    live = flow("live", "live")
    waiting: dict[str, Any] = {"fetch_max_wait_ms": 60_000}
    begun = trio.current_time()
    async with site.mirroring(flows=[flow("bulk", "bulk", rate=20_000), live], **waiting) as service:
        await until(lambda: flow_status(service, "bulk")["is_throttled"])
        for number in range(5):
            await publish(site.east, b"%d" % number, topic="live")
            with trio.fail_after(30):  # half the wait of a fetch
                while (position(service) or 0) <= number:
                    await trio.sleep(0.01)
        assert copied(site, "bulk") < 20_000 * (trio.current_time() - begun + AHEAD_S) + BATCH
        assert flow_status(service, "bulk")["throttle_bytes_per_second"] == 20_000
        assert not flow_status(service, "live")["is_throttled"]
        labels = {"flow": "bulk"}
        assert site.metrics.get_sample_value("mirror_flow_throttle_bytes_per_second", labels) == 20_000
        await until(lambda: site.metrics.get_sample_value("mirror_flow_throttled", labels) == 1)
        copying = {**labels, "state": "copying"}
        await until(lambda: site.metrics.get_sample_value("mirror_flow_partitions", copying) == 1)
        await until(lambda: (flow_status(service, "bulk")["lag"] or 0) > 0)
        await change(service, flow("bulk", "bulk"), live, **waiting)
        await until(lambda: flow_status(service, "bulk")["lag"] == 0)
        assert site.metrics.get_sample_value("mirror_flow_lag_offsets", labels) == 0


def position(service: MirrorService) -> int | None:
    for one in service.status()["sources"]:
        for line in one["partitions"]:
            if line["topic"] == "live":
                found: int | None = line["position"]
                return found
    return None


async def test_a_total_holds_for_topics_without_flows(site: Site) -> None:
    await make(site.east, "clicks", partitions=2)
    await fill(site.east, "clicks", 600_000, partitions=2)
    bound: dict[str, Any] = {"throttle.bytes.per.second": 40_000}
    async with site.mirroring(**bound) as service:
        await until(lambda: copied(site, "clicks", 2) > 60_000)
        begun, before = trio.current_time(), copied(site, "clicks", 2)
        await trio.sleep(1)
        assert copied(site, "clicks", 2) - before < 40_000 * (trio.current_time() - begun + AHEAD_S) + BATCH
        assert service.status()["throttle_bytes_per_second"] == 40_000
        assert site.metrics.get_sample_value("mirror_throttle_bytes_per_second") == 40_000
        version = service.status()["settings"]["version"]
        await service.settings.apply(mirror_settings("east", "west"), version)
        await until(lambda: flow_status(service, "east")["lag"] == 0)


async def test_partitions_take_turns_at_a_total_of_a_few_batches(site: Site) -> None:
    topics = ["a", "b", "c"]
    for topic in topics:
        await make(site.east, topic)
        await fill(site.east, topic, 200 * BATCH)
    bound: dict[str, Any] = {"throttle.bytes.per.second": 2 * BATCH}
    async with site.mirroring(flows=[flow(topic, topic) for topic in topics], **bound):
        await until(lambda: all(copied(site, topic) > 4 * BATCH for topic in topics))


@pytest.mark.long
async def test_very_many_requests_at_once_make_no_burst(site: Site) -> None:
    rate, partitions = 40_000, 60
    await make(site.east, "bulk", partitions=partitions)
    await fill(site.east, "bulk", partitions * 5 * BATCH, partitions=partitions)
    begun = trio.current_time()
    async with site.mirroring(flows=[flow("bulk", "bulk", rate=rate)], fetch_max_in_flight=100):
        await until(lambda: copied(site, "bulk", partitions) > 0)
        while (at := trio.current_time() - begun) < 6:
            assert copied(site, "bulk", partitions) < rate * (at + 2) + 4 * BATCH
            await trio.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize("rate", [200_000, 2_000_000])
async def test_measured_rates_are_within_a_tenth(site: Site, rate: int) -> None:
    await make(site.east, "bulk", partitions=4)
    await fill(site.east, "bulk", rate * 16, partitions=4)
    async with site.mirroring(flows=[flow("bulk", "bulk", rate=rate)]):
        await until(lambda: copied(site, "bulk", 4) > rate)
        begun, before = trio.current_time(), copied(site, "bulk", 4)
        await trio.sleep(10)
        measured = (copied(site, "bulk", 4) - before) / (trio.current_time() - begun)
        print(f"bound {rate}, measured {measured:.0f} bytes/s")
        assert measured == pytest.approx(rate, rel=0.1)
