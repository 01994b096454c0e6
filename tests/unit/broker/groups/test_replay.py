import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.broker.groups.model import LoadedGroup, OffsetAndMetadata
from pipeline.broker.groups.offsets import Offsets, journal_records
from pipeline.broker.groups.records import encode_group_key, encode_offset_key
from pipeline.broker.groups.replay import MAX_PROBLEMS_NAMED, Replay
from pipeline.model import Offset, TopicPartition
from pipeline.records.batch import HEADER_SIZE, iterate_headers, read_header, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.bombs import bomb

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TRANSACTIONAL, CONTROL = 0x10, 0x20
Records = Sequence[tuple[bytes | None, bytes | None]]


def built(records: Records, *, attributes: int = 0, producer_id: int = -1) -> bytearray:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    for key, value in records:
        assert builder.append(key, value, (), 1000)
    batch = builder.build(producer_id=producer_id)
    write_header(batch, read_header(batch)._replace(attributes=attributes))
    return batch


def replayed(*batches: bytes | bytearray) -> Replay:
    replay = Replay()
    for batch in batches:
        for position, header in iterate_headers(batch):
            replay.batch(batch, position, header)
    for key, value in list(replay.newest.items()):
        replay.entry(key, value)
    return replay


def committed(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset=Offset(offset), commit_timestamp_ms=1000)


def one(offset: int, group_id: str = "g", name: TopicPartition = A) -> Records:
    return journal_records(group_id, {name: committed(offset)})


changes = st.tuples(
    st.sampled_from(["g", "h", "é"]),
    st.dictionaries(st.sampled_from([A, B]), st.none() | st.builds(committed, st.integers(0, 9)), min_size=1),
)


@pytest.mark.long
@given(st.lists(changes, max_size=20))
@settings(max_examples=100)
def test_a_journal_replayed_is_the_state_that_was_written(
    written: list[tuple[str, dict[TopicPartition, OffsetAndMetadata | None]]],
) -> None:
    offsets = Offsets()
    batches = []
    for group_id, change in written:
        offsets.apply(group_id, change)
        batches.append(built(journal_records(group_id, change)))
    replay = replayed(*batches)
    assert replay.groups() == {name: LoadedGroup(offsets=offsets.of_group(name)) for name in offsets.group_ids}
    assert not replay.problems.count


def test_records_of_apache_kafka_make_groups() -> None:
    captured = json.loads(Path(__file__).with_name("apache_kafka_records.json").read_text())
    records = [(bytes.fromhex(item["key"]), item["value"] and bytes.fromhex(item["value"])) for item in captured]
    groups = replayed(built(records)).groups()
    assert set(groups) == {"standalone", "members-é"}
    standalone, members = groups["standalone"], groups["members-é"]
    assert standalone.metadata is None
    assert {name: found.offset for name, found in standalone.offsets.items()} == {TopicPartition("clicks", 0): 5}
    assert members.metadata is not None
    assert members.metadata.generation == 2
    assert members.metadata.members == []
    assert [members.offsets[TopicPartition("clicks", index)].offset for index in range(4)] == [10] * 4


def test_a_tombstone_of_a_group_leaves_its_offsets() -> None:
    groups = replayed(built([*one(5), (encode_group_key("g"), None)])).groups()
    assert groups == {"g": LoadedGroup(offsets={A: committed(5)})}


def test_damage_is_named_and_passed_over() -> None:
    torn = built(one(6))
    torn[HEADER_SIZE] ^= 1
    unreadable: Records = [
        (None, b"no key"),
        (b"\0", b"no version"),
        (encode_offset_key("h", A), b"\0\4\0"),
        (encode_group_key("h"), b"\0\77"),
        (struct.pack(">h", 9), b"of a later protocol"),
    ]
    replay = replayed(built(one(5)), torn, built(unreadable), built(one(7, name=B)))
    assert replay.groups() == {"g": LoadedGroup(offsets={A: committed(5), B: committed(7)})}
    assert replay.problems.count == len(replay.problems.first) == 5


def test_a_thousand_problems_are_counted_and_some_told() -> None:
    replay = replayed(built([(None, b"")] * 1000))
    assert (replay.problems.count, len(replay.problems.first)) == (1000, MAX_PROBLEMS_NAMED)


def test_transactions_count_when_they_are_committed() -> None:
    def wrote(offset: int, producer_id: int, name: TopicPartition) -> bytearray:
        return built(one(offset, name=name), attributes=TRANSACTIONAL, producer_id=producer_id)

    def marker(kind: int, producer_id: int) -> bytearray:
        records = [(struct.pack(">hh", 0, kind), b"\0\0\0\0\0\0")]
        return built(records, attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id)

    log = [
        built(one(1)),
        built(one(2, name=B)),
        wrote(3, 1, A),
        wrote(4, 2, B),
        marker(1, 1),
        marker(0, 2),
        wrote(9, 3, A),
    ]
    assert replayed(*log).groups() == {"g": LoadedGroup(offsets={A: committed(3), B: committed(2)})}


@pytest.mark.long
def test_a_batch_that_holds_too_much_is_passed_over_and_named() -> None:
    replay = replayed(built(one(5)), bomb(Codec.GZIP, 100 << 20, 1000))
    assert set(replay.groups()) == {"g"}
    assert replay.problems.count == 1
    assert "uncompressed it is larger" in replay.problems.first[0]
