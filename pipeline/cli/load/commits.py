"""`pipeline load status` and `files`: the commits of a topic, and their files."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.load.settings import catalog_settings
from pipeline.cli.terminal import output
from pipeline.cli.terminal.client_config import client_security
from pipeline.cli.terminal.connect import Bootstrap, Json, addresses, wall_clock

if TYPE_CHECKING:
    from pipeline.hadoop.commit.manifest import DataFile, Manifest
    from pipeline.hadoop.commit.table_state import TableState
    from pipeline.hadoop.iceberg.history import IcebergHistory
    from pipeline.hadoop.upkeep.lag import TableLag

Root = Annotated[
    str, typer.Option("--root", metavar="URL", help="Directory of the loaded data, e.g. hdfs://nn:8020/lake")
]
Topic = Annotated[str, typer.Option("--topic", help="The topic's name.")]


LoadFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE.toml", help="Settings of the load, see docs/load/settings.md.")
]
CatalogAssignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="iceberg.catalog.* of the load, if it has such settings."),
]


def iceberg_history(topic: str, root: str, catalog: "dict[str, str]") -> "IcebergHistory | None":
    """Return the commits of an Iceberg table, None if the topic has none; its catalog is that of `catalog_settings`.

    Raises typer.Exit if it has no commits, IcebergError, ConfigurationError, and StorageError.
    """
    from pipeline.hadoop.commit.checkpoints import holds_iceberg
    from pipeline.hadoop.commit.layout import topic_layout
    from pipeline.hadoop.files.filesystem import open_filesystem

    files, path = open_filesystem(root)
    if not holds_iceberg(files, topic_layout(path, topic)):
        return None
    from pipeline.hadoop.iceberg.history import read_iceberg_history
    from pipeline.hadoop.iceberg.store import IcebergStore

    history = read_iceberg_history(IcebergStore(root, topic, catalog))
    if history is None:
        output.exit_with(f"{topic} has no commits below {root}")
    return history


def committed_state(topic: str, root: str) -> "TableState":
    """Return the state of a topic. Raises typer.Exit if it has no commits, IcebergTableError, and StorageError."""
    from pipeline.hadoop.commit.checkpoints import table_of

    state = table_of(root, topic)
    if state.last is None:
        output.exit_with(f"{topic} has no commits below {root}")
    return state


def read_data_files(topic: str, root: str) -> "list[DataFile]":
    """Return the committed data files of a topic. Raises as `committed_state`."""
    return committed_state(topic, root).data_files()


def show_status(
    root: Root,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="The topic's name; may be repeated. Default: all.")
    ] = None,
    bootstrap: Bootstrap = None,
    config: LoadFile = None,
    assignments: CatalogAssignments = None,
    last: Annotated[int, typer.Option("--last", min=1, help="Number of last commits to show.")] = 20,
    json: Json = False,
) -> None:
    """Show the last commits of topics, and with -b how far they are behind the end of the topics."""
    from pipeline.hadoop.upkeep.lag import lag_of, loaded_topics, states_of_topics

    names = topics or loaded_topics(root)
    if not names:
        output.exit_with(f"there are no loaded topics below {root}")
    tables = {name: _table(root, name, catalog_settings(config, name, assignments or []), last) for name in names}
    lags: dict[str, TableLag] = {}
    if bootstrap is not None:
        ends = trio.run(states_of_topics, addresses(bootstrap), names, client_security())
        lags = {name: lag_of(tables[name].state, ends[name], wall_clock()) for name in names}
    documents = [_status(name, tables[name], lags.get(name)) for name in names]
    if json:
        output.print_json(documents[0] if topics is not None and len(topics) == 1 else {"topics": documents})
        return
    if len(names) > 1 or lags:
        behind = ["LAG", "LAG BYTES", "LAG HOURS"] if lags else []
        output.say(output.table(["TOPIC", "COMMIT", "FILES", "RECORDS", *behind], _lines(documents)))
    for name, lag in lags.items():
        if lag.lost:
            output.say(f"{name}: {lag.lost} offsets were deleted before they were loaded (see docs/load/loss.md).")
        if lag.ahead:
            output.say(
                f"{name}: {lag.ahead} loaded offsets lie beyond the topic's end: it was truncated or created again."
            )
    if len(names) == 1:
        rows = [
            [c["commit"], c["time"], c["operation"], c["records"], c["files"], _ranges(c["offsets"])]
            for c in documents[0]["commits"]
        ]
        output.say(output.table(["COMMIT", "TIME", "KIND", "RECORDS", "FILES", "OFFSETS"], rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A table as it is shown: its last commits, each with its records and files, and its live files."""

    state: "TableState"
    commits: "list[tuple[Manifest, int, int]]"
    files: int
    records: int


def _table(root: str, topic: str, catalog: dict[str, str], last: int) -> _Table:
    from pipeline.hadoop.commit.checkpoints import read_last_manifests
    from pipeline.hadoop.commit.column_files import totals_of

    history = iceberg_history(topic, root, catalog)
    if history is not None:
        live = history.files()
        records = sum(file.records for file in live)
        added = [(commit, *history.added[commit.sequence]) for commit in history.commits[-last:]]
        return _Table(state=history.state, commits=added, files=len(live), records=records)
    state = committed_state(topic, root)
    totals = totals_of(state.files)
    manifests = read_last_manifests(root, topic, state, last)
    commits = [(manifest, manifest.records, len(manifest.files)) for manifest in manifests]
    return _Table(state=state, commits=commits, files=totals.files, records=totals.records)


def _status(topic: str, table: _Table, lag: "TableLag | None") -> dict[str, Any]:
    commits = [
        {
            "commit": manifest.sequence,
            "time": output.utc_time(manifest.created_ms),
            "operation": manifest.operation.value,
            "records": records,
            "files": files,
            "offsets": {str(r.partition): [r.start, r.end] for r in manifest.ranges},
        }
        for manifest, records, files in table.commits
    ]
    document: dict[str, Any] = {
        "topic": topic,
        "commit": table.state.sequence,
        "files": table.files,
        "records": table.records,
        "commits": commits,
    }
    if lag is not None:
        hours = None if lag.behind_ms is None else round(lag.behind_ms / 3_600_000, 2)
        numbers = {"records": lag.records, "bytes": lag.bytes, "hours": hours, "lost": lag.lost, "ahead": lag.ahead}
        document["lag"] = numbers
    return document


def _lines(documents: list[dict[str, Any]]) -> list[list[Any]]:
    lines = []
    for each in documents:
        lag = each.get("lag")
        behind = [] if lag is None else [lag["records"], lag["bytes"], lag["hours"]]
        lines.append([each["topic"], each["commit"], each["files"], each["records"], *behind])
    return lines


def _ranges(offsets: dict[str, list[int]]) -> str:
    return " ".join(f"{partition}:{start}-{end}" for partition, (start, end) in offsets.items())


def print_files(
    topic: Topic,
    root: Root,
    config: LoadFile = None,
    assignments: CatalogAssignments = None,
    json: Json = False,
) -> None:
    """Print the path of each committed file; other files are not part of the data."""
    from pipeline.hadoop.commit.publication import file_url

    history = iceberg_history(topic, root, catalog_settings(config, topic, assignments or []))
    if history is None:
        paths = [file_url(root, topic, file) for file in read_data_files(topic, root)]
    else:
        paths = [file.url for file in history.files()]
    if json:
        output.print_json({"topic": topic, "files": paths})
    else:
        for path in paths:
            output.say(path)
