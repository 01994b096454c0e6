"""The release before this one, installed beside it: its services run with the same dependencies as this one's."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PREVIOUS_VERSION = "0.1.0"
PREVIOUS_COMMIT = "7625f66a98"
"""Last commit of that release."""


def previous_program() -> list[str]:
    """Return the command that runs the previous release; install it into .cache if it is not there.

    Raises CalledProcessError if this repository lacks the release's commit, as a clone without its history does.
    """
    folder = ROOT / ".cache" / "releases" / f"{PREVIOUS_VERSION}-{PREVIOUS_COMMIT}"
    if not folder.is_dir():
        _install(folder)
    # -P: without it Python would find the package of the current folder first.
    return ["env", f"PYTHONPATH={folder}", sys.executable, "-P", "-m", "pipeline"]


def version_of(program: list[str]) -> str:
    """Return what a program says that its version is."""
    done = subprocess.run([*program, "--version"], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def _install(folder: Path) -> None:
    source, target = (folder.with_name(f"{folder.name}.{part}") for part in ("source", "new"))
    for each in (source, target):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    archive = source / "source.tar"
    subprocess.run(["git", "archive", "--output", archive, PREVIOUS_COMMIT], cwd=ROOT, check=True)
    subprocess.run(["tar", "-xf", archive, "-C", source], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--target", target, source], check=True)
    shutil.rmtree(source)
    target.rename(folder)
