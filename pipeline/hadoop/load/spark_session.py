"""Spark sessions with the options that loads need, on this machine or on a cluster."""

import os
import re
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.hadoop.load.class_archive import archive_directory, archive_options
from pipeline.hadoop.load.spark_process import STOP_GRACE_S, SparkProcess, SparkStartError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_LOG_SETTINGS = Path(__file__).with_name("log4j2.xml")
_SHORT_JOB: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""A JVM that lives for seconds spends most of them on its optimising compiler and on garbage collector threads."""
_LOCAL: Final = re.compile(r"local(?:\[([0-9]+|\*)\])?")
TASK_ATTEMPTS: Final = 3
LOCAL_CORES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Settings of a Spark application. `settings` are Spark's own, which win over those of this module.

    master: URL of a cluster manager, or `local[N]` for N cores of this machine.
    is_short: tunes the JVM for a job of seconds, or for one whose rows do not pass through it.
    """

    master: str = f"local[{LOCAL_CORES}]"
    app_name: str = "pipeline-load"
    memory: str = "1g"
    is_short: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def spark_settings(self) -> dict[str, str]:
        """Return all settings by Spark's names: no web page, only errors on stderr, tasks tried up to three times."""
        short = _SHORT_JOB if self.is_short else ""
        archive = archive_options(archive_directory())
        java = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} {short} {archive}".strip()
        chosen = {
            "spark.app.name": self.app_name,
            "spark.ui.enabled": "false",
            "spark.driver.memory": self.memory,
            "spark.driver.extraJavaOptions": java,
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.showConsoleProgress": "false",
            "spark.scheduler.mode": "FAIR",
            "spark.task.maxFailures": str(TASK_ATTEMPTS),
            "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
        }
        local = _LOCAL.fullmatch(self.master)
        if local is not None:
            cores = local[1] or "1"
            chosen |= {
                # The number of attempts, which Spark takes from here alone.
                "spark.master": f"local[{cores},{TASK_ATTEMPTS}]",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                # Spark's defaults are for clusters: 200 shuffle partitions, a job to list more than 32 paths, and a
                # file opened counts as much as four megabytes read.
                "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1 if cores == "*" else int(cores))),
                "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
                "spark.sql.files.openCostInBytes": "65536",
            }
        else:
            chosen["spark.master"] = self.master
        return chosen | dict(self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWithoutSql:
    """A Spark that runs jobs of a load, as a SparkSession does, and starts without Spark SQL."""

    sparkContext: "SparkContext"  # noqa: N815 - Spark's name


class SparkApplication:
    """A Spark application that starts when it is first asked for, and again after its JVM has died.

    Inside `spark-submit` the application is the one that was submitted, with the settings given there.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._process = SparkProcess()
        self._context: SparkContext | None = None
        self._lock = threading.Lock()

    def without_sql(self) -> SparkWithoutSql:
        """Return a Spark for loads. Starting it takes seconds. Raises SparkStartError."""
        with self._lock:
            if self._context is None or not self._is_usable(self._context):
                self._restart()
            assert self._context is not None
            return SparkWithoutSql(sparkContext=self._context)

    def session(self) -> "SparkSession":
        """Return a session. Raises SparkStartError, and Spark's errors."""
        from pyspark.sql import SparkSession

        return SparkSession(self.without_sql().sparkContext)

    def _restart(self) -> None:
        if not is_submitted() and self._context is not None:
            self._process.end(at_once=True)
            self._forget()
            self._process = SparkProcess()
        try:
            self._context = _context({}) if is_submitted() else _connect(self._settings, self._process)
        except SparkStartError:
            raise
        except Exception as error:  # of many kinds: py4j's, Spark's, or of a JVM that died meanwhile
            self._process.end(at_once=True)
            self._forget()
            self._process = SparkProcess()
            raise SparkStartError(f"Spark did not start: {_first_line(error)}") from error

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """Stop the application, and wait for the end of its JVM, which is ended by force after `grace_s`."""
        with self._lock:
            if self._context is not None and (is_submitted() or self._process.is_running):
                with suppress(Exception):  # a JVM that dies meanwhile has stopped, too
                    self._context.stop()
            self._process.end(grace_s=grace_s)
            self._forget()

    def kill(self) -> None:
        """End the JVM at once, from another thread than the one that uses the session, whose calls then fail."""
        context: Any = self._context
        server = getattr(context, "_accumulatorServer", None)  # none while the context stops
        if server is not None and not is_submitted():
            # PySpark's server of accumulators would print a traceback when its connection to the JVM breaks.
            server.handle_error = lambda *_: None
        self._process.end(at_once=True)

    def _is_usable(self, context: Any) -> bool:
        """Return True if JVM and application are alive: a cluster may have ended the application alone."""
        if not is_submitted() and not self._process.is_running:
            return False
        try:
            return not context._jsc.sc().isStopped()
        except Exception:  # of many kinds: py4j's, or that of a context without JVM
            return False

    def _forget(self) -> None:
        """Let PySpark forget its JVM, so that another one can be used."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        self._context = None
        if not is_submitted():
            state: Any = SparkContext
            state._gateway = state._jvm = state._active_spark_context = None
            sessions: Any = SparkSession
            sessions._instantiatedSession = None


def _first_line(error: Exception) -> str:
    try:
        lines = [line.strip(" :") for line in str(error).splitlines()]
    except Exception:  # py4j asks the JVM for the text, which may have died
        lines = []
    # py4j's own first line names its call, the next one Spark's error.
    named = [line for line in lines if line and not line.startswith("An error occurred while calling")]
    return named[0] if named else type(error).__name__


def is_submitted() -> bool:
    """Return True if `spark-submit` runs this program, and has made its JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def local_session(
    *,
    cores: int = LOCAL_CORES,
    memory: str = "1g",
    app_name: str = "pipeline-load",
    with_source: bool = True,
    is_short: bool = False,
) -> "SparkSession":
    """Return a Spark session on this machine, whose JVM PySpark owns.

    with_source: registers the data source `pipeline`, which starts Spark SQL.
    """
    from pyspark.sql import SparkSession

    settings = SparkSettings(master=f"local[{cores}]", app_name=app_name, memory=memory, is_short=is_short)
    session = SparkSession(_context(settings.spark_settings()))
    if with_source:
        from pipeline.hadoop.source import PipelineDataSource

        session.dataSource.register(PipelineDataSource)
    return session


def _connect(settings: SparkSettings, process: SparkProcess) -> "SparkContext":
    chosen = settings.spark_settings()
    # PySpark looks for the JVM in the environment, and only there.
    found = process.start(chosen)
    os.environ.update(found)
    try:
        return _context(chosen)
    finally:
        for name in found:
            del os.environ[name]


def _context(settings: Mapping[str, str]) -> "SparkContext":
    from pyspark import SparkConf, SparkContext

    # PySpark reads the workers' Python from the environment.
    if "spark.pyspark.python" in settings:
        os.environ["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
