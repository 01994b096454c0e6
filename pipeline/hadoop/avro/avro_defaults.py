"""Encodes defaults of a schema's fields, which are JSON, as datums. Pure."""

import struct
from typing import Any

from pipeline.hadoop.avro.avro_container import encode_long
from pipeline.hadoop.avro.avro_schema import SchemaNode, SchemaTable


def encode_default(table: SchemaTable, number: int, value: Any) -> bytes | None:
    """Encode a default, which is JSON; None if it does not fit the type."""
    node = table.nodes[number]
    try:
        match node.type, value:
            case "null", None:
                return b""
            case "boolean", bool():
                return bytes([value])
            case (("int" | "long"), int()) if not isinstance(value, bool) and _is_in_range(value, node.type):
                return encode_long(value)
            case (("float" | "double"), int() | float()) if not isinstance(value, bool):
                return struct.pack("<f" if node.type == "float" else "<d", value)
            case "string", str():
                data = value.encode()
                return encode_long(len(data)) + data
            case "bytes", str():
                data = value.encode("latin-1")
                return encode_long(len(data)) + data
            case "fixed", str():
                data = value.encode("latin-1")
                return data if len(data) == node.size else None
            case "enum", str():
                return encode_long(node.symbols.index(value))
            case (("array" | "map" | "record" | "union"), _):
                return _encode_nested(table, node, value)
    except (ValueError, OverflowError, UnicodeEncodeError):
        return None
    return None


def _encode_nested(table: SchemaTable, node: SchemaNode, value: Any) -> bytes | None:
    parts: list[bytes | None] = []
    match node.type, value:
        case "array", list():
            parts = [encode_long(len(value))] if value else []
            parts += [*(encode_default(table, node.children[0], item) for item in value), b"\0"]
        case "map", dict():
            parts = [encode_long(len(value))] if value else []
            for key, item in value.items():
                parts += [encode_long(len(key.encode())) + key.encode(), encode_default(table, node.children[0], item)]
            parts.append(b"\0")
        case "record", dict():
            for field in node.fields:
                if field.name not in value and not field.has_default:
                    return None
                parts.append(encode_default(table, field.node, value.get(field.name, field.default)))
        case "union", _:
            for branch, child in enumerate(node.children):
                encoded = encode_default(table, child, value)
                if encoded is not None:
                    return encode_long(branch) + encoded
            return None
        case _:
            return None
    return None if None in parts else b"".join(part for part in parts if part is not None)


def _is_in_range(value: int, kind: str) -> bool:
    bits = 31 if kind == "int" else 63
    return -(1 << bits) <= value < 1 << bits
