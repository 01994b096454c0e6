"""`pipeline load status` and `files`: the commits of a topic, and their files."""

from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, addresses, wall_clock

if TYPE_CHECKING:
    from pipeline.hadoop.commit.manifest import DataFile
    from pipeline.hadoop.commit.table_state import TableState
    from pipeline.hadoop.upkeep.lag import TableLag

Root = Annotated[
    str, typer.Option("--root", metavar="URL", help="Directory of the loaded data, e.g. hdfs://nn:8020/lake")
]
Topic = Annotated[str, typer.Option("--topic", help="The topic's name.")]


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
    last: Annotated[int, typer.Option("--last", min=1, help="Number of last commits to show.")] = 20,
    json: Json = False,
) -> None:
    """Show the last commits of topics, and with -b how far they are behind the end of the topics."""
    from pipeline.hadoop.upkeep.lag import lag_of, loaded_topics, states_of_topics

    names = topics or loaded_topics(root)
    if not names:
        output.exit_with(f"there are no manifests below {root} (Iceberg tables are shown by their catalog)")
    states = {name: committed_state(name, root) for name in names}
    lags: dict[str, TableLag] = {}
    if bootstrap is not None:
        ends = trio.run(states_of_topics, addresses(bootstrap), names)
        lags = {name: lag_of(states[name], ends[name], wall_clock()) for name in names}
    documents = [_status(root, name, states[name], lags.get(name), last) for name in names]
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


def _status(root: str, topic: str, state: "TableState", lag: "TableLag | None", last: int) -> dict[str, Any]:
    from pipeline.hadoop.commit.checkpoints import read_last_manifests
    from pipeline.hadoop.commit.column_files import totals_of

    commits = [
        {
            "commit": manifest.sequence,
            "time": output.utc_time(manifest.created_ms),
            "operation": manifest.operation.value,
            "records": manifest.records,
            "files": len(manifest.files),
            "offsets": {str(r.partition): [r.start, r.end] for r in manifest.ranges},
        }
        for manifest in read_last_manifests(root, topic, state, last)
    ]
    totals = totals_of(state.files)
    document: dict[str, Any] = {
        "topic": topic,
        "commit": state.sequence,
        "files": totals.files,
        "records": totals.records,
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


def print_files(topic: Topic, root: Root, json: Json = False) -> None:
    """Print the path of each committed file; other files are not part of the data."""
    from pipeline.hadoop.commit.publication import file_url

    paths = [file_url(root, topic, file) for file in read_data_files(topic, root)]
    if json:
        output.print_json({"topic": topic, "files": paths})
    else:
        for path in paths:
            output.say(path)
