"""`pipeline produce`: publish lines as records."""

import io
import json as json_module
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

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
    SchemaOptions,
    SubjectStrategy,
    ValueSchema,
    open_registry,
    read_schema_options,
    serializer_of,
)
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, ZooKeeper, connected, find_topic, randomness, wall_clock
from pipeline.cli.terminal.files import require_readable
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import Acks, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.records.builder import Header
from pipeline.records.compression import Codec

if TYPE_CHECKING:
    from pipeline.client.registry.avro import AvroSerializer

CHUNK_BYTES = 256 * 1024
ACKS = {"0": Acks.NONE, "1": Acks.LEADER, "all": Acks.ALL}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """Options of `produce`."""

    topic: str
    file: Path | None
    partition: int | None
    key_separator: bytes | None
    config: ProducerConfig
    datacenter: str | None
    null_marker: bytes | None
    registries: str | None
    key_schema: SchemaOptions | None
    value_schema: SchemaOptions | None


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File with a record per line. Default: standard input.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Partition. Default: chosen by the key; without key, spread over all.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="Text between KEY and VALUE in a line. Default: no keys."),
    ] = None,
    codec: Annotated[str, typer.Option(help="Compression: none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option(help="Acknowledgements to wait for: 0, 1 or all.")] = "all",
    datacenter: Annotated[
        str | None, typer.Option(help="Report counts to the audit under this datacenter's name.")
    ] = None,
    null_marker: Annotated[
        str | None, typer.Option(help="Text of a value that stands for no value (a tombstone).")
    ] = None,
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
    json: Json = False,
) -> None:
    """Publish each line of a file or of standard input as a record, and wait until all are acknowledged."""
    if codec.upper() not in Codec.__members__:
        output.exit_with(f"--codec {codec}: give none, gzip, snappy, lz4 or zstd", output.EXIT_USAGE)
    if acks not in ACKS:
        output.exit_with(f"--acks {acks}: give 0, 1 or all", output.EXIT_USAGE)
    if (schema is None and key_schema is None) != (registry is None):
        output.exit_with("--schema (or --key-schema) and --registry: give both or neither", output.EXIT_USAGE)
    if key_separator == "" or (key_schema is not None and key_separator is None):
        output.exit_with("--key-separator: must not be empty, and --key-schema needs it", output.EXIT_USAGE)
    chosen = {"auto_register": auto_register, "normalize": normalize, "in_header": schema_id_in_header}
    if file is not None:
        require_readable(file)
    config = ProducerConfig(compression=Codec[codec.upper()], acks=ACKS[acks], idempotence=acks == "all")
    options = ProduceOptions(
        topic=topic,
        file=file,
        partition=partition,
        key_separator=None if key_separator is None else os.fsencode(key_separator),
        config=config,
        datacenter=datacenter,
        null_marker=None if null_marker is None else os.fsencode(null_marker),
        registries=registry,
        key_schema=read_schema_options(key_schema, key_references, key_subject_name_strategy, **chosen),
        value_schema=read_schema_options(schema, references, subject_name_strategy, **chosen),
    )
    count = trio.run(_produce, options, bootstrap, zookeeper)
    if json:
        output.print_json({"topic": topic, "records": count})
    else:
        output.say(f"Published {output.counted(count, 'record')} to {topic}.")


async def _produce(options: ProduceOptions, bootstrap: str | None, zookeeper: str | None) -> int:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(connected(bootstrap, zookeeper, "pipeline-produce"))
        view = await find_topic(cluster, options.topic)
        if options.partition is not None and options.partition not in view.partitions:
            output.exit_with(f"topic {options.topic} has no partition {options.partition}", output.EXIT_USAGE)
        serializers = await _open_serializers(options, stack)
        producer = await stack.enter_async_context(_producer(cluster, options))
        bar = stack.enter_context(output.progress(f"Publishing to {options.topic}", total=None))
        count = 0  # of records that were given to the producer
        lines = await stack.enter_async_context(aclosing(_lines(options.file)))
        async for line in lines:
            headers: list[Header] = []
            try:
                key, value = await _record(line, options, serializers, headers)
            except _LineError as error:
                await producer.flush()
                before = f"; {output.counted(count, 'record')} before it published" if count else ""
                output.exit_with(f"line {count + 1}{error}{before}")
            await producer.send(options.topic, value, key=key, partition=options.partition, headers=headers)
            count += 1
            bar.advance()
        await producer.flush()
        return count


def _producer(cluster: Cluster, options: ProduceOptions) -> Any:
    if options.datacenter is None:
        return open_producer(cluster, options.config, clock=wall_clock, rng=randomness())
    from pipeline.audit.publisher import open_audited_producer

    return open_audited_producer(
        cluster,
        options.config,
        datacenter=options.datacenter,
        host=socket.gethostname(),
        clock=wall_clock,
        rng=randomness(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serializers:
    keys: "AvroSerializer | None" = None
    values: "AvroSerializer | None" = None


async def _open_serializers(options: ProduceOptions, stack: AsyncExitStack) -> _Serializers:
    if options.registries is None:
        return _Serializers()
    registry = await stack.enter_async_context(open_registry(options.registries))
    key_schema, value_schema = options.key_schema, options.value_schema
    return _Serializers(
        keys=None if key_schema is None else serializer_of(registry, key_schema, for_keys=True),
        values=None if value_schema is None else serializer_of(registry, value_schema, for_keys=False),
    )


async def _lines(file: Path | None) -> AsyncGenerator[bytes]:
    """Yield lines without their ends, read in a thread, so that records are sent while the next line is awaited."""
    try:
        with io.FileIO(sys.stdin.fileno(), closefd=False) if file is None else io.FileIO(file) as stream:
            rest = b""
            while chunk := await trio.to_thread.run_sync(stream.read, CHUNK_BYTES, abandon_on_cancel=True):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.removesuffix(b"\r")
            if rest:
                yield rest
    except OSError as error:
        output.exit_with(f"{file or 'standard input'}: {error.strerror}")


def _split(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else (None, line)


class _LineError(Exception):
    """Fault of a line."""


async def _record(
    line: bytes, options: ProduceOptions, serializers: _Serializers, headers: list[Header]
) -> tuple[bytes | None, bytes | None]:
    """Return key and value, and append the headers that belong to them. Raises _LineError."""
    key, text = _split(line, options.key_separator)
    if serializers.keys is not None and key is not None:
        key = await _serialize(serializers.keys, options.topic, key, headers)
    if text == options.null_marker:
        return key, None
    if serializers.values is None:
        return key, text
    return key, await _serialize(serializers.values, options.topic, text, headers)


async def _serialize(serializer: "AvroSerializer", topic: str, text: bytes, headers: list[Header]) -> bytes | None:
    """Return the bytes of plain JSON or, if its object does not match the schema, of Avro's JSON encoding."""
    from pipeline.client.registry.avro_json import from_avro_json
    from pipeline.client.registry.errors import SchemaMismatchError

    try:
        value = json_module.loads(text)
    except (ValueError, RecursionError) as error:
        raise _LineError(f" is not JSON: {error}") from error
    try:
        return await serializer.serialize(topic, value, headers)
    except SchemaMismatchError as error:
        encoder = await serializer.encoder(topic)
        try:
            value = from_avro_json(encoder.fastavro_schema, value, encoder.named)
            return await serializer.serialize(topic, value, headers)
        except (SchemaMismatchError, ValueError, RecursionError):
            raise _LineError(f": {error}") from error
