"""The packages of `make package`, built anew when a source is newer than they are."""

import fcntl
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
SOURCES = (
    "pipeline",
    "deploy/debian",
    "deploy/systemd",
    "pyproject.toml",
    "constraints.txt",
    "CHANGELOG.md",
    "README.md",
)


def debian_package() -> Path:
    """Return the Debian package of the sources: a minute or two if they have changed."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    with (ROOT / ".cache/package.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(path.stat().st_mtime for path in _sources())
        built = list(DIST.glob("*.deb"))
        if len(built) != 1 or built[0].stat().st_mtime < newest:
            subprocess.run(["make", "package"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (package,) = DIST.glob("*.deb")
    return package


def _sources() -> Iterator[Path]:
    for name in SOURCES:
        path = ROOT / name
        if path.is_file():
            yield path
        yield from (each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
