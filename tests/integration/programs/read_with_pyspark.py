"""A batch and a stream of the source, of the sink and into files, and a table, by the PySpark that runs this program.

    python read_with_pyspark.py BOOTSTRAP TOPIC COPY DIRECTORY

DIRECTORY holds the table `clicks`. Prints a line of JSON: the version, and the numbers that each read found, sorted.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from pipeline.hadoop.source import PipelineDataSource
from pipeline.hadoop.table import loaded_table, register_tables


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
    for run in range(3):
        if run == 1:
            forget_last_batch(Path(directory, "copies"))
        rows = spark.readStream.format("pipeline").options(**options).load().select("key", "value")
        copies = rows.writeStream.format("pipeline").options(**written)
        copies = copies.option("checkpointLocation", f"{directory}/copies").trigger(availableNow=True)
        assert copies.start().awaitTermination(300)
    for run in range(3):
        if run == 1:
            forget_last_batch(Path(directory, "files-checkpoint"))
        rows = spark.readStream.format("pipeline").options(**options).load().select("value")
        files = rows.writeStream.format("parquet").option("path", f"{directory}/files")
        files = files.option("checkpointLocation", f"{directory}/files-checkpoint").trigger(availableNow=True)
        assert files.start().awaitTermination(300)
    register_tables(spark)
    table = spark.read.format("pipeline.table").load(f"{directory}/clicks")
    copied = spark.read.format("pipeline").options(**options | {"subscribe": copy}).load()
    found = {
        "version": pyspark.__version__,
        "batch": numbers(batch),
        "filtered": numbers(batch.where("partition = 1 AND offset >= 2")),
        "after": numbers(batch),
        "headers": len(batch.where("headers[0].key = 'host'").select("timestamp", "headers").collect()),
        "stream": sorted(streamed),
        "copied": numbers(copied),
        "files": numbers(spark.read.parquet(f"{directory}/files")),
        "table": numbers(table),
        "loaded_table": numbers(loaded_table(spark, Path(directory).as_uri(), "clicks")),
        "first_commit": numbers(
            spark.read.format("pipeline.table")
            .option("versionAsOf", 1)
            .load(f"{directory}/clicks")
            .where("_offset > 3")
        ),
    }
    print(json.dumps(found), flush=True)
    spark.stop()


def forget_last_batch(checkpoint: Path) -> None:
    """Leave the checkpoint of a driver that died when it had written the last micro batch, and not noted that."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()


if __name__ == "__main__":
    main(*sys.argv[1:5])
