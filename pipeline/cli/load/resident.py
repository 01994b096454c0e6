"""`pipeline load run --interval`: a resident process that loads again and again."""

import logging
import os
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import trio

from pipeline.cli.foreground import log_stopped, run_until_signalled, service_metrics
from pipeline.cli.load.complete import Marking, hours_of
from pipeline.cli.load.report import report_counts
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import wall_clock
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.net.nurseries import unwrapped_errors
from pipeline.settings import parse_address
from pipeline.version import describe_build

if TYPE_CHECKING:
    from pipeline.hadoop.load.config import LoadsConfig
    from pipeline.hadoop.load.many import TopicResult
    from pipeline.hadoop.load.spark_session import SparkSettings
    from pipeline.model import HostPort

logger = get_logger(__name__)

ABANDONED_ROUND_S = 3.0
"""Time in which an abandoned round may delete the files that it wrote."""


def run_resident(
    loads: "LoadsConfig",
    spark: "SparkSettings",
    *,
    interval_s: float,
    http_listen: str | None,
    datacenter: str | None,
    marking: Marking | None,
) -> NoReturn:
    """Load every `interval_s` seconds until a signal arrives, with one Spark application; then exit with 0."""
    from pipeline.hadoop.load.many import run_loads
    from pipeline.hadoop.load.resident import ResidentLoad
    from pipeline.hadoop.load.spark_session import SparkApplication

    address = _address(http_listen)
    output.configure_logging()
    begun_s = time.monotonic()
    logger.info("starting", **describe_build(), pid=os.getpid(), interval_s=interval_s)
    application = SparkApplication(spark)
    round_ended = threading.Event()
    round_ended.set()

    def load() -> "list[TopicResult]":
        round_ended.clear()
        try:
            results = run_loads(application.without_sql, loads, clock=wall_clock)
            if datacenter is not None:
                trio.run(partial(report_counts, loads, results, datacenter))
            if marking is not None:
                _mark(loads, results, marking)
            return results
        finally:
            round_ended.set()

    resident = ResidentLoad(load, metrics=service_metrics(), clock=wall_clock)
    try:
        with unwrapped_errors():
            run = partial(resident.run, interval_s=interval_s, http_listen=address, http=loads.http)
            reason = trio.run(run_until_signalled, run)
    finally:
        logging.disable(logging.CRITICAL)  # py4j complains of the end of its JVM
        application.kill()
    round_ended.wait(ABANDONED_ROUND_S)
    log_stopped(reason, begun_s)
    sys.stderr.flush()
    os._exit(0)  # threads of an abandoned round may wait for brokers yet


def _mark(loads: "LoadsConfig", results: "list[TopicResult]", marking: Marking) -> None:
    """Mark complete hours, and log how many are. What keeps the markers away does not make the loads fail.

    The audit is asked once: it knows the counts of this round in one of the next.
    """
    try:
        for topic, rows in hours_of(loads, results, marking, wait_s=0).items():
            left = [row for row in rows if row.generation is None]
            reason = f"{left[0].hour}: {left[0].why}" if left else None
            logger.info("hours_marked", topic=topic, complete=len(rows) - len(left), left=len(left), reason=reason)
    except PipelineError as error:
        logger.warning("hours_not_marked", reason=str(error))


def _address(text: str | None) -> "HostPort | None":
    if text is None:
        return None
    try:
        return parse_address(text)
    except ValueError as error:
        raise ConfigurationError("--http-listen", str(error)) from error
