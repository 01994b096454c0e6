"""`pipeline load`: load a topic into a Hadoop file system with Spark, and query the committed data."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, randomness, wall_clock
from pipeline.cli.terminal.settings import Settings, parse_assignments, read_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.hadoop.commit.manifest import Manifest
    from pipeline.hadoop.load.job import LoadConfig, LoadResult

app = typer.Typer(no_args_is_help=True, help="Load a topic into a Hadoop file system with Spark.")

REPORTED_COMMITS = 10
"""Commits whose counts each run reports to the audit again: an earlier run may have died before its report."""

SHORT_QUERY_BYTES = 256 * 1024 * 1024
"""Bytes of files below which a query ends before an optimising compiler would pay off."""

Root = Annotated[
    str, typer.Option("--root", metavar="URL", help="Directory of the loaded data, e.g. hdfs://nn:8020/lake")
]
Topic = Annotated[str, typer.Option("--topic", help="The topic's name.")]


@app.command()
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
    from pipeline.hadoop.load.job import LoadConfig

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
        trio.run(_report, load_config, datacenter)
    _show(load_config, result, as_json=json)


def _load(config: "LoadConfig") -> "LoadResult":
    from pipeline.hadoop.load.job import NOTHING_NEW, prepare_load
    from pipeline.hadoop.load.spark_session import local_session

    with output.progress(f"Loading {config.topic}", total=None):
        prepared = prepare_load(config, clock=wall_clock)
        if prepared is None:
            return NOTHING_NEW
        spark = local_session(with_source=False, is_short=True)
        try:
            return prepared.run(spark)
        finally:
            spark.stop()


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


async def _report(config: "LoadConfig", datacenter: str) -> None:
    """Report the committed counts to the audit. A repeated report changes nothing."""
    from pipeline.audit.publisher import publish_load
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig
    from pipeline.hadoop.commit.manifest import committed_counts, committed_offsets
    from pipeline.hadoop.commit.publication import read_manifests
    from pipeline.model import TopicPartition
    from pipeline.records.tally import Counts

    manifests = read_manifests(config.root, config.topic)
    recent = {key for manifest in manifests[-REPORTED_COMMITS:] for key in manifest.counts}
    counts: dict[TopicPartition, dict[int, Counts]] = {}
    for key, committed in committed_counts(manifests).items():
        if key in recent:
            partition, start = key
            counts.setdefault(TopicPartition(config.topic, partition), {})[start] = committed
    async with open_cluster(ClientConfig(bootstrap=config.bootstrap, client_id="pipeline-load")) as cluster:
        await publish_load(
            cluster,
            datacenter,
            counts,
            up_to={TopicPartition(config.topic, p): o for p, o in committed_offsets(manifests).items()},
            window_ms=config.window_ms,
            clock=wall_clock,
            rng=randomness(),
        )


def _committed(topic: str, root: str) -> "list[Manifest]":
    """Return the commits of a topic. Raises typer.Exit if there is none."""
    from pipeline.hadoop.commit.publication import read_manifests

    manifests = read_manifests(root, topic)
    if not manifests:
        output.exit_with(f"{topic} has no commits below {root}")
    return manifests


@app.command()
def status(topic: Topic, root: Root, json: Json = False) -> None:
    """Show the commits of a topic."""
    manifests = _committed(topic, root)
    rows: list[list[Any]] = [
        [
            m.sequence,
            output.utc_time(m.created_ms),
            m.records,
            len(m.files),
            {str(r.partition): [r.start, r.end] for r in m.ranges},
        ]
        for m in manifests
    ]
    if json:
        names = ("commit", "time", "records", "files", "offsets")
        output.print_json({"topic": topic, "commits": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    for row, manifest in zip(rows, manifests, strict=True):
        row[-1] = " ".join(f"{r.partition}:{r.start}-{r.end}" for r in manifest.ranges)
    output.say(output.table(["COMMIT", "TIME", "RECORDS", "FILES", "OFFSETS"], rows))


@app.command("files")
def files_(topic: Topic, root: Root, json: Json = False) -> None:
    """Print the path of each committed file; other files are not part of the data."""
    from pipeline.hadoop.commit.manifest import committed_files
    from pipeline.hadoop.commit.publication import file_url

    paths = [file_url(root, topic, file) for file in committed_files(_committed(topic, root))]
    if json:
        output.print_json({"topic": topic, "files": paths})
    else:
        for path in paths:
            output.say(path)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="Spark SQL; the table has the topic's name.")],
    topic: Topic,
    root: Root,
    json: Json = False,
) -> None:
    """Query the committed data of a topic that was loaded as Parquet."""
    from pipeline.hadoop.commit.manifest import committed_files
    from pipeline.hadoop.commit.publication import file_url
    from pipeline.hadoop.load.spark_session import local_session

    files = list(committed_files(_committed(topic, root)))
    if not files:
        output.exit_with(f"{topic}: the commits below {root} hold no data files")
    if not files[0].path.endswith(".parquet"):
        output.exit_with(f"{topic} is loaded as Avro; this command reads Parquet")
    is_short = sum(file.bytes for file in files) < SHORT_QUERY_BYTES
    with output.progress("Asking Spark", total=None):
        spark = local_session(app_name="pipeline-sql", with_source=False, is_short=is_short)
        try:
            columns, rows = answer(spark, query, topic, [file_url(root, topic, file) for file in files])
        finally:
            spark.stop()
    if json:
        output.print_json({"columns": columns, "rows": rows})
    else:
        output.say(_fitted(output.table(columns, rows)))


def answer(spark: "SparkSession", query: str, topic: str, urls: list[str]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of a query. Raises typer.Exit if Spark refuses the query."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # Spark logs each error as JSON besides raising it.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        spark.read.option("mergeSchema", "true").parquet(*urls).createOrReplaceTempView(f"`{topic}`")
        frame = spark.sql(query)
        rows = [[v if isinstance(v, int | float | str | None) else str(v) for v in row] for row in frame.collect()]
    except PySparkException as error:
        output.exit_with(_first_sentence(str(error)))
    return frame.columns, rows


def _first_sentence(text: str) -> str:
    """Return the first sentence of a message, without the states, plans and traces after it."""
    return text.strip().split("\n", 1)[0].split(" SQLSTATE:", 1)[0]


def _fitted(text: str) -> str:
    """Cut lines to the width of the terminal."""
    width = shutil.get_terminal_size((200, 24)).columns
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in text.splitlines())
