"""Views of each page in windows of a minute, by the time of the view: a count is written once its window is complete.

python examples/streams/windowed_counts.py HOST:PORT page_views page_counts CHECKPOINT [--continuous]

Source: values are JSON such as {"user": "alice", "page": "/home"}; the time of a view is the record's timestamp.
Late data: the watermark stays two minutes behind the newest view. A window is written, once, when the watermark passes
its end; a view that comes later is not counted. Until then views may come in any order.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pipeline.hadoop.load.spark_session import local_session


def main(
    spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: str, *, continuous: bool = False
) -> None:
    """Count the views that are new since the last run with this checkpoint; with `continuous` go on until stopped."""
    reader = spark.readStream.format("pipeline").option("kafka.bootstrap.servers", bootstrap)
    records = reader.option("subscribe", source).load()
    page = f.get_json_object(f.col("value").cast("string"), "$.page").alias("page")
    views = records.select("timestamp", page).withWatermark("timestamp", "2 minutes")
    counts = views.groupBy(f.window("timestamp", "1 minute"), "page").agg(f.count("*").alias("views"))
    value = f.to_json(f.struct("page", f.col("window.start").alias("minute"), "views"))
    writer = (
        counts.select(f.col("page").alias("key"), value.alias("value"))
        .writeStream.format("pipeline")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    (writer if continuous else writer.trigger(availableNow=True)).start().awaitTermination()


def arguments() -> argparse.ArgumentParser:
    """Return the command line: the arguments of `main` but for the session."""
    parser = argparse.ArgumentParser(description="Counts the views of each page in windows of a minute.")
    for name in ("bootstrap", "source", "target", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--continuous", action="store_true", help="wait for new records until stopped")
    return parser


if __name__ == "__main__":
    main(local_session(app_name="windowed-counts"), **vars(arguments().parse_args()))
