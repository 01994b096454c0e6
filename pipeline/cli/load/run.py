"""`pipeline load run`: load the new records of topics, once or again and again."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.load.interruption import with_spark
from pipeline.cli.load.report import report_counts
from pipeline.cli.load.settings import loads_config, parse_interval, spark_settings
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, wall_clock
from pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from pipeline.hadoop.load.config import LoadsConfig
    from pipeline.hadoop.load.many import TopicResult
    from pipeline.hadoop.load.spark_session import SparkSettings

COLUMNS = ("topic", "commit", "records", "quarantined", "lost", "files", "seconds", "error")


Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's cluster manager; default: local[2].")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Setting of Spark; may be repeated.")
]


def run(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.toml", help="Settings file, see docs/load/jobs.md.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Topic to load.")] = None,
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="REGEX", help="Load all topics whose whole name matches.")
    ] = None,
    root: Annotated[
        str | None, typer.Option("--root", metavar="URL", help="Directory to load into, e.g. hdfs://nn:8020/lake")
    ] = None,
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
    interval: Annotated[
        float | None,
        typer.Option("--interval", metavar="60s", parser=parse_interval, help="Load again and again, in one process."),
    ] = None,
    http_listen: Annotated[
        str | None,
        typer.Option("--http-listen", metavar="HOST:PORT", help="Serve /metrics and /healthz; with --interval."),
    ] = None,
    datacenter: Annotated[
        str | None, typer.Option(help="Report counts to the audit under this datacenter's name.")
    ] = None,
    json: Json = False,
) -> None:
    """Load the new records of a topic or of many, and commit each topic's data and offsets in one step.

    Of two runs at the same time one commits, and the other exits with 3 and changes nothing. Of many topics one that
    fails stops no other: the exit code is the worst.
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
    _check_reports(loads, datacenter, as_json=json and interval is not None)
    spark = spark_settings(master, conf or [])
    if interval is not None:
        from pipeline.cli.load.resident import run_resident

        run_resident(loads, spark, interval_s=interval, http_listen=http_listen, datacenter=datacenter)
    if http_listen is not None:
        raise ConfigurationError("--http-listen", "needs --interval: a single run serves no metrics")
    results = _load(loads, spark, datacenter)
    if "topic" in loads.common:
        _show_topic(results[0], as_json=json)
    else:
        _show_all(loads, results, as_json=json)


def _check_reports(loads: "LoadsConfig", datacenter: str | None, *, as_json: bool) -> None:
    """Raise ConfigurationError for results of a resident load, and for counts of an Iceberg table in the audit."""
    if as_json:
        raise ConfigurationError("--json", "a resident load prints no results, its log is JSON")
    if datacenter is not None and any(
        given.get("table") == "iceberg" for given in (loads.common, *loads.by_topic.values())
    ):
        raise ConfigurationError("--datacenter", "reports the counts of manifests; a load with table=iceberg has none")


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


def _show_topic(outcome: "TopicResult", *, as_json: bool) -> None:
    """Show the result of a topic that was named alone, or end the command with its error."""
    if outcome.is_conflict:
        output.exit_with(str(outcome.error), output.EXIT_CONFLICT)
    if outcome.error is not None:
        raise outcome.error
    shown = _document(outcome)
    if as_json:
        output.print_json(shown)
    elif shown["committed"]:
        aside = f", {shown['quarantined']} set aside" if shown["quarantined"] else ""
        records, files = output.counted(shown["records"], "record"), output.counted(shown["files"], "file")
        output.say(f"{outcome.topic}: commit {shown['commit']}: {records} in {files}{aside}.")
    else:
        output.say(f"{outcome.topic}: nothing new.")


def _show_all(loads: "LoadsConfig", results: "list[TopicResult]", *, as_json: bool) -> None:
    """Show a line for each topic, and exit with the worst code."""
    from pipeline.errors import PipelineError
    from pipeline.hadoop.load.many import worst_of

    if as_json:
        output.print_json({"topics": [_document(result) for result in results]})
    elif results:
        rows = [[_document(result)[name] for name in COLUMNS] for result in results]
        output.say(output.table([name.upper() for name in COLUMNS], rows))
    else:
        output.say(f"No topic matches {loads.selection.include}.")
    worst = worst_of(results)
    if worst is not None:
        raise typer.Exit(output.EXIT_FAILED if worst is PipelineError else output.EXIT_CONFLICT)


def _document(outcome: "TopicResult") -> dict[str, Any]:
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
    }
