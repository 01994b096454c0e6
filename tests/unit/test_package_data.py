"""An installed package has all files that a checkout has."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = "from setuptools.build_meta import build_wheel; build_wheel('wheels')"


def test_a_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-c", BUILD]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("pipeline/")}
    files = {path.relative_to(tmp_path) for path in (tmp_path / "pipeline").rglob("*") if path.is_file()}
    assert packed == {path.as_posix() for path in files}
    assert "pipeline/mirror/page/static/index.html" in packed
