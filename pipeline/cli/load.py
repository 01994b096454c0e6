"""`pipeline load`: bring a topic into a Hadoop file system with Spark, and look at what was committed."""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, randomness, wall_clock
from pipeline.cli.terminal.settings import Settings, parse_assignments, read_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.hadoop.load import LoadConfig, LoadResult
    from pipeline.hadoop.manifest import Manifest

app = typer.Typer(no_args_is_help=True, help="Load a topic into a Hadoop file system with Spark.")

REPORTED_COMMITS = 10
"""Counts of so many commits are told to the audit again by each run, in case earlier runs died before telling them."""

SHORT_QUERY_BYTES = 256 * 1024 * 1024
"""Below so many bytes of files a query is over before an optimising compiler has paid for itself."""

Root = Annotated[str, typer.Option("--root", metavar="URL", help="hdfs://name-node:8020/data or file:///data.")]
Topic = Annotated[str, typer.Option("--topic", help="The topic.")]


@app.command()
def run(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.toml", help="Settings; see docs/load.md for their names.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Setting topic.")] = None,
    root: Annotated[str | None, typer.Option("--root", metavar="URL", help="Setting root.")] = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT,...", help="Setting bootstrap.servers.")
    ] = None,
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="Setting schema.registry.url.")
    ] = None,
    file_format: Annotated[str | None, typer.Option("--format", help="Setting format: parquet or avro.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting; may be repeated.")
    ] = None,
    datacenter: Annotated[
        str | None, typer.Option(help="Tell the audit what was loaded from this datacenter's cluster.")
    ] = None,
    json: Json = False,
) -> None:
    """Load what is new in a topic since the last run, and commit data and offsets in one step.

    Two runs at once: one commits, the other ends with exit code 3 and has changed nothing.
    """
    from pipeline.hadoop.commit import CommitConflictError
    from pipeline.hadoop.load import LoadConfig

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
        output.fail(str(error), output.EXIT_CONFLICT)
    if datacenter is not None:
        trio.run(_report, load_config, datacenter)
    _show(load_config, result, as_json=json)


def _load(config: "LoadConfig") -> "LoadResult":
    from pipeline.hadoop.load import NOTHING_NEW, prepare_load
    from pipeline.hadoop.spark_session import local_session

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
        output.say(f"{config.topic}: commit {sequence}: {result.records} records in {result.files} files{aside}.")
    else:
        output.say(f"{config.topic}: nothing new.")


async def _report(config: "LoadConfig", datacenter: str) -> None:
    """Tell the audit what is committed. Repeating it changes nothing."""
    from pipeline.audit.publisher import publish_load
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig
    from pipeline.hadoop.commit import read_manifests
    from pipeline.hadoop.manifest import committed_counts, committed_offsets
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
    """The commits of a topic. Raises typer.Exit where there is none."""
    from pipeline.hadoop.commit import read_manifests

    manifests = read_manifests(root, topic)
    if not manifests:
        output.fail(f"{topic}: nothing is committed below {root}")
    return manifests


@app.command()
def status(topic: Topic, root: Root, json: Json = False) -> None:
    """Show the commits of a topic."""
    manifests = _committed(topic, root)
    rows: list[list[Any]] = [
        [
            m.sequence,
            datetime.fromtimestamp(m.created_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
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
    """Print the path of each committed file; files not listed here are not part of the data."""
    from pipeline.hadoop.commit import file_url
    from pipeline.hadoop.manifest import committed_files

    paths = [file_url(root, topic, file) for file in committed_files(_committed(topic, root))]
    if json:
        output.print_json({"topic": topic, "files": paths})
    else:
        for path in paths:
            output.say(path)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="Spark SQL; the topic is a table of its own name.")],
    topic: Topic,
    root: Root,
    json: Json = False,
) -> None:
    """Query the committed data of a topic that was loaded as Parquet."""
    from pipeline.hadoop.commit import file_url
    from pipeline.hadoop.manifest import committed_files
    from pipeline.hadoop.spark_session import local_session

    files = list(committed_files(_committed(topic, root)))
    if not files:
        output.fail(f"{topic}: the commits below {root} hold no data files")
    if not files[0].path.endswith(".parquet"):
        output.fail(f"{topic}: is loaded as Avro; this command reads Parquet")
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
    """Columns and rows of a query. Raises typer.Exit where Spark refuses it."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # Spark logs the whole of each error as JSON, beside raising it.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        spark.read.option("mergeSchema", "true").parquet(*urls).createOrReplaceTempView(f"`{topic}`")
        frame = spark.sql(query)
        rows = [[v if isinstance(v, int | float | str | None) else str(v) for v in row] for row in frame.collect()]
    except PySparkException as error:
        output.fail(_first_sentence(str(error)))
    return frame.columns, rows


def _first_sentence(text: str) -> str:
    """What is wrong, of a message that goes on with states, plans and traces."""
    return text.strip().split("\n", 1)[0].split(" SQLSTATE:", 1)[0]


def _fitted(text: str) -> str:
    """Lines no wider than the terminal."""
    width = shutil.get_terminal_size((200, 24)).columns
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in text.splitlines())
