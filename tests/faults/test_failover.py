"""A datacenter that dies: commands that are killed promote its topic at the hub, and nothing is lost unseen."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.cli.demo.datacenters import HUB, LIVE, Datacenters
from pipeline.cli.terminal.connect import connected
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import TopicPartition
from tests.support.brokers import clock
from tests.support.copies import log_ends, read_logs, read_table
from tests.support.traffic import make_topic, traffic

TOPIC = "clicks"
SEED = 20110613
KILLS = 4
LONGEST_LIFE_S = 1.5
DEADLINE_S = 120


async def promote(datacenters: Datacenters, *options: str, life_s: float = DEADLINE_S) -> dict[str, Any] | None:
    """Run the command, killed after its life; None if it was killed."""
    sources = [f"--source-bootstrap={name}={datacenters.bootstrap[name]}" for name in LIVE]
    command = [sys.executable, "-m", "pipeline", "mirror", "promote", "--json", *options, *sources]
    command += ["--bootstrap", datacenters.bootstrap[HUB], TOPIC]

    def run() -> str | None:
        try:
            return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=life_s, check=True).stdout
        except subprocess.TimeoutExpired:
            return None

    told = await trio.to_thread.run_sync(run)
    if told is None:
        return None
    (row,) = json.loads(told)["topics"]
    assert isinstance(row, dict)
    return row


@pytest.mark.long
async def test_a_topic_is_promoted_by_commands_that_are_killed(tmp_path: Path) -> None:
    random = Random(SEED)
    async with Datacenters(tmp_path, [TOPIC]) as datacenters:
        published = await make_topic(datacenters, TOPIC)
        east = datacenters.brokers["east"]
        async with traffic(datacenters.bootstrap, TOPIC, published, random):
            with trio.fail_after(DEADLINE_S):
                while not all(notes.acknowledged for notes in published.values()):
                    await trio.sleep(0.1)
            await trio.sleep(1)
            east.kill()
            await east.wait()
            for _ in range(KILLS):
                await promote(datacenters, life_s=random.uniform(0.2, LONGEST_LIFE_S))
            promoted = await promote(datacenters)
            assert promoted is not None
            await datacenters.start_unit(east)  # before the producers give up
        counted = await promote(datacenters)
        assert counted is not None
        assert [each["end"] for each in counted["partitions"]] == [each["end"] for each in promoted["partitions"]]
        assert (counted["was_promoted"], counted["promoted_at"]) == (True, promoted["promoted_at"])
        for each in promoted["partitions"]:
            assert (each["missing"]["offsets"] is None) == (each["source"] == "east")
        await _check(datacenters, counted)


async def _check(datacenters: Datacenters, counted: dict[str, Any]) -> None:
    """Copies are a prefix of the sources, records of the hub follow, and missing records are counted exactly."""
    ends = {TopicPartition(TOPIC, each["partition"]): each["end"] for each in counted["partitions"]}
    async with connected(datacenters.bootstrap[HUB], None, "test") as hub:
        assert await log_ends(hub, ends) == ends
        copies = await read_logs(hub, ends)
        async with open_producer(hub, ProducerConfig(), clock=clock, rng=Random(SEED)) as producer:
            for partition, end in ends.items():
                sent = await producer.send(TOPIC, b"of the hub", partition=partition.partition)
                assert (await sent.wait()).offset == end
        table = await read_table(hub, TOPIC)
    logs, live_ends = {}, {}
    for name in LIVE:
        async with connected(datacenters.bootstrap[name], None, "test") as live:
            for source in (entry.source for entry in table if entry.source.cluster == name):
                logs[name, source.partition] = (await read_logs(live, [source.partition]))[source.partition]
                live_ends[name, source.partition] = (await log_ends(live, [source.partition]))[source.partition]
    assert len(table) == len(ends) == 4
    for entry in table:
        key, end = (entry.source.cluster, entry.source.partition), ends[entry.replica]
        assert logs[key].startswith(copies[entry.replica])
        missing = counted["partitions"][entry.replica.partition]["missing"]
        assert missing["offsets"] == live_ends[key] - end
        assert (missing["bytes"] == 0) == (live_ends[key] == end)
