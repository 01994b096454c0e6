"""`pipeline produce`: publish lines as records."""

import io
import json as json_module
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.foreground import REGISTRY_TIMEOUT_S, http_url
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, ZooKeeper, connected, find_topic, randomness, wall_clock
from pipeline.cli.terminal.files import read_text, require_readable
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import Acks, ProducerConfig
from pipeline.client.producer.producer import open_producer
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
    schema: str | None
    registry: str | None


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
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE.avsc", help="Encode lines of JSON as Avro with this schema."),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="URL", parser=http_url, help="Registry for the schema; with --schema."),
    ] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Publish each line of a file or of standard input as a record, and wait until all are acknowledged."""
    if codec.upper() not in Codec.__members__:
        output.exit_with(f"--codec {codec}: give none, gzip, snappy, lz4 or zstd", output.EXIT_USAGE)
    if acks not in ACKS:
        output.exit_with(f"--acks {acks}: give 0, 1 or all", output.EXIT_USAGE)
    if (schema is None) != (registry is None):
        output.exit_with("--schema and --registry: give both or neither", output.EXIT_USAGE)
    if key_separator == "":
        output.exit_with("--key-separator: must not be empty", output.EXIT_USAGE)
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
        schema=None if schema is None else read_text(schema),
        registry=registry,
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
        serializer = await _serializer(options, stack)
        producer = await stack.enter_async_context(_producer(cluster, options))
        bar = stack.enter_context(output.progress(f"Publishing to {options.topic}", total=None))
        count = 0
        async for line in _lines(options.file):
            key, value = _split(line, options.key_separator)
            if serializer is not None:
                value = await _serialize(serializer, options.topic, _parse(value, count + 1), count + 1)
            await producer.send(options.topic, value, key=key, partition=options.partition)
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


async def _serializer(options: ProduceOptions, stack: AsyncExitStack) -> "AvroSerializer | None":
    if options.schema is None or options.registry is None:
        return None
    from pipeline.client.registry.avro import AvroSerializer
    from pipeline.client.registry.client import open_schema_registry

    client = await stack.enter_async_context(open_schema_registry([options.registry], timeout_s=REGISTRY_TIMEOUT_S))
    return AvroSerializer(client, options.schema)


async def _lines(file: Path | None) -> AsyncIterator[bytes]:
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


def _parse(value: bytes, number: int) -> Any:
    try:
        return json_module.loads(value)
    except ValueError as error:
        output.exit_with(f"line {number} is not JSON: {error}")


async def _serialize(serializer: "AvroSerializer", topic: str, datum: Any, number: int) -> bytes:
    from pipeline.client.registry.avro import SchemaMismatchError

    try:
        return await serializer.serialize(topic, datum)
    except SchemaMismatchError as error:
        output.exit_with(f"line {number}: {error}")
