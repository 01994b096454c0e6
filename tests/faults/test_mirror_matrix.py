"""Each part around a mirror is killed, stopped or cut off, under load of a foreign producer: the copy stays exact.

One set of processes serves all cells, one cell after the other. The lag in the status is watched all the time.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.cli.terminal.connect import connected
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.model import TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from tests.support.foreign_producer import ForeignProducer
from tests.support.links import BOTH, Direction, Links
from tests.support.mirror_site import SESSION_TIMEOUT_MS, MirrorSite, Victim, mirror_site
from tests.support.mirror_watch import StatusWatch
from tests.support.replica_check import ReplicaCheck

TOPIC = "clicks"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(3)]
RECORDS_PER_S = 200
SEED = 20110614
MOMENTS = 20
LONG_S = SESSION_TIMEOUT_MS / 1000 + 1, SESSION_TIMEOUT_MS / 1000 + 3
"""Range of the first failure of a cell: longer than a session, so that other brokers take over."""
SHORT_S = 0.0, 0.5
"""Range of all others."""
PAUSE_S = 0.0, 0.3
LONGEST_STOP_S = 90.0
"""Time for which a mirror that runs may not copy a partition: several timeouts, and what a busy machine adds."""
DIRECTIONS = (BOTH, (Direction.TO_BROKERS,), (Direction.TO_CLIENT,))


class Part(StrEnum):
    """Parts that fail."""

    SOURCE_BROKER = "a broker of the source"
    HUB_BROKER = "a broker of the hub"
    MIRROR = "the mirror"
    SOURCE_ZOOKEEPER = "the source's ZooKeeper"
    HUB_ZOOKEEPER = "the hub's ZooKeeper"
    SOURCE_NETWORK = "the network between source and mirror"
    HUB_NETWORK = "the network between mirror and hub"


class Fault(StrEnum):
    """Kinds of failure."""

    KILL = "kill -9"
    PAUSE = "SIGSTOP"
    CUT = "cut"


NETWORKS = (Part.SOURCE_NETWORK, Part.HUB_NETWORK)
PROCESSES = tuple(part for part in Part if part not in NETWORKS)
MATRIX = [(fault, part) for fault in (Fault.KILL, Fault.PAUSE) for part in PROCESSES] + [
    (Fault.CUT, part) for part in NETWORKS
]


async def cut(links: Links, directions: Sequence[Direction], held_s: float) -> None:
    links.cut(directions)
    try:
        await trio.sleep(held_s)
    finally:
        links.mend()


def failure(site: MirrorSite, fault: Fault, part: Part, random: Random) -> Callable[[float], Awaitable[None]]:
    """The fault of a part, for a given time."""
    if fault is Fault.CUT:
        links = site.source.links if part is Part.SOURCE_NETWORK else site.hub.links
        directions = random.choice(DIRECTIONS)
        return lambda held_s: cut(links, directions, held_s)
    victims: dict[Part, Sequence[Victim]] = {
        Part.SOURCE_BROKER: site.source.brokers,
        Part.HUB_BROKER: site.hub.brokers,
        Part.MIRROR: [site.mirror],
        Part.SOURCE_ZOOKEEPER: [site.source.zookeeper],
        Part.HUB_ZOOKEEPER: [site.hub.zookeeper],
    }
    victim = random.choice(victims[part])
    return victim.kill if fault is Fault.KILL else victim.pause


async def run_cell(site: MirrorSite, watch: StatusWatch, fault: Fault, part: Part, random: Random) -> None:
    for number in range(MOMENTS):
        await trio.sleep(random.uniform(*PAUSE_S))
        lasting_s = random.uniform(*(SHORT_S if number else LONG_S))
        await failure(site, fault, part, random)(lasting_s)
        if (fault, part) == (Fault.KILL, Part.MIRROR):
            watch.begin()  # a busy machine starts it slowly, and the next kill comes soon


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_copies_are_exact_and_lags_true_whatever_part_fails(tmp_path: Path) -> None:
    with unwrapped_errors():
        await run_matrix(tmp_path)


async def run_matrix(directory: Path) -> None:
    async with mirror_site(directory, [TOPIC]) as site, trio.open_nursery() as nursery:
        async with connected(site.source.bootstrap, None, "test") as cluster:
            await create_topics(cluster, [NewTopic(name=TOPIC, partitions=len(PARTITIONS), replication_factor=3)])
        producer = ForeignProducer(
            site.source.bootstrap, TOPIC, partitions=len(PARTITIONS), records_per_s=RECORDS_PER_S
        )
        watch = StatusWatch(site.url, producer)
        check = ReplicaCheck(site, PARTITIONS, producer)
        producer.start()
        nursery.start_soon(watch.run)
        await check.run()
        for fault, part in MATRIX:
            cell = f"{fault} of {part}, seed {SEED}"
            watch.begin()
            began_s = trio.current_time()
            try:
                await run_cell(site, watch, fault, part, Random(cell))
                lasted_s = trio.current_time() - began_s
                records = await check.run()
            except (AssertionError, trio.TooSlowError) as error:
                error.add_note(cell)
                raise
            stops = ", ".join(f"{stop_s:.1f}" for stop_s in watch.longest_stops_s())
            print(
                f"{cell}: {MOMENTS} in {lasted_s:.0f} s, {records} records so far are exact; "
                f"copying of the partitions stopped for at most {stops} s; {watch.known} known lags"
            )
            assert not watch.faults, "\n".join([cell, *watch.faults])
            assert max(watch.longest_stops_s()) < LONGEST_STOP_S, cell
        await trio.to_thread.run_sync(producer.stop)
        await check.run()
        assert watch.known > 0
        nursery.cancel_scope.cancel()
