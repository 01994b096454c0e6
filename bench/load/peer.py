"""The driver of Spark's own Kafka source: a program of the environment with PySpark 4.0, see drivers.py.

Writes what our load writes: key, offset, partition, timestamp, headers, and the value or its fields; compressed with
snappy. Folders by hour are left out, which spares Spark work.
"""

import json
import sys
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro


def main() -> None:
    asked = json.loads(sys.argv[1])
    builder: Any = SparkSession.builder
    spark = (
        builder.master("local[2]")
        .config("spark.jars", asked["jars"])
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.range(2).count()
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    options = {"kafka.bootstrap.servers": asked["bootstrap"], "subscribe": asked["topic"], "includeHeaders": "true"}
    options |= {"startingOffsets": "earliest", "minPartitions": "4"}
    rows = spark.read.format("kafka").options(**options).load()
    record = ["key", "offset", "partition", "timestamp", "headers"]
    if asked["schema"] and asked["format"] == "parquet":
        rows = rows.select(*record, from_avro(f.expr("substring(value, 6)"), asked["schema"]).alias("v"))
        rows = rows.select(*record, "v.*")
    elif asked["schema"]:
        rows = rows.select(*record, from_avro(f.expr("substring(value, 6)"), asked["schema"]).alias("value"))
    else:
        rows = rows.select(*record, "value")
    rows.write.format(asked["format"]).option("compression", "snappy").save(asked["directory"])
    seconds = time.perf_counter() - started
    count = spark.read.format(asked["format"]).load(asked["directory"]).count()
    print(json.dumps({"seconds": seconds, "records": count}), flush=True)
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main()
