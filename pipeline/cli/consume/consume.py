"""`pipeline consume`: print the records of topics."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from pipeline.cli.consume.arguments import (
    AvroKeysOption,
    CountedOption,
    DelimiterOption,
    FollowOption,
    FromTimeOption,
    GroupOption,
    JsonOption,
    KeySeparatorOption,
    LastOption,
    LayoutOption,
    MaxRecordsOption,
    NullOption,
    OffsetOption,
    PartitionOption,
    PerPartitionOption,
    ReaderSchemaOption,
    SkipBadBatchesOption,
    TopicsOption,
    UntilOption,
)
from pipeline.cli.consume.layout import NULL_TEXT, Layout, parse_layout, simple_layout
from pipeline.cli.consume.options import PATTERN, ConsumeOptions
from pipeline.cli.consume.printing import Printer, PrintOptions
from pipeline.cli.consume.reading import print_ranges
from pipeline.cli.consume.selection import END, FIRST, Selection, find_ranges, known_partitions
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


def consume(
    topics: TopicsOption,
    partition: PartitionOption = None,
    offset: OffsetOption = None,
    from_time: FromTimeOption = None,
    last: LastOption = None,
    per_partition: PerPartitionOption = False,
    until: UntilOption = None,
    max_records: MaxRecordsOption = None,
    follow: FollowOption = False,
    group: GroupOption = None,
    datacenter: CountedOption = None,
    layout: LayoutOption = None,
    key_separator: KeySeparatorOption = None,
    delimiter: DelimiterOption = r"\n",
    null: NullOption = False,
    settings: ClientSettings = None,
    registry: Registries = None,
    avro_keys: AvroKeysOption = False,
    reader_schema: ReaderSchemaOption = None,
    skip_bad_batches: SkipBadBatchesOption = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: JsonOption = False,
) -> None:
    r"""Print the records of topics, up to their current ends.

    Each value is a line. With --json each line has offset, timestamp, key, value and headers. Keys and values that are
    not UTF-8 text appear as {"base64": "..."}, and numbers that JSON lacks as "NaN", "Infinity" and "-Infinity". A
    header that occurs several times has a list of values. `pipeline produce --json-records` reads such lines. With
    --registry values are decoded as Avro, by the schema that the value or its header names.

    Tokens of --format: %s value, %k key, %h headers, %t topic, %p partition, %o offset, %T timestamp in ms, %S and %K
    lengths of value and key (-1: none), %R length of the value as 4 bytes, %% a percent sign. Escapes: \n, \r, \t, \0,
    \\ and \xNN.
    """
    if asks_for_list(settings):
        output.say(output.table(("SETTING", "DEFAULT"), describe_settings(*_kinds_of_settings())))
        return
    _check_decoding(registry, needed=avro_keys or reader_schema is not None)
    _require_one({"--offset": offset, "--from": from_time, "--last": last})
    _require_one({"--format": layout, "--json": json or None, "--key-separator": key_separator})
    _require_one({"--follow": follow or None, "--until": until, "--last": last})
    if per_partition and last is None:
        output.exit_with("--per-partition: give --last too", output.EXIT_USAGE)
    client, consumer = _client_settings(settings, group)
    selection = Selection(tuple(topics), partition, offset or "earliest", from_time, until, last)
    selection.check()
    options = ConsumeOptions(
        selection=selection,
        printing=PrintOptions(
            layout=_layout(layout, key_separator, delimiter, null=null),
            json=json,
            max_records=max_records,
            last=None if per_partition else last,
            skip_bad_batches=skip_bad_batches,
            max_batch_bytes=consumer.get("max_opened_bytes", ConsumerConfig().max_opened_bytes),
        ),
        follow=follow,
        group=group,
        datacenter=datacenter,
        registry=registry,
        avro_keys=avro_keys,
        reader_schema=None if reader_schema is None else read_text(reader_schema),
        client=client,
        consumer=consumer,
    )
    _check_group(options, offset)
    run_interruptibly(print_records, options, bootstrap, zookeeper)


def _layout(text: str | None, key_separator: str | None, delimiter: str, *, null: bool) -> Layout:
    null_text = NULL_TEXT if null else b""
    if text is not None:
        return parse_layout(text, null=null_text)
    end = unescape_delimiter("--delimiter", delimiter) or b"\n"
    return simple_layout(unescape_delimiter("--key-separator", key_separator), end, null=null_text)


def _check_decoding(registry: str | None, *, needed: bool) -> None:
    if registry is None and needed:
        output.exit_with("--avro-keys and --reader-schema: give --registry too", output.EXIT_USAGE)


def _client_settings(settings: list[str] | None, group: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of client, and of consumer or member."""
    client, consumer, member = parse_client_settings(settings, *_kinds_of_settings())
    if consumer.get("isolation_level", IsolationLevel.READ_UNCOMMITTED) is not IsolationLevel.READ_UNCOMMITTED:
        output.exit_with(
            "-X isolation.level: the command prints records of aborted transactions, too; a program reads without them",
            output.EXIT_USAGE,
        )
    ConsumerConfig(**consumer)  # checks the bounds before anything is connected
    return client, consumer if group is None else member


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
        if options.datacenter is not None:
            output.exit_with("--datacenter: give --group too", output.EXIT_USAGE)
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
        find = partial(known_partitions, cluster, options.selection)
        await print_ranges(consumer, starts, ends, printer, follow=options.follow, find_partitions=find)


async def _open_deserializers(options: ConsumeOptions, printer: Printer, stack: AsyncExitStack) -> None:
    if options.registry is None:
        return
    from pipeline.client.registry.avro import AvroDeserializer

    registry = await stack.enter_async_context(open_registry(options.registry))
    printer.keys = AvroDeserializer(registry, for_keys=True) if options.avro_keys else None
    printer.values = AvroDeserializer(registry, options.reader_schema)
