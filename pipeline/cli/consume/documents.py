"""Records as JSON documents, which `pipeline produce --json-records` reads back. Pure."""

import base64
from collections.abc import Sequence
from typing import Any

from pipeline.model import TopicPartition
from pipeline.records.builder import Header
from pipeline.records.record import Record


def record_document(topic_partition: TopicPartition, record: Record, key: Any, value: Any) -> dict[str, Any]:
    """Return the document of a record. `key` and `value` may be decoded."""
    return {
        "topic": topic_partition.topic,
        "partition": topic_partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": readable(key),
        "value": readable(value),
        "headers": _headers(record.headers),
    }


def _headers(headers: Sequence[Header]) -> dict[str, Any]:
    """Return the headers by name; a name that occurs several times has a list of values."""
    values: dict[str, list[Any]] = {}
    for name, content in headers:
        values.setdefault(name, []).append(readable(content))
    return {name: of_name[0] if len(of_name) == 1 else of_name for name, of_name in values.items()}


def readable(value: Any) -> Any:
    """Convert a value for JSON: bytes to text or, if they are not UTF-8, to {"base64": ...}."""
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {str(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
