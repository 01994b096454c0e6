"""Copies a topic by a Spark stream until all of it is written: BOOTSTRAP SOURCE TARGET CHECKPOINT slow|fast."""

import sys
import time

from pyspark.sql.functions import udf

from pipeline.hadoop.load.spark_session import local_session


def main(bootstrap: str, source: str, target: str, checkpoint: str, speed: str) -> None:
    """Run the query; `slow` takes a second for each 500 rows of a task, so that it can be killed on its way."""
    spark = local_session(is_short=True)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")

    @udf("binary", useArrow=False)
    def paced(value: bytearray) -> bytes:
        if speed == "slow":
            time.sleep(0.002)
        return bytes(value)

    rows = spark.readStream.format("pipeline").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
    written = (
        rows.load()
        .select("key", paced("value").alias("value"))
        .writeStream.format("pipeline")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("kafka.batch.size", "16384")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    written.processAllAvailable()
    written.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:6])
