"""The start of a command: what it loads, and the garbage collector around it."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.entry import uncollected
from pipeline.version import VERSION

PROGRAM = """
import gc, json, sys
from pipeline.cli.entry import main

sys.argv = ["pipeline", "mirror", "start", "--help"]
try:
    main()
except SystemExit:
    pass
heavy = sorted({"rich", "starlette", "numpy", "pyarrow", "asyncio"} & set(sys.modules))
import rich.progress
print(json.dumps([heavy, gc.isenabled(), gc.get_freeze_count() > 10_000]), file=sys.stderr)
"""


def test_a_command_loads_no_libraries_that_it_does_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=400, check=True)
    assert "--config" in done.stdout
    assert json.loads(done.stderr.strip().splitlines()[-1]) == [["asyncio"], True, True]  # structlog loads asyncio


def test_objects_of_imports_are_not_collected() -> None:
    frozen = gc.get_freeze_count()
    try:
        with uncollected():
            assert not gc.isenabled()
            kept = [[number] for number in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(kept)
    finally:
        gc.unfreeze()


def run(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-m", "pipeline", *arguments]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 400, **options}
    return subprocess.run(program, check=False, **given)  # type: ignore[call-overload, no-any-return]


@pytest.mark.long
@pytest.mark.parametrize("arguments", [("--help",), ("topic", "--help"), ("completion", "bash"), ("profile", "list")])
def test_a_reader_that_left_ends_a_command_as_sigpipe_does(arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = run(*arguments, stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_version_is_shown() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"pipeline {VERSION} (commit ")
    assert f"Python {sys.version.split()[0]}" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["topic", "create", "--help"]])
def test_a_full_or_closed_stdout_is_one_line_at_most(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "pipeline: cannot write to standard output: No space left on device\n"
    closed = run(*arguments, stdout=None, preexec_fn=lambda: os.close(1))
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.long
def test_a_shell_completes_commands_and_options() -> None:
    def completions(text: str) -> list[str]:
        words = {"COMP_WORDS": text, "COMP_CWORD": str(len(text.split(" ")) - 1), "_PIPELINE_COMPLETE": "complete_bash"}
        return run(env={**os.environ, **words}).stdout.split()

    assert completions("pipeline top") == ["topic"]
    assert {"create", "describe"} <= set(completions("pipeline topic "))
    assert completions("pipeline topic list --boot") == ["--bootstrap"]


@pytest.mark.long
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_is_sound(shell: str, tmp_path: Path) -> None:
    script = run("completion", shell).stdout
    assert f"_PIPELINE_COMPLETE=complete_{shell}" in script
    if program := shutil.which(shell):
        path = tmp_path / "script"
        path.write_text(script)
        subprocess.run([program, "-n", path], check=True)


def test_an_interruption_is_quiet_as_soon_as_the_console_script_imports_anything() -> None:
    begun = "import os, signal; import pipeline.cli.console; os.kill(os.getpid(), signal.SIGINT); print(1)"
    done = subprocess.run([sys.executable, "-c", begun], capture_output=True, timeout=400, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
    ignored = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {begun}"
    done = subprocess.run([sys.executable, "-c", ignored], capture_output=True, timeout=400, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
def test_process_1_of_a_container_that_is_stopped_while_it_loads_ends() -> None:
    """The kernel drops a signal to process 1 that has no handler: a stop would last until the kill."""
    program = "from pipeline.cli.console import main\nimport os, signal\nos.kill(1, signal.SIGTERM)\nprint('ignored')"
    enter = ("unshare", "--pid", "--fork", "--kill-child")
    done = subprocess.run([*enter, sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, b"")


def test_a_command_says_that_the_packages_of_loads_are_missing() -> None:
    """As in an image of the services alone, which has none of them."""
    program = "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'pyarrow', 'hdfs_native')))\n"
    program += "from pipeline.cli.console import main; main()"
    command = [sys.executable, "-c", program, "load", "status", "--root", "hdfs://name-node:8020/lake"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "pipeline: hdfs_native is not installed, and this command needs it: install the whole"
    )
