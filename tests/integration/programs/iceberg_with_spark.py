"""Statements about Iceberg tables by a Spark that has Iceberg's runtime.

    python iceberg_with_spark.py JARS CATALOGS STATEMENTS

JARS is a class path.
CATALOGS is a JSON object of the properties of catalogs by name. STATEMENTS is a JSON list of pairs: a file, and the
query whose rows go there as Parquet, or null and a statement without rows of interest.
"""

import json
import sys
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession


def main(jars: str, catalogs: str, statements: str) -> None:
    builder: Any = SparkSession.builder
    builder = (
        builder.master("local[2]")
        .config("spark.driver.extraClassPath", jars)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, properties in json.loads(catalogs).items():
        builder = builder.config(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
        for key, value in properties.items():
            builder = builder.config(f"spark.sql.catalog.{name}.{key}", value)
    spark = builder.getOrCreate()
    for path, statement in json.loads(statements):
        rows = spark.sql(statement)
        if path is None:
            rows.collect()
        else:
            pq.write_table(rows.toArrow(), path)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
