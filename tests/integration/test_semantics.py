"""The programs of examples/semantics, killed (SIGKILL) at seeded moments, on a real broker: each keeps its promise.

Each life of a program finds a portion of new records, and is killed once its output has reached a seeded length.
"""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
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

EXAMPLES = Path(__file__).parents[2] / "examples" / "semantics"
DEADLINE_S = 120
PORTION = 200
MEAN = 500  # of amounts
USERS = 7
COMMIT_AFTER = 50  # of at_least_once.py
MOMENTS = [
    pytest.param(1, 1, id="a kill"),
    *(
        pytest.param(20, seed, id=f"20 kills, seed {seed}", marks=[pytest.mark.long, pytest.mark.timeout(900)])
        for seed in (2, 3)
    ),
]
TOPICS = count()
LOGGED = re.compile(r"\d{4}-\d{2}-\d{2} ")

Record = tuple[bytes | None, bytes | None]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {"group.initial.rebalance.delay.ms": 0, "log.cleaner.backoff.ms": 200}
    with LocalCluster(settings=settings) as running:
        yield running


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
        self._program = EXAMPLES / program
        trio.run(self._create, NewTopic(name=self.topic, partitions=partitions, configs=configs))

    async def _create(self, topic: NewTopic) -> None:
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(self.bootstrap))) as cluster:
            await create_topics(cluster, [topic])

    def publish(self, records: Sequence[Record]) -> None:
        trio.run(self._publish, records)

    async def _publish(self, records: Sequence[Record]) -> None:
        async with (
            open_cluster(ClientConfig(bootstrap=parse_addresses(self.bootstrap))) as cluster,
            open_producer(cluster, ProducerConfig(), clock=lambda: time.time_ns() // 10**6, rng=Random(1)) as producer,
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

    def live(self, arguments: Sequence[str], has_enough: Callable[[], bool], delay_s: float = 0.0) -> None:
        """Run the program until it has done enough, and kill it a moment later."""
        with self.output.open("ab") as output, (self.output.parent / "stderr").open("wb") as stderr:
            command = [sys.executable, str(self._program), self.bootstrap, self.topic, *arguments]
            process = subprocess.Popen(command, stdout=output, stderr=stderr)
            try:
                deadline = time.monotonic() + DEADLINE_S
                while not has_enough():
                    said = (self.output.parent / "stderr").read_text()
                    assert process.poll() is None, said
                    assert time.monotonic() < deadline, said
                    time.sleep(0.002)
                time.sleep(delay_s)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()

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


@pytest.fixture
def numbers() -> Callable[[], list[Record]]:
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


def in_order(rig: Rig) -> bool:
    """True if the numbers of each user, which lie in one partition, rise."""
    by_user: dict[int, list[int]] = {}
    for line in rig.lines():
        by_user.setdefault(int(line) % USERS, []).append(int(line))
    return all(numbers == sorted(numbers) for numbers in by_user.values())


@pytest.mark.long
@pytest.mark.parametrize(("kills", "seed"), MOMENTS)
def test_at_most_once_repeats_nothing(
    cluster: Any, tmp_path: Path, numbers: Callable[[], list[Record]], kills: int, seed: int
) -> None:
    rig = Rig(cluster, tmp_path, "at_most_once.py")
    rig.killed(kills, seed, [rig.topic, "worker"], numbers, lambda: len(rig.lines()))
    last = numbers()
    rig.publish(last)
    ends = {value.decode() for _, value in last if value}
    rig.live([rig.topic, "worker"], lambda: ends <= set(rig.lines()))
    lines = rig.lines()
    assert len(set(lines)) == len(lines)
    assert in_order(rig)
    lost = (kills + 1) * PORTION - len(lines)
    print(f"at most once: {kills} kills, {lost} lost, none repeated")
    assert 0 <= lost <= kills  # the one record that was committed, and whose work had not begun


@pytest.mark.parametrize(("kills", "seed"), MOMENTS)
def test_at_least_once_loses_nothing(
    cluster: Any, tmp_path: Path, numbers: Callable[[], list[Record]], kills: int, seed: int
) -> None:
    rig = Rig(cluster, tmp_path, "at_least_once.py")
    rig.killed(kills, seed, [rig.topic, "worker"], numbers, lambda: len(rig.lines()))
    rig.publish(numbers())
    everything = {str(n) for n in range((kills + 1) * PORTION)}
    rig.live([rig.topic, "worker"], lambda: everything <= set(rig.lines()))
    lines = rig.lines()
    assert set(lines) == everything
    repeated = len(lines) - len(everything)
    print(f"at least once: {kills} kills, none lost, {repeated} repeated")
    assert repeated <= kills * COMMIT_AFTER
    assert kills < 10 or repeated


@pytest.mark.parametrize(("kills", "seed"), MOMENTS)
@pytest.mark.parametrize("program", ["exactly_once.py", "deduplication.py"])
def test_exactly_once_loses_and_repeats_nothing(
    cluster: Any, tmp_path: Path, program: str, kills: int, seed: int
) -> None:
    rig = Rig(cluster, tmp_path, program)
    amounts = Amounts(seed)
    given = [str(rig.database), *([rig.topic, "worker"] if program == "deduplication.py" else [])]
    published = 0

    def portion() -> list[Record]:
        nonlocal published
        published += PORTION
        return amounts.portion()

    def sums() -> dict[str, int]:
        return dict(rig.rows("SELECT user, amount FROM totals"))

    rig.killed(kills, seed, given, portion, lambda: sum(sums().values()) // MEAN)
    rig.publish(portion())
    rig.live(given, lambda: sum(sums().values()) >= sum(amounts.sums.values()), 0.05)
    assert sums() == dict(amounts.sums)
    print(f"{program}: {kills} kills, {published} records, sums are equal")


@pytest.mark.long
@pytest.mark.parametrize(("kills", "seed"), MOMENTS)
def test_a_change_subscription_keeps_a_copy_of_a_compacted_topic(
    cluster: Any, tmp_path: Path, kills: int, seed: int
) -> None:
    compacted = {"cleanup.policy": "compact", "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0.01"}
    rig = Rig(cluster, tmp_path, "change_subscription.py", compacted)
    rng = Random(seed)
    table: dict[str, str] = {}
    source = count()

    def portion() -> list[Record]:
        records: list[Record] = []
        for number in (next(source) for _ in range(PORTION)):
            key = f"key-{rng.randrange(40)}"
            value = None if rng.random() < 0.3 else f"value {number}"
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
            records.append((key.encode(), None if value is None else value.encode()))
        return records

    def position() -> int:
        return sum(offset for (offset,) in rig.rows("SELECT next FROM offsets"))

    rig.killed(kills, seed, [str(rig.database)], portion, position)
    rig.publish(portion())
    rig.live([str(rig.database)], lambda: position() >= (kills + 1) * PORTION, 0.05)
    assert dict(rig.rows("SELECT key, value FROM entries")) == table
    print(f"change subscription: {kills} kills, {(kills + 1) * PORTION} changes, the copies are equal")


@pytest.mark.parametrize(("kills", "seed"), MOMENTS)
def test_another_process_takes_over_the_state_of_a_journal(
    cluster: Any, tmp_path: Path, numbers: Callable[[], list[Record]], kills: int, seed: int
) -> None:
    rig = Rig(cluster, tmp_path, "journal.py", partitions=1)
    journal = f"{rig.topic}.counts"
    configs = {"cleanup.policy": "compact", "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0.01"}
    trio.run(rig._create, NewTopic(name=journal, partitions=1, configs=configs))
    expected: Counter[str] = Counter()

    def portion() -> list[Record]:
        records = numbers()
        expected.update(key.decode() for key, _ in records if key)
        return records

    def counts() -> dict[str, int]:
        return {key: entry["count"] for key, entry in trio.run(entries, rig.bootstrap, journal).items()}

    rig.killed(kills, seed, [journal], portion, lambda: sum(counts().values()))
    rig.publish(portion())
    rig.live([journal], lambda: sum(counts().values()) >= sum(expected.values()), 0.05)
    assert counts() == dict(expected)
    lives = rig.lines()
    assert len(lives) == kills + 1
    assert lives[0] == "0 keys, continues at offset 0"
    assert lives[-1].startswith(f"{USERS} keys, continues at offset ")
    print(f"journal: {kills} kills, {sum(expected.values())} records, counts are equal")


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
