"""A stream joined with a secondary store: each view with the profile of its user, from a topic or from loaded files.

python examples/streams/enriched_views.py HOST:PORT page_views enriched_views CHECKPOINT --profiles profiles
python examples/streams/enriched_views.py HOST:PORT page_views enriched_views CHECKPOINT --table file:///lake/profiles

Source: the key of a view and of a profile is the user; values are JSON such as {"page": "/home"} and {"country": "SE"}.
The last profile of a user counts, and a null value deletes it. A view without a profile is written with null.
Late data: none. Views wait for nothing, and a view is written whatever its time is. Profiles are those of the program's
start: a run sees what is new since the last one, but a program with --continuous does not see newer profiles.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pipeline.hadoop.load.spark_session import local_session
from pipeline.hadoop.table import register_tables


def main(
    spark: SparkSession,
    bootstrap: str,
    source: str,
    target: str,
    checkpoint: str,
    *,
    profiles: str | None = None,
    table: str | None = None,
    continuous: bool = False,
) -> None:
    """Write the views that are new since the last run with this checkpoint; with `continuous` go on until stopped."""
    if table is None:
        store = spark.read.format("pipeline").option("kafka.bootstrap.servers", bootstrap).option("subscribe", profiles)
        found = store.load().select("key", "offset", "value")
    else:
        register_tables(spark)
        loaded = spark.read.format("pipeline.table").load(table)
        found = loaded.select(f.col("_key").alias("key"), f.col("_offset").alias("offset"), "value")
    country = f.get_json_object(f.max_by("value", "offset").cast("string"), "$.country")
    reader = spark.readStream.format("pipeline").option("kafka.bootstrap.servers", bootstrap)
    views = reader.option("subscribe", source).load()
    enriched = views.select("key", "value").join(found.groupBy("key").agg(country.alias("country")), "key", "left")
    page = f.get_json_object(f.col("value").cast("string"), "$.page").alias("page")
    user = f.col("key").cast("string").alias("user")
    value = f.to_json(f.struct(user, page, "country"), {"ignoreNullFields": "false"})
    writer = (
        enriched.select("key", value.alias("value"))
        .writeStream.format("pipeline")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    (writer if continuous else writer.trigger(availableNow=True)).start().awaitTermination()


def arguments() -> argparse.ArgumentParser:
    """Return the command line: the arguments of `main` but for the session."""
    parser = argparse.ArgumentParser(description="Joins views with the profiles of their users.")
    for name in ("bootstrap", "source", "target", "checkpoint"):
        parser.add_argument(name)
    store = parser.add_mutually_exclusive_group(required=True)
    store.add_argument("--profiles", help="topic of profiles")
    store.add_argument("--table", help="URL of a loaded topic of profiles")
    parser.add_argument("--continuous", action="store_true", help="wait for new records until stopped")
    return parser


if __name__ == "__main__":
    main(local_session(app_name="enriched-views"), **vars(arguments().parse_args()))
