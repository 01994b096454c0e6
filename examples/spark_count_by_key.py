"""A Spark job that reads brokers directly, through the data source `pipeline`: records and last offset by key.

python examples/spark_count_by_key.py HOST:PORT TOPIC
"""

import sys

from pyspark.sql import functions as f

from pipeline.hadoop.load.spark_session import local_session


def main(bootstrap: str, topic: str) -> None:
    """Print a line for each key: how many records it has, and the last offset."""
    spark = local_session(app_name="count-by-key")
    try:
        records = (
            spark.read.format("pipeline").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
        )
        counts = (
            records.groupBy(f.col("key").cast("string").alias("key"))
            .agg(f.count("*").alias("records"), f.max("offset").alias("last_offset"))
            .orderBy("key")
        )
        for row in counts.collect():
            print(f"{row['key']}: {row['records']} records, the last at offset {row['last_offset']}")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:3])
