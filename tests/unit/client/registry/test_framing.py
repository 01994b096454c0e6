from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.registry.errors import SerializationError
from pipeline.client.registry.framing import find_schema_header, guid_header, id_frame, read_frame

GUID = UUID("01234567-89ab-cdef-0123-456789abcdef")


@given(st.integers(0, 2**31 - 1), st.binary(max_size=20))
def test_an_id_before_the_datum(schema_id: int, datum: bytes) -> None:
    assert read_frame(id_frame(schema_id) + datum) == (schema_id, datum)


@pytest.mark.parametrize("for_keys", [False, True])
def test_a_guid_in_a_header(for_keys: bool) -> None:
    header = guid_header(GUID, for_keys=for_keys)
    assert header == ("__key_schema_id" if for_keys else "__value_schema_id", b"\x01" + GUID.bytes)
    found = find_schema_header([("a", b"1"), header], for_keys=for_keys)
    assert read_frame(b"\x00\x00datum", found) == (GUID, b"\x00\x00datum")
    assert find_schema_header([header], for_keys=not for_keys) is None


def test_the_last_header_counts_and_one_without_a_value_does_not() -> None:
    headers = [("__value_schema_id", b"old"), ("__value_schema_id", id_frame(7)), ("__value_schema_id", None)]
    assert read_frame(b"datum", find_schema_header(headers, for_keys=False)) == (7, b"datum")


@pytest.mark.parametrize(
    ("data", "header", "message"),
    [
        (b"", None, "not Avro with a schema id: 0 bytes are too short"),
        (b"\x00\x00\x00\x01", None, "4 bytes are too short"),
        (b"\x01" + GUID.bytes[:15], None, "16 bytes are too short"),
        (b"\x02\x00\x00\x00\x01", None, "the first byte is 0x02 instead of 0x00 or 0x01"),
        (b"{hello}", None, "the first byte is 0x7b"),
        (b"datum", b"", "not a header with a schema id: 0 bytes are too short"),
        (b"datum", b"\x01" + GUID.bytes[:9], "10 bytes are too short"),
        (b"datum", b"\x01" + GUID.bytes + b"x", "1 bytes too long"),
        (b"datum", b"\x07" + GUID.bytes, "the first byte is 0x07"),
    ],
)
def test_no_identification(data: bytes, header: bytes | None, message: str) -> None:
    with pytest.raises(SerializationError, match=message):
        read_frame(data, header)


@given(st.binary(max_size=24))
def test_any_bytes_are_framed_or_refused(data: bytes) -> None:
    try:
        schema, datum = read_frame(data)
    except SerializationError:
        return
    if isinstance(schema, UUID):
        assert b"\x01" + schema.bytes + bytes(datum) == data
    else:
        assert b"\x00" + schema.to_bytes(4, "big", signed=True) + bytes(datum) == data
