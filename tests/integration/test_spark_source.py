"""The source of Spark jobs over real brokers, and a load of batches that cannot be opened."""

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import httpx
import pytest
import trio
from confluent_kafka.admin import AdminClient, NewPartitions

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import BadRecordError, run_load
from pipeline.model import TopicPartition
from pipeline.settings import parse_addresses
from pipeline.testing.local_cluster import LocalCluster
from tests.support.bad_batches import BAD_BATCHES, sound
from tests.support.load_topic import FIRST_MS, LoadedTopic

DEADLINE_S = 400  # Spark, on a busy machine


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with LocalCluster(tmp_path_factory.mktemp("local"), registry=True) as running:
        yield running


@pytest.fixture
def topic(local: Any, tmp_path: Path) -> Any:
    return LoadedTopic(local.bootstrap, tmp_path.as_uri())


def load(spark: Any, topic: Any, **settings: Any) -> Any:
    return run_load(
        spark, LoadConfig.from_settings(topic.settings(**settings)), clock=lambda: time.time_ns() // 1_000_000
    )


def append(topic: Any, *batches: bytearray, partition: int = 0) -> None:
    """Batches of a partition, each in a request of its own."""

    async def send() -> None:
        target = TopicPartition(topic.name, partition)
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(topic.bootstrap))) as cluster:
            for batch in batches:
                sent = await raw_produce(cluster, {target: batch}, keep_offsets=False, timeout_s=60)
                assert sent[target].error is None

    trio.run(send)


def test_x18_batches_that_cannot_be_opened_go_to_the_quarantine_and_the_load_goes_on(
    spark: Any, local: Any, topic: Any
) -> None:
    batches = {kind: make() for kind, make in BAD_BATCHES.items() if kind != "no codec"}  # which brokers refuse
    damaged = sound(b"x" * 100, b"y" * 100, timestamp_ms=FIRST_MS)
    append(topic, sound(b"before"), *batches.values(), damaged, sound(b"after"))
    segments = local.directory.glob(f"**/{topic.name}-0/*.log")
    (segment,) = [path for path in segments if b"x" * 100 in path.read_bytes()]
    with segment.open("r+b") as file:  # as a disk may do it: the checksum is wrong now
        file.seek(segment.read_bytes().index(b"x" * 100))
        file.write(b"X")
    with pytest.raises(BadRecordError, match=r"-0 offset 1: a batch cannot be opened: .*on\.bad\.record=quarantine"):
        load(spark, topic)
    assert topic.manifests() == []
    result = load(spark, topic, **{"on.bad.record": "quarantine"})
    assert sorted(row["value"] for row in topic.rows()) == [b"after", b"before"]
    (aside,) = topic.table().data_files(quarantined=True)
    counts = {"garbage": 2, "bomb": 1, "length": 2, "count": 3}
    assert (result.records, result.quarantined) == (2, sum(counts.values()) + 2)
    assert (aside.records, aside.first_offset, aside.last_offset) == (10, 1, 10)
    rows: list[Any] = list(
        fastavro.reader(io.BytesIO(Path(f"{topic.root[7:]}/{topic.name}/{aside.path}").read_bytes()))
    )
    assert [row["_records"] for row in rows] == [*counts.values(), 2]
    for row, batch in zip(rows, batches.values(), strict=False):
        assert row["value"][21:] == bytes(batch)[21:]
    assert "checksum" in rows[-1]["_reason"]
    assert b"X" + b"x" * 99 in rows[-1]["value"]
    assert sum(count.records for count in topic.table().counts.values()) == 2
    assert not load(spark, topic, **{"on.bad.record": "quarantine"}).committed


@pytest.mark.long
def test_the_source_fails_at_a_batch_that_cannot_be_opened_or_skips_it(spark: Any, topic: Any) -> None:
    append(topic, sound(b"before"), BAD_BATCHES["garbage"](), sound(b"after"))
    source = spark.read.format("pipeline").option("kafka.bootstrap.servers", topic.bootstrap)
    source = source.option("subscribe", topic.name)
    with pytest.raises(Exception, match=r"batch at offset 1: .*onBadBatch=skip"):
        source.load().count()
    values = [bytes(row.value) for row in source.option("onBadBatch", "skip").load().collect()]
    assert values == [b"before", b"after"]
    rows = source.option("onBadBatch", "row").option("includeBatches", "true").load()
    (bad,) = rows.where("batch_fault is not null").collect()
    assert (bad.offset, bad.batch_records) == (1, 2)


def read(spark: Any, topic: Any, **options: Any) -> Any:
    source = spark.read.format("pipeline").option("kafka.bootstrap.servers", topic.bootstrap)
    if not {"subscribePattern", "assign"} & options.keys():
        source = source.option("subscribe", topic.name)
    return source.options(**options)


def numbers(rows: Any) -> list[int]:
    return sorted(int(row.value) for row in rows.select("value").collect())


@pytest.mark.long
def test_spark_reads_brokers_directly(spark: Any, topic: Any) -> None:
    topic.produce(2500)
    rows = read(spark, topic, maxRecordsPerTask="100").load()
    assert rows.selectExpr("count(distinct cast(value as string))", "min(timestamp)").collect()[0][0] == 2500
    partial = read(spark, topic, startingOffsets=json.dumps({topic.name: {"1": 3}}))
    rows = partial.option("endingOffsets", json.dumps({topic.name: {"1": 7}})).load()
    assert [(row.partition, row.offset) for row in rows.collect()] == [(1, 3), (1, 4), (1, 5), (1, 6)]
    with pytest.raises(Exception, match="does not hold these offsets"):
        partial.option("endingOffsets", json.dumps({topic.name: {"1": 10**6}})).load().count()


@pytest.mark.long
def test_options_of_sparks_kafka_source(spark: Any, topic: Any) -> None:
    topic.produce(300)
    assert numbers(read(spark, topic, subscribePattern=f"{topic.name}|no-such-.*").load()) == list(range(300))
    assigned = read(spark, topic, assign=json.dumps({topic.name: [0, 2]}), minPartitions="6").load()
    assert {row.partition for row in assigned.select("partition").collect()} == {0, 2}
    assert assigned.rdd.getNumPartitions() >= 6
    assert numbers(read(spark, topic, startingTimestamp=str(FIRST_MS + 60_000)).load()) == list(range(100, 300))
    times = json.dumps({topic.name: dict.fromkeys(("0", "1", "2"), FIRST_MS + 60_000)})
    assert numbers(read(spark, topic, endingOffsetsByTimestamp=times).load()) == list(range(100))
    late = read(spark, topic, startingTimestamp=str(FIRST_MS * 2))
    with pytest.raises(Exception, match="startingOffsetsByTimestampStrategy"):
        late.load().count()
    assert late.option("startingOffsetsByTimestampStrategy", "latest").load().count() == 0
    narrow = read(spark, topic, includeHeaders="false").schema("offset long, partition int").load()
    assert narrow.columns == ["offset", "partition"]
    assert narrow.count() == 300
    with pytest.raises(Exception, match="headers"):
        read(spark, topic, includeHeaders="false").load().select("headers")


@pytest.mark.long
def test_scans_of_one_frame_with_filters_lose_nothing(spark: Any, topic: Any) -> None:
    # Spark keeps the tasks of the filter that it pushed last for all scans of a DataFrame of a Python data source.
    topic.produce(300)
    rows = read(spark, topic).load()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        plain = rows.collect()
        filters = {
            "partition = 1": lambda row: row.partition == 1,
            "partition IN (0, 2) AND offset >= 20": lambda row: row.partition in {0, 2} and row.offset >= 20,
            f"timestamp >= timestamp_millis({FIRST_MS + 120_000})": lambda row: int(row.value) >= 200,
            "topic = 'other'": lambda row: False,
        }
        for condition, is_kept in filters.items():
            assert sorted(rows.where(condition).collect()) == sorted(filter(is_kept, plain))
            assert rows.count() == 300, condition
        assert rows.where("partition = 1").unionAll(rows.where("partition <> 1")).count() == 300
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def stream_once(spark: Any, topic: Any, path: Path, **options: Any) -> list[tuple[int, int, int]]:
    """Batch, partition and number of each record of one run of a query that ends, from its checkpoint on."""
    source = spark.readStream.format("pipeline").option("kafka.bootstrap.servers", topic.bootstrap)
    rows = source.option("subscribe", topic.name).options(**options).load()
    taken: list[tuple[int, int, int]] = []

    def take(batch: Any, number: int) -> None:
        taken.extend((number, row.partition, int(row.value)) for row in batch.collect())

    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(path)).trigger(availableNow=True)
    assert query.start().awaitTermination(DEADLINE_S)
    return taken


def test_a_stream_reads_each_record_once(spark: Any, topic: Any, tmp_path: Path) -> None:
    topic.produce(300)
    checkpoint = tmp_path / "checkpoint"
    first = stream_once(spark, topic, checkpoint, maxOffsetsPerTrigger="100")
    assert sorted(number for _, _, number in first) == list(range(300))
    assert len({batch for batch, _, _ in first}) in {3, 4}
    topic.produce(50)
    again = stream_once(spark, topic, checkpoint, maxOffsetsPerTrigger="100")
    assert sorted(number for _, _, number in again) == list(range(300, 350))


@pytest.mark.long
def test_a_stream_begins_with_the_partitions_of_startingoffsets(spark: Any, topic: Any, tmp_path: Path) -> None:
    topic.produce(60)
    start = {"startingOffsets": json.dumps({topic.name: {"1": 2}})}
    ends = {
        row.partition: row.ends
        for row in read(spark, topic)
        .load()
        .groupBy("partition")
        .agg({"offset": "max"})
        .withColumnRenamed("max(offset)", "ends")
        .collect()
    }
    taken = stream_once(spark, topic, tmp_path / "checkpoint", **start)
    assert len(taken) == ends[1] - 1
    assert {partition for _, partition, _ in taken} == {1}
    topic.produce(60)
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.create_partitions([NewPartitions(topic.name, 4)])[topic.name].result(60)
    append(topic, sound(b"777"), partition=3)
    taken = stream_once(spark, topic, tmp_path / "checkpoint", **start)
    assert {partition for _, partition, _ in taken} == {1, 3}
    assert (3, 777) in {(partition, number) for _, partition, number in taken}


PAGE_1 = {"type": "record", "name": "Page", "fields": [{"name": "page", "type": "string"}]}
PAGE_2 = {
    "type": "record",
    "name": "Page",
    "fields": [
        {"name": "page", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 5},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}


def datum(schema_id: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def test_values_are_columns_by_the_registry(spark: Any, local: Any, topic: Any) -> None:
    ids = []
    for schema in (PAGE_1, PAGE_2):
        url = f"{local.registry}/subjects/{topic.name}-value/versions"
        ids.append(httpx.post(url, json={"schema": json.dumps(schema)}, timeout=60).raise_for_status().json()["id"])
    old = [datum(ids[0], PAGE_1, {"page": f"/{number}"}) for number in range(3)]
    new = datum(ids[1], PAGE_2, {"page": "/new", "at": 7, "tags": ["a"]})
    append(topic, sound(*old, new), sound(datum(ids[1], PAGE_2, {"page": "/x", "at": 9, "tags": []})))
    settings = {"valueFormat": "avro", "schema.registry.url": local.registry}
    rows = read(spark, topic, **settings).load()
    assert rows.schema["value"].dataType.simpleString() == "struct<page:string,at:timestamp,tags:array<string>>"
    found = rows.selectExpr("value.page", "unix_millis(value.at)", "value.tags", "offset").orderBy("offset").collect()
    assert [tuple(row) for row in found][2:] == [("/2", 5, [], 2), ("/new", 7, ["a"], 3), ("/x", 9, [], 4)]
    first = read(spark, topic, valueSchemaVersion="1", **settings).load()
    assert first.schema["value"].dataType.simpleString() == "struct<page:string>"
    assert first.where("value.page = '/new'").count() == 1
    append(topic, sound(b"no datum"))
    with pytest.raises(Exception, match=rf"{topic.name}-0 offset 5: the value does not begin"):
        read(spark, topic, **settings).load().collect()
    nulls = read(spark, topic, onBadRecord="null", **settings).load().where("value IS NULL").collect()
    assert [row.offset for row in nulls] == [5]
