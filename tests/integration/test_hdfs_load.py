"""Loads into a real HDFS: its promises that the commit stands on, kills around the rename, and two loaders at once."""

import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StorageError
from pipeline.hadoop.commit.publication import CommitConflictError, committed_urls
from pipeline.hadoop.files.doors import PathExistsError, PathNotFoundError
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.files.hdfs import HdfsFileSystem
from pipeline.hadoop.load import job as load_module
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import run_load
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic

DEADLINE_S = 400  # Spark, on a busy machine
HOUR_MS = 3_600_000
DRIVER = Path(__file__).parents[1] / "support" / "load_driver.py"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with LocalCluster(tmp_path_factory.mktemp("local")) as running:
        yield running


@pytest.fixture
def topic(local: Any, hdfs: Any, request: Any) -> Any:
    return LoadedTopic(local.bootstrap, f"{hdfs.url}/{request.node.name.replace('[', '-').rstrip(']')}")


def now_ms() -> Any:
    return time.time_ns() // 1_000_000


def load(spark: Any, topic: Any, **settings: Any) -> Any:
    return run_load(spark, LoadConfig.from_settings(topic.settings(**settings)), clock=now_ms)


def drive(topic: Any, kill: Any) -> Any:
    order = json.dumps({"settings": topic.settings(), "kill": kill})
    command = [sys.executable, str(DRIVER), order]
    return subprocess.run(command, input="\n", capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.long
def test_hdfs_keeps_what_the_commit_stands_on(hdfs: Any) -> None:
    files, path = HdfsFileSystem(hdfs.url), "/door"
    a, b = f"{path}/d/a", f"{path}/d/b"
    for name, content in ((a, b"1"), (b, b"2" * 100_000)):
        with files.create(name) as sink:
            sink.write(content)
    with pytest.raises(PathExistsError):
        files.create(a)
    with pytest.raises(PathExistsError):
        files.rename_exclusive(a, b)
    assert files.read(a) == b"1"
    assert files.read(b) == b"2" * 100_000
    with pytest.raises(PathNotFoundError):
        files.rename_exclusive(f"{path}/none", f"{path}/d/c")
    with pytest.raises(PathNotFoundError):
        files.read(f"{path}/none")
    with files.open(b) as file:
        assert file.seek(0, 2) == 100_000
        file.seek(99_997)
        assert file.read() == b"222"
    with pytest.raises(PathNotFoundError):
        files.open(f"{path}/none")
    files.rename_exclusive(a, f"{path}/d/c")
    found = files.list_files(path, recursive=True)
    assert [(info.path, info.size_bytes) for info in found] == [(b, 100_000), (f"{path}/d/c", 1)]
    assert all(abs(info.modified_ms - now_ms()) < 60_000 for info in found)
    assert files.list_files(f"{path}/none") == []
    assert files.delete(b)
    assert not files.delete(b)
    with pytest.raises(StorageError):
        files.delete(f"{path}/d")


@pytest.mark.long
def test_a_file_that_is_given_up_is_never_closed(hdfs: Any) -> None:
    """Garbage collection would wait without a deadline for a DataNode that is gone, in whatever thread it runs."""
    files = HdfsFileSystem(hdfs.url)
    sink: Any = files.create("/given-up/file")
    with pytest.raises(KeyError), sink:
        sink.write(b"1" * 2_000_000)
        raise KeyError
    del sink
    gc.collect()
    assert [info.size_bytes for info in files.list_files("/given-up")] == [0]
    assert files.delete("/given-up/file")


def test_one_of_many_hdfs_renames_to_one_name_succeeds(hdfs: Any) -> None:
    _, path = open_filesystem(f"{hdfs.url}/race")
    barrier = threading.Barrier(6)
    won = []

    def commit(number: Any) -> None:
        files = HdfsFileSystem(hdfs.url)
        with files.create(f"{path}/.{number}") as sink:
            sink.write(b"%d" % number)
        barrier.wait()
        try:
            files.rename_exclusive(f"{path}/.{number}", f"{path}/1.json")
            won.append(number)
        except PathExistsError:
            pass

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert HdfsFileSystem(hdfs.url).read(f"{path}/1.json") == b"%d" % won[0]


@pytest.mark.parametrize("file_format", ["avro", pytest.param("parquet", marks=pytest.mark.long)])
def test_spark_reads_what_a_load_wrote(spark: Any, topic: Any, file_format: Any) -> None:
    topic.produce(1500)
    result = load(spark, topic, format=file_format)
    assert topic.check_exact() == 1500
    urls = committed_urls(topic.root, topic.name)
    assert len(urls) == result.files
    if file_format == "parquet":
        rows = spark.read.parquet(*urls)
        assert rows.selectExpr("count(distinct cast(value as string))").collect()[0][0] == 1500
    assert load(spark, topic, format=file_format).manifest is None


@pytest.mark.long
def test_killed_before_and_after_the_rename(spark: Any, topic: Any) -> None:
    topic.produce(1200)
    before = drive(topic, "before")
    assert before.returncode == -9, before.stderr[-2000:]
    assert topic.manifests() == []
    assert topic.files_on_disk() > 0

    after = drive(topic, "after")
    assert after.returncode == -9, after.stderr[-2000:]
    assert topic.check_exact() == 1200

    topic.produce(300)
    assert load(spark, topic).records == 300
    assert topic.check_exact() == 1500
    assert load(spark, topic).manifest is None


def age_marks(hdfs: Any, topic: Any, by_ms: Any) -> None:
    """Make the marks of unfinished runs older: their ages are those of the file system."""
    files, path = open_filesystem(topic.root)
    marks = files.list_files(f"{path}/{topic.name}/_runs")
    assert marks
    for mark in marks:
        hdfs.client().set_times(mark.path, mark.modified_ms - by_ms, mark.modified_ms - by_ms)


@pytest.mark.long
def test_files_of_killed_loads_are_removed_once_they_are_old(spark: Any, topic: Any, hdfs: Any) -> None:
    topic.produce(300)
    assert drive(topic, "before").returncode == -9
    orphans = topic.files_on_disk()
    assert orphans > 0
    topic.produce(10)
    config = LoadConfig.from_settings(topic.settings(**{"orphan.age.ms": HOUR_MS}))
    first = run_load(spark, config, clock=now_ms)
    assert topic.files_on_disk() == first.files + orphans
    age_marks(hdfs, topic, 25 * HOUR_MS)  # the killed run allows a day
    run_load(spark, config, clock=now_ms)
    assert topic.files_on_disk() == first.files
    assert topic.check_exact() == 310


class PausedFileSystem:
    """Waits before it commits."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.ready, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: Any) -> Any:
        return getattr(self._inner, name)

    def publish_exclusive(self, path: Any, content: Any, *, temporary: Any) -> None:
        self.ready.set()
        assert self.go_on.wait(DEADLINE_S)
        self._inner.publish_exclusive(path, content, temporary=temporary)


def test_one_of_two_loaders_commits_and_the_other_reports_it(
    spark: Any, topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.produce(600)
    files, path = open_filesystem(topic.root)
    paused = PausedFileSystem(files)
    outcome = []

    def lose() -> None:
        try:
            load(spark, topic)
        except CommitConflictError as error:
            outcome.append(error)

    real = load_module.open_filesystem  # type: ignore[attr-defined]
    monkeypatch.setattr(load_module, "open_filesystem", lambda url, **_: (paused, path))
    loser = threading.Thread(target=lose)
    loser.start()
    assert paused.ready.wait(DEADLINE_S)
    monkeypatch.setattr(load_module, "open_filesystem", real)
    winner = load(spark, topic)
    paused.go_on.set()
    loser.join()
    assert [error.winner for error in outcome] == [winner.manifest.run_id]
    assert topic.check_exact() == 600
    assert topic.files_on_disk() == winner.files
