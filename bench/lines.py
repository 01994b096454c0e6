"""Real log lines as payloads: the 10,000 lines of the demo's access log, without end; as text or as Avro records."""

import io
import json
import struct
from collections.abc import Iterator

import fastavro

from pipeline.cli.demo.access_log import parse_line, sample_lines, sample_schema

LOG_LINES = "log lines"
LOG_EVENTS = "log events"


def log_lines() -> Iterator[bytes]:
    """Without end, each pass one line further on.

    So a partition that gets every n-th line has other lines in each pass, and no batch holds a line twice, which would
    make a codec look better than it is.
    """
    yield from _passes([line.encode() for line in sample_lines()])


def log_events(schema_id: int) -> Iterator[bytes]:
    """As `log_lines`, as Avro records behind a schema id."""
    yield from _passes(_events(schema_id))


def _passes(values: list[bytes]) -> Iterator[bytes]:
    first = 0
    while True:
        yield from values[first:]
        yield from values[:first]
        first = (first + 1) % len(values)


def _events(schema_id: int) -> list[bytes]:
    schema = fastavro.parse_schema(json.loads(sample_schema()))
    events = []
    for line in sample_lines():
        datum = io.BytesIO()
        fastavro.schemaless_writer(datum, schema, parse_line(line).fields)
        events.append(struct.pack(">bI", 0, schema_id) + datum.getvalue())
    return events


def log_bytes(records: int) -> int:
    """The payload of the first `records` lines."""
    return _total([len(line.encode()) for line in sample_lines()], records)


def event_bytes(records: int) -> int:
    """The payload of the first `records` Avro records."""
    return _total([len(event) for event in _events(1)], records)


def _total(sizes: list[int], records: int) -> int:
    passes, rest = divmod(records, len(sizes))
    first = passes % len(sizes)
    return passes * sum(sizes) + sum([*sizes[first:], *sizes[:first]][:rest])
