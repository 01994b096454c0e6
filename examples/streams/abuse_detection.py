"""Abuse detection by rate: users with more than 10 requests within 10 seconds.

python examples/streams/abuse_detection.py HOST:PORT requests abuse CHECKPOINT [--continuous]

Source: the key is the user, the time of a request is the record's timestamp. Windows of 10 seconds begin every 5
seconds, so that a burst at the border of two windows is seen; a longer one is reported for each window.
Late data: the watermark stays 5 seconds behind the newest request of all users. A user is reported, once for a window,
when the watermark passes its end: about 5 seconds later. A request counts in the windows that end after the watermark.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pipeline.hadoop.load.spark_session import local_session

LIMIT = 10


def main(
    spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: str, *, continuous: bool = False
) -> None:
    """Judge the requests that are new since the last run; with `continuous` go on until stopped."""
    reader = spark.readStream.format("pipeline").option("kafka.bootstrap.servers", bootstrap)
    records = reader.option("subscribe", source).load()
    requests = records.select(f.col("key").cast("string").alias("user"), "timestamp")
    windows = f.window("timestamp", "10 seconds", "5 seconds")
    counts = requests.withWatermark("timestamp", "5 seconds").groupBy(windows, "user").agg(f.count("*").alias("count"))
    value = f.to_json(f.struct("user", f.col("window.start").alias("since"), f.col("count").alias("requests")))
    writer = (
        counts.where(f.col("count") > LIMIT)
        .select(f.col("user").alias("key"), value.alias("value"))
        .writeStream.format("pipeline")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    (writer if continuous else writer.trigger(availableNow=True)).start().awaitTermination()


def arguments() -> argparse.ArgumentParser:
    """Return the command line: the arguments of `main` but for the session."""
    parser = argparse.ArgumentParser(description="Reports users with too many requests within 10 seconds.")
    for name in ("bootstrap", "source", "target", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--continuous", action="store_true", help="wait for new records until stopped")
    return parser


if __name__ == "__main__":
    main(local_session(app_name="abuse-detection"), **vars(arguments().parse_args()))
