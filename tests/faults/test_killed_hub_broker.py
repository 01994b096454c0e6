"""Test of Brooklin: a broker of the hub is killed under load. Copying stops for a short time, and nothing is lost."""

from pathlib import Path

import pytest
import trio

from pipeline.cli.terminal.connect import connected
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.model import TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from tests.support.foreign_producer import ForeignProducer
from tests.support.mirror_site import BROKERS, mirror_site
from tests.support.mirror_watch import StatusWatch
from tests.support.replica_check import ReplicaCheck

TOPIC = "clicks"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(6)]
RECORDS_PER_S = 600
HUB_SESSION_TIMEOUT_MS = 3000
DOWN_S = 12.0
"""Longer than the session, so that other brokers take over."""
STOP_S = 5.0
KILLS = 3
IN_SYNC_DEADLINE_S = 120
POLL_S = 0.2


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_copying_stops_for_less_than_5_s_and_loses_nothing(tmp_path: Path) -> None:
    with unwrapped_errors():
        stops = await stops_of_kills(tmp_path)
    print(f"sessions of {HUB_SESSION_TIMEOUT_MS} ms; longest stop of each partition after each kill, in s: {stops}")
    assert max(max(each) for each in stops) < STOP_S


async def until_in_sync(bootstrap: str) -> None:
    """Wait until all replicas are in sync: with two of three away nothing is acknowledged."""
    async with connected(bootstrap, None, "test") as hub:
        with trio.fail_after(IN_SYNC_DEADLINE_S):
            while True:
                topics = (await hub.fetch_all_topics()).topics.values()
                if all(len(each.isr) == BROKERS for topic in topics for each in topic.partitions.values()):
                    return
                await trio.sleep(POLL_S)


async def stops_of_kills(directory: Path) -> list[list[float]]:
    stops = []
    async with (
        mirror_site(directory, [TOPIC], hub_session_timeout_ms=HUB_SESSION_TIMEOUT_MS) as site,
        trio.open_nursery() as nursery,
    ):
        async with connected(site.source.bootstrap, None, "test") as cluster:
            await create_topics(cluster, [NewTopic(name=TOPIC, partitions=len(PARTITIONS), replication_factor=3)])
        producer = ForeignProducer(
            site.source.bootstrap, TOPIC, partitions=len(PARTITIONS), records_per_s=RECORDS_PER_S
        )
        watch, check = StatusWatch(site.url, producer), ReplicaCheck(site, PARTITIONS, producer)
        producer.start()
        nursery.start_soon(watch.run)
        await check.run()
        for number in range(KILLS):
            await until_in_sync(site.hub.bootstrap)
            watch.begin()
            await site.hub.brokers[number % len(site.hub.brokers)].kill(DOWN_S)
            stops.append([round(each, 2) for each in watch.longest_stops_s()])
            await check.run()
        await trio.to_thread.run_sync(producer.stop)
        await check.run()
        nursery.cancel_scope.cancel()
    return stops
