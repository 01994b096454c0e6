"""Encoders and decoders: what they take, what they refuse, and what a program may give instead."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.encoding.decoders import (
    BytesDecoder,
    Decoder,
    JsonDecoder,
    StrDecoder,
    as_decoder,
    decode_after_wait,
    decode_now,
)
from pipeline.client.encoding.encoders import (
    BytesEncoder,
    Encoder,
    JsonEncoder,
    StrEncoder,
    as_encoder,
    encode_after_wait,
    encode_now,
)
from pipeline.client.registry.avro import AvroDeserializer, AvroSerializer
from pipeline.client.registry.client import open_schema_registry
from pipeline.client.registry.config import SerializerConfig
from pipeline.client.registry.errors import SchemaMismatchError, SerializationError
from pipeline.client.registry.framing import VALUE_SCHEMA_ID, SchemaIdSerializer
from pipeline.errors import ConfigurationError
from pipeline.records.builder import Header
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry

READY: list[tuple[Encoder, Decoder]] = [
    (BytesEncoder(), BytesDecoder()), (StrEncoder(), StrDecoder()), (JsonEncoder(), JsonDecoder()),
]  # fmt: skip
ANY_JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(st.text())
def test_text_comes_back(text: str) -> None:
    encoded = encode_now(StrEncoder(), "t", text, [])
    assert encoded == text.encode()
    assert decode_now(StrDecoder(), "t", encoded, ()) == text


@given(ANY_JSON)
def test_json_comes_back(data: Any) -> None:
    encoded = encode_now(JsonEncoder(), "t", data, [])
    assert encoded is not None
    assert json.loads(encoded) == data
    assert decode_now(JsonDecoder(), "t", encoded, ()) == data


def test_bytes_stay_bytes() -> None:
    for data in (b"", b"\xff\x00", bytearray(b"x"), memoryview(b"x")):
        assert encode_now(BytesEncoder(), "t", data, []) is data
    assert decode_now(BytesDecoder(), "t", b"\xff", ()) == b"\xff"


@pytest.mark.parametrize(("encoder", "decoder"), READY)
def test_none_is_a_tombstone(encoder: Encoder, decoder: Decoder) -> None:
    assert encode_now(encoder, "t", None, []) is None
    assert decode_now(decoder, "t", None, ()) is None


def circle() -> list[Any]:
    within: list[Any] = []
    within.append(within)
    return within


@pytest.mark.parametrize(
    ("encoder", "data"),
    [
        (BytesEncoder(), "text"),
        (StrEncoder(), b"bytes"),
        (StrEncoder(), 5),
        (StrEncoder(), "\ud800"),
        (JsonEncoder(), float("nan")),
        (JsonEncoder(), b"bytes"),
        (JsonEncoder(), "\ud800"),
        (JsonEncoder(), circle()),
    ],
)
def test_an_encoder_refuses_other_data(encoder: Encoder, data: Any) -> None:
    with pytest.raises(SerializationError, match="for t"):
        encode_now(encoder, "t", data, [])


@pytest.mark.parametrize(
    ("decoder", "data"),
    [
        (StrDecoder(), b"\xff"),
        (JsonDecoder(), b""),
        (JsonDecoder(), b"{"),
        (JsonDecoder(), b"NaN"),
        (JsonDecoder(), b"\xff"),
        (JsonDecoder(), b"[" * 100_000),
    ],
)
def test_a_decoder_refuses_other_bytes(decoder: Decoder, data: bytes) -> None:
    with pytest.raises(SerializationError, match="not "):
        decode_now(decoder, "t", data, ())


def test_json_of_objects_of_a_program() -> None:
    assert encode_now(JsonEncoder(default=sorted), "t", {"a": {2, 1}}, []) == b'{"a":[1,2]}'


class Rot:
    """A program's own encoder and decoder: shifts letters by the length of the topic's name."""

    def encode(self, topic: str, data: Any, headers: list[Header]) -> bytes | None:
        headers.append(("by", b"%d" % len(topic)))
        return bytes(each + len(topic) for each in data)

    def decode(self, topic: str, data: bytes | None, headers: Iterable[Header]) -> Any:
        assert data is not None
        ((_, shift),) = headers
        return bytes(each - int(shift or 0) for each in data)


def test_a_programs_own_object() -> None:
    headers: list[Header] = []
    rot = as_encoder(Rot())
    assert encode_now(rot, "tt", b"ab", headers) == b"cd"
    assert headers == [("by", b"2")]
    assert decode_now(as_decoder(Rot()), "tt", b"cd", headers) == b"ab"


def test_a_programs_own_function() -> None:
    assert encode_now(as_encoder(str.encode), "t", "ab", []) == b"ab"
    assert decode_now(as_decoder(lambda data: (data or b"").decode()), "t", b"ab", ()) == "ab"
    assert encode_now(as_encoder(lambda data: repr(data).encode()), "t", None, []) == b"None"


@pytest.mark.parametrize("wrong", [None, 5, "utf-8", b"json", JsonEncoder, JsonDecoder, []])
def test_other_objects_are_no_encoders_nor_decoders(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"encoder: is .*, must be an object with `encode`"):
        as_encoder(wrong)
    with pytest.raises(ConfigurationError, match=r"decoder: is .*, must be an object with `decode`"):
        as_decoder(wrong)


def test_a_fault_of_a_programs_own_encoder_names_it() -> None:
    def broken(data: Any) -> Any:
        return data["x"]

    with pytest.raises(SerializationError, match=r"broken failed for t: KeyError: 'x'") as caught:
        encode_now(as_encoder(broken), "t", {}, [])
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(SerializationError, match=r"broken gave str for t instead of bytes"):
        encode_now(as_encoder(broken), "t", {"x": "text"}, [])
    with pytest.raises(SerializationError, match=r"broken failed for t: TypeError"):
        decode_now(as_decoder(broken), "t", b"", ())


async def test_an_encoder_that_says_it_must_wait_and_cannot() -> None:
    class Stuck:
        def encode(self, topic: str, data: Any, headers: list[Header]) -> bytes | None:
            raise trio.WouldBlock

        def decode(self, topic: str, data: bytes | None, headers: Iterable[Header]) -> Any:
            raise trio.WouldBlock

    with pytest.raises(trio.WouldBlock):
        encode_now(Stuck(), "t", b"", [])
    with pytest.raises(ConfigurationError, match="Stuck must wait for t, and has no `serialize`"):
        await encode_after_wait(Stuck(), "t", b"", [])
    with pytest.raises(ConfigurationError, match="Stuck must wait for t, and has no `deserialize`"):
        await decode_after_wait(Stuck(), "t", b"", ())


@pytest.mark.parametrize("place", list(SchemaIdSerializer))
async def test_avro_waits_for_the_first_datum_of_a_topic(place: SchemaIdSerializer) -> None:
    schema = '{"type": "record", "name": "Event", "fields": [{"name": "a", "type": "int"}]}'
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as registry:
        encoder = as_encoder(AvroSerializer(registry, schema, SerializerConfig(schema_id_serializer=place)))
        decoder = as_decoder(AvroDeserializer(registry))
        first: list[Header] = []
        with pytest.raises(trio.WouldBlock):
            encode_now(encoder, "t", {"a": 1}, first)
        data = await encode_after_wait(encoder, "t", {"a": 1}, first)
        again: list[Header] = []
        assert encode_now(encoder, "t", {"a": 1}, again) == data
        assert first == again
        assert [name for name, _ in first] == ([VALUE_SCHEMA_ID] if place is SchemaIdSerializer.HEADER else [])
        assert encode_now(encoder, "t", None, []) is None
        with pytest.raises(SchemaMismatchError, match="field a"):
            encode_now(encoder, "t", {"a": "x"}, [])
        with pytest.raises(trio.WouldBlock):
            decode_now(decoder, "t", data, first)
        assert await decode_after_wait(decoder, "t", data, first) == {"a": 1}
        assert decode_now(decoder, "t", data, first) == {"a": 1}
