"""A join of two streams: each ad that was shown, with its click if there was one within two minutes.

python examples/streams/joined_streams.py HOST:PORT impressions clicks ad_results CHECKPOINT [--continuous]

Sources: the key of an impression and of a click is the ad's id, the time is the record's timestamp.
Late data: an ad with a click is written as soon as both are there, whichever came first. An ad without one is written,
once, when the watermark is two minutes past its impression; a click that comes later is ignored. The watermark is one
minute behind the newest record of the topic that is behind: it stands still while either topic is silent.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.hadoop.load.spark_session import local_session


def ads(spark: SparkSession, bootstrap: str, topic: str, key: str, time: str) -> DataFrame:
    """Return the keys and times of a topic as columns of these names."""
    reader = spark.readStream.format("pipeline").option("kafka.bootstrap.servers", bootstrap)
    records = reader.option("subscribe", topic).load()
    columns = records.select(f.col("key").cast("string").alias(key), f.col("timestamp").alias(time))
    return columns.withWatermark(time, "1 minute")


def main(
    spark: SparkSession,
    bootstrap: str,
    impressions: str,
    clicks: str,
    target: str,
    checkpoint: str,
    *,
    continuous: bool = False,
) -> None:
    """Join the records that are new since the last run with this checkpoint; with `continuous` go on until stopped."""
    shown = ads(spark, bootstrap, impressions, "ad", "shown")
    clicked = ads(spark, bootstrap, clicks, "clicked_ad", "clicked")
    is_click = f.expr("ad = clicked_ad AND clicked BETWEEN shown AND shown + INTERVAL 2 MINUTES")
    value = f.to_json(f.struct("ad", "shown", "clicked"), {"ignoreNullFields": "false"})
    writer = (
        shown.join(clicked, is_click, "left")
        .select(f.col("ad").alias("key"), value.alias("value"))
        .writeStream.format("pipeline")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    (writer if continuous else writer.trigger(availableNow=True)).start().awaitTermination()


def arguments() -> argparse.ArgumentParser:
    """Return the command line: the arguments of `main` but for the session."""
    parser = argparse.ArgumentParser(description="Joins ads that were shown with their clicks.")
    for name in ("bootstrap", "impressions", "clicks", "target", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--continuous", action="store_true", help="wait for new records until stopped")
    return parser


if __name__ == "__main__":
    main(local_session(app_name="joined-streams"), **vars(arguments().parse_args()))
