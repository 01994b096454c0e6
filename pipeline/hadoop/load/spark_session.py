"""A Spark session on this machine, with the options that small jobs need."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG_SETTINGS = Path(__file__).with_name("log4j2.xml")
_SHORT_JOB: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""A JVM that lives for seconds spends most of them on its optimising compiler and on garbage collector threads."""


def local_session(
    *,
    cores: int = 2,
    memory: str = "1g",
    app_name: str = "pipeline-load",
    with_source: bool = True,
    is_short: bool = False,
) -> "SparkSession":
    """Return a Spark session on this machine: no web page, only errors on stderr, each task tried up to three times.

    with_source: registers the data source `pipeline`, which starts Spark SQL.
    is_short: tunes the JVM for a job of seconds, or for one whose rows do not pass through it.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    session: SparkSession = (
        builder.master(f"local[{cores},3]")
        .appName(app_name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", memory)
        .config(
            "spark.driver.extraJavaOptions",
            f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} {_SHORT_JOB if is_short else ''}".strip(),
        )
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        # Spark's defaults are for clusters: 200 shuffle partitions, a job to list more than 32 paths, and a file
        # opened counts as much as four megabytes read.
        .config("spark.sql.shuffle.partitions", str(2 * cores))
        .config("spark.sql.sources.parallelPartitionDiscovery.threshold", "100000")
        .config("spark.sql.files.openCostInBytes", "65536")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "32768")
        .getOrCreate()
    )
    if with_source:
        from pipeline.hadoop.source import PipelineDataSource

        session.dataSource.register(PipelineDataSource)
    return session
