"""Against records that Apache Kafka 4.1.1 wrote for librdkafka and kafka-python (`apache_kafka_records.json`)."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.broker.groups.model import (
    Generation,
    GroupMetadataValue,
    MemberId,
    MemberMetadataValue,
    OffsetAndMetadata,
)
from pipeline.broker.groups.records import (
    GroupKey,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from pipeline.errors import ProtocolError
from pipeline.model import LeaderEpoch, Offset, TopicPartition

CAPTURED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("apache_kafka_records.json").read_text())

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
offsets = st.builds(
    OffsetAndMetadata,
    offset=int64,
    leader_epoch=int32,
    metadata=texts,
    commit_timestamp_ms=int64,
    expire_timestamp_ms=st.none(),
)
members = st.builds(
    MemberMetadataValue,
    member_id=texts,
    group_instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    session_timeout_ms=int32,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
groups = st.builds(
    GroupMetadataValue,
    protocol_type=texts,
    generation=int32,
    protocol=st.none() | texts,
    leader=st.none() | texts,
    state_since_ms=int64,
    members=st.lists(members, max_size=3),
)


@pytest.mark.parametrize("record", CAPTURED, ids=lambda record: f"{record['partition']}-{record['offset']}")
def test_records_of_apache_kafka_are_read_and_written_byte_for_byte(record: dict[str, Any]) -> None:
    raw_key, raw_value = bytes.fromhex(record["key"]), record["value"] and bytes.fromhex(record["value"])
    key = decode_key(raw_key)
    if isinstance(key, OffsetKey):
        assert encode_offset_key(key.group_id, key.topic_partition) == raw_key
        if raw_value is not None:
            assert encode_offset_value(decode_offset_value(raw_value)) == raw_value
    else:
        assert isinstance(key, GroupKey)
        assert encode_group_key(key.group_id) == raw_key
        if raw_value is not None:
            assert encode_group_value(decode_group_value(raw_value)) == raw_value


def test_the_captured_records_are_of_every_kind() -> None:
    keys = [decode_key(bytes.fromhex(record["key"])) for record in CAPTURED]
    assert OffsetKey("standalone", TopicPartition("clicks", 0)) in keys
    assert GroupKey("members-é") in keys
    tombstones = {type(key) for key, record in zip(keys, CAPTURED, strict=True) if record["value"] is None}
    assert tombstones == {OffsetKey, GroupKey}
    values = [record["value"] for key, record in zip(keys, CAPTURED, strict=True) if isinstance(key, GroupKey)]
    assert any(value and decode_group_value(bytes.fromhex(value)).members for value in values)


def test_an_offset_says_what_the_client_committed() -> None:
    value = next(
        bytes.fromhex(record["value"])
        for record in CAPTURED
        if decode_key(bytes.fromhex(record["key"])) == OffsetKey("standalone", TopicPartition("clicks", 0))
    )
    found = decode_offset_value(value)
    assert (found.offset, found.leader_epoch, found.expire_timestamp_ms) == (5, -1, None)
    assert found.metadata == "note\0"  # librdkafka sends the NUL along


@given(offsets)
def test_offsets_survive(committed: OffsetAndMetadata) -> None:
    assert decode_offset_value(encode_offset_value(committed)) == committed


def test_an_offset_with_a_moment_of_expiry_goes_in_the_version_that_can_tell_it() -> None:
    committed = OffsetAndMetadata(offset=Offset(1), metadata="m", commit_timestamp_ms=2, expire_timestamp_ms=3)
    encoded = encode_offset_value(committed)
    assert encoded == struct.pack(">hqh1sqq", 1, 1, 1, b"m", 2, 3)
    assert decode_offset_value(encoded) == committed


@pytest.mark.parametrize(
    ("encoded", "epoch", "expires"),
    [
        (struct.pack(">hqh1sq", 0, 7, 1, b"m", 2), -1, None),
        (struct.pack(">hqh1sqq", 1, 7, 1, b"m", 2, -1), -1, None),
        (struct.pack(">hqh1sq", 2, 7, 1, b"m", 2), -1, None),
        (struct.pack(">hqih1sq", 3, 7, 4, 1, b"m", 2), 4, None),
    ],
    ids=["v0", "v1", "v2", "v3"],
)
def test_older_offsets_are_read(encoded: bytes, epoch: int, expires: int | None) -> None:
    assert decode_offset_value(encoded) == OffsetAndMetadata(
        offset=Offset(7),
        leader_epoch=LeaderEpoch(epoch),
        metadata="m",
        commit_timestamp_ms=2,
        expire_timestamp_ms=expires,
    )


@given(groups)
def test_group_records_are_decoded_as_they_were_encoded(group: GroupMetadataValue) -> None:
    assert decode_group_value(encode_group_value(group)) == group


def test_a_group_of_version_0_has_the_session_timeout_for_both() -> None:
    encoded = (
        struct.pack(">hh1sih1sh1s", 0, 1, b"c", 4, 1, b"p", 1, b"m")
        + struct.pack(">ih1sh1sh1si", 1, 1, b"m", 1, b"i", 1, b"h", 6000)
        + struct.pack(">i1si1s", 1, b"s", 1, b"a")
    )
    member = MemberMetadataValue(
        member_id=MemberId("m"),
        client_id="i",
        client_host="h",
        rebalance_timeout_ms=6000,
        session_timeout_ms=6000,
        subscription=b"s",
        assignment=b"a",
    )
    assert decode_group_value(encoded) == GroupMetadataValue(
        protocol_type="c", generation=Generation(4), protocol="p", leader=MemberId("m"), members=[member]
    )


@given(texts, texts, int32)
def test_keys_are_decoded_as_they_were_encoded(group_id: str, topic: str, partition: int) -> None:
    key = OffsetKey(group_id, TopicPartition(topic, partition))
    assert decode_key(encode_offset_key(key.group_id, key.topic_partition)) == key
    assert decode_key(encode_group_key(group_id)) == GroupKey(group_id)


@pytest.mark.parametrize("version", [3, 9, 32767, -1])
def test_keys_of_later_protocols_are_passed_over(version: int) -> None:
    assert decode_key(struct.pack(">h", version) + b"anything") is None


@given(st.binary(max_size=40))
def test_garbage_is_a_protocol_error_or_nothing(data: bytes) -> None:
    for decode in (decode_key, decode_offset_value, decode_group_value):
        try:
            decode(data)
        except ProtocolError:
            continue
