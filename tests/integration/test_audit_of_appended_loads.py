"""Loads append: what the audit says of files read back, after a retried commit, a compaction, a doubling."""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import trio
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from pipeline.cli.load.report import report_counts
from pipeline.errors import StorageError
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load.config import LoadConfig, LoadsConfig
from pipeline.hadoop.load.job import run_load
from pipeline.hadoop.load.many import TopicResult
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import FIRST_MS, LoadedTopic

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

DATACENTER = "local"
DEADLINE_S = 240
RECORDS = 3_000


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings: dict[str, Any] = {"datacenter": DATACENTER, "audit.interval.ms": 200}
    with LocalCluster(tmp_path_factory.mktemp("local"), audit=True, settings=settings) as running:
        yield running


class AppendedTable:
    """A table that loads append to, by the real command lines and reports."""

    def __init__(self, local: LocalCluster, spark: Any, kind: str, folder: Path) -> None:
        self.local, self.spark, self.kind = local, spark, kind
        self.topic = LoadedTopic(local.bootstrap, folder.as_uri())

    def load(self) -> Any:
        """Produce, load, and report what was loaded."""
        self.topic.produce(RECORDS)
        settings = self.topic.settings(table=self.kind, format="parquet")
        result = run_load(self.spark, LoadConfig.from_settings(settings), clock=lambda: FIRST_MS)
        outcome = TopicResult(topic=self.topic.name, seconds=0, result=result)
        trio.run(partial(report_counts, LoadsConfig.from_settings(settings, {}), [outcome], DATACENTER))
        return result

    def command(self, *arguments: str) -> tuple[int, Any]:
        """Return the exit code and JSON of a command of `pipeline load`."""
        command = [sys.executable, "-m", "pipeline", "load", *arguments, "--json"]
        command += ["--topic", self.topic.name, "--root", self.topic.root]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def verify(self) -> tuple[int, list[Any]]:
        """Read the files back, and report what they hold."""
        brokers = ("-b", self.local.bootstrap, "--set", "value.format=binary", "--datacenter", DATACENTER)
        code, found = self.command("verify", *brokers)
        return code, found["differences"]

    def until_report(self, is_wanted: Callable[[Any], bool]) -> list[Any]:
        """Return the hours of the audit's report once it is as wanted."""
        command = [sys.executable, "-m", "pipeline", "audit", "report", "--audit", self.local.audit]
        command += ["--topic", self.topic.name, "--json", "--all"]
        deadline = time.monotonic() + DEADLINE_S
        while True:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            found = json.loads(done.stdout)
            if is_wanted(found):
                return list(found["hours"])
            assert time.monotonic() < deadline, found

    def assert_exact(self) -> None:
        """The files hold what was loaded, and the audit finds that in the files."""
        assert self.verify() == (0, [])
        records = self.topic.produced

        def is_exact(found: Any) -> bool:
            stored = [counts for hour in found["hours"] for name, counts in hour["stages"].items() if "stored" in name]
            return bool(found["verdict"] == "exact" and sum(counts["records"] for counts in stored) == records)

        hours = self.until_report(is_exact)
        for hour in hours:
            assert {counts["records"] for counts in hour["stages"].values()} == {hour["stages"]["live"]["records"]}
            assert any("stored" in text for text in hour["rests_on"])

    def write(self, rows: Any) -> list[str]:
        """Write rows of the Iceberg table as another writer does, a file for each hour. Return the files' URLs."""
        folder = Path(self.topic.root.removeprefix("file://"), self.topic.name, "rewritten")
        folder.mkdir(exist_ok=True)
        hours = pc.floor_temporal(rows.column("_timestamp"), unit="hour")
        urls = []
        for hour in pc.unique(hours):
            path = folder / f"{uuid.uuid4()}.parquet"
            pq.write_table(rows.filter(pc.equal(hours, hour)), path)
            urls.append(path.as_uri())
        return urls

    def iceberg(self) -> Any:
        uri = f"sqlite:///{self.topic.root.removeprefix('file://')}/_catalog.db"
        return load_catalog("pipeline", type="sql", uri=uri).load_table(("pipeline", self.topic.name))


def lose_one_answer(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception) -> list[object]:
    """Have the next call of a method do its work and fail. Return a list that then has an entry."""
    real = getattr(owner, name)
    lost: list[object] = []

    def lose(*arguments: Any, **options: Any) -> Any:
        answer = real(*arguments, **options)
        if not lost:
            lost.append(answer)
            raise error
        return answer

    monkeypatch.setattr(owner, name, lose)
    return lost


def test_files_of_a_table_of_manifests_equal_what_was_loaded(
    local: LocalCluster, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = AppendedTable(local, spark, "manifest", tmp_path)
    table.load()
    table.assert_exact()
    error = StorageError("manifest", "the answer was lost")
    with monkeypatch.context() as context:
        lost = lose_one_answer(context, LocalFileSystem, "publish_exclusive", error)
        assert table.load().records == RECORDS
        assert lost
    table.assert_exact()
    code, joined = table.command("compact")
    assert code == 0
    assert joined["removed"] > joined["files"] > 0
    table.assert_exact()
    table.load()
    table.assert_exact()


def test_files_of_an_iceberg_table_equal_what_was_loaded_and_a_doubled_append_is_named(
    local: LocalCluster, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = AppendedTable(local, spark, "iceberg", tmp_path)
    table.load()
    table.assert_exact()
    with monkeypatch.context() as context:
        lost = lose_one_answer(context, SqlCatalog, "commit_table", ConnectionError("the answer was lost"))
        assert table.load().records == RECORDS
        assert lost
    table.assert_exact()
    found = table.iceberg()
    files = len(table.command("files")[1]["files"])
    joined = table.write(found.scan().to_arrow())
    with found.transaction() as transaction:  # as a compaction does
        transaction.delete("_offset >= 0")
        transaction.add_files(joined)
    assert len(table.command("files")[1]["files"]) < files
    table.assert_exact()
    table.load()
    table.assert_exact()

    found = table.iceberg()
    again = found.scan(row_filter="_kafka_partition = 1 and _offset < 40").to_arrow()
    assert again.num_rows == 40
    found.add_files(table.write(again))
    code, differences = table.verify()
    assert code == 1
    assert all("more than once" in each["reason"] for each in differences)
    hours = table.until_report(lambda report: report["verdict"] == "difference")
    findings = [each for hour in hours for each in hour["findings"]]
    assert {(each["kind"], each["status"], each["source"]) for each in findings} == {
        ("doubled", "extra", f"{table.topic.name}-1")
    }
    assert sum(each["records"] for each in findings) == 40
    assert all(
        each["text"].partition(", between")[0].endswith("the files have their offsets twice") for each in findings
    )
