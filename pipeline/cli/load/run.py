"""`pipeline load run`: load the new records of a topic."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import trio
import typer

from pipeline.cli.load.interruption import with_spark
from pipeline.cli.load.report import report_counts
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, wall_clock
from pipeline.cli.terminal.settings import Settings, parse_assignments, read_settings

if TYPE_CHECKING:
    from pipeline.hadoop.load.config import LoadConfig
    from pipeline.hadoop.load.job import LoadResult


def run(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.toml", help="Settings file, see docs/load.md.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Topic to load.")] = None,
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
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of docs/load.md; may be repeated.")
    ] = None,
    datacenter: Annotated[
        str | None, typer.Option(help="Report counts to the audit under this datacenter's name.")
    ] = None,
    json: Json = False,
) -> None:
    """Load the new records of a topic, and commit data and offsets in one step.

    Of two runs at the same time one commits, and the other exits with 3 and changes nothing.
    """
    from pipeline.hadoop.commit.publication import CommitConflictError
    from pipeline.hadoop.load.config import LoadConfig

    given = {
        "topic": topic,
        "root": root,
        "bootstrap.servers": bootstrap,
        "schema.registry.url": registry,
        "format": file_format,
    }
    settings: Settings = {} if config is None else read_settings(config)
    settings |= {name: value for name, value in given.items() if value is not None}
    settings |= parse_assignments(assignments or [])
    output.configure_logging("warning")
    load_config = LoadConfig.from_settings(settings)
    try:
        result = _load(load_config)
    except CommitConflictError as error:
        output.exit_with(str(error), output.EXIT_CONFLICT)
    if datacenter is not None:
        trio.run(report_counts, load_config, datacenter)
    _show(load_config, result, as_json=json)


def _load(config: "LoadConfig") -> "LoadResult":
    from pipeline.hadoop.load.job import NOTHING_NEW, prepare_load
    from pipeline.hadoop.load.spark_session import SparkApplication, SparkSettings

    def load(spark: SparkApplication) -> "LoadResult":
        prepared = prepare_load(config, clock=wall_clock)
        return NOTHING_NEW if prepared is None else prepared.run(spark.session())

    return with_spark(SparkApplication(SparkSettings(is_short=True)), load, f"Loading {config.topic}")


def _show(config: "LoadConfig", result: "LoadResult", *, as_json: bool) -> None:
    sequence = None if result.manifest is None else result.manifest.sequence
    if as_json:
        document = {
            "topic": config.topic,
            "committed": result.committed,
            "commit": sequence,
            "records": result.records,
            "quarantined": result.quarantined,
            "files": result.files,
        }
        output.print_json(document)
    elif result.committed:
        aside = f", {result.quarantined} set aside" if result.quarantined else ""
        records, files = output.counted(result.records, "record"), output.counted(result.files, "file")
        output.say(f"{config.topic}: commit {sequence}: {records} in {files}{aside}.")
    else:
        output.say(f"{config.topic}: nothing new.")
