"""`pipeline produce`: publish lines as records."""

import os
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import typer

from pipeline.cli.produce.arguments import (
    AcksOption,
    CodecOption,
    DatacenterOption,
    DelimiterOption,
    EmptyIsNullOption,
    FileOption,
    HeaderOption,
    JsonRecordsOption,
    KeyOption,
    KeySeparatorOption,
    MaxRecordsOption,
    NullMarkerOption,
    PartitionOption,
    RateOption,
    ResultJsonOption,
    TimestampsOption,
    TopicOption,
)
from pipeline.cli.produce.lines import LINE_END, LineError, opened_input
from pipeline.cli.produce.publishing import Publisher
from pipeline.cli.produce.reading import ProduceOptions, Reading
from pipeline.cli.produce.rows import RowOptions, parse_header
from pipeline.cli.produce.serializing import open_serializers
from pipeline.cli.schema_options import (
    DEFAULT_STRATEGY,
    AutoRegister,
    KeyReferences,
    KeySchema,
    KeySubjectStrategy,
    Normalize,
    References,
    Registries,
    SchemaIdInHeader,
    SubjectStrategy,
    ValueSchema,
    read_schema_options,
)
from pipeline.cli.terminal import output
from pipeline.cli.terminal.client_settings import (
    ClientSettings,
    asks_for_list,
    describe_settings,
    parse_client_settings,
)
from pipeline.cli.terminal.connect import Bootstrap, ZooKeeper, connected, find_topic, randomness, wall_clock
from pipeline.cli.terminal.escapes import unescape_delimiter
from pipeline.cli.terminal.files import require_readable
from pipeline.cli.terminal.interruption import run_interruptibly
from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import Acks, ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.records.builder import Header
from pipeline.records.compression import Codec

ACKS = {"0": Acks.NONE, "1": Acks.LEADER, "all": Acks.ALL}
BATCH_BYTES = 256 * 1024
"""Default of batch.size: a file is published faster in large batches, and a slow pipe sends by linger.ms."""
KINDS = (ClientConfig, ProducerConfig)


def produce(
    topic: TopicOption,
    file: FileOption = None,
    partition: PartitionOption = None,
    key_separator: KeySeparatorOption = None,
    key: KeyOption = None,
    header: HeaderOption = None,
    delimiter: DelimiterOption = r"\n",
    empty_is_null: EmptyIsNullOption = False,
    null_marker: NullMarkerOption = None,
    timestamps: TimestampsOption = False,
    max_records: MaxRecordsOption = None,
    rate: RateOption = None,
    codec: CodecOption = None,
    acks: AcksOption = None,
    settings: ClientSettings = None,
    datacenter: DatacenterOption = None,
    registry: Registries = None,
    schema: ValueSchema = None,
    key_schema: KeySchema = None,
    references: References = None,
    key_references: KeyReferences = None,
    subject_name_strategy: SubjectStrategy = DEFAULT_STRATEGY,
    key_subject_name_strategy: KeySubjectStrategy = DEFAULT_STRATEGY,
    auto_register: AutoRegister = True,
    normalize: Normalize = False,
    schema_id_in_header: SchemaIdInHeader = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json_records: JsonRecordsOption = False,
    json: ResultJsonOption = False,
) -> None:
    r"""Publish each line of a file or of standard input as a record, and wait until all are acknowledged.

    A line that is at fault ends the command: its number and the number of published records are told on stderr.
    Texts of -K and -D may have the escapes \n, \r, \t, \0 and \xNN; any other backslash stands for itself.
    """
    if asks_for_list(settings):
        output.say(output.table(("SETTING", "DEFAULT"), describe_settings(*KINDS)))
        return
    has_schema = schema is not None or key_schema is not None
    if has_schema != (registry is not None):
        output.exit_with("--schema (or --key-schema) and --registry: give both or neither", output.EXIT_USAGE)
    if key_separator == "" or (key_schema is not None and key_separator is None and not json_records):
        output.exit_with("--key-separator: must not be empty, and --key-schema needs it", output.EXIT_USAGE)
    if json_records and (key_separator or null_marker is not None or empty_is_null):
        output.exit_with("--json-records: keys and null values stand in the lines, not in options", output.EXIT_USAGE)
    chosen = {"auto_register": auto_register, "normalize": normalize, "in_header": schema_id_in_header}
    if file is not None:
        require_readable(file)
    client, config = producer_settings(settings, codec, acks)
    nulls = null_values(null_marker, empty_is_null=empty_is_null)
    options = ProduceOptions(
        topic=topic,
        file=file,
        partition=partition,
        delimiter=unescape_delimiter("--delimiter", delimiter) or LINE_END,
        rows=_row_options(key_separator, key, nulls, timestamps=timestamps, json=json_records),
        max_records=max_records,
        rate=rate,
        client=client,
        config=replace(config, record_headers=tuple(map(read_header_option, header or ()))),
        datacenter=datacenter,
        registries=registry,
        key_schema=read_schema_options(key_schema, key_references, key_subject_name_strategy, **chosen),
        value_schema=read_schema_options(schema, references, subject_name_strategy, **chosen),
    )
    _tell(topic, run_interruptibly(publish_lines, options, bootstrap, zookeeper), as_json=json)


def _row_options(
    key_separator: str | None, key: str | None, nulls: frozenset[bytes], *, timestamps: bool, json: bool
) -> RowOptions:
    return RowOptions(
        key_separator=unescape_delimiter("--key-separator", key_separator),
        fixed_key=None if key is None else os.fsencode(key),
        null_values=nulls,
        timestamps=timestamps,
        json=json,
    )


def _tell(topic: str, count: int, *, as_json: bool) -> None:
    try:
        if as_json:
            output.print_json({"topic": topic, "records": count})
        else:
            output.say(f"Published {output.counted(count, 'record')} to {topic}.")
    except typer.Exit:
        output.note(f"pipeline: published {output.counted(count, 'record')} to {topic} all the same")
        raise


def producer_settings(
    settings: list[str] | None, codec: str | None, acks: str | None
) -> tuple[dict[str, Any], ProducerConfig]:
    """Return the settings of client and producer. An option counts before `-X`. Raises ConfigurationError."""
    if codec is not None and codec.upper() not in Codec.__members__:
        output.exit_with(f"--codec {codec}: give none, gzip, snappy, lz4 or zstd", output.EXIT_USAGE)
    if acks is not None and acks not in ACKS:
        output.exit_with(f"--acks {acks}: give 0, 1 or all", output.EXIT_USAGE)
    client, producer = parse_client_settings(settings, *KINDS)
    if codec is not None:
        producer["compression"] = Codec[codec.upper()]
    if acks is not None:
        producer["acks"] = ACKS[acks]
    producer.setdefault("batch_size", min(BATCH_BYTES, producer.get("buffer_memory", BATCH_BYTES)))
    if producer.get("acks", Acks.ALL) is not Acks.ALL:
        producer.setdefault("idempotence", False)
    return client, ProducerConfig(**producer)


def null_values(null_marker: str | None, *, empty_is_null: bool) -> frozenset[bytes]:
    """Return the values that stand for no value."""
    marked = set() if null_marker is None else {os.fsencode(null_marker)}
    return frozenset(marked | {b""} if empty_is_null else marked)


def read_header_option(text: str) -> Header:
    """Return the header of a `-H`. Raises ConfigurationError."""
    try:
        return parse_header(os.fsencode(text))
    except ValueError:
        raise ConfigurationError("--header", f"{text!r}: the name must be UTF-8 text") from None


async def publish_lines(options: ProduceOptions, bootstrap: str | None, zookeeper: str | None) -> int:
    """Publish the lines, and return their number. Ends the command at the first fault, and tells what was published."""
    async with AsyncExitStack() as stack:
        connection = connected(bootstrap, zookeeper, "pipeline-produce", options.client)
        cluster = await stack.enter_async_context(connection)
        view = await find_topic(cluster, options.topic)
        if options.partition is not None and options.partition not in view.partitions:
            output.exit_with(f"topic {options.topic} has no partition {options.partition}", output.EXIT_USAGE)
        serializers = await open_serializers(
            options.registries, options.topic, options.key_schema, options.value_schema, stack
        )
        producer = await stack.enter_async_context(_producer(cluster, options))
        read, input_bytes = await stack.enter_async_context(opened_input(options.file))
        publisher = Publisher(producer, options.topic, options.partition)
        watch = await stack.enter_async_context(background_tasks())
        watch.start_soon(publisher.tell_silence)
        is_typed = options.file is None and sys.stdin.isatty()
        bar = stack.enter_context(output.progress(f"Publishing to {options.topic}", None, shown=not is_typed))
        reading = Reading(options, read, serializers, publisher, bar, input_bytes)
        try:
            await reading.publish_all()
            await publisher.finish()
        except (PipelineError, LineError) as error:
            await publisher.settle()
            output.exit_with(f"{error}; {publisher.describe_outcome()}")
        return publisher.published


def _producer(cluster: Cluster, options: ProduceOptions) -> Any:
    if options.datacenter is None:
        return open_producer(cluster, options.config, clock=wall_clock, rng=randomness())
    from pipeline.audit.counting.lives import open_audited_producer

    return open_audited_producer(
        cluster,
        options.config,
        datacenter=options.datacenter,
        host=socket.gethostname(),
        clock=wall_clock,
        rng=randomness(),
    )
