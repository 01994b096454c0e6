"""Connections that a source closes since nothing was asked on them: no reason to compare its logs with the replicas."""

from pathlib import Path

import trio

from pipeline.client.consumer.fetcher import FETCH_LANE
from pipeline.net.connection_pool import LostConnection
from tests.support.brokers import serving_cluster
from tests.support.mirrors import make, mirroring_of, publish, until


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
            await until(lambda: any(one.was_idle and one.lane.startswith(FETCH_LANE) for one in lost))
            copies = service.sources["east"].copies.states.values()
            assert [(copy.losses, copy.fetch) for copy in copies] == [(0, 1)] * 4
            assert service.status()["flows"][0]["lag"] == 0
        nursery.cancel_scope.cancel()
