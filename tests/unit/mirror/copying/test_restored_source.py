"""A source that was restored to an older copy, and then wrote other records in the same leader epochs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.client.admin.resource_configs import ConfigResource, alter_configs
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.consumer.fetcher import FETCH_LANE
from pipeline.errors import NetworkError
from pipeline.mirror.copying.resume import ResumeRequest
from pipeline.mirror.service import MirrorService
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.protocol.messages.fetch import FetchRequest
from pipeline.protocol.messages.list_offsets import ListOffsetsRequest
from tests.support.brokers import serving_cluster
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    make,
    mirror_settings,
    mirroring_of,
    publish,
    read,
    until,
    until_copied,
    until_said,
)
from tests.support.restorable import Restorable, restorable

SHARED = [b"a0", b"a1", b"a2"]
LOST = [b"b3", b"b4"]
NEW = [b"c3", b"c4", b"c5", b"c6"]
DIFFERENT = "the source and the replica hold different batches at offset 4"


@pytest.fixture
async def east(tmp_path: Path) -> AsyncIterator[Restorable]:
    async with restorable(tmp_path / "east") as found:
        async with found.running() as live:
            await make(live)
            await publish(live, *SHARED)
        found.back_up()
        yield found


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with serving_cluster(tmp_path / "hub") as cluster:
        yield cluster


@asynccontextmanager
async def mirroring(east: Restorable, hub: Cluster, **settings: Any) -> AsyncIterator[MirrorService]:
    async with mirroring_of(hub, None, settings, east=east.cluster) as service:
        yield service


async def copy_lost(east: Restorable, hub: Cluster) -> None:
    async with east.running() as live:
        await publish(live, *LOST)
        async with mirroring(east, hub):
            await until_copied(hub, CLICKS, *SHARED, *LOST)


async def configure(live: Cluster, **settings: str) -> None:
    changes = {name.replace("_", "."): value for name, value in settings.items()}
    await alter_configs(live, {ConfigResource(ResourceType.TOPIC, "clicks"): changes}, timeout_s=DEADLINE_S)


async def test_records_of_a_source_that_was_restored_while_no_mirror_ran_are_a_gap(
    east: Restorable, hub: Cluster
) -> None:
    await copy_lost(east, hub)
    east.restore()
    async with east.running() as live:
        await publish(live, *NEW)
        async with mirroring(east, hub) as service:
            await until_said(service, DIFFERENT)
            assert await read(hub, CLICKS) == list(enumerate(SHARED + LOST))
            await service.resumption.resume(ResumeRequest(names=["clicks-0"], skip=True))
            await until_copied(hub, CLICKS, *SHARED, *LOST, *NEW[2:])
            (gap,) = list(service.gaps.ledger)
            assert (gap.first, gap.last, gap.reason.value) == (0, 4, "truncated")
        await publish(live, b"c7")
        async with mirroring(east, hub):  # the accepted difference is not found anew
            await until_copied(hub, CLICKS, *SHARED, *LOST, *NEW[2:], b"c7")


async def test_a_running_mirror_notices_a_source_that_was_restored_and_has_written_on(
    east: Restorable, hub: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for nothing before the source is beyond the replica's end."""
    request, has_written = east.cluster.request, trio.Event()

    async def ask_later(broker: Any, message: Any, **settings: Any) -> Any:
        if isinstance(message, FetchRequest | ListOffsetsRequest):
            await has_written.wait()
        return await request(broker, message, **settings)

    async with mirroring(east, hub) as service:
        async with east.running() as live:
            await publish(live, *LOST)
            await until_copied(hub, CLICKS, *SHARED, *LOST)
            await until(lambda: service.status()["sources"][0]["states"]["caught_up"] == 1)
            monkeypatch.setattr(east.cluster, "request", ask_later)
        east.restore()
        async with east.running() as live:
            await publish(live, *NEW)
            has_written.set()
            await until_said(service, DIFFERENT)
            (partition,) = service.status()["sources"][0]["partitions"]
            assert (partition["state"], partition["lag"]) != ("caught_up", 0)


async def test_a_source_that_is_restarted_is_compared_and_copied_on(east: Restorable, hub: Cluster) -> None:
    await copy_lost(east, hub)
    async with mirroring(east, hub) as service:
        for number in range(2):
            async with east.running() as live:
                await publish(live, b"d%d" % number)
                await until_copied(hub, CLICKS, *SHARED, *LOST, *[b"d%d" % each for each in range(number + 1)])
                (copy,) = service.sources["east"].copies.states.values()
                assert copy.is_confirmed
                losses = copy.losses
            await until(lambda: copy.losses > losses)  # noqa: B023
        assert not list(service.gaps.ledger)


async def test_a_source_that_does_not_show_its_end_yet_is_not_taken_for_the_same(
    east: Restorable, hub: Cluster
) -> None:
    """Its records are there, and beyond its high watermark."""
    await copy_lost(east, hub)
    east.restore()
    async with east.running() as live:
        await configure(live, visibility="flushed", flush_ms=str(2**62))
        await publish(live, *NEW)
        async with mirroring(east, hub) as service:
            states = service.sources["east"].copies.states
            await until(lambda: any(copy.position is not None or copy.error for copy in states.values()))
            await configure(live, visibility="appended", flush_ms="1")
            await until_said(service, DIFFERENT)
            assert await read(hub, CLICKS) == list(enumerate(SHARED + LOST))


@pytest.mark.long
async def test_a_source_that_is_restored_before_anything_is_fetched_again_is_compared_again(
    east: Restorable, hub: Cluster
) -> None:
    """A throttle holds the partition back behind the comparison."""
    large = b"x" * 300_000
    async with mirroring(east, hub, throttle_bytes_per_second=1024) as service:
        async with east.running() as live:
            await publish(live, *LOST, large)
            await until_copied(hub, CLICKS, *SHARED, *LOST, large)  # to be paid for in the next minutes
            copy = service.sources["east"].copies.states[CLICKS]
            await until(lambda: break_fetches(east.cluster) > 0)
            await until(lambda: copy.losses > 0 and copy.is_confirmed and copy.position == 6)
        east.restore()
        async with east.running() as live:
            await publish(live, *NEW)
            await service.settings.apply(mirror_settings("east"), service.status()["settings"]["version"])
            await until_said(service, "different batches at offset 5")
        assert await read(hub, CLICKS) == list(enumerate([*SHARED, *LOST, large]))


def break_fetches(cluster: Cluster) -> int:
    """Break the open connections of Fetch requests, and return how many there were."""
    connections = cluster._pool._connections
    broken = [each for (_, lane), each in connections.items() if lane.startswith(FETCH_LANE) and each.is_open]
    for each in broken:
        each.fail(NetworkError("broken"))
    return len(broken)
