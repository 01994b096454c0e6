"""Groups whose members are killed and stopped, and whose brokers are killed: what is handed out to whom."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.groups import fetch_offsets
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.settings import parse_addresses
from pipeline.testing.local_cluster import LocalCluster
from tests.support.brokers import clock
from tests.support.group_member import TOPIC

PARTITIONS = 8
SESSION_MS = 3_000
SETTINGS: dict[str, Any] = {
    "group_id": "g",
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": 300,
    "max_poll_interval_ms": 10_000,
    "auto_commit_interval_ms": 200,
    "auto_offset_reset": "earliest",
}
BROKER_SETTINGS: dict[str, str | int | bool] = {
    "group.min.session.timeout.ms": 1_000,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "min.insync.replicas": 1,
}
DRAIN_S = 240


@dataclass
class Members:
    """Processes of a group, each with a file of its own."""

    bootstrap: str
    directory: Path
    strategy: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    file_of: dict[int, Path] = field(default_factory=dict)
    """File of each process, by process id."""
    files: list[Path] = field(default_factory=list)

    def start(self) -> None:
        number = len(self.files)
        self.files.append(self.directory / f"member-{number}")
        self.files[-1].touch()
        given = json.dumps(SETTINGS | {"partition_assignment_strategy": self.strategy})
        command = [sys.executable, "-m", "tests.support.group_member", self.bootstrap, str(self.files[-1]), str(number)]
        with (self.directory / f"member-{number}.log").open("wb") as log:
            self.running.append(subprocess.Popen([*command, given], stdout=log, stderr=log))
        self.file_of[self.running[-1].pid] = self.files[-1]

    def kill(self, random: Random) -> None:
        victim = self.running.pop(random.randrange(len(self.running)))
        victim.kill()
        victim.wait()
        self.start()

    async def pause(self, random: Random) -> None:
        """Stop a process for longer than its session, and let it go on."""
        victim = random.choice(self.running)
        victim.send_signal(signal.SIGSTOP)
        try:
            await trio.sleep(SESSION_MS / 1000 * random.uniform(1.2, 2))
        finally:
            victim.send_signal(signal.SIGCONT)

    async def end(self) -> list[int]:
        """Have each process that has had partitions shut down: one that is just starting would die of the signal."""
        with trio.fail_after(DRAIN_S):
            while not all(self.file_of[process.pid].stat().st_size for process in self.running):
                await trio.sleep(0.1)
        for process in self.running:
            process.terminate()
        return [process.wait(60) for process in self.running]

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()


@dataclass(frozen=True, slots=True, order=True)
class Handed:
    """An item that a member was handed, in one of its tenures of the partition."""

    at_ns: int
    member: int
    tenure: int
    partition: int
    offset: int
    value: int


def read_notes(files: list[Path]) -> tuple[list[Handed], dict[tuple[int, int, int], int], list[tuple[int, int, int]]]:
    """What was handed out, when each tenure of a member and partition began, and what was committed when."""
    handed, tenures, commits = [], {}, []
    for member, path in enumerate(files):
        of_partition: dict[int, int] = {}
        for line in path.read_text().splitlines():
            kind, *numbers = line.split()
            at_ns, *values = map(int, numbers)
            if kind == "A":
                for partition in values:
                    of_partition[partition] = of_partition.get(partition, 0) + 1
                    tenures[member, of_partition[partition], partition] = at_ns
            elif kind == "C":
                commits.append((at_ns, values[0], values[1]))
            else:
                partition, offset, value = values
                handed.append(Handed(at_ns, member, of_partition[partition], partition, offset, value))
    return sorted(handed), tenures, sorted(commits)


def judge(files: list[Path], published: set[int]) -> dict[str, int]:
    """Assert what holds of a group, and count."""
    handed, tenures, commits = read_notes(files)
    assert {item.value for item in handed} == published, "lost"
    for partition in range(PARTITIONS):
        items = [item for item in handed if item.partition == partition]
        blocks: list[Handed] = []
        for item in items:
            if not blocks or (blocks[-1].member, blocks[-1].tenure) != (item.member, item.tenure):
                blocks.append(item)
        owners = [(first.member, first.tenure) for first in blocks]
        assert len(owners) == len(set(owners)), f"two members had partition {partition} at the same time"
        for first in blocks:
            begun_at = tenures[first.member, first.tenure, partition]
            committed = [offset for at_ns, of, offset in commits if of == partition and at_ns < begun_at]
            assert first.offset >= max(committed, default=0), f"committed records of {partition} were handed out again"
        end = -1
        for item in items:
            assert item.offset <= end + 1, f"records of {partition} were skipped before {item}"
            end = max(end, item.offset)
    return {
        "published": len(published),
        "handed out": len(handed),
        "tenures": len({(item.member, item.tenure, item.partition) for item in handed}),
        "members": len(files),
    }


@asynccontextmanager
async def publishing(cluster: Cluster, published: set[int]) -> AsyncIterator[None]:
    """Numbers to all partitions, until the block ends and all are acknowledged."""
    async with trio.open_nursery() as nursery:
        ending = trio.Event()

        async def publish() -> None:
            async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
                while not ending.is_set():
                    value = len(published)
                    await producer.send(TOPIC, b"%d" % value, partition=value % PARTITIONS)
                    published.add(value)
                    await trio.sleep(0.002)

        nursery.start_soon(publish)
        yield
        ending.set()


async def committed_offsets(cluster: Cluster) -> dict[TopicPartition, int]:
    """Empty while the coordinator is away."""
    try:
        return {name: place.offset for name, place in (await fetch_offsets(cluster, "g")).items()}
    except PipelineError:
        return {}


async def drain(cluster: Cluster) -> None:
    """Wait until the group has committed all there is."""
    asked = {TopicPartition(TOPIC, number): LATEST for number in range(PARTITIONS)}
    with trio.fail_after(DRAIN_S):
        ends = {
            partition: listed.offset for partition, listed in (await list_offsets(cluster, asked, timeout_s=60)).items()
        }
        while await committed_offsets(cluster) != ends:
            await trio.sleep(0.2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "members", "duration_s"),
    [
        ("cooperative-sticky", 3, 8),
        pytest.param("range", 5, 60, marks=pytest.mark.timeout(900)),
        pytest.param("cooperative-sticky", 5, 60, marks=pytest.mark.timeout(900)),
    ],
)
async def test_no_record_is_lost_and_no_partition_has_two_members(
    tmp_path: Path, strategy: str, members: int, duration_s: int
) -> None:
    random = Random(20110612)
    brokers = 2 if members == 3 else 3
    settings = BROKER_SETTINGS | {"offsets.topic.replication.factor": brokers}
    with LocalCluster(tmp_path / "cluster", brokers=brokers, settings=settings) as running:
        group = Members(running.bootstrap, tmp_path, strategy)
        client = ClientConfig(bootstrap=parse_addresses(running.bootstrap), request_timeout_ms=10_000)
        published: set[int] = set()
        try:
            async with open_cluster(client) as cluster:
                topic = NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=brokers)
                await create_topics(cluster, [topic])
                for _ in range(members):
                    group.start()
                async with publishing(cluster, published):
                    with trio.fail_after(DRAIN_S):
                        while len(await committed_offsets(cluster)) < PARTITIONS:
                            await trio.sleep(0.2)
                    end = time.monotonic() + duration_s
                    while time.monotonic() < end:
                        await trio.sleep(random.uniform(0.3, 1.5))
                        match random.choice(["kill", "pause", "broker"]):
                            case "kill":
                                group.kill(random)
                            case "pause":
                                await group.pause(random)
                            case _:
                                name = f"broker-{random.randrange(1, brokers + 1)}"
                                running.kill(name)
                                await trio.to_thread.run_sync(running.wait_restarted, name)
                await drain(cluster)
            assert await group.end() == [0] * members
        finally:
            group.close()
        counts = judge(group.files, published)
        print(strategy, counts)
        assert counts["tenures"] > PARTITIONS
