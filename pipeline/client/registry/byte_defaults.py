"""Defaults of bytes and fixed, which a schema has as text and fastavro writes and returns as it finds them. Pure."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pipeline.client.registry.named_types import RECORD_TYPES


def with_bytes(schema: Any, default: Any, named: Mapping[str, Any]) -> Any:
    """Return a default of a schema that fastavro has parsed, with bytes where the schema says bytes or fixed.

    A default belongs to the first branch of a union. A default that does not fit its type stays as it is.
    """
    if isinstance(schema, list):
        return with_bytes(schema[0], default, named) if schema else default
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return with_bytes(kind, default, named)
    if kind in ("bytes", "fixed") and isinstance(default, str):
        with suppress(UnicodeEncodeError):
            return default.encode("iso-8859-1")
    elif kind == "array" and isinstance(default, list):
        return [with_bytes(schema["items"], item, named) for item in default]
    elif kind == "map" and isinstance(default, dict):
        return {key: with_bytes(schema["values"], item, named) for key, item in default.items()}
    elif kind in RECORD_TYPES and isinstance(default, dict):
        types = {field["name"]: field["type"] for field in schema["fields"]}
        return {key: with_bytes(types[key], item, named) if key in types else item for key, item in default.items()}
    return default
