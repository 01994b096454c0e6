"""`pipeline load run`: load the new records of topics, once or again and again."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.foreground import http_url
from pipeline.cli.load.complete import (
    DEFAULT_GRACE_S,
    Grace,
    HourRow,
    Marking,
    Without,
    are_complete,
    documents,
    hours_of,
)
from pipeline.cli.load.interruption import with_spark
from pipeline.cli.load.report import report_counts
from pipeline.cli.load.settings import loads_config, log_in_by_keytab, parse_interval, spark_settings
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, wall_clock
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, PipelineError

if TYPE_CHECKING:
    from pipeline.hadoop.load.config import LoadsConfig
    from pipeline.hadoop.load.many import TopicResult
    from pipeline.hadoop.load.spark_session import SparkSettings

logger = get_logger(__name__)

COLUMNS = ("topic", "commit", "records", "quarantined", "lost", "files", "seconds", "error")


Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's cluster manager; default: local[2].")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Setting of Spark; may be repeated.")
]
Topics = Annotated[
    str | None, typer.Option("--topics", metavar="REGEX", help="Load all topics whose whole name matches.")
]
Root = Annotated[
    str | None, typer.Option("--root", metavar="URL", help="Directory to load into, e.g. hdfs://nn:8020/lake")
]
Interval = Annotated[
    float | None,
    typer.Option("--interval", metavar="60s", parser=parse_interval, help="Load again and again, in one process."),
]
Listen = Annotated[
    str | None,
    typer.Option("--http-listen", metavar="HOST:PORT", help="Serve /metrics and /healthz; with --interval."),
]
MetricsFile = Annotated[
    Path | None,
    typer.Option(
        "--metrics-file", metavar="FILE.prom", help="Add the results to this file of metrics; without --interval."
    ),
]
Complete = Annotated[
    bool,
    typer.Option(
        "--complete", help="Then mark complete hours, as `load complete` does; needs --audit and --datacenter."
    ),
]
Audit = Annotated[
    str | None,
    typer.Option("--audit", metavar="URL", parser=http_url, help="HTTP address of the audit; with --complete."),
]


def run(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.toml", help="Settings file, see docs/load/jobs.md.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Topic to load.")] = None,
    topics: Topics = None,
    root: Root = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT,...", help="Brokers of the cluster.")
    ] = None,
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="Schema registry of Avro values.")
    ] = None,
    file_format: Annotated[str | None, typer.Option("--format", help="File format: parquet or avro.")] = None,
    table: Annotated[str | None, typer.Option("--table", help="Place of commits: manifest or iceberg.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of docs/load/settings.md; may be repeated."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    interval: Interval = None,
    http_listen: Listen = None,
    metrics_file: MetricsFile = None,
    datacenter: Annotated[
        str | None, typer.Option(help="Report counts to the audit under this datacenter's name.")
    ] = None,
    complete: Complete = False,
    audit: Audit = None,
    grace: Grace = DEFAULT_GRACE_S,
    without: Without = None,
    json: Json = False,
) -> None:
    """Load the new records of a topic or of many, and commit each topic's data and offsets in one step.

    Of two runs at the same time one commits, and the other exits with 3 and changes nothing. Of many topics one that
    fails stops no other: the exit code is the worst. With --complete it is 4 if no topic failed, but hours that are
    over have no valid marker.
    """
    options = {
        "topic": topic,
        "topics.include": topics,
        "root": root,
        "bootstrap.servers": bootstrap,
        "schema.registry.url": registry,
        "format": file_format,
        "table": table,
    }
    loads = loads_config(config, options, assignments or [])
    _check_combination(loads, as_json=json and interval is not None, complete=complete)
    marking = _marking(audit, datacenter, grace, without, is_wanted=complete)
    spark = spark_settings(master, conf or [], log_in_by_keytab(*loads.kerberos))
    if interval is not None:
        if metrics_file is not None:
            raise ConfigurationError("--metrics-file", "is for single runs: a resident load has --http-listen")
        from pipeline.cli.load.resident import run_resident

        run_resident(loads, spark, interval_s=interval, http_listen=http_listen, datacenter=datacenter, marking=marking)
    if http_listen is not None:
        raise ConfigurationError("--http-listen", "needs --interval: a single run has --metrics-file")
    results = _load_and_note(loads, spark, datacenter, metrics_file)
    _show(loads, results, marking, as_json=json)


def _show(loads: "LoadsConfig", results: "list[TopicResult]", marking: Marking | None, *, as_json: bool) -> None:
    """Mark hours and show all. Raises what kept the markers away last: the loads stand without them."""
    hours: Mapping[str, Sequence[HourRow]] = {}
    trouble: PipelineError | None = None
    if marking is not None:
        try:
            hours = hours_of(loads, results, marking)
        except PipelineError as error:
            trouble = error
    if "topic" in loads.common:
        _show_topic(results[0], hours, as_json=as_json)
    else:
        _show_all(loads, results, hours, as_json=as_json)
    if trouble is not None:
        raise trouble
    if hours and not all(map(are_complete, hours.values())):
        raise typer.Exit(output.EXIT_NOT_EXACT)


def _check_combination(loads: "LoadsConfig", *, as_json: bool, complete: bool) -> None:
    """Raise ConfigurationError for results of a resident load, and for markers of hours of an Iceberg table."""
    if as_json:
        raise ConfigurationError("--json", "a resident load prints no results, its log is JSON")
    if complete and any(given.get("table") == "iceberg" for given in (loads.common, *loads.by_topic.values())):
        raise ConfigurationError("--complete", "marks hours of manifests; a load with table=iceberg has none")


def _marking(
    audit: str | None, datacenter: str | None, grace_s: float, without: list[str] | None, *, is_wanted: bool
) -> Marking | None:
    if not is_wanted:
        if audit is not None or grace_s != DEFAULT_GRACE_S or without:
            raise ConfigurationError("--audit, --grace and --without", "need --complete")
        return None
    if audit is None or datacenter is None:
        raise ConfigurationError("--complete", "needs --audit, which is asked, and --datacenter, which reports to it")
    return Marking(url=audit, grace_s=grace_s, without=without or ())


def _load_and_note(
    loads: "LoadsConfig", spark: "SparkSettings", datacenter: str | None, metrics_file: Path | None
) -> "list[TopicResult]":
    """Load, and write the results, or that there are none, to the file of metrics if there is one."""
    if metrics_file is None:
        return _load(loads, spark, datacenter)
    from pipeline.hadoop.load.metrics import write_metrics

    try:
        results = _load(loads, spark, datacenter)
    except Exception:
        try:
            write_metrics(metrics_file, None, wall_clock())
        except PipelineError as trouble:
            logger.warning("metrics_not_written", reason=str(trouble))  # the load's own error is what counts
        raise
    write_metrics(metrics_file, results, wall_clock())
    return results


def _load(loads: "LoadsConfig", spark: "SparkSettings", datacenter: str | None) -> "list[TopicResult]":
    from pipeline.hadoop.load.many import run_loads
    from pipeline.hadoop.load.spark_session import SparkApplication

    output.configure_logging("warning")
    results = with_spark(
        SparkApplication(spark),
        lambda application: run_loads(application.without_sql, loads, clock=wall_clock),
        f"Loading {loads.selection.include or ', '.join(sorted(loads.named))}",
    )
    if datacenter is not None:
        trio.run(partial(report_counts, loads, results, datacenter))
    return results


def _show_topic(outcome: "TopicResult", hours: Mapping[str, Sequence[HourRow]], *, as_json: bool) -> None:
    """Show the result of a topic that was named alone, or end the command with its error."""
    if outcome.is_conflict:
        output.exit_with(str(outcome.error), output.EXIT_CONFLICT)
    if outcome.error is not None:
        raise outcome.error
    shown = _document(outcome, hours)
    if as_json:
        output.print_json(shown)
    elif shown["committed"]:
        aside = f", {shown['quarantined']} set aside" if shown["quarantined"] else ""
        records, files = output.counted(shown["records"], "record"), output.counted(shown["files"], "file")
        output.say(f"{outcome.topic}: commit {shown['commit']}: {records} in {files}{aside}.")
    else:
        output.say(f"{outcome.topic}: nothing new.")
    if not as_json:
        _show_hours(hours)


def _show_hours(hours: Mapping[str, Sequence[HourRow]]) -> None:
    """Show how many hours of each topic are complete, and why others are not."""
    for topic, rows in hours.items():
        left = [row for row in rows if row.generation is None]
        output.say(f"{topic}: {len(rows) - len(left)} of {output.counted(len(rows), 'hour')} complete.")
        for row in left:
            output.say(f"  {row.hour}: {row.why}")


def _show_all(
    loads: "LoadsConfig",
    results: "list[TopicResult]",
    hours: Mapping[str, Sequence[HourRow]],
    *,
    as_json: bool,
) -> None:
    """Show a line for each topic, and exit with the worst code."""
    from pipeline.hadoop.load.many import worst_of

    if as_json:
        output.print_json({"topics": [_document(result, hours) for result in results]})
    elif results:
        rows = [[_document(result, hours)[name] for name in COLUMNS] for result in results]
        output.say(output.table([name.upper() for name in COLUMNS], rows))
    else:
        output.say(f"No topic matches {loads.selection.include}.")
    if not as_json:
        _show_hours(hours)
    worst = worst_of(results)
    if worst is not None:
        raise typer.Exit(output.EXIT_FAILED if worst is PipelineError else output.EXIT_CONFLICT)


def _document(outcome: "TopicResult", hours: Mapping[str, Sequence[HourRow]]) -> dict[str, Any]:
    result = outcome.result
    manifest = None if result is None else result.manifest
    return {
        "topic": outcome.topic,
        "committed": result is not None and result.committed,
        "commit": None if manifest is None else manifest.sequence,
        "records": 0 if result is None else result.records,
        "quarantined": 0 if result is None else result.quarantined,
        "lost": 0 if result is None else result.lost,
        "files": 0 if result is None else result.files,
        "seconds": round(outcome.seconds, 1),
        "error": None if outcome.error is None else str(outcome.error),
    } | ({"hours": documents(hours[outcome.topic])} if outcome.topic in hours else {})
