"""Full-size snapshots of the audit, whose writer is killed at seeded moments: one of a whole step is always there."""

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from pipeline.audit.collecting.snapshots import NAME, SnapshotFolder
from pipeline.audit.ledger.ledger import Ledger
from tests.support.snapshot_writer import CLUSTERS, apply_step, names, new_shelf

TOPICS = 1_000
"""Of 100 partitions, at four tiers."""
KILLS = 12


def run_and_kill(folder: Path, rng: Random) -> tuple[int, int]:
    """Kill a writer at a moment between two of its words; return the first step, and the last one that it saved."""
    command = [sys.executable, "-m", "tests.support.snapshot_writer", str(folder), str(TOPICS)]
    after = rng.randrange(1, 6)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            first = int(writer.stdout.readline().split()[1])
            saved, took_s, began_s = first, 0.0, time.monotonic()
            for _ in range(after):
                word, number = writer.stdout.readline().split()
                took_s, began_s = time.monotonic() - began_s, time.monotonic()
                saved = int(number) if word == "saved" else saved
            time.sleep(rng.uniform(0, took_s))  # the moment of the kill
        finally:
            writer.kill()
        rest = [line.split() for line in writer.stdout.read().splitlines()]
    return first, max([saved, *(int(number) for word, number in rest if word == "saved")])


def assert_equal(found: Ledger, expected: Ledger) -> None:
    assert found.series.keys() == expected.series.keys()
    for key, series in found.series.items():
        other = expected.series[key]
        assert series.hours.keys() == other.hours.keys()
        assert series.windows.keys() == other.windows.keys()
        assert np.array_equal(series.positions.progress, other.positions.progress)
        pairs = [(table, other.hours[hour_ms]) for hour_ms, table in series.hours.items()]
        pairs += [(table, other.windows[place]) for place, table in series.windows.items()]
        for mine, theirs in pairs:
            assert np.array_equal(mine.keys, theirs.keys)
            assert np.array_equal(mine.rows, theirs.rows)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_writer_that_is_killed_leaves_a_whole_snapshot(tmp_path: Path) -> None:
    rng = Random(17)
    expected, applied = Ledger(shelf=new_shelf()), 0
    last, during_a_save = 0, 0
    for _ in range(KILLS):
        first, saved = run_and_kill(tmp_path, rng)
        assert first == last  # it went on from what the one before left
        known = SnapshotFolder(tmp_path).load(new_shelf(), set(CLUSTERS))
        if known is None:
            assert saved == 0
            continue
        last = known.states["east"].position
        assert saved <= last <= saved + 1
        during_a_save += (tmp_path / f"{NAME}.new").exists()
        while applied < last:
            applied += 1
            apply_step(expected, names(TOPICS), applied)
        assert_equal(known.ledger, expected)
    assert last > KILLS // 2
    assert during_a_save > 0
    assert list(tmp_path.glob("rows-*"))
