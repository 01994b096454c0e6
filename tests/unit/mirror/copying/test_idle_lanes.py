"""Connections that a source closes since nothing was asked on them: no reason to compare its logs with the replicas."""

from functools import partial
from pathlib import Path

import pytest
import trio

from pipeline.client.consumer.fetcher import FETCH_LANE
from pipeline.net.connection_pool import LostConnection
from tests.support.brokers import serving_cluster
from tests.support.mirrors import make, mirroring_of, publish, until


def idle_lanes(lost: list[LostConnection]) -> int:
    return sum(one.was_idle and one.lane.startswith(FETCH_LANE) for one in lost)


def has_more(lost: list[LostConnection], known: int) -> bool:
    return idle_lanes(lost) > known


@pytest.mark.long
async def test_partitions_stay_located_when_the_source_closes_idle_connections(tmp_path: Path) -> None:
    lost: list[LostConnection] = []
    async with (
        serving_cluster(tmp_path / "east", connections_max_idle_ms=4000) as east,
        serving_cluster(tmp_path / "hub") as hub,
        trio.open_nursery() as nursery,
    ):
        await make(east, partitions=4)
        for partition in range(4):
            await publish(east, *[b"x" * 3000] * 6, partition=partition)
        nursery.start_soon(east.watch_losses, lost.append)
        backlog = {"fetch_max_bytes": 1024, "fetch_max_wait_ms": 100}  # in many requests
        settings = {**backlog, "produce_timeout_ms": 60_000}  # a late answer has a partition located again
        async with mirroring_of(hub, None, settings, east=east) as service:
            copies = service.sources["east"].copies.states.values()
            is_quiet = False
            with trio.fail_after(120):
                while not is_quiet:  # a machine that stands still for seconds loses connections of other kinds
                    closed, before = idle_lanes(lost), [(copy.losses, copy.fetch) for copy in copies]
                    await until(partial(has_more, lost, closed))
                    await publish(east, b"another", partition=0)
                    await until(lambda: service.status()["flows"][0]["lag"] == 0)
                    is_quiet = before == [(copy.losses, copy.fetch) for copy in copies]
        nursery.cancel_scope.cancel()
