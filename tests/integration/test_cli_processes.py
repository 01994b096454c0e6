"""Children end with their parent, whatever becomes of it, and are waited for by their own id."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from pipeline.processes import ProcessEndedError, start_process
from tests.support.clients import wait_for

PARENT = """
import sys, trio
from pathlib import Path
from pipeline.processes import start_process

async def main():
    child = start_process("child", ["sleep", "600"], log=Path(sys.argv[1]))
    await trio.to_thread.run_sync(lambda: None)
    print(child.pid, flush=True)
    await child.wait()

trio.run(main)
"""


def is_alive(pid: int) -> bool:
    """False too for one that has ended and that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def program_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    wait_for("the child's end", lambda: not is_alive(child))


async def test_exit_codes_and_signals_are_told(tmp_path: Path) -> None:
    child = start_process("false", ["false"], log=tmp_path / "log")
    assert await child.wait() == 1
    assert not child.running
    child = start_process("sleep", ["sleep", "600"], log=tmp_path / "log")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.wait)
        assert await child.stop() == -signal.SIGTERM
    child = start_process("sleep", ["sleep", "600"], log=tmp_path / "log")
    child.kill()
    assert await child.wait() == -signal.SIGKILL


async def test_a_child_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    child = start_process("nothing", [str(tmp_path / "nothing")], log=tmp_path / "log")
    with pytest.raises(ProcessEndedError, match="nothing: No such file or directory"):
        await child.wait_until(never, 30)


async def test_a_child_is_the_program_itself(tmp_path: Path) -> None:
    child = start_process("sleep", ["sleep", "600"], log=tmp_path / "log")
    try:
        with trio.fail_after(60):
            while program_of(child.pid) != "sleep":
                await trio.sleep(0.01)
        assert os.getsid(child.pid) == child.pid
    finally:
        await child.stop()
