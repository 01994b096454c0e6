"""A machine without what is needed hears in one line what was found and what to install."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
TOOLS = ("sh", "dirname", "sed", "head", "touch", "env")


@pytest.fixture
def machine(tmp_path: Path) -> Any:
    """A checkout and a PATH with hardly anything on it."""
    checkout, path = tmp_path / "checkout", tmp_path / "bin"
    (checkout / "deploy" / "local").mkdir(parents=True)
    path.mkdir()
    shutil.copy(REPOSITORY / "deploy" / "local" / "install.sh", checkout / "deploy" / "local")
    for tool in TOOLS:
        (path / tool).symlink_to(shutil.which(tool) or "")
    return checkout, path


def put(path: Any, name: Any, script: Any) -> None:
    (path / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (path / name).chmod(0o755)


def install(machine: Any, **environment: Any) -> Any:
    checkout, path = machine
    command = [checkout / "deploy" / "local" / "install.sh"]
    result = subprocess.run(
        command, env={"PATH": str(path), **environment}, capture_output=True, text=True, timeout=240, check=False
    )
    return result.returncode, result.stderr.strip().splitlines()


JAVA_8 = "echo 'openjdk version \"1.8.0_402\"' >&2"
JAVA_17 = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
OLD_PYTHON = 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac'


@pytest.mark.parametrize(
    ("programs", "found", "needed"),
    [
        ({}, "none", "Python 3.11 or newer is needed"),
        ({"python3": OLD_PYTHON}, "Python 3.9.2", "Python 3.11 or newer is needed"),
        ({"python3": "exit 0"}, "none", "Java 17 or newer is needed"),
        ({"python3": "exit 0", "java": JAVA_8}, "Java 8", "Java 17 or newer is needed"),
    ],
)
def test_missing_or_old_programs_are_reported_in_one_line(machine: Any, programs: Any, found: Any, needed: Any) -> None:
    for name, script in programs.items():
        put(machine[1], name, script)
    code, lines = install(machine)
    assert code != 0
    assert len(lines) == 1
    assert needed in lines[0]
    assert found in lines[0]
    assert "Install" in lines[0]


def test_an_environment_that_an_interrupted_run_left_without_pip_is_made_again(machine: Any) -> None:
    checkout, path = machine
    put(path, "java", JAVA_17)
    put(path, "python3", 'test "$2" != venv || printf "#!/bin/sh\\nexit 0\\n" > "$4/bin/python"')
    (checkout / ".venv/bin").mkdir(parents=True)
    put(checkout / ".venv/bin", "python", "exit 1")
    code, lines = install(machine)
    assert (code, lines[1:]) == (0, [])


def test_installed_packages_are_not_installed_again_but_changed_sources_are_compiled(machine: Any) -> None:
    checkout, path = machine
    put(path, "python3", "exit 0")
    put(path, "java", JAVA_17)
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").symlink_to(sys.executable)
    (checkout / "pipeline").mkdir()
    for name in ("pyproject.toml", "constraints.txt", ".venv/.installed", "pipeline/__init__.py"):
        (checkout / name).touch()
    os.utime(checkout / ".venv/.installed", (2**31, 2**31))
    assert install(machine, PYTHONDONTWRITEBYTECODE="1") == (0, [])
    assert Path(importlib.util.cache_from_source(str(checkout / "pipeline/__init__.py"))).exists()


@pytest.mark.parametrize(("script", "found"), [("exit 1", "mine, which is no Python"), (OLD_PYTHON, "Python 3.9.2")])
def test_the_python_that_was_named_is_the_one_complained_of(machine: Any, script: Any, found: Any) -> None:
    put(machine[1], "python3", 'case "$1" in --version) echo Python 3.12.0;; esac')
    put(machine[1], "mine", script)
    code, lines = install(machine, PYTHON="mine")
    assert code != 0
    assert len(lines) == 1
    assert f"found {found}." in lines[0]
