"""Requests with one field at a limit, or several, made from the declarations of the messages: a new api key is covered
by itself. The other fields hold what an ordinary request holds.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from uuid import UUID

from pipeline.protocol import primitives
from pipeline.protocol.api import ApiKey
from pipeline.protocol.schema import ZERO_UUID, FieldDeclaration, Kind, Message, declarations
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec

TOPIC = "a"
"""Any string that nobody gave a meaning to: of a topic that is there, a group, a protocol, and so on."""
LONGEST = primitives.MAX_STRING_BYTES
LENGTHS = (0, LONGEST, LONGEST + 1, 65_536)
MANY = 2000
"""Elements of a long array. Fewer than a request may have, and more than anybody sends."""
TOGETHER = 0.3
"""Share of the fields that are at a limit in a request that has several there."""

ORDINARY: Mapping[str, Any] = {
    "acks": -1,
    "count": 2,
    "entity_type": "client-id",
    "group_instance_id": None,
    "key_type": 0,
    "max_bytes": 1_000_000,
    "max_wait_ms": 100,
    "member_id": "",
    "num_partitions": 1,
    "partition_max_bytes": 1_000_000,
    "protocol_type": "consumer",
    "rebalance_timeout_ms": 200,
    "replication_factor": 1,
    "resource_type": 2,
    "session_timeout_ms": 200,
    "timeout_ms": 500,
    "transaction_timeout_ms": 1000,
}
"""By the names of fields, where neither the default nor `TOPIC` is what an ordinary request holds."""
OF_TOPICS: Mapping[ApiKey, str] = {ApiKey.CREATE_TOPICS: "made", ApiKey.DELETE_TOPICS: "doomed"}
"""Names of their own for requests that make topics and remove them."""


@dataclass(frozen=True, slots=True)
class LimitCase:
    """A request, and which of its fields are at which limits."""

    api_key: ApiKey
    version: int
    message: Message
    told: str

    @property
    def is_too_long(self) -> bool:
        """True if it holds a string that no server takes."""
        return any(f"={length} of str" in self.told for length in LENGTHS if length > LONGEST)

    def __str__(self) -> str:
        return f"{self.api_key.name} v{self.version}: {self.told}"


@contextmanager
def strings_of_any_length() -> Iterator[None]:
    """Have the encoder write what it refuses otherwise, as an enemy's does."""
    limit = primitives.MAX_STRING_BYTES
    primitives.MAX_STRING_BYTES = 1 << 30
    try:
        yield
    finally:
        primitives.MAX_STRING_BYTES = limit


@dataclass(slots=True)
class LimitCases:
    """All requests with one field at a limit, and some with several. `topic_id` is that of `TOPIC`."""

    apis: Mapping[int, ApiKey]
    topic_id: UUID
    random: Random

    def one_at_a_time(self) -> Iterator[LimitCase]:
        """Each field of each key in each version at each of its limits."""
        for api_key, version in self._versions():
            name = OF_TOPICS.get(api_key, TOPIC)
            yield LimitCase(api_key, version, self._ordinary(api_key.request, version, name), "ordinary")
            for told, message in self._variants(api_key.request, version, name):
                yield LimitCase(api_key, version, message, told)

    def together(self, each: int) -> Iterator[LimitCase]:
        """So many requests of each key and version with several fields at limits, from the seed."""
        for api_key, version in self._versions():
            for _ in range(each):
                told: list[str] = []
                message = self._spoilt(api_key.request, version, OF_TOPICS.get(api_key, TOPIC), told)
                yield LimitCase(api_key, version, message, ", ".join(told) or "ordinary")

    def _versions(self) -> Iterator[tuple[ApiKey, int]]:
        for api_key in self.apis.values():
            for version in range(api_key.min_version, api_key.max_version + 1):
                yield api_key, version

    def _ordinary(self, cls: type, version: int, name: str) -> Any:
        return cls(
            **{
                field.name: self._ordinary_value(field, version, name)
                for field in declarations(cls)
                if field.exists_in(version)
            }
        )

    def _ordinary_value(self, field: FieldDeclaration, version: int, name: str) -> Any:
        if field.is_array:
            return (self._ordinary_value(field.element(), version, name),)
        if field.struct is not None:
            return self._ordinary(field.struct, version, name)
        if field.name in ORDINARY:
            return ORDINARY[field.name]
        match field.kind:
            case Kind.STRING:
                return None if field.default is None and field.nullable_in(version) else name
            case Kind.UUID:
                return self.topic_id
            case Kind.RECORDS:
                return one_batch()
            case Kind.BYTES:
                return b"metadata"
            case _:
                return 0 if isinstance(field.default, (tuple, list)) or field.default is None else field.default

    def _variants(self, cls: type, version: int, name: str) -> Iterator[tuple[str, Any]]:
        ordinary = self._ordinary(cls, version, name)
        for field in declarations(cls):
            if field.exists_in(version):
                for told, value in self._limits(field, version, name):
                    yield f"{field.name}{told}", replace(ordinary, **{field.name: value})

    def _limits(self, field: FieldDeclaration, version: int, name: str) -> Iterator[tuple[str, Any]]:
        if field.nullable_in(version):
            yield "=null", None
        if field.is_array:
            element = self._ordinary_value(field.element(), version, name)
            yield "=[]", ()
            yield f"={MANY} of the same", (element,) * MANY
            for told, value in self._limits(field.element(), version, name):
                yield f"[0]{told}", (value,)
        elif field.struct is not None:
            for told, value in self._variants(field.struct, version, name):
                yield f".{told}", value
        else:
            for value in _scalar_limits(field.kind):
                yield f"={_told(value)}", value

    def _spoilt(self, cls: type, version: int, name: str, told: list[str]) -> Any:
        return cls(
            **{
                field.name: self._spoilt_value(field, version, name, told)
                for field in declarations(cls)
                if field.exists_in(version)
            }
        )

    def _spoilt_value(self, field: FieldDeclaration, version: int, name: str, told: list[str]) -> Any:
        is_spoilt = self.random.random() < TOGETHER
        if field.struct is not None or field.is_array:
            if is_spoilt and field.nullable_in(version) and self.random.random() < TOGETHER:
                told.append(f"{field.name}=null")
                return None
            if not field.is_array:
                assert field.struct is not None
                return self._spoilt(field.struct, version, name, told)
            count = self.random.choice((0, 2, 3)) if is_spoilt else 1
            return tuple(self._spoilt_value(field.element(), version, name, told) for _ in range(count))
        if not is_spoilt:
            return self._ordinary_value(field, version, name)
        value = self.random.choice(_scalar_limits(field.kind))
        told.append(f"{field.name}={_told(value)}")
        return value


def one_batch() -> bytes:
    """A batch of one record."""
    builder = BatchBuilder(Codec.NONE, 1000)
    builder.append(b"key", b"value", (), 0)
    return bytes(builder.build())


def _scalar_limits(kind: Kind) -> tuple[Any, ...]:
    match kind:
        case Kind.STRING:
            return tuple("x" * length for length in LENGTHS)
        case Kind.BYTES | Kind.RECORDS:
            return tuple(bytes(length) for length in LENGTHS)
        case Kind.BOOL:
            return (False, True)
        case Kind.UUID:
            return (ZERO_UUID, UUID(int=2**128 - 1))
        case Kind.FLOAT64:
            return (-1.0, 0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan)
        case _:
            bits = 8 * kind.size_bytes
            if kind.format.isupper():
                return (0, 1, 2**bits - 1)
            return (-1, 0, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _told(value: Any) -> str:
    return f"{len(value)} of {type(value).__name__}" if isinstance(value, (str, bytes)) else str(value)
