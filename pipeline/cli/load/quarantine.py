"""`pipeline load quarantine`: records that loads set aside, and their release after a fix."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from pipeline.cli.load.commits import Root, Topic, committed_state
from pipeline.cli.load.settings import loads_config
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, wall_clock

app = typer.Typer(no_args_is_help=True, help="Records that loads set aside.")

UNKNOWN_REASON = "not stored by the load"


@app.command("list")
def list_reasons(topic: Topic, root: Root, json: Json = False) -> None:
    """List the records that are set aside, by reason and partition."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for record in _records(topic, root):
        found.setdefault((record["reason"], record["partition"]), []).append((record["offset"], record["records"]))
    rows: list[list[Any]] = [
        [reason, partition, sum(records for _, records in counted), min(counted)[0], max(counted)[0]]
        for (reason, partition), counted in sorted(found.items())
    ]
    if json:
        names = ("reason", "partition", "records", "first_offset", "last_offset")
        output.print_json({"topic": topic, "quarantine": [dict(zip(names, row, strict=True)) for row in rows]})
    elif rows:
        output.say(output.table(["REASON", "PARTITION", "RECORDS", "FIRST OFFSET", "LAST OFFSET"], rows))
    else:
        output.say(f"{topic}: nothing is set aside.")


@app.command()
def show(
    topic: Topic,
    root: Root,
    partition: Annotated[int | None, typer.Option("--partition", help="Only this partition.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", help="Only from this offset on.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Number of records.")] = 10,
    json: Json = False,
) -> None:
    """Show records that are set aside, with the bytes of their values in hexadecimal."""
    chosen = (
        record
        for record in _records(topic, root)
        if (partition is None or record["partition"] == partition) and (offset is None or record["offset"] >= offset)
    )
    shown = [record for record, _ in zip(chosen, range(limit), strict=False)]
    if json:
        output.print_json({"topic": topic, "records": shown})
        return
    if not shown:
        output.say(f"{topic}: nothing is set aside{'' if partition is None and offset is None else ' there'}.")
    for record in shown:
        output.say(
            f"partition {record['partition']} offset {record['offset']}: {record['reason']}\n  {record['value']}"
        )


@app.command()
def release(
    topic: Topic,
    root: Root,
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL,...", help="Schema registries of the values.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the load: value.format, max.opened.bytes."),
    ] = None,
    json: Json = False,
) -> None:
    """Decode the records that are set aside again, and bring the good ones into the table by one commit.

    Batches that could not be opened are opened again. Exits with 3 if another run committed meanwhile, and then changes
    nothing.
    """
    from pipeline.hadoop.avro.registry_lookup import RegistryLookup
    from pipeline.hadoop.commit.publication import CommitConflictError
    from pipeline.hadoop.load import release as releases

    committed_state(topic, root)
    no_broker = {"bootstrap.servers": "none:1"}  # a release asks none
    options = no_broker | {"topic": topic, "root": root, "schema.registry.url": registry}
    config = loads_config(None, options, assignments or []).config_of(topic)
    schemas = RegistryLookup(config.registry) if config.value_format == "avro" else None
    try:
        result = releases.release(root, topic, schemas, clock=wall_clock, max_opened_bytes=config.max_opened_bytes)
    except CommitConflictError as error:
        output.exit_with(str(error), output.EXIT_CONFLICT)
    if json:
        document = {"topic": topic, "commit": result.commit, "released": result.released, "kept": result.kept}
        document["unopened_batches"] = result.unopened
        output.print_json(document)
        return
    kept = sum(result.kept.values())
    output.say(f"{topic}: {output.counted(result.released, 'record')} released, {kept} still set aside.")
    for reason, count in sorted(result.kept.items()):
        output.say(f"  {output.counted(count, 'time')}: {reason}")
    if result.unopened:
        output.say(f"  Batches that still cannot be opened, and stay as they are: {result.unopened}.")


def _records(topic: str, root: str) -> Iterator[dict[str, Any]]:
    """Yield what is shown of each record that is set aside."""
    from pipeline.hadoop.avro.avro_schema import OFFSET, PARTITION, VALUE
    from pipeline.hadoop.avro.quarantine_reader import quarantined_records
    from pipeline.hadoop.commit.layout import topic_layout
    from pipeline.hadoop.files.filesystem import open_filesystem

    files, path = open_filesystem(root)
    layout = topic_layout(path, topic)
    for file in committed_state(topic, root).data_files(quarantined=True):
        for record in quarantined_records(files.read(layout.absolute(file.path)), file.path):
            value = record[VALUE]
            yield {
                "partition": record[PARTITION],
                "offset": record[OFFSET],
                "records": record.get("_records", 1),
                "reason": record.get("_reason", UNKNOWN_REASON),
                "value": None if value is None else value.hex(),
            }
