"""ZooKeeper dies for 20 s, and brokers sleep for longer than their sessions: what was running goes on."""

import os
import signal
from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.cli.demo.datacenters import HUB, Datacenters
from pipeline.cli.terminal.connect import connected
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.model import TopicPartition
from tests.support.copies import check_copies, log_ends
from tests.support.traffic import Published, make_topic, traffic

TOPIC = "clicks"
LIVE = "east"
OUTAGE_S = 12
LONGEST_PAUSE_S = 120
DEADLINE_S = 180
REGISTRATION = "/brokers/ids/1"
SEED = 20110614


async def moves_on(notes: Published, hub: Cluster) -> None:
    """Something more is acknowledged, and something more is copied."""
    replicas = [TopicPartition(TOPIC, number) for number in range(4)]
    acknowledged, copied = len(notes.acknowledged), await log_ends(hub, replicas)
    with trio.fail_after(LONGEST_PAUSE_S):
        while len(notes.acknowledged) == acknowledged or await log_ends(hub, replicas) == copied:
            await trio.sleep(0.05)


async def until_registered(zookeeper: CoordinationClient, *, is_there: bool) -> None:
    with trio.fail_after(DEADLINE_S):
        while (await zookeeper.exists(REGISTRATION) is not None) is not is_there:
            await trio.sleep(0.05)


@pytest.mark.long
async def test_zookeeper_and_sessions_are_lost_and_nothing_stops(tmp_path: Path) -> None:
    random = Random(SEED)
    async with Datacenters(tmp_path, [".*"]) as datacenters:
        published = await make_topic(datacenters, TOPIC)
        async with (
            traffic(datacenters.bootstrap, TOPIC, published, random),
            connected(datacenters.bootstrap[HUB], None, "test") as hub,
        ):
            with trio.fail_after(DEADLINE_S):
                await hub.topic(TOPIC)
                while len((await hub.refresh()).topics[TOPIC].partitions) < 4:
                    await trio.sleep(0.05)
            await zookeepers_die(datacenters, published[LIVE], hub)
            later = await make_topic(datacenters, "later")
            async with traffic(datacenters.bootstrap, "later", later, random):
                await brokers_sleep(datacenters)
                await moves_on(published[LIVE], hub)
        checked = await check_copies(datacenters, TOPIC, published) + await check_copies(datacenters, "later", later)
    print(f"{checked} records, none lost or doubled, all counted")


async def zookeepers_die(datacenters: Datacenters, notes: Published, hub: Cluster) -> None:
    """kill -9 of ZooKeeper in a live datacenter and in the hub; after a while they are back."""
    units = [datacenters.zookeepers[name] for name in (LIVE, HUB)]
    await moves_on(notes, hub)
    for unit in units:
        unit.server.kill()
        await unit.wait()
    end = trio.current_time() + OUTAGE_S
    while trio.current_time() < end:
        await moves_on(notes, hub)
    async with trio.open_nursery() as nursery:
        for unit in units:
            nursery.start_soon(datacenters.start_unit, unit)
    await moves_on(notes, hub)
    for unit in units:
        async with open_zookeeper(unit.server.connect) as zookeeper:
            await until_registered(zookeeper, is_there=True)


async def brokers_sleep(datacenters: Datacenters) -> None:
    """A live broker and the hub's are stopped until ZooKeeper has forgotten them."""
    pids = [datacenters.pids[f"{name}-broker"] for name in (LIVE, HUB)]
    async with (
        open_zookeeper(datacenters.zookeepers[LIVE].server.connect) as live,
        open_zookeeper(datacenters.zookeepers[HUB].server.connect) as hub,
    ):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            await until_registered(live, is_there=False)
            await until_registered(hub, is_there=False)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        await until_registered(live, is_there=True)
        await until_registered(hub, is_there=True)
        for name in (LIVE, HUB):
            async with connected(datacenters.bootstrap[name], None, "test") as cluster:
                await create_topics(cluster, [NewTopic(name="_after", partitions=1)])
