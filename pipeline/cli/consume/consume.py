"""`pipeline consume`: print the records of topics."""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.consume.layout import NULL_TEXT, parse_layout, simple_layout
from pipeline.cli.consume.printing import Printer, PrintOptions
from pipeline.cli.consume.reading import print_ranges
from pipeline.cli.consume.selection import END, FIRST, Selection, find_ranges
from pipeline.cli.schema_options import Registries, open_registry
from pipeline.cli.terminal import output
from pipeline.cli.terminal.client_settings import (
    ClientSettings,
    asks_for_list,
    describe_settings,
    parse_client_settings,
)
from pipeline.cli.terminal.connect import Bootstrap, ZooKeeper, connected
from pipeline.cli.terminal.escapes import unescape_delimiter
from pipeline.cli.terminal.files import read_text
from pipeline.cli.terminal.interruption import run_interruptibly
from pipeline.cli.terminal.standard_output import StandardOutput
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, IsolationLevel
from pipeline.client.consumer.consumer import open_consumer

PATTERN = "^"
"""First character of a topic that is a regular expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Options of `consume`. `client`, `consumer`: settings of ClientConfig, and of ConsumerConfig or GroupConfig."""

    selection: Selection
    printing: PrintOptions
    follow: bool = False
    group: str | None = None
    registry: str | None = None
    avro_keys: bool = False
    reader_schema: str | None = None
    client: dict[str, Any] = field(default_factory=dict)
    consumer: dict[str, Any] = field(default_factory=dict)


def consume(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="Topics; with --group also a regular expression that begins with ^."),
    ],
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            help="Start at earliest (default), latest, or an offset. With --group: where the group has no offset.",
        ),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Start at a time: 2026-11-01T00:00 (UTC), or ms since 1970."),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", min=1, metavar="N", help="Only the last N records, in the order of their times."),
    ] = None,
    per_partition: Annotated[
        bool, typer.Option("--per-partition", help="With --last: the last N of each partition.")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME|OFFSET", help="End before a time as of --from, or before an offset."),
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max-records", "--count", "-n", "-c", min=1, help="Stop after this many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--exit", "-f/-e", help="Wait for more records at the end, or end there (default).")
    ] = False,
    group: Annotated[
        str | None, typer.Option("--group", "-G", help="Read as a member of this group, and commit what was printed.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option("--format", metavar="TEXT", help=r"Layout of a record, such as '%k: %s\n'; see above."),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help=r"Print keys too, with this text after each.")
    ] = None,
    delimiter: Annotated[
        str, typer.Option("--delimiter", "-D", help=r"Text after a record, such as \0. Default: a line end.")
    ] = r"\n",
    null: Annotated[bool, typer.Option("--null", "-Z", help="Print NULL for a key or value that is missing.")] = False,
    settings: ClientSettings = None,
    registry: Registries = None,
    avro_keys: Annotated[bool, typer.Option("--avro-keys", help="Decode keys too, with --registry.")] = False,
    reader_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE.avsc", help="Show values as this schema reads them, with --registry."),
    ] = None,
    skip_bad_batches: Annotated[
        bool,
        typer.Option("--skip-bad-batches", help="Skip batches that cannot be opened, and name them on stderr."),
    ] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Annotated[bool, typer.Option("--json", "-J", help="Print a JSON document for each record.")] = False,
) -> None:
    r"""Print the records of topics, up to their current ends.

    Each value is a line. With --json each line has offset, timestamp, key, value and headers. Keys and values that are
    not UTF-8 text appear as {"base64": "..."}, and numbers that JSON lacks as "NaN", "Infinity" and "-Infinity". A
    header that occurs several times has a list of values. `pipeline produce --json` reads such lines. With --registry
    values are decoded as Avro, by the schema that the value or its header names.

    Tokens of --format: %s value, %k key, %h headers, %t topic, %p partition, %o offset, %T timestamp in ms, %S and %K
    lengths of value and key (-1: none), %R length of the value as 4 bytes, %% a percent sign. Escapes: \n, \r, \t, \0,
    \\ and \xNN.
    """
    kinds = _kinds_of_settings()
    if asks_for_list(settings):
        output.say(output.table(("SETTING", "DEFAULT"), describe_settings(*kinds)))
        return
    if registry is None and (avro_keys or reader_schema is not None):
        output.exit_with("--avro-keys and --reader-schema: give --registry too", output.EXIT_USAGE)
    _require_one({"--offset": offset, "--from": from_time, "--last": last})
    _require_one({"--format": layout, "--json": json or None})
    _require_one({"--follow": follow or None, "--until": until, "--last": last})
    if per_partition and last is None:
        output.exit_with("--per-partition: give --last too", output.EXIT_USAGE)
    null_text = NULL_TEXT if null else b""
    ends_of_records = unescape_delimiter("--delimiter", delimiter) or b"\n"
    keys = unescape_delimiter("--key-separator", key_separator)
    client, consumer, member = parse_client_settings(settings, *kinds)
    if consumer.get("isolation_level", IsolationLevel.READ_UNCOMMITTED) is not IsolationLevel.READ_UNCOMMITTED:
        output.exit_with("-X isolation.level: records of aborted transactions cannot be left out", output.EXIT_USAGE)
    selection = Selection(
        topics=tuple(topics),
        partition=partition,
        offset=offset or "earliest",
        from_time=from_time,
        until=until,
        last=last,
    )
    selection.check()
    options = ConsumeOptions(
        selection=selection,
        printing=PrintOptions(
            layout=simple_layout(keys, ends_of_records, null=null_text)
            if layout is None
            else parse_layout(layout, null=null_text),
            json=json,
            max_records=max_records,
            last=None if per_partition else last,
            skip_bad_batches=skip_bad_batches,
            max_batch_bytes=ConsumerConfig(**consumer).max_opened_bytes,
        ),
        follow=follow,
        group=group,
        registry=registry,
        avro_keys=avro_keys,
        reader_schema=None if reader_schema is None else read_text(reader_schema),
        client=client,
        consumer=consumer if group is None else member,
    )
    _check_group(options, offset)
    run_interruptibly(print_records, options, bootstrap, zookeeper)


def _kinds_of_settings() -> tuple[type, type, type]:
    from pipeline.client.group.config import GroupConfig

    return ClientConfig, ConsumerConfig, GroupConfig


def _require_one(values: dict[str, Any]) -> None:
    """End the command if more than one of these options is given."""
    given = [name for name, value in values.items() if value is not None]
    if len(given) > 1:
        output.exit_with(f"{' and '.join(given)}: give one of them", output.EXIT_USAGE)


def _check_group(options: ConsumeOptions, offset: str | None) -> None:
    selection = options.selection
    patterns = [topic for topic in selection.topics if topic.startswith(PATTERN)]
    if options.group is None:
        if patterns:
            output.exit_with(f"{patterns[0]}: a regular expression needs --group", output.EXIT_USAGE)
        return
    refused = {
        "--partition": selection.partition,
        "--from": selection.from_time,
        "--until": selection.until,
        "--last": selection.last,
    }
    for name, value in refused.items():
        if value is not None:
            output.exit_with(f"{name}: a group reads from its own offsets", output.EXIT_USAGE)
    if offset is not None and offset not in FIRST | END:
        output.exit_with(f"--offset {offset}: with --group give earliest or latest", output.EXIT_USAGE)
    if patterns and len(selection.topics) > 1:
        output.exit_with(f"{patterns[0]}: give one regular expression, or topics", output.EXIT_USAGE)


async def print_records(options: ConsumeOptions, bootstrap: str | None, zookeeper: str | None) -> None:
    """Print the records that the options select. Ends the command at a batch that cannot be opened or skipped."""
    async with AsyncExitStack() as stack:
        connection = connected(bootstrap, zookeeper, "pipeline-consume", options.client)
        cluster = await stack.enter_async_context(connection)
        printer = Printer(options.printing, StandardOutput())
        await _open_deserializers(options, printer, stack)
        shown = not output.is_terminal()
        description = f"Reading {output.enumeration(options.selection.topics, 3)}"
        if options.group is not None:
            from pipeline.cli.consume.member import print_as_member

            printer.bar = stack.enter_context(output.progress(description, None, shown=shown))
            await print_as_member(cluster, options, options.group, printer)
            return
        starts, ends = await find_ranges(cluster, options.selection)
        total = None if options.follow else sum(max(end - starts[partition], 0) for partition, end in ends.items())
        printer.bar = stack.enter_context(output.progress(description, total, shown=shown))
        consumer = await stack.enter_async_context(open_consumer(cluster, ConsumerConfig(**options.consumer)))
        await print_ranges(consumer, starts, ends, printer, follow=options.follow)


async def _open_deserializers(options: ConsumeOptions, printer: Printer, stack: AsyncExitStack) -> None:
    if options.registry is None:
        return
    from pipeline.client.registry.avro import AvroDeserializer

    registry = await stack.enter_async_context(open_registry(options.registry))
    printer.keys = AvroDeserializer(registry, for_keys=True) if options.avro_keys else None
    printer.values = AvroDeserializer(registry, options.reader_schema)
