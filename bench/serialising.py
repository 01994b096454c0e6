"""Avro objects to framed bytes with a warm cache, beside bare fastavro on the same objects.

`encode` is the step without waiting (AvroEncoder), `serialize` the call with its look-up of the topic, `list` one call
for all objects; confluent-kafka's serialiser is shown beside them. All write the same datum; ours also refuses
unknown fields and integers out of range. Each figure is the best of many short rounds in which all take their turn, so
the ratios hold on a busy machine too. Target: `encode` takes at most a tenth more time than fastavro.
"""

import json
import time
import warnings
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import Any

import fastavro
import trio

from bench.report import Options, Row, Show, Target
from pipeline.client.registry.avro import AvroSerializer
from pipeline.client.registry.client import open_schema_registry
from pipeline.client.registry.framing import FRAME_SIZE
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry

ROUNDS = 200
CALLS = 500
TARGET = Target(bound=0.9, at_least=True)
OPTIONAL_STRING = ["null", "string"]

FLAT = {
    "type": "record",
    "name": "PageView",
    "fields": [
        {"name": "time", "type": "long"},
        {"name": "user", "type": "string"},
        {"name": "path", "type": "string"},
        {"name": "status", "type": "int"},
        {"name": "size", "type": "int"},
        {"name": "ratio", "type": "double"},
        {"name": "secure", "type": "boolean"},
        {"name": "referer", "type": OPTIONAL_STRING, "default": None},
    ],
}
FLAT_DATUM = {
    "time": 1_700_000_000_000,
    "user": "alice",
    "path": "/index.html",
    "status": 200,
    "size": 5120,
    "ratio": 0.25,
    "secure": True,
    "referer": "https://example.org/",
}
CLIENT = {
    "type": "record",
    "name": "Client",
    "fields": [{"name": "ip", "type": "string"}, {"name": "port", "type": "int"}],
}
ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "price", "type": "double"},
    ],
}
NESTED = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "client", "type": CLIENT},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
        {"name": "labels", "type": {"type": "map", "values": "string"}},
    ],
}
NESTED_DATUM = {
    "id": 7,
    "client": {"ip": "10.0.0.1", "port": 443},
    "items": [{"sku": f"sku-{number}", "count": number, "price": 1.5} for number in range(5)],
    "labels": {"shop": "east", "campaign": "autumn"},
}
RECORDS = {"flat": (FLAT, FLAT_DATUM), "nested": (NESTED, NESTED_DATUM)}


def measure(options: Options, show: Show) -> list[Row]:
    """A row for each way and kind of record."""
    rows = []
    for kind in RECORDS:
        names = {way: f"{way}, {kind} record" for way in ("encode", "serialize", "list", "confluent-kafka")}
        if any(map(options.selects, names.values())):
            show(f"serialising: {kind}")
            rates = trio.run(_rates, kind, options.rounds_or(ROUNDS), options.scaled(CALLS))
            rows += [
                Row(
                    name=name,
                    unit="records/s",
                    ours=rates[way],
                    peer="fastavro",
                    theirs=rates["fastavro"],
                    target=TARGET if way == "encode" else None,
                )
                for way, name in names.items()
                if options.selects(name)
            ]
    return rows


async def _rates(kind: str, rounds: int, calls: int) -> dict[str, float]:
    """Records per second of each way."""
    schema, datum = RECORDS[kind]
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as registry:
        serializer = AvroSerializer(registry, json.dumps(schema))
        encoder = await serializer.encoder("t")
        theirs = await trio.to_thread.run_sync(_confluent_serializer, url, json.dumps(schema))
        written = await trio.to_thread.run_sync(theirs, datum)  # registers in a thread
        _require_same_bytes(schema, datum, encoder.encode(datum), written)
        seconds: dict[str, list[float]] = {}

        def take(way: str, work: Callable[[], object]) -> None:
            started = time.perf_counter()
            work()
            seconds.setdefault(way, []).append(time.perf_counter() - started)

        many = [datum] * calls
        for _ in range(rounds):
            take("fastavro", lambda: _with_fastavro(schema, datum, calls))
            take("encode", lambda: _repeat(encoder.encode, datum, calls))
            take("list", lambda: encoder.encode_all(many))
            take("confluent-kafka", lambda: _repeat(theirs, datum, calls))
            started = time.perf_counter()
            await _serialize(serializer.serialize, datum, calls)
            seconds.setdefault("serialize", []).append(time.perf_counter() - started)
        return {way: calls / min(each) for way, each in seconds.items()}


def _with_fastavro(schema: Any, datum: Any, calls: int) -> None:
    parsed, write = fastavro.parse_schema(schema), fastavro.schemaless_writer
    for _ in range(calls):
        target = BytesIO()
        write(target, parsed, datum)
        target.getvalue()


def _repeat(encode: Callable[[Any], object], datum: Any, calls: int) -> None:
    for _ in range(calls):
        encode(datum)


async def _serialize(serialize: Callable[[str, Any], Awaitable[object]], datum: Any, calls: int) -> None:
    for _ in range(calls):
        await serialize("t", datum)


def _confluent_serializer(url: str, schema: str) -> Callable[[Any], Any]:
    with warnings.catch_warnings(action="ignore"):
        from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
        from confluent_kafka.schema_registry.avro import AvroSerializer as ConfluentSerializer
        from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext("t", MessageField.VALUE)
    conf = {"subject.name.strategy": topic_subject_name_strategy}
    serializer = ConfluentSerializer(SchemaRegistryClient({"url": url}), schema, conf=conf)
    return lambda datum: serializer(datum, context)


def _require_same_bytes(schema: Any, datum: Any, ours: bytes | None, theirs: bytes) -> None:
    target = BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), datum)
    if ours != theirs or theirs[FRAME_SIZE:] != target.getvalue():
        raise ValueError("the bytes differ")
