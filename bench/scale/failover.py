"""The hub's controller on a real ZooKeeper: topics of many partitions, and the death of a broker that leads a third.

Three brokers of three replicas each: controllers with their watchers and registrations, without logs. So the figures
are those of the coordination alone. The controller is in a process of its own.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from bench.fitting import Extrapolation, MeasuredRun
from bench.processes import cpu_s, resident_bytes
from bench.report import Options, Row, Show
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.partition_states import read_states
from pipeline.coordination.znodes import encode_config, partition_path, topic_config_path, topic_path
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.model import TopicPartition
from tests.support.controllers import make_topic, register

CONTROLLER, FOLLOWER, DYING = 1, 2, 3
TOPICS = 10
FITTED = (1_000, 3_300, 10_000)
CHECKED = 30_000
PREDICTED = 100_000
FIGURES = {
    "created": ("CPU of the controller, new partitions", "s"),
    "elected": ("CPU of the controller, death of a broker", "s"),
    "wall": ("death of a broker: until all of its leaders have successors", "s"),
    "settled": ("death of a broker: until no ISR has it", "s"),
    "follower": ("CPU of another broker, death of a broker", "s"),
    "zookeeper": ("CPU of ZooKeeper, death of a broker", "s"),
    "read": ("CPU of a broker, a look at all states", "s"),
    "view": ("memory of a broker for its view of the cluster", "MB"),
    "zookeeper_memory": ("memory of ZooKeeper", "MB"),
}
"""Names and units, in the order of the table."""
UNCHECKED = ("view", "zookeeper_memory")
"""Memory that a process has is not what it needs: the figure for larger runs is an upper bound."""


def measure(options: Options, show: Show) -> list[Row]:
    """The selected rows."""
    selected = {key: figure for key, figure in FIGURES.items() if options.selects(figure[0])}
    if not selected:
        return []
    sizes = [options.scaled(size, least=TOPICS) for size in (*FITTED, CHECKED)]
    found = []
    for size in sizes:
        show(f"failover with {size:,} partitions")
        found.append(_run(size // TOPICS))
    rows = []
    for key, (name, unit) in selected.items():
        *fitted, check = (
            MeasuredRun(
                name=f"{size:,} partitions", size={"constant": 1, "partitions": size}, value=max(figures[key], 0.01)
            )
            for size, figures in zip(sizes, found, strict=True)
        )
        predicted = f"{PREDICTED:,} partitions", {"constant": 1, "partitions": PREDICTED}
        costs = Extrapolation(
            name=name, unit=unit, terms=["constant", "partitions"], runs=fitted, check=check, predicted=predicted
        )
        if key in UNCHECKED:
            costs = replace(costs, max_error_percent=None)
        rows += costs.rows()
    rows.append(Row(name=f"ZooKeeper, {PREDICTED:,} partitions: znodes", unit="count", ours=2.0 * PREDICTED))
    rows.append(Row(name="ZooKeeper: bytes of a partition", unit="B", ours=found[-1]["partition_bytes"]))
    return rows


class _Coordinated:
    """The process of a broker's coordination."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.last: dict[str, Any] = {}

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer. Raises RuntimeError if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of a broker's coordination has ended")
        self.last = json.loads(line)
        return self.last

    def ask(self, **question: object) -> None:
        """Ask without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def spent(self, **question: object) -> float:
        """Return the CPU seconds from the last answer to the one to this question."""
        before = self.last["cpu"]
        self.ask(**question)
        return float(self.answer()["cpu"] - before)


@contextmanager
def _coordinated(zookeeper: str, broker: int) -> Iterator[_Coordinated]:
    asked = json.dumps({"zookeeper": zookeeper, "broker": broker})
    command = [sys.executable, "-m", "bench.scale.coordinated", asked]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        found = _Coordinated(process)
        found.answer()
        yield found
    finally:
        process.kill()
        process.communicate()


def _run(partitions: int) -> dict[str, float]:
    """Create the topics, look at all of them, and end a broker; return the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-bench-") as directory,
        ZooKeeperProcess(Path(directory)) as zookeeper,
        _coordinated(zookeeper.connect, CONTROLLER) as controller,
        _coordinated(zookeeper.connect, FOLLOWER) as follower,
    ):
        return trio.run(_measure, zookeeper, controller, follower, partitions)


async def _measure(
    zookeeper: ZooKeeperProcess, controller: _Coordinated, follower: _Coordinated, partitions: int
) -> dict[str, float]:
    assert zookeeper.pid is not None
    found: dict[str, float] = {}
    empty = controller.last["bytes"]
    async with open_zookeeper(zookeeper.connect) as client:
        async with _registered(zookeeper.connect):
            await _make_topics(client, partitions)
            led = {"until": "led", "topics": TOPICS, "partitions": partitions}
            follower.ask(**led)
            found["created"] = await _in_thread(controller, led)
            await trio.to_thread.run_sync(follower.answer)
            found["view"] = (controller.last["bytes"] - empty) / 1e6
            found["read"] = await _in_thread(controller, {"until": "read"})
            found["partition_bytes"] = await _bytes_of(client, partitions)
            before = cpu_s(zookeeper.pid)
            began = time.monotonic()
        # The session of the third broker has ended here.
        follower.ask(until="settled", broker=DYING)
        found["elected"] = await _in_thread(controller, {"until": "moved", "broker": DYING})
        found["wall"] = time.monotonic() - began
        found["elected"] += await _in_thread(controller, {"until": "settled", "broker": DYING})
        found["settled"] = time.monotonic() - began
        known = follower.last["cpu"]
        found["follower"] = (await trio.to_thread.run_sync(follower.answer))["cpu"] - known
        found["zookeeper"] = cpu_s(zookeeper.pid) - before
        found["zookeeper_memory"] = resident_bytes(zookeeper.pid) / 1e6
    return found


async def _in_thread(asked: _Coordinated, question: dict[str, object]) -> float:
    return await trio.to_thread.run_sync(lambda: asked.spent(**question))


@asynccontextmanager
async def _registered(connect: str) -> AsyncIterator[None]:
    async with open_zookeeper(connect) as client:
        await register(client, DYING)
        yield


async def _make_topics(client: CoordinationClient, partitions: int) -> None:
    brokers = (CONTROLLER, FOLLOWER, DYING)
    for number in range(TOPICS):
        replicas = [[brokers[(at + step) % len(brokers)] for step in range(3)] for at in range(partitions)]
        name = f"topic-{number:02}"
        await client.create(topic_config_path(name), encode_config({}))
        await make_topic(client, name, replicas)


async def _bytes_of(client: CoordinationClient, partitions: int) -> float:
    """Return the bytes that a partition takes in ZooKeeper: paths and data, with its share of the topic's znode."""
    name, last = "topic-00", partitions - 1
    (found,) = (await read_states(client, [TopicPartition(name, last)])).values()
    assignment = await client.get(topic_path(name))
    state = len(found.state.path) + len(found.state.encode()) + len(partition_path(name, last))
    return state + len(assignment.data) / partitions
