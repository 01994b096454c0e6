"""The sink against real brokers, read back by a foreign client."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from pipeline.hadoop.source import PipelineDataSource
from pipeline.testing.local_cluster import LocalCluster
from tests.support.kafka import running_kafka

DRIVER = Path(__file__).parent / "programs" / "sink_driver.py"
DEADLINE_S = 180.0
ROWS = 20_000
PADDING = b"x" * 200
"""Spark gives tasks 64 KB at a time, and a task is to be killed on its way."""


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster() as local:
        create_topics(local.bootstrap, "rows", "repeated", "killed", "sources", "copies")
        yield local.bootstrap


def create_topics(bootstrap: str, *topics: str) -> None:
    for topic in topics:
        create = ["topic", "create", topic, "--partitions", "3", "--replication-factor", "1", "-b", bootstrap]
        subprocess.run([sys.executable, "-m", "pipeline", *create], check=True, timeout=DEADLINE_S)


def read_all(bootstrap: str, topic: str) -> list[Any]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    try:
        count = len(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(count)])
        messages: list[Any] = []
        ended: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(ended) < count:
            assert time.monotonic() < deadline
            message = consumer.poll(1)
            if message is None:
                continue
            error, partition = message.error(), message.partition()
            if error is None:
                messages.append(message)
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF and partition is not None:
                ended.add(partition)
        return messages
    finally:
        consumer.close()


def sink(rows: Any, bootstrap: str, topic: str) -> Any:
    return (
        rows.write.format("pipeline")
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("kafka.compression.type", "zstd")
    )


def test_rows_of_a_batch_are_records(spark: Any, bootstrap: str) -> None:
    rows = spark.sql(
        f"SELECT IF(id % 5 = 0, NULL, 'k' || id) AS key, 'v' || id AS value, "
        f"array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers FROM range({ROWS})"
    )
    sink(rows, bootstrap, "rows").save()
    found = Counter((message.key(), message.value()) for message in read_all(bootstrap, "rows"))
    assert found == Counter((None if n % 5 == 0 else b"k%d" % n, b"v%d" % n) for n in range(ROWS))
    assert read_all(bootstrap, "rows")[0].headers() == [("h", b"x")]


def test_a_task_that_fails_midway_leaves_no_record_twice(spark: Any, bootstrap: str) -> None:
    """Fails the first attempt of each task near its end, after batches of 1 KB were acknowledged."""

    from pyspark.sql.functions import udf

    @udf("string", useArrow=False)
    def fails_once(number: int) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and number == ROWS - 10:
            raise ValueError("the first attempt fails")
        return f"v{number}"

    numbers = spark.range(0, ROWS, numPartitions=1).select(fails_once("id").alias("value"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        sink(numbers, bootstrap, "repeated").option("kafka.batch.size", "1024").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found = Counter(message.value() for message in read_all(bootstrap, "repeated"))
    assert found == Counter(b"v%d" % number for number in range(ROWS))


def test_a_worker_killed_within_a_task_leaves_no_record_twice(spark: Any, bootstrap: str) -> None:
    class KilledOnce(PipelineDataSource):
        """Kills the worker that writes, in its first attempt, after half of the chunks of rows."""

        @classmethod
        def name(cls) -> str:
            return "killed"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            writer: Any = super().writer(schema, overwrite)
            write = writer.write

            def killed(chunks: Iterator[Any]) -> Any:
                from pyspark import TaskContext

                context = TaskContext.get()
                assert context is not None
                if context.attemptNumber() == 0:
                    write(islice(chunks, ROWS // 2000))
                    os.kill(os.getpid(), signal.SIGKILL)
                return write(chunks)

            writer.write = killed
            return writer

    spark.dataSource.register(KilledOnce)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        rows = spark.range(0, ROWS, numPartitions=1).selectExpr("'v' || id AS value")
        sink(rows, bootstrap, "killed").format("killed").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found = Counter(message.value() for message in read_all(bootstrap, "killed"))
    assert found == Counter(b"v%d" % number for number in range(ROWS))


@pytest.mark.parametrize(
    ("columns", "options", "named"),
    [
        ("id AS key", {}, "value"),
        ("'a' AS value, id AS key", {}, "key"),
        ("'a' AS value", {"topic": "nowhere"}, "nowhere|UNKNOWN_TOPIC"),
        ("'a' AS value", {"kafka.acks": "0"}, "kafka.acks"),
        ("'a' AS value", {"topic": ""}, "topic"),
    ],
)
def test_wrong_rows_and_options_are_named(
    spark: Any, bootstrap: str, columns: str, options: dict[str, str], named: str
) -> None:
    rows = spark.sql(f"SELECT {columns} FROM range(3)")
    with pytest.raises(Exception, match=named):
        sink(rows, bootstrap, "rows").options(**options).save()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_query_killed_within_a_micro_batch_writes_each_row_once(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    kill_a_query(spark, bootstrap, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)  # the jars are fetched when they are not there yet
def test_a_query_killed_beside_apache_kafka_writes_each_row_once(spark: Any, tmp_path: Path) -> None:
    with running_kafka(tmp_path / "kafka") as kafka:
        create_topics(kafka.bootstrap, "sources", "copies")
        kill_a_query(spark, kafka.bootstrap, tmp_path)


def kill_a_query(spark: Any, bootstrap: str, directory: Path) -> None:
    rows = spark.sql(f"SELECT 'k' || id AS key, 'v' || id || repeat('x', {len(PADDING)}) AS value FROM range({ROWS})")
    sink(rows, bootstrap, "sources").save()
    command = [sys.executable, str(DRIVER), bootstrap, "sources", "copies", str(directory / "checkpoint")]
    with (directory / "driver.log").open("wb") as log:
        driver = subprocess.Popen([*command, "slow"], stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not (before := read_all(bootstrap, "copies")):
            assert driver.poll() is None, (directory / "driver.log").read_text()[-3000:]
            assert time.monotonic() < deadline
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert 0 < len(before) < ROWS // 4
    again = subprocess.run([*command, "fast"], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert again.returncode == 0, again.stderr[-3000:]
    found = Counter((message.key(), message.value()) for message in read_all(bootstrap, "copies"))
    assert found == Counter((b"k%d" % number, b"v%d" % number + PADDING) for number in range(ROWS))
