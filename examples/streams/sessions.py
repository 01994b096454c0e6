"""Sessions of users: views of a user with less than five minutes between them are one visit.

python examples/streams/sessions.py HOST:PORT page_views visits CHECKPOINT [--continuous]

Source: the key is the user, the time of a view is the record's timestamp.
Late data: the watermark stays two minutes behind the newest view. A visit is written, once, when the watermark passes
five minutes after its last view. A view that comes before that joins its visit, or joins two visits into one. A view
that is older than the watermark by five minutes is ignored.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pipeline.hadoop.load.spark_session import local_session


def main(
    spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: str, *, continuous: bool = False
) -> None:
    """Find the visits that ended since the last run with this checkpoint; with `continuous` go on until stopped."""
    reader = spark.readStream.format("pipeline").option("kafka.bootstrap.servers", bootstrap)
    records = reader.option("subscribe", source).load()
    views = records.select(f.col("key").cast("string").alias("user"), "timestamp").withWatermark(
        "timestamp", "2 minutes"
    )
    visits = views.groupBy(f.session_window("timestamp", "5 minutes"), "user").agg(
        f.min("timestamp").alias("begin"), f.max("timestamp").alias("end"), f.count("*").alias("views")
    )
    writer = (
        visits.select(f.col("user").alias("key"), f.to_json(f.struct("user", "begin", "end", "views")).alias("value"))
        .writeStream.format("pipeline")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    (writer if continuous else writer.trigger(availableNow=True)).start().awaitTermination()


def arguments() -> argparse.ArgumentParser:
    """Return the command line: the arguments of `main` but for the session."""
    parser = argparse.ArgumentParser(description="Finds the visits of users.")
    for name in ("bootstrap", "source", "target", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--continuous", action="store_true", help="wait for new records until stopped")
    return parser


if __name__ == "__main__":
    main(local_session(app_name="sessions"), **vars(arguments().parse_args()))
