"""The packages of `make package`, built anew when a source is newer than they are, and variants of them."""

import fcntl
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pipeline.coordination.embedded import JARS

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


class PackageTree:
    """The files of the Debian package without the jars that only loads need, to build variants of it fast."""

    def __init__(self, package: Path, directory: Path) -> None:
        self.path = directory / "tree"
        self._directory = directory
        subprocess.run(["dpkg-deb", "--raw-extract", package, self.path], check=True)
        (jars,) = self.path.glob("opt/pipeline/lib/python3*/site-packages/pyspark/jars")
        for jar in jars.rglob("*.jar"):
            if not any(jar.match(f"{pattern}.jar") for pattern in JARS):
                jar.unlink()

    def build(self, version: str, architecture: str | None = None) -> Path:
        """Return a package of the files with this version."""
        control = self.path / "DEBIAN" / "control"
        text = re.sub("^Version: .*", f"Version: {version}", control.read_text(), flags=re.MULTILINE)
        if architecture is not None:
            text = re.sub("^Architecture: .*", f"Architecture: {architecture}", text, flags=re.MULTILINE)
        control.write_text(text)
        (arch,) = re.findall("^Architecture: (.*)", text, re.MULTILINE)
        built = self._directory / f"pipeline_{version}_{arch}.deb"
        subprocess.run(["dpkg-deb", "-Zzstd", "-z1", "--root-owner-group", "--build", self.path, built], check=True)
        return built

    def break_brokers(self) -> None:
        """Make the command fail to start a broker."""
        program = self.path / "opt/pipeline/bin/pipeline"
        first, rest = program.read_text().split("\n", 1)
        program.write_text(
            f"{first}\nimport sys\n\nif sys.argv[1:3] == ['broker', 'start']:\n    sys.exit('broken')\n{rest}"
        )

    def empty(self) -> None:
        """Leave nothing but what describes the package."""
        for each in self.path.iterdir():
            if each.name != "DEBIAN":
                shutil.rmtree(each)
