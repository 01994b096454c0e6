"""Top pages: the three pages with the most views in each window of five minutes.

python examples/streams/top_pages.py HOST:PORT page_views top_pages CHECKPOINT [--continuous]

Source: values are JSON such as {"user": "alice", "page": "/home"}; the time of a view is the record's timestamp.
Late data: the watermark stays two minutes behind the newest view. The pages of a window are written, once, when the
watermark passes its end; a view that comes later is not counted.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pipeline.hadoop.load.spark_session import local_session

PAGES = 3


def main(
    spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: str, *, continuous: bool = False
) -> None:
    """Rank the pages of windows that ended since the last run; with `continuous` go on until stopped."""
    reader = spark.readStream.format("pipeline").option("kafka.bootstrap.servers", bootstrap)
    records = reader.option("subscribe", source).load()
    page = f.get_json_object(f.col("value").cast("string"), "$.page").alias("page")
    views = records.select("timestamp", page).withWatermark("timestamp", "2 minutes")
    counts = views.groupBy(f.window("timestamp", "5 minutes"), "page").agg(f.count("*").alias("views"))
    # Most views first; pages with as many views in the order of their names.
    ranked = f.sort_array(f.collect_list(f.struct((-f.col("views")).alias("rank"), "page", "views")))
    top = f.transform(f.slice(ranked, 1, PAGES), lambda found: f.struct(found.page, found.views))
    windows = counts.groupBy("window").agg(top.alias("pages"))
    start = f.col("window.start").alias("start")
    writer = (
        windows.select(start.cast("string").alias("key"), f.to_json(f.struct(start, "pages")).alias("value"))
        .writeStream.format("pipeline")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    (writer if continuous else writer.trigger(availableNow=True)).start().awaitTermination()


def arguments() -> argparse.ArgumentParser:
    """Return the command line: the arguments of `main` but for the session."""
    parser = argparse.ArgumentParser(description="Ranks pages by their views in windows of five minutes.")
    for name in ("bootstrap", "source", "target", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--continuous", action="store_true", help="wait for new records until stopped")
    return parser


if __name__ == "__main__":
    main(local_session(app_name="top-pages"), **vars(arguments().parse_args()))
