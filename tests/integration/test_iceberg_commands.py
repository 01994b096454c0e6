"""Commands of `pipeline load` on Iceberg tables that Spark loaded from real brokers, and reports to the audit."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio
from confluent_kafka import Consumer
from pyiceberg.catalog import load_catalog

from pipeline.audit.events.encoding import decode_count_report
from pipeline.audit.events.tiers import AUDIT_TOPIC, Tier
from pipeline.cli.load.report import report_counts
from pipeline.hadoop.load.config import LoadConfig, LoadsConfig
from pipeline.hadoop.load.job import run_load
from pipeline.hadoop.load.many import TopicResult
from pipeline.records.tally import HOUR_MS
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import FIRST_MS, LoadedTopic

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with LocalCluster(tmp_path_factory.mktemp("local")) as running:
        yield running


def call(*arguments: str, exit_code: int = 0) -> Any:
    """The JSON that a command prints, or its error."""
    command = [sys.executable, "-m", "pipeline", "load", *arguments, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == exit_code, result.stderr
    return json.loads(result.stdout) if result.stdout else result.stderr


def load(spark: Any, topic: LoadedTopic, table: str, root: str) -> Any:
    config = LoadConfig.from_settings(topic.settings(table=table, root=root))
    return run_load(spark, config, clock=lambda: FIRST_MS)


def table(topic: LoadedTopic) -> Any:
    uri = f"sqlite:///{topic.root.removeprefix('file://')}/_catalog.db"
    return load_catalog("pipeline", type="sql", uri=uri).load_table(("pipeline", topic.name))


def test_status_files_sql_and_verify(spark: Any, local: Any, tmp_path: Path) -> None:
    topic = LoadedTopic(local.bootstrap, tmp_path.as_uri())
    for _ in range(2):
        topic.produce(3000)
        load(spark, topic, "iceberg", topic.root)
    place, brokers = ("--topic", topic.name, "--root", topic.root), ("-b", local.bootstrap)
    topic.produce(50)
    status = call("status", "--root", topic.root, *brokers)["topics"][0]
    assert (status["commit"], status["records"], status["lag"]["records"]) == (2, 6000, 50)
    assert [(commit["commit"], commit["records"]) for commit in status["commits"]] == [(1, 3000), (2, 3000)]
    assert sum(commit["files"] for commit in status["commits"]) == status["files"]
    files = call("files", *place)["files"]
    assert len(files) == status["files"]
    assert all(Path(file.removeprefix("file://")).exists() for file in files)
    whole = call("verify", *place, *brokers, "--set", "value.format=binary")
    assert (whole["records"], whole["compared_with_topic"], whole["differences"]) == (6000, 6000, [])
    query = f"SELECT count(*), count(DISTINCT value), min(_offset) FROM `{topic.name}`"
    assert call("sql", query, *place)["rows"] == [[6000, 6000, 0]]

    table(topic).delete("_kafka_partition = 1")
    lost = call("verify", *place, *brokers, "--set", "value.format=binary", exit_code=1)["differences"]
    assert {item["path"].split(" [")[0] for item in lost} == {"partition 1"}
    assert any("rows are missing" in item["reason"] for item in lost)
    assert any("another writer removed rows" in item["reason"] for item in lost)
    refused = call("compact", *place, exit_code=1)
    assert "holds an Iceberg table" in refused


def test_a_changed_value_is_found_by_comparing_with_the_topic(spark: Any, local: Any, tmp_path: Path) -> None:
    topic = LoadedTopic(local.bootstrap, tmp_path.as_uri())
    topic.produce(300)
    load(spark, topic, "iceberg", topic.root)
    rows = table(topic).scan().to_arrow()
    values = rows.column("value").to_pylist()
    changed = rows.set_column(rows.column_names.index("value"), "value", [[b"other", *values[1:]]])
    with table(topic).transaction() as transaction:
        transaction.delete("_offset >= 0")
    (path,) = {file.rsplit("/", 1)[0] for file in [str(p) for p in tmp_path.rglob("*.parquet")][:1]}
    pq.write_table(changed.cast(rows.schema), f"{path}/changed.parquet")
    table(topic).add_files([f"file://{path}/changed.parquet"])
    place = ("--topic", topic.name, "--root", topic.root)
    assert call("verify", *place)["differences"] == []
    found = call("verify", *place, "-b", local.bootstrap, "--set", "value.format=binary", exit_code=1)
    (difference,) = found["differences"]
    assert "has another row than the topic" in difference["reason"]


COUNTED = ("records", "bytes", "batches", "crc_sum", "quarantined", "revision")


def reported(bootstrap: str, datacenter: str) -> Any:
    """Counts by window that were reported last, by partition, with the offset loaded up to."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": datacenter, "auto.offset.reset": "earliest"})
    consumer.subscribe([AUDIT_TOPIC])
    found: dict[Any, Any] = {}
    quiet = 0
    while quiet < 5 or not found:
        message = consumer.poll(2)
        quiet = quiet + 1 if message is None else 0
        value = None if message is None or message.error() is not None else message.value()
        if value is not None:
            report = decode_count_report(value)
            if (report.counter.tier, report.counter.cluster) == (Tier.LOAD, datacenter):
                for row in report.rows:
                    place = (int(row["partition"]), int(row["start_ms"]), int(row["span_ms"]))
                    found[place] = {name: int(row[name]) for name in COUNTED}
                found |= {
                    ("up to", int(position["partition"])): int(position["end_offset"]) for position in report.positions
                }
    consumer.close()
    return found


def test_the_audit_gets_the_counts_of_manifests(spark: Any, local: Any, tmp_path: Path) -> None:
    """Also after the snapshots of earlier loads have expired."""
    topic = LoadedTopic(local.bootstrap, (tmp_path / "iceberg").as_uri())
    roots = {"iceberg": topic.root, "manifest": (tmp_path / "manifest").as_uri()}
    for number in range(3):
        topic.produce(500)
        for kind, root in roots.items():
            result = load(spark, topic, kind, root)
            settings = topic.settings(table=kind, root=root)
            loads = LoadsConfig.from_settings(settings, {})
            outcome = TopicResult(topic=topic.name, seconds=0, result=result)
            trio.run(partial(report_counts, loads, [outcome], kind))
        if number == 1:
            first = table(topic).metadata.snapshots[0].snapshot_id
            table(topic).maintenance.expire_snapshots().by_id(first).commit()
    counts = {kind: reported(local.bootstrap, kind) for kind in roots}
    assert counts["iceberg"] == counts["manifest"]
    records = [count["records"] for place, count in counts["iceberg"].items() if place[-1] == HOUR_MS]
    assert sum(records) == 1500
