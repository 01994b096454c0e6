"""Loads of Avro topics as Avro copy datums: the bytes in the files are those that the producers wrote."""

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import httpx
import pytest

from pipeline.hadoop.commit import committed_urls
from pipeline.hadoop.load import LoadConfig, run_load
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic

RECORDS = 300
VISIT = """{"type": "record", "name": "Visit", "fields": [
    {"name": "page", "type": "string"},   {"name": "marks", "type": {"type": "array", "items": "int"}} ]}"""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("local"), registry=True) as running:
        yield running


def datum(number: int) -> bytes:
    """A datum that no library writes: its array is a block with its size in bytes (a negative count, Avro 1.12)."""
    page = b"/%d" % number
    items = bytes([2 * (number % 60), 7])
    return bytes([2 * len(page)]) + page + bytes([3, 2 * len(items)]) + items + b"\0"


@pytest.mark.long
def test_the_bytes_of_datums_and_the_text_of_their_schema_are_kept(
    spark: Any, local: LocalCluster, tmp_path: Path
) -> None:
    topic = LoadedTopic(local.bootstrap, tmp_path.as_uri())
    subject = f"{local.registry}/subjects/{topic.name}-value/versions"
    schema_id = httpx.post(subject, json={"schema": VISIT}, timeout=60).raise_for_status().json()["id"]
    topic.produce(RECORDS, lambda number: struct.pack(">bI", 0, schema_id) + datum(number))
    settings = topic.settings(**{"value.format": "avro", "schema.registry.url": local.registry})
    config = LoadConfig.from_settings(settings | {"format": "avro", "codec": "null"})
    assert run_load(spark, config, clock=lambda: 1_700_000_000_000).records == RECORDS
    found = 0
    for url in committed_urls(topic.root, topic.name):
        content = Path(url.removeprefix("file://")).read_bytes()
        assert json.dumps(json.loads(VISIT)).encode() in content
        rows: list[Any] = list(fastavro.reader(io.BytesIO(content)))
        for row in rows:
            number = int(row["value"]["page"].removeprefix("/"))
            assert row["value"] == {"page": f"/{number}", "marks": [number % 60, -4]}
            assert datum(number) in content
            found += 1
    assert found == RECORDS
