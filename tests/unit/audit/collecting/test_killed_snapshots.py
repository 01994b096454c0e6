"""A service with snapshots that SIGKILL ends between any two of their steps goes on with the old or the new one."""

import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.processes import free_port
from tests.unit.audit.collecting.test_killed_collector import (
    DEADLINE_S,
    HOURS,
    Clusters,
    clusters,
    report_of,
    settings_of,
)

__all__ = ["clusters"]

PROGRAM = """
import os, runpy, signal, sys
from functools import partial
from pathlib import Path

from pipeline.audit.collecting import collector
from pipeline.audit.collecting.snapshots import SnapshotFolder
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.limits import LedgerLimits

config, wanted, number, starts = sys.argv[1:]
left = int(number)
collector.PORTION_BYTES = 1_000  # an event at a time
collector.SNAPSHOT_S = 0.0
collector.Ledger = partial(Ledger, LedgerLimits(rows=0, newest=0))  # all on the shelf
load = SnapshotFolder.load

def name_of(place):
    path = Path(os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else place)
    return "folder" if path.is_dir() else "rows" if path.name.startswith("rows-") else path.stem

def reach(when, step, name):
    global left
    left -= wanted == f"{when} {step} {name}"
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def stepping(step, act):
    def acted(place, *rest, **options):
        if step == "unlink" and not os.path.exists(place):
            return act(place, *rest, **options)
        name = name_of(place)
        reach("before", step, name)
        result = act(place, *rest, **options)
        reach("after", step, name)
        return result
    return acted

def loading(folder, shelf, clusters):
    known = load(folder, shelf, clusters)
    with open(starts, "a") as file:
        print(0 if known is None else sum(state.position for state in known.states.values()), file=file)
    return known

SnapshotFolder.load = loading
for step in ("fsync", "replace", "unlink"):
    setattr(os, step, stepping(step, getattr(os, step)))
sys.argv = ["pipeline", "audit", "start", "--config", config]
runpy.run_module("pipeline", run_name="__main__", alter_sys=True)
"""

STEPS = ("fsync rows", "replace rows", "fsync snapshot", "fsync folder", "replace snapshot", "unlink rows")
MOMENTS = [f"{when} {step}" for when, step in product(("before", "after"), STEPS)]
NEVER = "never"


@pytest.mark.long
async def test_a_process_killed_between_any_steps_of_a_snapshot_gives_the_same_report(
    clusters: Clusters, tmp_path: Path
) -> None:
    folder, starts, port = tmp_path / "snapshots", tmp_path / "starts", free_port()
    folder.mkdir()
    config = tmp_path / "audit.toml"
    config.write_text(f'snapshot.dir = "{folder}"\n{settings_of(clusters, port)}')
    expected = await outcome(config, NEVER, 1, starts, port)
    assert expected is not None and len(expected) == HOURS
    killed = set()
    rng = Random(1)
    for moment in MOMENTS:
        for path in folder.iterdir():
            path.unlink()
        for _ in range(2):  # the second process goes on from what the first one left
            (folder / "rows-0").write_bytes(b"of a service that was killed before its snapshot named it")
            number = 1 if "unlink" in moment else rng.randrange(5, 30)
            report = await outcome(config, moment, number, starts, port)
            if report is None:
                killed.add(moment)
            else:  # everything was read first
                assert report == expected
        assert await outcome(config, NEVER, 1, starts, port) == expected
    assert killed == set(MOMENTS)
    positions = {int(line) for line in starts.read_text().split()}
    assert len(positions & set(range(1, sum(clusters.events.values())))) >= len(MOMENTS) // 2


async def outcome(config: Path, moment: str, number: int, starts: Path, port: int) -> Any:
    """Run a service that kills itself the `number`-th time at a moment; return its report, or None if it was killed."""
    command = [sys.executable, "-c", PROGRAM, str(config), moment, str(number), str(starts)]
    log = config.with_suffix(".log")
    with log.open("wb") as file:
        child = await trio.lowlevel.open_process(command, stderr=file, stdout=subprocess.DEVNULL)
    found = None
    try:
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    nonlocal found
                    found = await report_of(port)
                    nursery.cancel_scope.cancel()

                async def wait() -> None:
                    await child.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(ask)
                nursery.start_soon(wait)
        if found is None:
            assert child.returncode == -signal.SIGKILL, log.read_text()
    finally:
        if child.returncode is None:
            os.kill(child.pid, signal.SIGKILL)
        await child.wait()
    assert "audit_snapshot_not_" not in log.read_text()
    return found
