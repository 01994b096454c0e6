"""Loads into an Iceberg table by a real Spark from a real broker."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import trio
from pyiceberg.catalog import load_catalog

from pipeline.audit.events.tiers import Tier
from pipeline.cli.load.report import report_counts
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.hadoop.load.config import LoadConfig, LoadsConfig
from pipeline.hadoop.load.job import LoadError, run_load
from pipeline.hadoop.load.many import TopicResult
from pipeline.model import TopicPartition
from pipeline.records.batch import iterate_headers
from pipeline.records.batch_hashes import content_hashes, header_table, place_hashes
from pipeline.records.tally import HOUR_MS
from pipeline.settings import parse_addresses
from pipeline.testing.local_cluster import LocalCluster
from tests.support.audit_reports import read_all_reports
from tests.support.copies import read_logs
from tests.support.hand_made_table import framed
from tests.support.load_topic import LoadedTopic

EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "page", "type": "string"},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
    ],
}
WIDER = EVENT | {"fields": [*EVENT["fields"], {"name": "who", "type": ["null", "string"], "default": None}]}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with LocalCluster(tmp_path_factory.mktemp("local"), registry=True) as running:
        yield running


@pytest.fixture
def topic(local: Any, tmp_path: Path) -> Any:
    return LoadedTopic(local.bootstrap, tmp_path.as_uri())


def load(spark: Any, topic: Any, **settings: Any) -> Any:
    config = LoadConfig.from_settings(topic.settings(table="iceberg", **settings))
    return run_load(spark, config, clock=lambda: time.time_ns() // 1_000_000)


async def report_and_read_back(topic: Any) -> tuple[Any, Any]:
    """Report the table's commits to the audit; return the rows of hours of the report, and the headers of the topic."""
    loads = LoadsConfig.from_settings(topic.settings(table="iceberg"), {})
    await report_counts(loads, [TopicResult(topic=topic.name, seconds=0.0)], "east")
    partitions = [TopicPartition(topic.name, partition) for partition in range(3)]
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(topic.bootstrap))) as cluster:
        reports = [report for report in await read_all_reports(cluster) if report.counter.tier is Tier.LOAD]
        logs = await read_logs(cluster, partitions)
    mine = [report for report in reports if report.topics[0].name == topic.name]
    headers = [header for log in logs.values() for _, header in iterate_headers(log)]
    return mine[-1].rows[mine[-1].rows["span_ms"] == HOUR_MS], header_table(headers)


def assert_sums_are_those_of_the_broker(topic: Any) -> None:
    hours, table = trio.run(report_and_read_back, topic)
    assert hours["has_sums"].all()
    assert int(hours["batches"].sum()) == len(table) > 0
    for name, hashes in (("content_sum", content_hashes), ("place_sum", place_hashes)):
        assert hours[name].sum(dtype=np.uint64) == hashes(table).sum(dtype=np.uint64)


def rows(topic: Any, **catalog: Any) -> Any:
    path = topic.root.removeprefix("file://")
    given = catalog or {"type": "sql", "uri": f"sqlite:///{path}/_catalog.db"}
    table = load_catalog("pipeline", **given, warehouse=topic.root).load_table(("pipeline", topic.name))
    return table.scan().to_arrow().to_pylist()


def test_a_load_takes_the_records_since_the_last_one(spark: Any, topic: Any) -> None:
    topic.produce(3000)
    assert load(spark, topic).records == 3000
    assert not load(spark, topic).committed
    topic.produce(500)
    assert load(spark, topic).records == 500
    assert_sums_are_those_of_the_broker(topic)
    found = rows(topic)
    assert sorted(int(row["value"]) for row in found) == list(range(3500))
    assert len({(row["_kafka_partition"], row["_offset"]) for row in found}) == 3500
    assert not list(Path(f"{topic.root.removeprefix('file://')}/{topic.name}/_runs").iterdir())


def test_the_columns_follow_the_registry(spark: Any, local: Any, topic: Any) -> None:
    url = f"{local.registry}/subjects/{topic.name}-value/versions"
    settings = {"value.format": "avro", "schema.registry.url": local.registry, "on.bad.record": "quarantine"}
    for schema, value in ((EVENT, {"page": "/a", "at": 5}), (WIDER, {"page": "/b", "at": 6, "who": "me"})):
        schema_id = httpx.post(url, json={"schema": json.dumps(schema)}, timeout=60).raise_for_status().json()["id"]
        (datum,) = framed(json.dumps(schema), [value])
        sent = b"\0" + schema_id.to_bytes(4, "big") + datum[5:]
        topic.produce(20, lambda number, sent=sent: None if number % 20 == 3 else b"bad" if number % 20 == 7 else sent)
        result = load(spark, topic, **settings)
        assert (result.records, result.quarantined) == (19, 1)
    found = sorted((row["page"] or "", row["at"] or 0, row["who"] or "", row["_tombstone"]) for row in rows(topic))
    assert found == [("", 0, "", True)] * 2 + [("/a", 5, "", False)] * 18 + [("/b", 6, "me", False)] * 18


@pytest.mark.long
def test_catalogs_by_settings_and_tables_of_the_other_kind(spark: Any, topic: Any, tmp_path: Path) -> None:
    topic.produce(10)
    uri = f"sqlite:///{tmp_path}/other.db"
    load(spark, topic, **{"iceberg.catalog.type": "sql", "iceberg.catalog.uri": uri})
    assert len(rows(topic, type="sql", uri=uri)) == 10
    config = LoadConfig.from_settings(topic.settings())
    with pytest.raises(LoadError, match="was loaded with table=iceberg here"):
        run_load(spark, config, clock=lambda: 0)
