"""Records of the topic `_schemas` as events: Confluent's JSON keys and values. Pure.

Invariants:

A. The key bytes of one entry never vary, because compaction compares them: Confluent's order of attributes, no white
   space.
B. Decoding raises nothing: an unreadable record is an `Ignored` event with the reason, so that it does not keep the
   registry from starting.
C. `IdsReserved` is the value that this registry gives to the NOOP record, which other registries skip. It keeps the
   highest id ever given out, so that compaction does not free ids of permanently deleted schemas.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.schema_registry.avro.canonical import schema_digest
from pipeline.schema_registry.compatibility import CompatibilityLevel

AVRO = "AVRO"


@dataclass(frozen=True, kw_only=True)
class SchemaWritten:
    """A version of a subject was written. `deleted` marks a soft delete."""

    subject: str
    version: int
    id: int
    text: str
    schema_type: str = AVRO
    deleted: bool = False

    @cached_property
    def identity(self) -> bytes:
        """Bytes that are equal for equal schemas. They cost some time: ask for them off the event loop."""
        return identity_of(self.text, self.schema_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRemoved:
    """A version was permanently deleted."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectDeleted:
    """All versions of a subject up to this one were soft-deleted."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSet:
    """The compatibility level of a subject, or the global one (subject None), was set; level None resets it."""

    subject: str | None
    level: CompatibilityLevel | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsReserved:
    """Ids up to this one are used, whether or not their schemas still exist."""

    highest_id: int


@dataclass(frozen=True, slots=True)
class Ignored:
    """A record without effect on this registry."""

    reason: str


Event = SchemaWritten | SchemaRemoved | SubjectDeleted | LevelSet | IdsReserved | Ignored


def identity_of(text: str, schema_type: str) -> bytes:
    """Return bytes that are equal for equal schemas; schemas of other kinds than Avro are equal if their texts are."""
    return schema_digest(text) if schema_type == AVRO else f"{schema_type} {text}".encode(errors="surrogatepass")


def encode_event(
    event: SchemaWritten | SchemaRemoved | SubjectDeleted | LevelSet | IdsReserved,
) -> tuple[bytes, bytes | None]:
    """Return key and value of the record; value None is a tombstone."""
    match event:
        case SchemaWritten():
            value: dict[str, Any] = {"subject": event.subject, "version": event.version, "id": event.id}
            if event.schema_type != AVRO:
                value["schemaType"] = event.schema_type
            value |= {"schema": event.text, "deleted": event.deleted}
            return _schema_key(event.subject, event.version), _json(value)
        case SchemaRemoved():
            return _schema_key(event.subject, event.version), None
        case SubjectDeleted():
            key = _json({"keytype": "DELETE_SUBJECT", "subject": event.subject, "magic": 0})
            return key, _json({"subject": event.subject, "version": event.version})
        case LevelSet():
            key = _json({"keytype": "CONFIG", "subject": event.subject, "magic": 0})
            return key, None if event.level is None else _json({"compatibilityLevel": event.level.value})
        case IdsReserved():
            return _json({"keytype": "NOOP", "magic": 0}), _json({"highestId": event.highest_id})


def decode_event(key: bytes | None, value: bytes | None) -> Event:
    """Return the event of a record of the topic, written by any registry."""
    try:
        return _decode(json.loads(key or b"null"), None if value is None else json.loads(value))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return Ignored(f"unreadable: {type(error).__name__} {error}")


def _decode(key: dict[str, Any], value: dict[str, Any] | None) -> Event:
    kind = key["keytype"]
    if kind == "CONFIG":
        level = None if value is None else value.get("compatibilityLevel")
        subject = None if key.get("subject") is None else _text(key["subject"])
        return LevelSet(subject=subject, level=None if level is None else CompatibilityLevel(level))
    if kind == "SCHEMA" and value is None:
        return SchemaRemoved(subject=_text(key["subject"]), version=_positive(key["version"]))
    if value is None:
        return Ignored(f"a tombstone of kind {kind}")
    match kind:
        case "SCHEMA":
            if value.get("references"):
                return Ignored(f"references are not served: {key['subject']} version {key['version']}")
            return SchemaWritten(
                subject=_text(key["subject"]),
                version=_positive(key["version"]),
                id=_positive(value["id"]),
                text=_text(value["schema"]),
                schema_type=_text(value.get("schemaType") or AVRO),
                deleted=bool(value.get("deleted", False)),
            )
        case "DELETE_SUBJECT":
            return SubjectDeleted(subject=_text(key["subject"]), version=_positive(value["version"]))
        case "NOOP":
            return IdsReserved(highest_id=_positive(value["highestId"]))
    return Ignored(f"a record of kind {kind}")


def _schema_key(subject: str, version: int) -> bytes:
    return _json({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _positive(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
        raise TypeError(f"{value!r} is not a positive int32")
    return value
