import random
import struct
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import ProtocolError
from pipeline.model import FileRegion
from pipeline.protocol import codec, encoder
from pipeline.protocol.codec import decode, encode
from pipeline.protocol.messages.create_topics import CreateTopicsRequest
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest
from pipeline.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from pipeline.protocol.messages.list_offsets import ListOffsetsRequest
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pipeline.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from pipeline.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pipeline.protocol.primitives import MAX_STRING_BYTES, uvarint
from pipeline.protocol.schema import Bool, Bytes, Float64, Int32, Message, String, Uuid, Wire, declarations
from tests.support.protocol_messages import case_id, cases, messages_of
from tests.support.wire import joined

bounded = settings(max_examples=6, suppress_health_check=list(HealthCheck))
every_case = pytest.mark.parametrize(("cls", "version"), cases(), ids=case_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A struct of a message declared here and nowhere else."""

    data: Bytes = b""
    weight: Annotated[Float64, Wire(since=1)] = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ThingsRequest(Message):
    """What a further api key looks like, with the wire types that no message has yet."""

    API_KEY: ClassVar[int] = 999
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    things: Sequence[Thing] = ()
    names: Annotated[Sequence[String] | None, Wire(since=1)] = ()
    ids: Annotated[Sequence[Uuid], Wire(since=1, ignorable=True)] = ()
    flags: Annotated[Sequence[Bool], Wire(since=1, ignorable=True)] = ()
    blob: Annotated[Bytes | None, Wire(since=1, ignorable=True)] = None
    only: Annotated[Thing, Wire(since=1, ignorable=True)] = Thing()
    numbers: Annotated[Sequence[Int32], Wire(since=2, tag=200, ignorable=True)] = ()
    note: Annotated[String | None, Wire(since=2, tag=1, ignorable=True)] = ""


@pytest.mark.parametrize("version", [0, 1, 2])
@bounded
@given(data=st.data())
def test_a_message_declared_anywhere_goes_both_ways(version: int, data: st.DataObject) -> None:
    message = data.draw(messages_of(ThingsRequest, version))
    assert decode(ThingsRequest, version, joined(encode(message, version))) == message


@every_case
def test_every_field_is_encoded_and_decoded(cls: type[Message], version: int) -> None:
    @bounded
    @given(messages_of(cls, version))
    def check(message: Message) -> None:
        assert decode(cls, version, joined(encode(message, version))) == message

    check()


@every_case
def test_a_message_in_pieces_is_the_same(cls: type[Message], version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "MAX_PARTS", 3)
    monkeypatch.setattr(encoder, "LONG_BYTES", 2)
    monkeypatch.setattr(codec, "_ENCODERS_IN_PIECES", {})

    @settings(bounded, max_examples=4)
    @given(messages_of(cls, version))
    def check(message: Message) -> None:
        assert joined(encode(message, version, in_pieces=True)) == joined(encode(message, version))

    check()


@pytest.mark.long
@pytest.mark.parametrize("note_bytes", [100, 4000, 30_000])
def test_a_message_in_pieces_is_in_memory_once(note_bytes: int) -> None:
    whole_bytes = 20_000_000
    parts = [OffsetFetchResponsePartitions(metadata="n" * note_bytes)] * (whole_bytes // note_bytes + 1)
    topics = [OffsetFetchResponseTopics(name="t", partitions=parts)]
    message = OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics)])
    encode(OffsetFetchResponse(), 8, in_pieces=True)
    tracemalloc.start()
    try:
        pieces = encode(message, 8, in_pieces=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size_bytes = sum(len(piece) for piece in pieces if not isinstance(piece, FileRegion))
    assert size_bytes > whole_bytes
    assert peak < 1.2 * size_bytes
    assert joined(pieces) == joined(encode(message, 8))


@every_case
def test_cut_or_garbled_bytes_raise_protocol_errors_only(cls: type[Message], version: int) -> None:
    @settings(bounded, max_examples=4)
    @given(messages_of(cls, version), st.integers(0, 1 << 32), st.binary(max_size=60))
    def check(message: Message, seed: int, noise: bytes) -> None:
        random_numbers = random.Random(seed)
        whole = joined(encode(message, version))
        for _ in range(12):
            if whole:
                with pytest.raises(ProtocolError):
                    decode(cls, version, whole[: random_numbers.randrange(len(whole))])
        for garbled in (noise, *(_garble(whole, random_numbers) for _ in range(12))):
            with suppress(ProtocolError):
                decode(cls, version, garbled)
        with pytest.raises(ProtocolError):
            decode(cls, version, whole + b"\0")

    check()


def _garble(whole: bytes, random_numbers: random.Random) -> bytes:
    garbled = bytearray(whole)
    for _ in range(random_numbers.randrange(1, 4)):
        if garbled:
            garbled[random_numbers.randrange(len(garbled))] = random_numbers.choice([0, 1, 127, 128, 255])
    return bytes(garbled)


@every_case
def test_values_are_checked_when_they_are_encoded(cls: type[Message], version: int) -> None:
    for field in declarations(cls):
        for wrong in (object(), {"a": 1}, 1.5, 1 << 64, "\ud800"):
            broken = replace(cls(), **{field.name: wrong})  # type: ignore[type-var]
            if field.exists_in(version) or not field.wire.ignorable:
                with pytest.raises(ProtocolError):
                    encode(broken, version)
            else:
                assert encode(broken, version) == encode(cls(), version)


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (DeleteTopicsRequest(topic_names="abc"), 5),  # a string is no array of strings
        (MetadataRequest(topics=None), 0),
        (MetadataRequest(topics=(MetadataRequestTopic(name=None),)), 9),
        (MetadataRequest(topics=({},)), 9),  # type: ignore[arg-type]
        (MetadataRequest(allow_auto_topic_creation=1), 9),  # type: ignore[arg-type]
        (ListOffsetsRequest(replica_id=1 << 31), 1),
        (CreateTopicsRequest(timeout_ms="1"), 2),  # type: ignore[arg-type]
        (FetchRequest(rack_id="x" * 40_000), 11),
        (MetadataRequest(), 14),
        (MetadataRequest(), -1),
        (ProduceRequest(topic_data=(TopicProduceData(partition_data=(PartitionProduceData(records="x"),)),)), 9),  # type: ignore[arg-type]
        (ProduceRequest(topic_data=(TopicProduceData(partition_data=(PartitionProduceData(records=["x"]),)),)), 9),  # type: ignore[list-item]
    ],
)
def test_values_that_cannot_be_encoded_are_refused(message: Message, version: int) -> None:
    with pytest.raises(ProtocolError):
        encode(message, version)


def test_fields_of_a_request_are_not_dropped_silently() -> None:
    partition = PartitionProduceData(index=1, records=b"x", keep_offsets=True)
    message = ProduceRequest(topic_data=(TopicProduceData(name="t", partition_data=(partition,)),))
    with pytest.raises(ProtocolError, match="keep_offsets"):
        encode(message, 8)
    assert decode(ProduceRequest, 9, joined(encode(message, 9))) == message


def test_a_response_carries_what_its_version_can() -> None:
    partition = PartitionProduceResponse(index=1, base_offset=7, log_start_offset=3, log_end_offset=9)
    message = ProduceResponse(responses=(TopicProduceResponse(name="t", partition_responses=(partition,)),))

    def read_back(version: int) -> PartitionProduceResponse:
        decoded = decode(ProduceResponse, version, joined(encode(message, version)))
        return decoded.responses[0].partition_responses[0]

    assert read_back(9) == partition
    assert read_back(7) == replace(partition, log_end_offset=-1)
    assert read_back(3) == replace(partition, log_end_offset=-1, log_start_offset=-1)


def test_our_tagged_field_is_absent_unless_set() -> None:
    def body(keep_offsets: bool) -> bytes:
        partition = PartitionProduceData(index=1, records=b"x", keep_offsets=keep_offsets)
        return joined(encode(ProduceRequest(topic_data=(TopicProduceData(partition_data=(partition,)),)), 9))

    assert body(True).count(b"\1\x90\x4e\1\1") == 1  # one field: tag 10000, one byte, true
    assert len(body(True)) == len(body(False)) + 4


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = joined(encode(MetadataResponse(cluster_id="c"), 9))
    assert plain[-1:] == b"\0"
    tagged = plain[:-1] + b"\2" + b"\5\3abc" + b"\x90\x4e\x80\1" + bytes(128)
    assert decode(MetadataResponse, 9, tagged) == MetadataResponse(cluster_id="c")


def test_a_tagged_field_of_the_wrong_length() -> None:
    plain = joined(encode(ThingsRequest(), 2))
    for field in (b"\1\3\2a", b"\1\3\3abc", b"\1\x05abc"):
        with pytest.raises(ProtocolError):
            decode(ThingsRequest, 2, plain[:-1] + b"\1" + field)


def test_decoded_messages_are_frozen_and_ordinary() -> None:
    message = MetadataRequest(topics=(MetadataRequestTopic(name="t"),))
    decoded = decode(MetadataRequest, 9, joined(encode(message, 9)))
    assert decoded == message and hash(decoded) == hash(message) and repr(decoded) == repr(message)
    assert replace(decoded, topics=()) == MetadataRequest()
    with pytest.raises(FrozenInstanceError):
        decoded.topics = None  # type: ignore[misc]


def fetch_response(records: Any) -> FetchResponse:
    partition = PartitionData(partition_index=1, records=records)
    return FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(partition,)),))


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_records_in_any_form_are_the_same_bytes(version: int, tmp_path: Path) -> None:
    raw = bytes(range(256)) * 40
    expected = joined(encode(fetch_response(raw), version))
    half = len(raw) // 2
    for records in (
        bytearray(raw),
        memoryview(raw),
        [raw],
        (raw[:10], memoryview(raw)[10:half], [bytearray(raw[half:])]),
        [raw[i : i + 1] for i in range(len(raw))],
    ):
        assert joined(encode(fetch_response(records), version)) == expected
    (tmp_path / "segment").write_bytes(raw)
    with (tmp_path / "segment").open("rb") as file:
        region = FileRegion(file, 100, 5000)
        pieces = encode(fetch_response([raw[:100], region, raw[5100:]]), version)
        assert region in pieces
        assert b"".join(raw[100:5100] if isinstance(piece, FileRegion) else piece for piece in pieces) == expected
        assert region in encode(fetch_response(region), version)


def test_large_records_are_not_copied_small_ones_are_joined() -> None:
    large = bytearray(5000)
    pieces = encode(fetch_response(large), 12)
    assert any(piece is large for piece in pieces)
    assert len(pieces) == 3
    assert len(encode(fetch_response(bytes(100)), 12)) == 1


def test_records_must_be_contiguous_bytes() -> None:
    for records in (memoryview(bytes(20_000))[::2], memoryview(bytes(20_000)).cast("i"), memoryview(bytes(20))[::2]):
        with pytest.raises(ProtocolError):
            encode(fetch_response(records), 12)


@pytest.mark.parametrize("version", [4, 12])
def test_decoded_records_are_views_of_the_buffer(version: int) -> None:
    buffer = bytearray(joined(encode(fetch_response(b"abc"), version)))
    records = decode(FetchResponse, version, buffer).responses[0].partitions[0].records
    assert isinstance(records, memoryview) and not records.readonly
    records[0] = ord("X")
    assert b"Xbc" in buffer


@pytest.mark.parametrize(
    ("cls", "version", "data"),
    [
        (MetadataRequest, 1, struct.pack(">i", 2**31 - 1)),
        (MetadataRequest, 9, b"\xff\xff\xff\xff\x0f"),
        (MetadataRequest, 9, b"\xff\xff\xff\xff\xff\xff\xff"),
        (MetadataRequest, 1, struct.pack(">ih", 1, 32767)),
        (DeleteTopicsRequest, 1, struct.pack(">i", 500_000_000)),
        (FetchResponse, 4, struct.pack(">iihi", 0, 1, 0, 400_000_000) + bytes(1000)),
        (ThingsRequest, 1, struct.pack(">iii", 0, 0, 100_000_000) + bytes(1000)),
        (ThingsRequest, 2, b"\1\1\1\1\0\1" + bytes(9) + b"\xff\xff\xff\xff\x0f" + bytes(1000)),
    ],
)
def test_a_claimed_length_costs_nothing(cls: type[Message], version: int, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(cls, version, b"")  # compiles
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(cls, version, data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 128, 16_381, 16_382, 16_383, 16_384, 2_097_150, 2_097_151])
def test_lengths_around_the_ends_of_varints(length: int) -> None:
    raw = bytes(length)
    decoded = decode(FetchResponse, 12, joined(encode(fetch_response(raw), 12)))
    assert decoded.responses[0].partitions[0].records == raw
    things = ThingsRequest(blob=raw, names=("n",) * min(length, 20_000))
    assert decode(ThingsRequest, 2, joined(encode(things, 2))) == things


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("text", ["x" * MAX_STRING_BYTES, "\N{SNOWMAN}" * (MAX_STRING_BYTES // 3)])
def test_the_longest_string_goes_both_ways(version: int, text: str) -> None:
    things = ThingsRequest(names=(text,), note=text if version == 2 else "")
    assert decode(ThingsRequest, version, joined(encode(things, version))) == things


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("longer", ["x" * (MAX_STRING_BYTES + 1), "\N{SNOWMAN}" * (MAX_STRING_BYTES // 3 + 1)])
def test_a_longer_string_is_not_sent(version: int, longer: str) -> None:
    with pytest.raises(ProtocolError):
        encode(ThingsRequest(names=("short", longer)), version)


@pytest.mark.parametrize("size", [MAX_STRING_BYTES + 1, 40_000, 100_000])
def test_a_longer_string_is_refused_in_compact_form_too(size: int) -> None:
    """As Kafka's generated readers do: what one version lets in could not be told, or kept, in another."""
    text = uvarint(size + 1) + b"x" * size
    for data in (
        b"\1" + b"\2" + text + b"\1\1\0" + b"\1" + bytes(8) + b"\0\0",
        b"\1" + b"\1\1\1\0" + b"\1" + bytes(8) + b"\0" + b"\1\1" + uvarint(len(text)) + text,
    ):
        with pytest.raises(ProtocolError, match="longer than 32767 bytes"):
            decode(ThingsRequest, 2, data)
        shorter = data.replace(text, b"\3xx").replace(uvarint(len(text)), b"\3")
        found = decode(ThingsRequest, 2, shorter)
        assert "xx" in {*(found.names or ()), found.note}
