"""`pipeline load compact`, `expire`, `clean`, `verify` and `replay`: upkeep of loaded tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.load.commits import LoadFile, Root, Topic, committed_state, iceberg_history
from pipeline.cli.load.report import report_stored, report_stored_iceberg
from pipeline.cli.load.settings import catalog_settings, loads_config
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, wall_clock
from pipeline.cli.terminal.settings import parse_assignments
from pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from pipeline.hadoop.iceberg.history import IcebergHistory
    from pipeline.hadoop.load.config import LoadConfig
    from pipeline.hadoop.upkeep.config import UpkeepConfig
    from pipeline.hadoop.upkeep.table import Table
    from pipeline.hadoop.upkeep.verification import FileDifference

Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of docs/load/upkeep.md.")
]
LoadAssignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of the load, see docs/load/settings.md.")
]
Registry = Annotated[str | None, typer.Option("--registry", metavar="URL", help="Schema registry of Avro values.")]
SHOWN_DIFFERENCES = 1000


def join_files(topic: Topic, root: Root, assignments: Assignments = None, json: Json = False) -> None:
    """Join small files of each hour into larger ones, in one commit. Runs beside loads."""
    from pipeline.hadoop.upkeep.compaction import compact_table

    table, config = _open(topic, root, assignments)
    committed_state(topic, root)
    with output.progress(f"Compacting {topic}", total=None), _conflicts():
        manifest = compact_table(table, config, clock=wall_clock)
    if json:
        output.print_json(_summary(topic, manifest))
    elif manifest is None:
        output.say(f"{topic}: no small files to join.")
    else:
        added, removed = output.counted(len(manifest.files), "file"), output.counted(len(manifest.removed), "file")
        output.say(f"{topic}: commit {manifest.sequence}: {added} in place of {removed}.")


def remove_hours(topic: Topic, root: Root, assignments: Assignments = None, json: Json = False) -> None:
    """Remove hours that are older than retention.ms, in one commit."""
    from pipeline.hadoop.upkeep.retention import expire_hours

    table, config = _open(topic, root, assignments)
    committed_state(topic, root)
    with _conflicts():
        manifest = expire_hours(table, config, clock=wall_clock)
    if json:
        output.print_json(_summary(topic, manifest))
    elif manifest is None:
        output.say(f"{topic}: no hour is old enough.")
    else:
        output.say(f"{topic}: commit {manifest.sequence}: {output.counted(len(manifest.removed), 'file')} removed.")


def clean_up_table(
    topic: Topic,
    root: Root,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be deleted, and delete nothing.")] = False,
    assignments: Assignments = None,
    json: Json = False,
) -> None:
    """Delete files of dead runs, removed files that no kept commit lists, and expired manifests."""
    from pipeline.hadoop.upkeep.cleaning import clean_table

    table, config = _open(topic, root, assignments)
    with output.progress(f"Cleaning up {topic}", total=None):
        cleaning = clean_table(table, config, dry_run=dry_run)
    deleted = cleaning.deletions
    if json:
        rows = [{"path": item.path, "reason": item.reason.value, "bytes": item.bytes} for item in deleted]
        oldest = cleaning.base
        output.print_json({"topic": topic, "dry_run": dry_run, "oldest_readable_commit": oldest, "deleted": rows})
        return
    if deleted:
        rows_shown = [[item.reason.value, item.bytes, item.path] for item in deleted]
        output.say(output.table(["REASON", "BYTES", "PATH"], rows_shown))
    verb = "would be deleted" if dry_run else "deleted"
    total = sum(item.bytes for item in deleted)
    output.say(f"{topic}: {output.counted(len(deleted), 'file')} of {total} bytes {verb}.")


def verify_table(
    topic: Topic,
    root: Root,
    bootstrap: Bootstrap = None,
    config: LoadFile = None,
    registry: Registry = None,
    assignments: LoadAssignments = None,
    datacenter: Annotated[
        str | None,
        typer.Option(help="Report what the files hold to the audit, under this datacenter's name; needs -b."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare the files of a table with its commits, and with -b with the records of the topic.

    Exits with 1 if anything differs. With --datacenter the audit learns what the files hold (tier STORED).
    """
    if datacenter is not None and bootstrap is None:
        raise ConfigurationError("--datacenter", "needs -b, the cluster whose audit topic gets the report")
    from pipeline.hadoop.upkeep.verification import verify_files, verify_source

    output.configure_logging("warning")
    history = iceberg_history(topic, root, catalog_settings(config, topic, assignments or []))
    if history is not None:
        load = None if bootstrap is None else _load_config(config, topic, root, bootstrap, registry, assignments)
        _verify_iceberg(topic, history, load, datacenter, as_json=json)
        return
    table, state = _table(topic, root), committed_state(topic, root)
    with output.progress(f"Reading files of {topic}", sum(file.bytes for file in state.files.values())) as progress:
        differences = verify_files(table, state, progress.advance)
    records = sum(file.records for file in state.data_files())
    compared = 0
    if bootstrap is not None:
        load = _load_config(config, topic, root, bootstrap, registry, assignments)
        starts = trio.run(_log_start_offsets, load)
        with output.progress(f"Reading {topic} again", records) as progress:
            others, gone = verify_source(table, load, state, starts, progress.advance)
        differences, compared = differences + others, records - gone
        if datacenter is not None:
            trio.run(partial(report_stored, load, datacenter, state, differences))
    document = {"topic": topic, "commit": state.sequence, "files": len(state.files), "records": records}
    document["compared_with_topic"] = compared
    _show_differences(document, differences, against_topic=bootstrap is not None, as_json=json)


def _verify_iceberg(
    topic: str, history: "IcebergHistory", load: "LoadConfig | None", datacenter: str | None, *, as_json: bool
) -> None:
    from pipeline.hadoop.upkeep.iceberg_verification import verify_table_files, verify_table_source

    live = history.files()
    records = sum(file.records for file in live)
    with output.progress(f"Reading files of {topic}", sum(file.bytes for file in live)) as progress:
        differences = verify_table_files(history, progress.advance)
    compared = 0
    if load is not None:
        starts = trio.run(_log_start_offsets, load)
        with output.progress(f"Reading {topic} again", records) as progress:
            others, compared = verify_table_source(history, load, starts, progress.advance)
        differences += others
        if datacenter is not None:
            report = partial(report_stored_iceberg, load, datacenter, history, differences)
            if not trio.run(report):
                output.note(
                    f"nothing was reported to the audit: {history.expired} commits of the table have expired, so "
                    "nobody knows what their files should hold"
                )
    document = {"topic": topic, "commit": history.state.sequence, "files": len(live), "records": records}
    document |= {"compared_with_topic": compared, "expired_commits": history.expired}
    _show_differences(document, differences, against_topic=load is not None, as_json=as_json)


def _show_differences(
    document: dict[str, Any], differences: "list[FileDifference]", *, against_topic: bool, as_json: bool
) -> None:
    """Show the result, and exit with 1 if there are differences."""
    shown = [{"path": item.path, "reason": item.reason} for item in differences[:SHOWN_DIFFERENCES]]
    if as_json:
        output.print_json(document | {"differences": shown, "differing": len(differences)})
    else:
        for item in shown:
            output.say(f"{item['path']}: {item['reason']}")
        files, held = output.counted(document["files"], "file"), output.counted(document["records"], "record")
        source = f", {document['compared_with_topic']} compared with the topic" if against_topic else ""
        found = output.counted(len(differences), "difference")
        output.say(f"{document['topic']}: commit {document['commit']}: {files}, {held}{source}: {found}.")
        if document.get("expired_commits"):
            expired = output.counted(document["expired_commits"], "commit")
            output.say(f"The snapshots of {expired} have expired: their counts are not known any more.")
    if differences:
        raise typer.Exit(output.EXIT_FAILED)


def replay_table_hour(
    topic: Topic,
    root: Root,
    bootstrap: Annotated[str, typer.Option("--bootstrap", "-b", metavar="HOST:PORT,...", help="Brokers.")],
    hour: Annotated[str, typer.Option("--hour", metavar="2026-11-25T10", help="The hour, in UTC.")],
    config: LoadFile = None,
    registry: Registry = None,
    assignments: LoadAssignments = None,
    json: Json = False,
) -> None:
    """Read an hour from the topic again, and put its files in place of the hour's files, in one commit."""
    from pipeline.hadoop.upkeep.replay import replay_hour

    hour_ms = parse_hour_ms(hour)
    load = _load_config(config, topic, root, bootstrap, registry, assignments)
    committed_state(topic, root)
    with output.progress(f"Replaying {hour} of {topic}", total=None), _conflicts():
        done = replay_hour(_table(topic, root), load, hour_ms, clock=wall_clock)
    if json:
        output.print_json(_summary(topic, done.manifest) | {"same_bytes": done.same_bytes})
    else:
        files = output.counted(len(done.manifest.files), "file")
        records = output.counted(done.manifest.records, "record")
        same = f"{done.same_bytes} with the same bytes as before"
        output.say(f"{topic}: commit {done.manifest.sequence}: {records} in {files}, {same}.")


def parse_hour_ms(text: str) -> int:
    """Return the start of an hour `2026-11-25T10` in ms since 1970, UTC. Raises typer.BadParameter."""
    try:
        hour = datetime.strptime(text, "%Y-%m-%dT%H").replace(tzinfo=UTC)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an hour such as 2026-11-25T10") from None
    return int(hour.timestamp()) * 1000


def _open(topic: str, root: str, assignments: list[str] | None) -> "tuple[Table, UpkeepConfig]":
    from pipeline.hadoop.upkeep.config import UpkeepConfig

    output.configure_logging("warning")
    return _table(topic, root), UpkeepConfig.from_settings(parse_assignments(assignments or []))


def _table(topic: str, root: str) -> "Table":
    from pipeline.hadoop.upkeep.table import open_table

    output.configure_logging("warning")
    return open_table(root, topic)


def _load_config(
    path: Path | None, topic: str, root: str, bootstrap: str, registry: str | None, assignments: list[str] | None
) -> "LoadConfig":
    options = {"topic": topic, "root": root, "bootstrap.servers": bootstrap, "schema.registry.url": registry}
    return loads_config(path, options, assignments or []).config_of(topic)


async def _log_start_offsets(config: "LoadConfig") -> dict[int, int]:
    from pipeline.hadoop.upkeep.lag import states_of_topics

    states = await states_of_topics(config.bootstrap, [config.topic], config.security)
    return {partition: bounds.log_start_offset for partition, bounds in states[config.topic].bounds.items()}


def _summary(topic: str, manifest: Any) -> dict[str, Any]:
    if manifest is None:
        return {"topic": topic, "committed": False, "commit": None, "files": 0, "removed": 0}
    files, removed = len(manifest.files), len(manifest.removed)
    return {"topic": topic, "committed": True, "commit": manifest.sequence, "files": files, "removed": removed}


@contextmanager
def _conflicts() -> Iterator[None]:
    from pipeline.hadoop.commit.publication import CommitConflictError

    try:
        yield
    except CommitConflictError as error:
        output.exit_with(str(error), output.EXIT_CONFLICT)
