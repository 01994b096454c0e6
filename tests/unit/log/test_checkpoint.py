import random
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import StorageError
from pipeline.log.checkpoint import (
    RECOVERY_POINTS,
    decode_offsets,
    decode_partition_metadata,
    decode_properties,
    encode_id,
    encode_offsets,
    encode_partition_metadata,
    encode_properties,
    read_file,
    read_offsets,
    read_partition_metadata,
    replace_file,
)
from pipeline.log.files import DiskFiles
from pipeline.model import Offset, TopicPartition
from pipeline.testing.faulty_files import Crash, FaultyFiles

NAMES = st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 9999))


@given(st.dictionaries(NAMES, st.integers(0, 2**63 - 1), max_size=5))
def test_offsets_come_back(offsets: Any) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets


def test_offsets_look_as_in_kafka_and_have_a_checksum_as_their_last_entry() -> None:
    content = encode_offsets({TopicPartition("b", 1): Offset(7), TopicPartition("a", 0): Offset(3)})
    assert content.startswith(b"0\n3\na 0 3\nb 1 7\n#crc32c 0 ")
    assert len(content.splitlines()) == 5


def test_offsets_of_a_version_without_checksums_are_read() -> None:
    assert decode_offsets(b"0\n2\na 0 3\nb 1 7\n") == {
        TopicPartition("b", 1): Offset(7),
        TopicPartition("a", 0): Offset(3),
    }


def test_an_older_version_finds_the_same_offsets_in_a_checkpoint_with_a_checksum() -> None:
    """As it reads them: a line for each entry, of which it asks those it knows."""
    version, count, *lines = encode_offsets({TopicPartition("a", 0): Offset(3)}).decode().splitlines()
    assert (version, int(count)) == ("0", len(lines))
    found = {(topic, int(partition)): int(offset) for topic, partition, offset in (line.split(" ") for line in lines)}
    assert found["a", 0] == 3


def test_a_flipped_bit_in_a_checkpoint_is_noticed_or_changes_nothing() -> None:
    offsets = {TopicPartition("a", 0): Offset(30), TopicPartition("b", 1): Offset(7)}
    content = encode_offsets(offsets)
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_offsets(bytes(flipped))
        except ValueError:
            continue
        assert found.items() >= offsets.items()


def test_a_flipped_bit_in_the_topic_id_is_noticed() -> None:
    topic_id = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
    content = encode_partition_metadata(topic_id)
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):
            decode_partition_metadata(bytes(flipped))


@given(st.binary(max_size=40) | st.text(alphabet="01a \n", max_size=20).map(str.encode))
def test_a_damaged_checkpoint_counts_as_none(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("checkpoint")
    (path / "recovery-point-offset-checkpoint").write_bytes(content)
    assert isinstance(read_offsets(DiskFiles(), path / RECOVERY_POINTS), dict)


def test_properties_come_back() -> None:
    properties = {"broker.id": "1", "cluster.id": "a=b"}
    assert decode_properties(b"#\n\n" + encode_properties(properties)) == properties


def test_the_topic_id_comes_back(tmp_path: Path) -> None:
    assert read_partition_metadata(DiskFiles(), tmp_path, is_on_disk=True) is None
    topic_id = uuid.uuid4()
    path = tmp_path / "partition.metadata"
    for content in (encode_partition_metadata(topic_id), f"version: 0\ntopic_id: {encode_id(topic_id)}".encode()):
        path.write_bytes(content)
        assert read_partition_metadata(DiskFiles(), tmp_path, is_on_disk=True) == topic_id
    garbage = b"\x0092w" + bytes(range(1, 10)) + bytes(range(14, 28))  # decoders of base64 skip what is no letter
    torn = f"version: 0\ntopic_id: {encode_id(topic_id)[:19]}".encode() + garbage
    path.write_bytes(torn)
    assert read_partition_metadata(DiskFiles(), tmp_path, is_on_disk=False) is None
    for content in (b"", b"version: 0\ntopic_id: x", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(StorageError, match="topic id"):
            read_partition_metadata(DiskFiles(), tmp_path, is_on_disk=True)


@pytest.mark.parametrize("change", range(1, 7))
@pytest.mark.parametrize("seed", range(20))
def test_a_crash_leaves_the_old_content_or_the_new(tmp_path: Path, change: int, seed: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    files = FaultyFiles(DiskFiles(), random.Random(seed))
    files.crash_in = change
    finished = False
    try:
        replace_file(files, path, b"new content")
        finished = True
    except Crash:
        pass
    files.lose_power()
    assert read_file(DiskFiles(), path) in ((b"new content",) if finished else (b"old", b"new content"))
