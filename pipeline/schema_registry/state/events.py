"""Records of the topic `_schemas` as events: Confluent's JSON keys and values. Pure.

Invariants:

A. The key bytes of one entry never vary, because compaction compares them: Confluent's order of attributes, no white
   space. Keys that other registries spell otherwise are kept (`other_key`), for deletions to remove them, too.
B. Decoding raises nothing: an unreadable record is an `Ignored` event with the reason, so that it does not keep the
   registry from starting. An unreadable setting is the strictest one.
C. `IdsReserved` is the value that this registry gives to the NOOP record, which other registries skip. It keeps the
   highest ids ever given out, so that compaction does not free ids of permanently deleted schemas.
D. Subjects are written as Confluent's registry writes them, with their context in front.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

from pipeline.schema_registry.avro.canonical import schema_digest
from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.state.subject_settings import RegistryMode, SubjectConfig

AVRO = "AVRO"
SubjectVersion = tuple[str, int]
"""A subject, and the number of a version."""
_TENANT: Final = "default"
_CONFIG_ATTRIBUTES: Final = frozenset({"subject", "alias", "normalize", "compatibilityLevel", "offset", "ts"})
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_MORE_OF_SCHEMAS: Final = ("md5", "metadata", "ruleSet")
_UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, order=True)
class SchemaReference:
    """Use of the types of another schema. A subject without a context is in the context of the schema that refers."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, kw_only=True)
class SchemaWritten:
    """A version of a subject was written. `deleted` marks a soft delete."""

    subject: str
    version: int
    id: int
    text: str
    schema_type: str = AVRO
    references: tuple[SchemaReference, ...] = ()
    more: str = ""
    """Metadata and rules of other registries, which are kept: a JSON object."""
    deleted: bool = False
    other_key: bytes | None = None
    """The record's key, if it is not the one that this registry writes (invariant A)."""

    @cached_property
    def identity(self) -> bytes:
        """Bytes that are equal for equal schemas. They cost some time: ask for them off the event loop."""
        return identity_of(self.text, self.schema_type, self.references)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRemoved:
    """A version was permanently deleted."""

    subject: str
    version: int
    other_key: bytes | None = None
    """As in SchemaWritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectDeleted:
    """All versions of a subject up to this one were soft-deleted."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectCleared:
    """All soft-deleted versions of a subject or context, or of all (None), were permanently deleted."""

    subject: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSet:
    """The config of a subject, a context or of the default context (None) was set; config None resets it."""

    subject: str | None
    config: SubjectConfig | None
    other_key: bytes | None = None
    """As in SchemaWritten: the key of the default context has no attribute `subject` in newer registries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSet:
    """The mode of a subject, a context or of the default context (None) was set; mode None resets it."""

    subject: str | None
    mode: RegistryMode | None
    other_key: bytes | None = None
    """As in ConfigSet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSet:
    """A context was created, or deleted."""

    context: str
    exists: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsReserved:
    """Ids up to these ones are used, whether or not their schemas still exist."""

    highest_id: int
    """Of the default context."""
    of_contexts: tuple[tuple[str, int], ...] = ()
    """Of the other contexts."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A record without effect on this registry."""

    reason: str
    version: SubjectVersion | None = None
    """Subject and number of the version whose record cannot be read."""
    other_key: bytes | None = None
    """As in SchemaWritten."""


WrittenEvent = (
    SchemaWritten | SchemaRemoved | SubjectDeleted | SubjectCleared | ConfigSet | ModeSet | ContextSet | IdsReserved
)
Event = WrittenEvent | Ignored


def identity_of(text: str, schema_type: str, references: Iterable[SchemaReference] = ()) -> bytes:
    """Return 16 bytes that are equal for equal schemas. Equal texts with other references are other schemas.

    Schemas of other kinds than Avro are equal if their texts are.
    """
    digest = schema_digest(text) if schema_type == AVRO else _digest(f"{schema_type} {text}")
    used = sorted(set(references))
    return _digest(digest.hex() + json.dumps([_reference_json(one) for one in used])) if used else digest


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def encode_event(event: WrittenEvent) -> tuple[bytes, bytes | None]:
    """Return key and value of the record; value None is a tombstone."""
    match event:
        case SchemaWritten():
            return _key_of(event), _json(_schema_value(event))
        case SchemaRemoved():
            return _key_of(event), None
        case SubjectDeleted():
            return _key("DELETE_SUBJECT", event.subject), _json({"subject": event.subject, "version": event.version})
        case SubjectCleared():
            return _key("CLEAR_SUBJECT", event.subject), _json(_of_subject(event.subject))
        case ConfigSet():
            return _key_of(event), None if event.config is None else _json(_config_value(event))
        case ModeSet(subject=subject, mode=mode):
            return _key_of(event), None if mode is None else _json({**_of_subject(subject), "mode": mode.value})
        case ContextSet():
            context = {"tenant": _TENANT, "context": event.context}
            return _json({"keytype": "CONTEXT", **context, "magic": 0}), _json(context) if event.exists else None
        case IdsReserved():
            value: dict[str, Any] = {"highestId": event.highest_id}
            if event.of_contexts:
                value["contexts"] = dict(event.of_contexts)
            return _json({"keytype": "NOOP", "magic": 0}), _json(value)


def _key_of(event: SchemaWritten | SchemaRemoved | ConfigSet | ModeSet) -> bytes:
    if event.other_key is not None:
        return event.other_key
    match event:
        case ConfigSet():
            return _key("CONFIG", event.subject)
        case ModeSet():
            return _key("MODE", event.subject)
    return _schema_key((event.subject, event.version))


def _schema_key(version: SubjectVersion) -> bytes:
    return b'{"keytype":"SCHEMA","subject":%b,"version":%d,"magic":1}' % (_json(version[0]), version[1])


def _schema_value(event: SchemaWritten) -> dict[str, Any]:
    more: dict[str, Any] = json.loads(event.more) if event.more else {}
    value: dict[str, Any] = {"subject": event.subject, "version": event.version, "id": event.id}
    if "md5" in more:
        value["md5"] = more.pop("md5")
    if event.schema_type != AVRO:
        value["schemaType"] = event.schema_type
    if event.references:
        value["references"] = [_reference_json(reference) for reference in event.references]
    return value | more | {"schema": event.text, "deleted": event.deleted}


def _config_value(event: ConfigSet) -> dict[str, Any]:
    config = event.config
    assert config is not None
    value: dict[str, Any] = _of_subject(event.subject)
    if config.alias is not None:
        value["alias"] = config.alias
    if config.normalize is not None:
        value["normalize"] = config.normalize
    if config.level is not None:
        value["compatibilityLevel"] = config.level.value
    return value | (json.loads(config.more) if config.more else {})


def _reference_json(reference: SchemaReference) -> dict[str, Any]:
    return {"name": reference.name, "subject": reference.subject, "version": reference.version}


def _of_subject(subject: str | None) -> dict[str, Any]:
    return {} if subject is None else {"subject": subject}


def decode_event(key: bytes | None, value: bytes | None) -> Event:
    """Return the event of a record of the topic, written by any registry. An empty value is a tombstone, too."""
    version: SubjectVersion | None = None
    try:
        fields = json.loads(key or b"null")
        if fields["keytype"] == "SCHEMA":
            version = _text(fields["subject"]), _positive(fields["version"])
        event = _decode(fields, version, value)
    except _UNREADABLE as error:
        other_key = None if version is None or _schema_key(version) == key else key
        return Ignored(f"unreadable: {type(error).__name__} {error}", version, other_key)
    if isinstance(event, SchemaWritten | SchemaRemoved | ConfigSet | ModeSet) and _key_of(event) != key:
        return replace(event, other_key=key)
    return event


def _decode(key: dict[str, Any], version: SubjectVersion | None, text: bytes | None) -> Event:
    kind = key["keytype"]
    match kind:
        case "CONFIG":
            return ConfigSet(subject=_scope(key), config=_decode_config(text))
        case "MODE":
            return ModeSet(subject=_scope(key), mode=_decode_mode(text))
    value = _read_value(text)
    if version is not None:
        return _decode_schema(version, value)
    match kind:
        case "CONTEXT":
            return ContextSet(context=_text(key["context"]), exists=value is not None)
    if value is None:
        return Ignored(f"a tombstone of kind {kind}")
    match kind:
        case "DELETE_SUBJECT":
            return SubjectDeleted(subject=_text(key["subject"]), version=_positive(value["version"]))
        case "CLEAR_SUBJECT":
            return SubjectCleared(subject=_scope(key))
        case "NOOP":
            others = value.get("contexts", {})
            return IdsReserved(
                highest_id=_id(value["highestId"]),
                of_contexts=tuple((_text(context), _id(highest)) for context, highest in others.items()),
            )
    return Ignored(f"a record of kind {kind}")


def _decode_schema(version_of: SubjectVersion, value: dict[str, Any] | None) -> Event:
    subject, version = version_of
    if value is None:
        return SchemaRemoved(subject=subject, version=version)
    more = {name: value[name] for name in _MORE_OF_SCHEMAS if value.get(name)}
    if more.keys() <= {"md5"}:  # of text and references alone
        more = {}
    return SchemaWritten(
        subject=subject,
        version=version,
        id=_id(value["id"]),
        text=_text(value["schema"]),
        schema_type=_text(value.get("schemaType") or AVRO),
        references=tuple(
            SchemaReference(_text(one["name"]), _text(one["subject"]), _positive(one["version"]))
            for one in value.get("references") or ()
        ),
        more=json.dumps(more) if more else "",
        deleted=bool(value.get("deleted", False)),
    )


def _read_value(text: bytes | None) -> Any:
    """Return the JSON of a value, None for a tombstone. What JSON cannot hold (NaN, 1e999) becomes a string."""
    return json.loads(text, parse_constant=str, parse_float=_finite) if text else None


def _finite(number: str) -> float | str:
    return number if math.isinf(float(number)) else float(number)


def _decode_mode(text: bytes | None) -> RegistryMode | None:
    """Return a mode. One that is unreadable, or of another registry (FORWARD), allows no writes.

    To leave it out would bring back the mode before it, until compaction removes that one.
    """
    try:
        value = _read_value(text)
        return None if value is None else RegistryMode(value["mode"])
    except _UNREADABLE:
        return RegistryMode.READONLY


def _decode_level(name: Any) -> CompatibilityLevel:
    """Return a level, the strictest one for one that is unknown, as with modes."""
    try:
        return CompatibilityLevel(name)
    except ValueError:
        return CompatibilityLevel.FULL_TRANSITIVE


def _decode_config(text: bytes | None) -> SubjectConfig | None:
    """Return a config, one of the strictest level if it is unreadable, as with modes."""
    try:
        value = _read_value(text)
        return None if value is None else _config_of(value)
    except _UNREADABLE:
        return SubjectConfig(level=CompatibilityLevel.FULL_TRANSITIVE)


def _config_of(value: dict[str, Any]) -> SubjectConfig:
    level, normalize, alias = (value.get(name) for name in ("compatibilityLevel", "normalize", "alias"))
    more = {name: one for name, one in value.items() if name not in _CONFIG_ATTRIBUTES and one is not None}
    return SubjectConfig(
        level=None if level is None else _decode_level(level),
        normalize=None if normalize is None else bool(normalize),
        alias=None if alias is None else _text(alias),
        more=json.dumps(more) if more else "",
    )


def _key(kind: str, subject: str | None) -> bytes:
    return _json({"keytype": kind, "subject": subject, "magic": 0})


def _json(value: dict[str, Any] | str) -> bytes:
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which older registries took
        return json.dumps(value, separators=(",", ":")).encode()


def _scope(key: dict[str, Any]) -> str | None:
    """Return the subject of a key. None and `""` are the default context."""
    subject = key.get("subject")
    return None if subject is None else _text(subject) or None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _positive(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
        raise TypeError(f"{value!r} is not a positive int32")
    return value


def _id(value: object) -> int:
    return 0 if value == 0 and not isinstance(value, bool) else _positive(value)
