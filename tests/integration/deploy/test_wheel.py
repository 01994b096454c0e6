"""The wheel in an environment of its own runs a cluster, without the repository."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.version import VERSION

ROOT = Path(__file__).parents[3]
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: Any) -> Path:
    """The wheel of the sources."""
    sources: Path = tmp_path_factory.mktemp("sources")
    wheels: Path = tmp_path_factory.mktemp("wheels")
    shutil.copytree(ROOT / "pipeline", sources / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, sources)
    built = subprocess.run(
        [sys.executable, "-c", BUILD, wheels], cwd=sources, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    (path,) = wheels.glob("*.whl")
    return path


def pip(programs: Path, *arguments: str | Path) -> None:
    """Install into an environment, with the pip of the tests."""
    command = [sys.executable, "-m", "pip", "--quiet", "--python", programs / "python", "install", *arguments]
    subprocess.run([str(each) for each in command], check=True)


def environment(directory: Path) -> Path:
    """Make an empty virtual environment, and return its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    return directory / "bin"


@contextmanager
def local_cluster(pipeline: Path, directory: Path) -> Iterator[str]:
    """Start `pipeline local up` and return where clients begin."""
    command = [str(pipeline), "local", "up", "--port", "0", "--dir", "data"]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield str(json.loads(process.stdout.readline())["bootstrap"])
        finally:
            process.terminate()


def check_cluster(pipeline: Path, directory: Path) -> None:
    """Run what a new user runs first, in a directory that knows nothing of the repository."""

    def run(*arguments: str, given: str = "") -> str:
        command = [str(pipeline), *arguments]
        done = subprocess.run(command, cwd=directory, input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("--version").startswith(f"pipeline {VERSION} ")
    with local_cluster(pipeline, directory) as bootstrap:
        run("topic", "create", "greetings", "-b", bootstrap)
        run("produce", "greetings", "-b", bootstrap, given="hello\nworld\n")
        assert run("consume", "greetings", "-b", bootstrap) == "hello\nworld\n"


def test_a_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("pipeline/")}
    files = {path for path in (ROOT / "pipeline").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == {path.relative_to(ROOT).as_posix() for path in files}
    assert "pipeline/mirror/page/static/index.html" in packed


@pytest.mark.long
def test_a_wheel_in_an_environment_of_its_own_runs_a_cluster(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "environment")
    pip(programs, "--no-deps", wheel)
    # The packages that it needs are those of the tests' environment, which has no wheel of this program.
    (packages,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    check_cluster(programs / "pipeline", tmp_path)


@pytest.mark.long
def test_pip_installs_the_wheel_and_all_that_it_needs_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "environment")
    pip(programs, "-c", ROOT / "constraints.txt", wheel)
    check_cluster(programs / "pipeline", tmp_path)


@pytest.mark.long
def test_pipx_installs_the_wheel(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "environment")
    pip(programs, "pipx==1.8.0")
    home = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin"), "PIPX_MAN_DIR": str(tmp_path)}
    command = [str(programs / "pipx"), "install", "--quiet", "--pip-args", f"-c {ROOT / 'constraints.txt'}", str(wheel)]
    subprocess.run(command, env={**os.environ, **home}, check=True)
    check_cluster(tmp_path / "bin" / "pipeline", tmp_path)
