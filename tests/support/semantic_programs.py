"""The programs of examples/semantics as processes that are killed, and the records that they are given."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import trio

from pipeline.client import (
    ClientConfig,
    ConsumerConfig,
    NewTopic,
    ProducerConfig,
    TopicPartition,
    create_topics,
    open_cluster,
    open_consumer,
    open_producer,
    parse_addresses,
)
from pipeline.testing.local_cluster import LocalCluster
from tests.support.brokers import clock

EXAMPLES = Path(__file__).parents[2] / "examples" / "semantics"
DEADLINE_S = 120
PORTION = 200
MEAN = 500  # of amounts
USERS = 7
TOPICS = count()
LOGGED = re.compile(r"\d{4}-\d{2}-\d{2} ")

Record = tuple[bytes | None, bytes | None]


class Rig:
    """A topic, and a program that reads it."""

    def __init__(
        self, cluster: LocalCluster, directory: Path, program: str, configs: Mapping[str, str] = {}, partitions: int = 2
    ) -> None:
        self.bootstrap = cluster.bootstrap
        self.topic = f"{Path(program).stem}-{next(TOPICS)}"  # also the name of its group
        self.output = directory / "output"
        self.output.touch()
        self.database = directory / "results.sqlite"
        self.program = EXAMPLES / program
        self._errors = directory / "stderr"
        trio.run(self.create, NewTopic(name=self.topic, partitions=partitions, configs=configs))

    async def create(self, topic: NewTopic) -> None:
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(self.bootstrap))) as cluster:
            await create_topics(cluster, [topic])

    def publish(self, records: Sequence[Record]) -> None:
        trio.run(self._publish, records)

    async def _publish(self, records: Sequence[Record]) -> None:
        async with (
            open_cluster(ClientConfig(bootstrap=parse_addresses(self.bootstrap))) as cluster,
            open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer,
        ):
            for key, value in records:
                await producer.send(self.topic, value, key=key)

    def lines(self) -> list[str]:
        """Lines of output, without those of the log."""
        return [line for line in self.output.read_text().splitlines() if LOGGED.match(line) is None]

    def rows(self, query: str) -> list[Any]:
        if not self.database.exists():
            return []
        with closing(sqlite3.connect(self.database, timeout=60)) as database:
            try:
                return database.execute(query).fetchall()
            except sqlite3.OperationalError:  # no table yet
                return []

    @contextmanager
    def running(self, arguments: Sequence[str], *, crashes_at: tuple[int, int] | None = None) -> Iterator[Any]:
        """Run the program; `crashes_at`: the line and the number of times it runs before it kills the process."""
        program = [str(self.program)]
        if crashes_at is not None:
            program = ["-m", "tests.support.crash_at_line", *map(str, crashes_at), *program]
        with self.output.open("ab") as output, self._errors.open("wb") as stderr:
            command = [sys.executable, *program, self.bootstrap, self.topic, *arguments]
            process = subprocess.Popen(command, stdout=output, stderr=stderr)
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def wait_until(self, process: Any, has_enough: Callable[[], bool]) -> None:
        """Wait until the running program has done enough."""
        deadline = time.monotonic() + DEADLINE_S
        while not has_enough():
            said = self._errors.read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.002)

    def live(self, arguments: Sequence[str], has_enough: Callable[[], bool], delay_s: float = 0.0) -> None:
        """Run the program until it has done enough, and kill it a moment later."""
        with self.running(arguments) as process:
            self.wait_until(process, has_enough)
            time.sleep(delay_s)

    def crash(self, line: int, times: int, arguments: Sequence[str]) -> None:
        """Run the program until it is about to run a line for the n-th time, and has killed itself."""
        with self.running(arguments, crashes_at=(line, times)) as process:
            assert process.wait(DEADLINE_S) == -signal.SIGKILL, self._errors.read_text()

    def end(self, arguments: Sequence[str], has_enough: Callable[[], bool], by: signal.Signals) -> None:
        """Run the program until it has done enough, and end it as an operator does."""
        with self.running(arguments) as process:
            self.wait_until(process, has_enough)
            process.send_signal(by)
            assert process.wait(DEADLINE_S) == 0, self._errors.read_text()

    def killed(
        self,
        kills: int,
        seed: int,
        arguments: Sequence[str],
        portion: Callable[[], list[Record]],
        done: Callable[[], int],
    ) -> None:
        """Run so many lives, each on a portion of its own, and kill each at a seeded moment."""
        rng = Random(seed)
        for _ in range(kills):
            before = done()
            self.publish(portion())
            wanted = before + rng.randrange(PORTION)
            self.live(arguments, lambda wanted=wanted: done() >= wanted, rng.uniform(0, 0.03))  # type: ignore[misc]


def numbered() -> Callable[[], list[Record]]:
    """Portions of records whose values are 0, 1, 2 ..."""
    source = count()
    return lambda: [(b"user-%d" % (n % USERS), b"%d" % n) for n in (next(source) for _ in range(PORTION))]


class Amounts:
    """Portions of amounts by user, and their sums."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self.sums: Counter[str] = Counter()

    def portion(self) -> list[Record]:
        records: list[Record] = []
        for _ in range(PORTION):
            user, amount = f"user-{self._rng.randrange(USERS)}", self._rng.randrange(1, 2 * MEAN)
            self.sums[user] += amount
            records.append((user.encode(), json.dumps({"amount": amount}).encode()))
        return records


async def entries(bootstrap: str, journal: str) -> dict[str, Any]:
    """The last value of each key."""
    found: dict[str, Any] = {}
    place = TopicPartition(journal, 0)
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
        open_consumer(cluster, ConsumerConfig(max_wait_ms=10)) as consumer,
    ):
        consumer.assign({place: 0})
        records = consumer.records()
        while (high := consumer.high_watermark(place)) is None or consumer.position(place) < high:
            with trio.move_on_after(0.05):
                record = await anext(records)
                assert record.key is not None
                assert record.value is not None
                found[record.key.decode()] = json.loads(record.value)
    return found
