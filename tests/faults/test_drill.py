"""The drill of `deploy/drill`: a datacenter of real processes is lost, its topic is promoted, and returns to it."""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.audit.counting.lives import open_audited_producer
from pipeline.cli.demo.datacenters import HUB, Datacenters
from pipeline.cli.terminal.connect import connected, wall_clock
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import Acks, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import TopicPartition
from pipeline.records.record import iterate_records
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import clock
from tests.support.copies import log_ends, read_logs, read_report
from tests.support.previous_release import ROOT

SCRIPT = ROOT / "deploy" / "drill" / "lose-a-datacenter.sh"
TOPIC = "orders"
LOST = "east"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(2)]
BEFORE = 300
COUNTED = 40
HOURS_MS = [1_700_002_800_000 + number * HOUR_MS for number in range(2)]
"""Hours long ago of the records that are counted, as all other records are of now: one before the loss, and one of the
hub."""
PAUSE_S = 0.01
POLL_S = 0.05
DEADLINE_S = 420


class Writer:
    """A program of the company that writes to one datacenter, and can be told to write to another."""

    def __init__(self, datacenters: Datacenters, nursery: trio.Nursery) -> None:
        self.datacenters = datacenters
        self.acknowledged: list[bytes] = []
        self.sent = 0
        self._nursery = nursery
        self._scope: trio.CancelScope | None = None
        self._ended = trio.Event()

    async def write_to(self, name: str) -> None:
        """Write there from now on; return once a record is acknowledged."""
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        done = len(self.acknowledged)
        self._nursery.start_soon(self._write, name, self._scope, self._ended)
        await until(lambda: len(self.acknowledged) > done)

    async def stop(self) -> None:
        """Stop as a crash would: records on their way may be written, or not."""
        assert self._scope is not None
        self._scope.cancel()
        await self._ended.wait()

    async def _write(self, name: str, scope: trio.CancelScope, ended: trio.Event) -> None:
        with scope:
            async with connected(self.datacenters.bootstrap[name], None, "orders") as cluster:
                config = ProducerConfig(acks=Acks.ALL, linger_ms=0)
                async with open_producer(cluster, config, clock=clock, rng=Random(self.sent)) as producer:
                    while True:
                        self.sent += 1
                        value = b"%s-%d" % (name.encode(), self.sent)
                        await (await producer.send(TOPIC, value, partition=self.sent % len(PARTITIONS))).wait()
                        self.acknowledged.append(value)
                        await trio.sleep(PAUSE_S)
        ended.set()


async def publish_counted(writer: Writer, name: str, hour_ms: int) -> None:
    """Write records of an hour with a producer that counts, and closes the hour."""
    async with connected(writer.datacenters.bootstrap[name], None, "counted") as cluster:
        config = ProducerConfig(acks=Acks.ALL, linger_ms=0)
        opened = open_audited_producer(
            cluster, config, datacenter=name, host="tests", clock=wall_clock, rng=Random(hour_ms), interval_s=1
        )
        async with opened as producer:
            for number in range(COUNTED):
                value = b"%s-%d-%d" % (name.encode(), hour_ms, number)
                partition = number % len(PARTITIONS)
                await (await producer.send(TOPIC, value, partition=partition, timestamp_ms=hour_ms + number)).wait()
                writer.acknowledged.append(value)


async def check_verdicts(datacenters: Datacenters) -> None:
    """The audit cannot tell copies from records of producers in the hours of the failover, and says so: no alarm."""
    hours: list[dict[str, Any]] = []
    witness = f"copies in {TOPIC} in {LOST}"
    with trio.fail_after(DEADLINE_S):
        while sum(any(each["name"] == witness for each in hour["missing_witnesses"]) for hour in hours) < len(HOURS_MS):
            await trio.sleep(POLL_S)
            report = await read_report(datacenters, TOPIC)
            hours = hours if report is None else report["hours"]
    for hour in hours:
        assert hour["status"] in ("unknown", "pending"), hour
        assert all(finding["status"] in ("unknown", "pending") for finding in hour["findings"]), hour


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(POLL_S)


@asynccontextmanager
async def asked_for(directory: Path, deeds: Mapping[str, Callable[[], Awaitable[None]]]) -> AsyncIterator[list[str]]:
    """Give options of the script whose commands ask this process for a deed each, and wait until it is done."""
    directory.mkdir()  # noqa: ASYNC240
    options = []
    for name in deeds:
        asked, done = directory / f"{name}.asked", directory / f"{name}.done"
        options += [f"--{name}", f"touch {asked}; while ! [ -e {done} ]; do sleep 0.1; done"]

    async def serve() -> None:
        left = dict(deeds)
        while left:
            for name in [name for name in left if (directory / f"{name}.asked").exists()]:
                await left.pop(name)()
                (directory / f"{name}.done").touch()
            await trio.sleep(POLL_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield options
        nursery.cancel_scope.cancel()


async def values_of(datacenters: Datacenters, name: str) -> list[bytes]:
    async with connected(datacenters.bootstrap[name], None, "test") as cluster:
        logs = await read_logs(cluster, PARTITIONS)
    return [record.value or b"" for log in logs.values() for record in iterate_records(log)]


@pytest.mark.long
@pytest.mark.parametrize("is_stopped", [True, False], ids=["producers stop", "a producer goes on"])
async def test_a_datacenter_is_lost_and_its_topic_returns_to_it(tmp_path: Path, is_stopped: bool) -> None:
    """A producer that writes to the hub after the topic has left it is said at the end; its records are set aside."""
    saved = tmp_path / "drill"
    async with Datacenters(tmp_path / "company", [TOPIC]) as company, trio.open_nursery() as nursery:
        async with connected(company.bootstrap[LOST], None, "test") as cluster:
            await create_topics(cluster, [NewTopic(name=TOPIC, partitions=len(PARTITIONS))])
        writer = Writer(company, nursery)
        await publish_counted(writer, LOST, HOURS_MS[0])
        await writer.write_to(LOST)
        await until(lambda: len(writer.acknowledged) >= BEFORE)
        async with connected(company.bootstrap[HUB], None, "test") as hub:
            with trio.fail_after(DEADLINE_S):
                while sum((await log_ends(hub, PARTITIONS)).values()) < BEFORE:
                    await trio.sleep(POLL_S)

        async def lose() -> None:
            broker, zookeeper = company.brokers[LOST], company.zookeepers[LOST]
            broker.kill()
            await broker.wait()
            await zookeeper.stop()
            await writer.stop()

        async def bring_back() -> None:
            await company.start_unit(company.zookeepers[LOST])
            await company.start_unit(company.brokers[LOST])

        async def go_to_source() -> None:
            if not is_stopped:
                await writer.write_to(HUB)
                await writer.stop()
            await writer.write_to(LOST)

        async def go_to_hub() -> None:
            await publish_counted(writer, HUB, HOURS_MS[1])
            await writer.write_to(HUB)

        deeds = {
            "stop": lose,
            "start": bring_back,
            "to-hub": go_to_hub,
            "pause": writer.stop,
            "to-source": go_to_source,
        }
        options = {
            "name": LOST,
            "topic": TOPIC,
            "source": company.bootstrap[LOST],
            "hub": company.bootstrap[HUB],
            "mirror": company.mirror.url,
            "mirror-config": str(company.mirror.directory / "mirror.toml"),
            "directory": str(saved),
            "deadline": "120",
            "behind": "100",
        }
        command = [str(SCRIPT), *(word for name, value in options.items() for word in (f"--{name}", value))]
        async with asked_for(tmp_path / "deeds", deeds) as hooks:
            done = await trio.run_process(
                [*command, *hooks],
                env={**os.environ, "PIPELINE": f"{sys.executable} -m pipeline"},
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        print(done.stdout.decode())
        assert done.returncode == (0 if is_stopped else 1), done.stderr.decode()
        assert is_stopped or "somebody wrote to the hub after the promotion at east" in done.stderr.decode()
        await writer.stop()
        await check_verdicts(company)
        kept = await values_of(company, LOST)
        set_aside = {
            name: [
                record.value or b""
                for log in sorted((saved / f"only-{name}").rglob("*.log"))
                for record in iterate_records(log.read_bytes())
            ]
            for name in (LOST, HUB)
        }
        assert len(kept) == len(set(kept)), "doubled"
        assert set(writer.acknowledged) <= {*kept, *set_aside[LOST], *set_aside[HUB]}, "lost"
        assert bool(set_aside[HUB]) == (not is_stopped)
        assert {value.split(b"-")[0] for value in kept} == {LOST.encode(), HUB.encode()}
        aside = sum(map(len, set_aside.values()))
        print(f"{len(writer.acknowledged)} records acknowledged, {len(kept)} in the topic, {aside} set aside")
