"""The programs of examples/semantics, killed (SIGKILL) at seeded moments, on a real broker: each keeps its promise.

Each life of a program finds a portion of new records, and is killed once its output has reached a seeded length.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client import NewTopic
from pipeline.testing.local_cluster import LocalCluster
from tests.support.semantic_programs import MEAN, PORTION, USERS, Amounts, Record, Rig, entries, numbered
from tests.support.sizes import size

pytestmark = pytest.mark.long

COMMIT_AFTER = 50  # of at_least_once.py
MOMENTS = [
    pytest.param(1, 1, id="a kill"),
    *(
        pytest.param(20, seed, id=f"20 kills, seed {seed}", marks=pytest.mark.timeout(900))
        for seed in range(2, 2 + size(1, 2))
    ),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {"group.initial.rebalance.delay.ms": 0, "log.cleaner.backoff.ms": 200}
    with LocalCluster(settings=settings) as running:
        yield running


@pytest.fixture
def numbers() -> Callable[[], list[Record]]:
    return numbered()


def in_order(rig: Rig) -> bool:
    """True if the numbers of each user, which lie in one partition, rise."""
    by_user: dict[int, list[int]] = {}
    for line in rig.lines():
        by_user.setdefault(int(line) % USERS, []).append(int(line))
    return all(numbers == sorted(numbers) for numbers in by_user.values())


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
    trio.run(rig.create, NewTopic(name=journal, partitions=1, configs=configs))
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
