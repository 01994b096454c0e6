"""A batch and a stream of the source, and of the sink, by the PySpark that runs this program.

    python read_with_pyspark.py BOOTSTRAP TOPIC COPY DIRECTORY

Prints a line of JSON: the version, and the numbers that each read found, sorted.
"""

import json
import sys
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from pipeline.hadoop.source import PipelineDataSource


def main(bootstrap: str, topic: str, copy: str, directory: str) -> None:
    builder: Any = SparkSession.builder
    spark = (
        builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    spark.dataSource.register(PipelineDataSource)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}

    def numbers(rows: Any) -> list[int]:
        return sorted(int(row.value) for row in rows.select("value").collect())

    batch = spark.read.format("pipeline").options(**options).load()
    streamed: list[int] = []
    for _ in range(2):
        rows = spark.readStream.format("pipeline").options(**options).load()
        query = rows.writeStream.foreachBatch(lambda part, _: streamed.extend(numbers(part)))
        query = query.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
        assert query.start().awaitTermination(300)
    written = {"kafka.bootstrap.servers": bootstrap, "topic": copy}
    batch.select("key", "value", "headers").write.format("pipeline").mode("append").options(**written).save()
    for _ in range(2):
        rows = spark.readStream.format("pipeline").options(**options).load().select("key", "value")
        copies = rows.writeStream.format("pipeline").options(**written)
        copies = copies.option("checkpointLocation", f"{directory}/copies").trigger(availableNow=True)
        assert copies.start().awaitTermination(300)
    copied = spark.read.format("pipeline").options(**options | {"subscribe": copy}).load()
    found = {
        "version": pyspark.__version__,
        "batch": numbers(batch),
        "filtered": numbers(batch.where("partition = 1 AND offset >= 2")),
        "after": numbers(batch),
        "headers": len(batch.where("headers[0].key = 'host'").select("timestamp", "headers").collect()),
        "stream": sorted(streamed),
        "copied": numbers(copied),
    }
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
