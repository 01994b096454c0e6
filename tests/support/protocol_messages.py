"""Generated values for every declared message and version, within what every other implementation can hold too."""

from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from pipeline.protocol.api import ApiKey
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.schema import ZERO_UUID, FieldDeclaration, Kind, Message, declarations

OWN_TAG = 10_000
"""Tagged fields from here on are our own: nobody else knows them."""

LAST_TIMESTAMP_SECONDS = 253_402_300_799
"""The end of the year 9999, where kio's dates end; its milliseconds suffer from floats."""

_INTEGERS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}

_VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    **{
        kind: st.one_of(st.sampled_from([0, 1, -1]), st.integers(-(1 << bits - 1), (1 << bits - 1) - 1))
        for kind, bits in _INTEGERS.items()
    },
    Kind.FLOAT64: st.floats(allow_nan=False),
    Kind.BOOL: st.booleans(),
    Kind.UUID: st.one_of(st.just(ZERO_UUID), st.integers(1, (1 << 128) - 1).map(lambda number: UUID(int=number))),
    Kind.STRING: st.one_of(st.text(max_size=8), st.sampled_from(["x" * 126, "y" * 127, "ü" * 200])),
    Kind.BYTES: st.one_of(st.binary(max_size=8), st.just(b"z" * 300)),
    Kind.RECORDS: st.one_of(st.binary(max_size=8), st.sampled_from([b"r" * size for size in (126, 127, 4096, 16_383)])),
}


def messages_of(cls: type, version: int, *, own_fields: bool = True) -> st.SearchStrategy[Any]:
    """Messages with any value in the fields that exist in the version, defaults in the others."""
    return st.builds(
        cls,
        **{
            field.name: _field(field, version, own_fields)
            for field in declarations(cls)
            if field.exists_in(version) and (own_fields or (field.wire.tag or 0) < OWN_TAG)
        },
    )


def cases() -> list[tuple[type[Message], int]]:
    """Every message class in every version."""
    return [
        (cls, version)
        for api_key in ApiKey
        for cls in (api_key.request, api_key.response)
        for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1)
    ]


def case_id(case: object) -> str:
    """The name of a case in a test report."""
    return case.__name__ if isinstance(case, type) else str(case)


def _field(field: FieldDeclaration, version: int, own_fields: bool) -> st.SearchStrategy[Any]:
    values = _value(field, version, own_fields)
    if field.is_array:
        values = st.lists(values, max_size=3).map(tuple)
    if field.nullable_in(version):
        values = st.one_of(st.none(), values)
    if field.wire.tag is not None:
        values = st.one_of(st.just(field.default), values)
    return values


def _value(field: FieldDeclaration, version: int, own_fields: bool) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        return messages_of(field.struct, version, own_fields=own_fields)
    if field.name.endswith("error_code"):
        return st.sampled_from([int(code) for code in ErrorCode])
    if field.name == "log_append_time_ms":
        return st.one_of(st.just(-1), st.integers(0, LAST_TIMESTAMP_SECONDS).map(lambda seconds: 1000 * seconds))
    if field.name == "retention_time_ms":
        return st.integers(-1, 10**9)
    if field.name.endswith("authorized_operations") and field.kind is Kind.INT32:
        return st.one_of(st.just(-(1 << 31)), st.integers(0, (1 << 16) - 1))
    if field.name == "session_lifetime_ms":
        return st.integers(0, 10**12)
    return _VALUES[field.kind]
