"""`pipeline consume`: read records from a topic."""

import base64
import json as json_module
import math
import re
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.schema_options import Registries, open_registry
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, ZooKeeper, connected, find_offsets_at, find_topic
from pipeline.cli.terminal.files import read_text
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import Consumer, ConsumerRecord, open_consumer
from pipeline.client.consumer.errors import PartitionBatchError
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from pipeline.client.registry.avro import AvroDeserializer

LOOK_S = 0.5
"""Interval of checks whether the end was reached without a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Options of `consume`."""

    topic: str
    partition: int | None
    offset: str
    max_records: int | None
    follow: bool
    registry: str | None
    json: bool
    skip_bad_batches: bool = False
    avro_keys: bool = False
    reader_schema: str | None = None


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    offset: Annotated[str, typer.Option(help="Start at earliest, latest, or an offset.")] = "earliest",
    max_records: Annotated[
        int | None, typer.Option("--max-records", "-n", min=1, help="Stop after this many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more records at the end, until Ctrl-C.")
    ] = False,
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
    json: Json = False,
) -> None:
    """Print the records of a topic, up to its current end.

    Each value is a line. With --json each line has offset, timestamp, key, value and headers. Keys and values that are
    not UTF-8 text appear as {"base64": "..."}, and numbers that JSON lacks as "NaN", "Infinity" and "-Infinity". A
    header that occurs several times has a list of values. With --registry values are decoded as Avro, by the schema
    that the value or its header names.
    """
    if registry is None and (avro_keys or reader_schema is not None):
        output.exit_with("--avro-keys and --reader-schema: give --registry too", output.EXIT_USAGE)
    options = ConsumeOptions(
        topic=topic,
        partition=partition,
        offset=offset,
        max_records=max_records,
        follow=follow,
        registry=registry,
        json=json,
        skip_bad_batches=skip_bad_batches,
        avro_keys=avro_keys,
        reader_schema=None if reader_schema is None else read_text(reader_schema),
    )
    trio.run(print_records, options, bootstrap, zookeeper)


async def print_records(options: ConsumeOptions, bootstrap: str | None, zookeeper: str | None) -> None:
    """Print the records that the options select. Ends the command at a batch that cannot be opened or skipped."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(connected(bootstrap, zookeeper, "pipeline-consume"))
        deserializers = await _open_deserializers(options, stack)
        starts, ends = await _range(cluster, options)
        consumer = await stack.enter_async_context(open_consumer(cluster, ConsumerConfig()))
        open_ends = {
            p: math.inf if options.follow else end for p, end in ends.items() if options.follow or starts[p] < end
        }
        consumer.assign({p: starts[p] for p in open_ends})
        printed = 0
        while open_ends and printed != options.max_records:
            try:
                while (record := await _next_record(consumer, open_ends)) is not None:
                    topic_partition = record.topic_partition
                    if options.follow or record.offset < ends[topic_partition]:
                        await _print(record, deserializers, as_json=options.json)
                        printed += 1
                        if options.follow:
                            _flush()
                    if not options.follow and consumer.position(topic_partition) >= ends[topic_partition]:
                        open_ends.pop(topic_partition, None)
                    if not open_ends or printed == options.max_records:
                        break
                else:
                    break
            except PartitionBatchError as error:
                topic_partition = error.topic_partition
                if options.skip_bad_batches or (not options.follow and error.offset >= ends[topic_partition]):
                    _skip(consumer, error)
                else:
                    _flush()
                    output.exit_with(_advice(error))
                if not options.follow and consumer.position(topic_partition) >= ends[topic_partition]:
                    open_ends.pop(topic_partition, None)
    _flush()


def _flush() -> None:
    with output.translated_write_errors():
        sys.stdout.flush()


async def _next_record(consumer: Consumer, ends: Mapping[TopicPartition, float]) -> ConsumerRecord | None:
    """Return the next record; None if all partitions were read to these ends, where there may be no record."""
    while not all(consumer.position(topic_partition) >= end for topic_partition, end in ends.items()):
        with trio.move_on_after(LOOK_S):
            return await anext(consumer.records())
    return None


def _skip(consumer: Consumer, error: PartitionBatchError) -> None:
    """Continue after the batch, and name it on stderr."""
    last = consumer.skip_batch(error.topic_partition) - 1
    sys.stderr.write(f"pipeline: skipped {error.topic_partition}, offsets {error.offset} to {last}: {error.cause}\n")


def _advice(error: PartitionBatchError) -> str:
    partition = error.topic_partition.partition
    return (
        f"{error.topic_partition}: {error.cause}. Skip such batches with --skip-bad-batches, or continue after this"
        f" batch with --partition {partition} --offset {error.next_offset}"
    )


async def _range(
    cluster: Cluster, options: ConsumeOptions
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first offset to read and the current end of each selected partition."""
    topic = await find_topic(cluster, options.topic)
    numbers = sorted(topic.partitions)
    if options.partition is not None:
        if options.partition not in topic.partitions:
            output.exit_with(f"topic {options.topic} has partitions {numbers[0]} to {numbers[-1]}", output.EXIT_USAGE)
        numbers = [options.partition]
    partitions = [TopicPartition(options.topic, number) for number in numbers]

    ends = await find_offsets_at(cluster, partitions, LATEST)
    if options.offset == "earliest":
        return await find_offsets_at(cluster, partitions, EARLIEST), ends
    if options.offset == "latest":
        return ends, ends
    if not re.fullmatch("[0-9]{1,19}", options.offset):
        output.exit_with(f"--offset {options.offset[:20]}: give earliest, latest, or an offset", output.EXIT_USAGE)
    start = int(options.offset)
    if all(start > end for end in ends.values()):
        ended = ", ".join(f"partition {p.partition} at {end}" for p, end in ends.items())
        output.exit_with(f"--offset {start} is past the end of topic {options.topic}: {ended}")
    return dict.fromkeys(partitions, start), ends


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deserializers:
    keys: "AvroDeserializer | None" = None
    values: "AvroDeserializer | None" = None


async def _open_deserializers(options: ConsumeOptions, stack: AsyncExitStack) -> _Deserializers:
    if options.registry is None:
        return _Deserializers()
    from pipeline.client.registry.avro import AvroDeserializer

    registry = await stack.enter_async_context(open_registry(options.registry))
    return _Deserializers(
        keys=AvroDeserializer(registry, for_keys=True) if options.avro_keys else None,
        values=AvroDeserializer(registry, options.reader_schema),
    )


async def _decoded(record: ConsumerRecord, data: bytes | None, deserializer: "AvroDeserializer | None") -> Any:
    """Return a key or value as its schema says. Ends the command at one that cannot be decoded."""
    if deserializer is None or data is None:
        return data
    from pipeline.client.registry.errors import SerializationError

    try:
        return await deserializer.deserialize(data, record.headers)
    except SerializationError as error:
        _flush()
        output.exit_with(
            f"{record.topic_partition}, offset {record.offset}: {error}; without --registry it is shown as text"
        )


async def _print(record: ConsumerRecord, deserializers: _Deserializers, *, as_json: bool) -> None:
    key = await _decoded(record, record.key, deserializers.keys)
    value = await _decoded(record, record.value, deserializers.values)
    if as_json:
        document = {
            "topic": record.topic_partition.topic,
            "partition": record.topic_partition.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": _readable(key),
            "value": _readable(value),
            "headers": _headers(record),
        }
        output.print_json(document)
    elif isinstance(value, bytes):
        with output.translated_write_errors():
            sys.stdout.buffer.write(value + b"\n")
    elif value is None:
        output.say("")
    else:
        output.say(json_module.dumps(_readable(value)))  # with NaN and Infinity as `produce` reads them


def _headers(record: ConsumerRecord) -> dict[str, Any]:
    """Return the headers by name; a name that occurs several times has a list of values."""
    values: dict[str, list[Any]] = {}
    for name, content in record.headers:
        values.setdefault(name, []).append(_readable(content))
    return {name: of_name[0] if len(of_name) == 1 else of_name for name, of_name in values.items()}


def _readable(value: Any) -> Any:
    """Convert a value for JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {str(key): _readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
