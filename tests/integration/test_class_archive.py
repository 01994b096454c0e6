"""The archive of Spark's classes: a start uses it, and a damaged or foreign one breaks no start and prints nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.hadoop.load.class_archive import archive_directory, archive_options, write_archive

pytestmark = pytest.mark.long

START = """
import sys
from pathlib import Path
from pipeline.hadoop.load import spark_session
from pipeline.hadoop.load.spark_session import SparkApplication, SparkSettings

spark_session.archive_directory = lambda: Path(sys.argv[1])
application = SparkApplication(SparkSettings(is_short=True))
spark = application.without_sql().sparkContext
beans = spark._jvm.java.lang.management.ManagementFactory
options = list(beans.getRuntimeMXBean().getInputArguments())
assert any("SharedArchiveFile" in option for option in options) == (sys.argv[2] == "used")
print(spark.parallelize([20, 22], 2).sum())
application.stop()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("archive") / "deep"
    for _ in range(2):  # the second in place of the first
        write_archive(directory)
    (archive,) = directory.iterdir()
    return archive.read_bytes()


@pytest.mark.parametrize("damage", ["none", "empty", "text", "lost end", "header", "missing"])
def test_spark_starts_with_any_archive(tmp_path: Path, written: bytes, damage: str) -> None:
    contents = {
        "none": written,
        "empty": b"",
        "text": b"not an archive" * 1000,
        "lost end": written[: len(written) // 2],
        "header": written[:40] + bytes([written[40] ^ 0x40]) + written[41:],
    }
    if damage != "missing":
        size = len(written) if damage == "lost end" else len(contents[damage])
        (tmp_path / f"{size}.jsa").write_bytes(contents[damage])
    use = "not used" if damage in ("missing", "lost end") else "used"
    command = [sys.executable, "-c", START, str(tmp_path), use]
    started = subprocess.run(command, capture_output=True, timeout=200, check=False, text=True)
    assert (started.returncode, started.stdout, started.stderr) == (0, "42\n", "")


def test_an_archive_whose_path_is_no_option_is_not_used(tmp_path: Path) -> None:
    for name in ("folder", "a folder"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "0.jsa").touch()
        assert bool(archive_options(directory)) == (name == "folder")
    assert archive_directory().is_absolute()
