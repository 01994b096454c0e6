"""Reads and writes a topic over SASL_SSL in each way, and keeps everything that Spark shows: plans, pages, event logs.

    python secured_spark.py BOOTSTRAP AUTHORITY DIRECTORY

The password is in the environment variable ALICES_PASSWORD. Prints a line of JSON with the number of rows of each way.
"""

import contextlib
import io
import json
import sys
import urllib.request
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.hadoop.source import PipelineDataSource

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def main(bootstrap: str, authority: str, directory: str) -> None:
    shown = Path(directory, "shown")
    shown.mkdir()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.port", "0")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", shown.as_uri())
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.dataSource.register(PipelineDataSource)
    java = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{MODULE} required username="alice" password="${{env:ALICES_PASSWORD}}";',
        "kafka.ssl.truststore.location": authority,
    }
    ours = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": "${env:ALICES_PASSWORD}",
        "kafka.ssl.ca.location": authority,
    }
    rows: dict[str, int] = {}
    plans = io.StringIO()
    with contextlib.redirect_stdout(plans):
        read = spark.read.format("pipeline").options(**java, subscribe="clicks").load()
        for mode in ("simple", "extended", "cost", "formatted", "codegen"):
            read.explain(mode=mode)
        rows["batch"] = read.count()
        read.select("key", "value").write.format("pipeline").mode("append").options(**ours, topic="copy").save()
        stream = spark.readStream.format("pipeline").options(**ours, subscribe="clicks").load()
        stream.explain(extended=True)
        query = (
            stream.select("key", "value")
            .writeStream.format("pipeline")
            .options(**java, topic="copy", checkpointLocation=f"{shown}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        query.explain(extended=True)
        rows["copied"] = spark.read.format("pipeline").options(**ours, subscribe="copy").load().count()
        for name, wrong in (
            ("literal", {**ours, "kafka.sasl.password": "in-clear-text"}),
            ("user", {**ours, "kafka.sasl.username": "mallory", "kafka.default.api.timeout.ms": "2000"}),
        ):
            try:
                spark.read.format("pipeline").options(**wrong, subscribe="clicks").load().count()
            except (PySparkException, Py4JError) as error:
                print(f"--- {name}: {error}")
    (shown / "plans.txt").write_text(plans.getvalue())
    pages = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
    for number, address in enumerate(
        (
            f"{pages}/sql?details=true&planDescription=true&length=100",
            f"{pages}/environment",
            f"{pages}/jobs",
            f"{pages}/stages?details=true",
            f"{spark.sparkContext.uiWebUrl}/StreamingQuery/",
            f"{spark.sparkContext.uiWebUrl}/environment/",
        )
    ):
        with urllib.request.urlopen(address, timeout=60) as page:
            (shown / f"page-{number}").write_bytes(page.read())
    spark.stop()
    print(json.dumps(rows), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
