"""Loads into an Iceberg table by a real Spark from a real broker."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyiceberg.catalog import load_catalog

from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import LoadError, run_load
from pipeline.testing.local_cluster import LocalCluster
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
