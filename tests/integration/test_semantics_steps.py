"""The programs of examples/semantics, killed between each two steps of their loops, and ended in order.

A crash kills the process (SIGKILL) before a line of the loop. The next process begins at the last commit: what the
crash loses and repeats is exactly what lies between the work and that commit. The end in order does neither.
"""

import ast
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.client import ClientConfig, NewTopic, open_cluster, parse_addresses
from pipeline.client.admin.groups import fetch_offsets
from pipeline.testing.local_cluster import LocalCluster
from tests.support.semantic_programs import EXAMPLES, USERS, Amounts, Rig, entries, numbered

COMMIT_AFTER = 50  # of at_least_once.py
TIMES = 73
"""How often the line runs before the crash; half as often, if tracing counts it twice for an await."""
ODD = 193
"""Records, so many that the program's own commits do not cover the last."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(settings={"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


def steps(program: str) -> dict[int, str]:
    """The first lines of the statements of the program's loop over messages, the head of the loop included."""
    text = (EXAMPLES / program).read_text()
    loops = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.AsyncFor)]
    (loop,) = [node for node in loops if ".messages(" in ast.unparse(node.iter)]
    found = {node.lineno for node in ast.walk(loop) if isinstance(node, ast.stmt)}
    return {number: text.splitlines()[number - 1].strip() for number in sorted(found)}


def each_step(*programs: str) -> pytest.MarkDecorator:
    found = [(program, *step) for program in programs for step in steps(program).items()]
    return pytest.mark.parametrize(
        ("program", "line", "text"), found, ids=[f"{program}, before {text[:40]}" for program, _, text in found]
    )


async def committed_records(rig: Rig) -> int:
    """How many records the group of the program has committed."""
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(rig.bootstrap))) as cluster:
        return sum(place.offset for place in (await fetch_offsets(cluster, rig.topic)).values())


def numbers_of(rig: Rig) -> list[str]:
    """Publish numbers, and return them."""
    records = numbered()()[:ODD]
    rig.publish(records)
    return [value.decode() for _, value in records if value]


@pytest.mark.long
@each_step("at_most_once.py", "at_least_once.py")
def test_a_crash_loses_or_repeats_what_lies_between_work_and_commit(
    cluster: Any, tmp_path: Path, program: str, line: int, text: str
) -> None:
    rig = Rig(cluster, tmp_path, program)
    given = [rig.topic, "worker"]
    everything = numbers_of(rig)
    is_after_some = text in ("await group.commit_offsets()  # this message included", "uncommitted = 0")
    rig.crash(line, 2 if is_after_some and program == "at_least_once.py" else TIMES, given)
    worked, committed = rig.lines(), trio.run(committed_records, rig)
    if program == "at_most_once.py":
        assert committed - len(worked) == (1 if text.startswith("print(") else 0)
    else:
        assert 0 <= len(worked) - committed <= COMMIT_AFTER
        assert committed == len(worked) or text != "uncommitted = 0"
    assert COMMIT_AFTER / 2 < len(worked) < ODD
    lost = max(0, committed - len(worked))
    rig.live(given, lambda: len(set(rig.lines())) == len(everything) - lost, 0.2)
    found = Counter(rig.lines())
    assert len(everything) - len(found) == lost
    assert sorted(number for number, times in found.items() for _ in range(times - 1)) == sorted(worked[committed:])
    print(f"{len(worked)} worked on, {committed} committed: {lost} lost, {found.total() - len(found)} repeated")


@pytest.mark.long
@each_step("exactly_once.py", "deduplication.py")
def test_a_crash_changes_no_sum(cluster: Any, tmp_path: Path, program: str, line: int, text: str) -> None:
    rig = Rig(cluster, tmp_path, program)
    amounts = Amounts(seed=line)
    rig.publish(amounts.portion())
    given = [str(rig.database), *([rig.topic, "worker"] if program == "deduplication.py" else [])]

    def sums() -> dict[str, int]:
        return dict(rig.rows("SELECT user, amount FROM totals"))

    rig.crash(line, TIMES, given)
    assert 0 < sum(sums().values()) < sum(amounts.sums.values())
    rig.live(given, lambda: sum(sums().values()) >= sum(amounts.sums.values()), 0.2)
    assert sums() == dict(amounts.sums)


@pytest.mark.long
@each_step("change_subscription.py")
def test_a_crash_leaves_no_change_out(cluster: Any, tmp_path: Path, program: str, line: int, text: str) -> None:
    rig = Rig(cluster, tmp_path, program)
    changes = [(b"key-%d" % (n % 40), None if n % 3 == 0 else b"value %d" % n) for n in range(ODD)]
    rig.publish(changes)
    table = {key.decode(): value.decode() for key, value in dict(changes).items() if value is not None}

    def position() -> int:
        return sum(offset for (offset,) in rig.rows("SELECT next FROM offsets"))

    rig.crash(line, TIMES // 3 if "DELETE" in text else TIMES, [str(rig.database)])
    assert 0 < position() < ODD
    rig.live([str(rig.database)], lambda: position() == ODD, 0.2)
    assert dict(rig.rows("SELECT key, value FROM entries")) == table


@pytest.mark.long
@each_step("journal.py")
def test_a_crash_leaves_a_journal_to_go_on_from(
    cluster: Any, tmp_path: Path, program: str, line: int, text: str
) -> None:
    rig = Rig(cluster, tmp_path, program, partitions=1)
    journal = f"{rig.topic}.counts"
    trio.run(rig.create, NewTopic(name=journal, partitions=1, configs={"cleanup.policy": "compact"}))
    expected = Counter(f"user-{int(number) % USERS}" for number in numbers_of(rig))
    rig.crash(line, TIMES, [journal])

    def counts() -> dict[str, int]:
        return {key: entry["count"] for key, entry in trio.run(entries, rig.bootstrap, journal).items()}

    rig.live([journal], lambda: sum(counts().values()) >= ODD, 0.2)
    assert counts() == dict(expected)


ENDS = [(program, by) for program in ("at_least_once.py", "at_most_once.py") for by in (signal.SIGTERM, signal.SIGINT)]


@pytest.mark.long
@pytest.mark.parametrize(("program", "by"), ENDS)
def test_an_end_in_order_loses_and_repeats_nothing(
    cluster: Any, tmp_path: Path, program: str, by: signal.Signals
) -> None:
    rig = Rig(cluster, tmp_path, program)
    given = [rig.topic, "worker"]
    everything = numbers_of(rig)
    rig.end(given, lambda: len(rig.lines()) > COMMIT_AFTER, by)
    assert trio.run(committed_records, rig) == len(rig.lines())
    more = numbers_of(rig)
    rig.end(given, lambda: len(rig.lines()) == len(everything) + len(more), by)
    assert Counter(rig.lines()) == Counter(everything + more)
