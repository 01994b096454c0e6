"""A cleaner process that dies, hangs or talks nonsense is noticed, and ended."""

import sys
from pathlib import Path

import pytest

from pipeline.broker.compaction.child import CleanerChild, CleanerLostError
from pipeline.log.compaction.jobs import CleaningProgress

SAY = "import os; os.write(0, {!r}); import time; time.sleep({})"


def start(tmp_path: Path, program: str) -> CleanerChild:
    return CleanerChild.start(tmp_path / "log", command=(sys.executable, "-c", program), deadline_s=120)


async def test_a_cleaner_process_that_hangs_is_lost_after_the_deadline_and_can_be_ended(tmp_path: Path) -> None:
    child = start(tmp_path, SAY.format(b'{"kind": "CleaningProgress", "moved_bytes": 3}\n', 600))
    assert await child.report() == CleaningProgress(moved_bytes=3)
    child.deadline_s = 0.1
    with pytest.raises(CleanerLostError, match="said nothing"):
        await child.report()
    await child.end()
    assert not child.running


@pytest.mark.parametrize("program", ["raise SystemExit(3)", SAY.format(b"half a line", 0), "import os; os.abort()"])
async def test_a_cleaner_process_that_dies_is_lost(tmp_path: Path, program: str) -> None:
    child = start(tmp_path, program)
    with pytest.raises(CleanerLostError, match="ended"):
        await child.report()
    await child.end()


async def test_a_cleaner_process_that_sends_garbage_is_lost(tmp_path: Path) -> None:
    child = start(tmp_path, SAY.format(b"hello\n", 0))
    with pytest.raises(CleanerLostError, match="no report"):
        await child.report()
    await child.end()


def test_a_cleaner_process_that_cannot_be_started_is_lost(tmp_path: Path) -> None:
    with pytest.raises(CleanerLostError, match="can be started"):
        start(tmp_path / "missing", "")
