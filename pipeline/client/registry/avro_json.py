"""Avro's JSON encoding: `{"string": "x"}` for a value in a union, bytes as text of ISO-8859-1. Pure."""

from collections.abc import Mapping
from typing import Any

from pipeline.client.registry.named_types import NAMED_TYPES, RECORD_TYPES


def from_avro_json(schema: Any, value: Any, named: Mapping[str, Any]) -> Any:
    """Return the object of a JSON value as an AvroEncoder takes it. `schema` is one that fastavro has parsed.

    What does not fit the schema stays as it is, unknown fields too, so that the encoder refuses it.
    """
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    if isinstance(schema, list):
        return _from_union(schema, value, named)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return from_avro_json(kind, value, named)
    if kind in RECORD_TYPES and isinstance(value, dict):
        types = {field["name"]: field["type"] for field in schema["fields"]}
        return {
            name: from_avro_json(types[name], item, named) if name in types else item for name, item in value.items()
        }
    if kind == "array" and isinstance(value, list):
        return [from_avro_json(schema["items"], item, named) for item in value]
    if kind == "map" and isinstance(value, dict):
        return {key: from_avro_json(schema["values"], item, named) for key, item in value.items()}
    if kind in ("bytes", "fixed") and isinstance(value, str):
        return value.encode("iso-8859-1")
    return value


def _from_union(branches: list[Any], value: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(value, dict) and len(value) == 1:
        ((wanted, inner),) = value.items()
        for branch in branches:
            if _branch_name(branch) == wanted:
                return wanted, from_avro_json(branch, inner, named)
    return value


def _branch_name(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    return str(branch["name"] if branch["type"] in NAMED_TYPES else branch["type"])
