"""The demo touches no directory that is not its own, or that another demo is using, and leaves no process behind."""

import fcntl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline.cli.demo.demo import MARKER, demo
from pipeline.cli.terminal.files import held_alone
from pipeline.errors import ConfigurationError


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("all of it", encoding="utf-8")
    with pytest.raises(typer.Exit) as caught:
        demo(tmp_path)
    assert caught.value.exit_code == 2
    assert "choose another --dir" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "all of it"


def test_a_demo_that_is_running_keeps_its_directory(tmp_path: Path) -> None:
    (tmp_path / MARKER).touch()
    (tmp_path / "east").mkdir()
    with held_alone(tmp_path), pytest.raises(ConfigurationError, match="in use by process"):
        demo(tmp_path)
    assert (tmp_path / "east").is_dir()


def test_only_files_of_an_earlier_demo_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.cli.demo.demo.trio.run", lambda *_: {})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    directory = tmp_path / "demo"
    for name in ("east", "west", "hub", "registry", "mirror", "audit", "hdfs", "exports", "broker-1"):
        (directory / name).mkdir(parents=True)
        (directory / name / "file").touch()
    (directory / "link").symlink_to(elsewhere)
    (directory / MARKER).touch()
    demo(directory)
    assert {path.name for path in directory.iterdir() if path.is_dir()} == {"exports", "broker-1", "link"}
    assert (directory / "exports" / "file").exists()


def test_a_link_in_the_place_of_a_directory_of_the_demo_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.cli.demo.demo.trio.run", lambda *_: pytest.fail("the demo began"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    directory = tmp_path / "demo"
    directory.mkdir()
    (directory / MARKER).touch()
    (directory / "hdfs").symlink_to(elsewhere)
    with pytest.raises(typer.Exit) as caught:
        demo(directory)
    assert caught.value.exit_code == 2
    assert f"{directory / 'hdfs'} cannot be removed" in capsys.readouterr().err
    assert elsewhere.is_dir()


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigurationError, match="cannot be used: File exists"):
        demo(file)


def test_a_name_that_no_directory_can_have_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used: File name too long"):
        demo(tmp_path / ("n" * 300))


RUNS_A_COMMAND = """\
import sys, trio
from pathlib import Path
from pipeline.cli.demo.demo import Demo, Narrator
async def main():
    demo = Demo(None, Path(), Narrator(quiet=True))
    print(await demo._command("load", "run"))
trio.run(main)
"""


def start_demo(tmp_path: Path, program: Any) -> Any:
    """A demo whose commands are this program."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__main__.py").write_text(program)
    (tmp_path / "demo.py").write_text(RUNS_A_COMMAND)
    return subprocess.Popen(
        [sys.executable, "-P", tmp_path / "demo.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_a_command_of_a_demo_that_is_killed_ends_with_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    demo = start_demo(
        tmp_path,
        f"import fcntl, time; held = open({str(lock)!r}, 'w'); fcntl.flock(held, fcntl.LOCK_EX); "
        "held.write('x'); held.flush(); time.sleep(300)",
    )
    deadline_s = time.monotonic() + 60
    while not (lock.exists() and lock.read_text()):
        assert demo.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    demo.kill()
    demo.communicate()
    with lock.open() as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            else:
                break


@pytest.mark.parametrize(("code", "said"), [(0, "{'a': 1}\n"), (3, "")])
def test_the_output_of_a_demos_command_is_read(tmp_path: Path, code: Any, said: Any) -> None:
    demo = start_demo(
        tmp_path, f"import sys; print('{{\"a\": 1}}'); print('trouble', file=sys.stderr); sys.exit({code})"
    )
    out, errors = demo.communicate(timeout=400)
    assert out.decode() == said
    assert ("trouble" in errors.decode()) == (code != 0)
