"""`pipeline load status` and `files`: the commits of a topic, and their files."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json

if TYPE_CHECKING:
    from pipeline.hadoop.commit.manifest import DataFile, Manifest

Root = Annotated[
    str, typer.Option("--root", metavar="URL", help="Directory of the loaded data, e.g. hdfs://nn:8020/lake")
]
Topic = Annotated[str, typer.Option("--topic", help="The topic's name.")]


def read_commits(topic: str, root: str) -> "list[Manifest]":
    """Return the commits of a topic that have not expired. Raises typer.Exit if there is none."""
    from pipeline.hadoop.commit.checkpoints import read_manifests

    manifests = read_manifests(root, topic)
    if not manifests:
        output.exit_with(f"{topic} has no commits below {root}")
    return manifests


def read_data_files(topic: str, root: str) -> "list[DataFile]":
    """Return the committed data files of a topic. Raises typer.Exit if it has no commits."""
    from pipeline.hadoop.commit.checkpoints import table_of

    state = table_of(root, topic)
    if state.last is None:
        output.exit_with(f"{topic} has no commits below {root}")
    return state.data_files()


def show_commits(topic: Topic, root: Root, json: Json = False) -> None:
    """Show the commits of a topic."""
    manifests = read_commits(topic, root)
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


def print_files(topic: Topic, root: Root, json: Json = False) -> None:
    """Print the path of each committed file; other files are not part of the data."""
    from pipeline.hadoop.commit.publication import file_url

    paths = [file_url(root, topic, file) for file in read_data_files(topic, root)]
    if json:
        output.print_json({"topic": topic, "files": paths})
    else:
        for path in paths:
            output.say(path)
