"""Copies a topic by two Spark streams, into a topic and into files, until a file `stop` is in DIRECTORY.

    python attacked_streams.py BOOTSTRAP SOURCE COPY DIRECTORY

A query that fails is started again, and its error goes to stderr. Once `stop` is there, the queries take the rest and
end.
"""

import sys
import time
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipeline.hadoop.load.spark_session import local_session


def main(bootstrap: str, source: str, copy: str, directory: str) -> None:
    spark = local_session(is_short=True)
    brokers = {"kafka.bootstrap.servers": bootstrap}

    def started(kind: str, **trigger: Any) -> Any:
        rows = spark.readStream.format("pipeline").options(**brokers, subscribe=source, maxOffsetsPerTrigger="300")
        written = rows.load().select("key", "value").writeStream.trigger(**trigger)
        written = written.option("checkpointLocation", f"{directory}/{kind}-checkpoint")
        if kind == "files":
            return written.format("parquet").option("path", f"{directory}/files").start()
        return written.format("pipeline").options(**brokers, topic=copy).option("kafka.batch.size", "2048").start()

    queries: dict[str, Any] = dict.fromkeys(("files", "topic"))
    while not Path(directory, "stop").exists():
        for kind, query in queries.items():
            if query is not None and not query.isActive:
                print(f"{kind} failed: {str(query.exception())[:500]}", file=sys.stderr, flush=True)
            if query is None or not query.isActive:
                try:
                    queries[kind] = started(kind, processingTime="0 seconds")
                except (PySparkException, Py4JError) as error:  # the process that looks at the options was killed
                    print(f"{kind} not started: {str(error)[:500]}", file=sys.stderr, flush=True)
        time.sleep(0.2)
    for kind, query in queries.items():
        if query is not None:
            query.stop()
        started(kind, availableNow=True).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
