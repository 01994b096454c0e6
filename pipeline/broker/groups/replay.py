"""Replays the journal: finds the newest value of each key, then builds the groups from these values. Pure.

Invariants: the newest value of a key wins and a tombstone removes it, in the order of the log; so a second replay, or a
replay after compaction, gives the same groups. Unreadable records are named in `problems` and skipped. Records of a
transaction count at its commit marker, and without one not at all (KIP-447).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.broker.groups.model import GroupMetadataValue, LoadedGroup, OffsetAndMetadata
from pipeline.broker.groups.records import GroupKey, decode_group_value, decode_key, decode_offset_value
from pipeline.errors import CorruptBatchError, ProtocolError
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader, verify_crc
from pipeline.records.compression import ReadableBuffer
from pipeline.records.key_values import keys_and_values

MAX_PROBLEMS_NAMED = 20
COMMIT_MARKER = 1

_MARKER_KEY = struct.Struct(">hh")


@dataclass(slots=True)
class Problems:
    """Unreadable records: their number, and a description of the first ones."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        """Count one more unreadable record."""
        self.count += 1
        if len(self.first) < MAX_PROBLEMS_NAMED:
            self.first.append(sentence)


@dataclass(slots=True)
class _Group:
    metadata: GroupMetadataValue | None = None
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)


class Replay:
    """Call `batch` for every batch of the log in order, then `entry` for every entry of `newest`, then `groups`."""

    def __init__(self) -> None:
        self.newest: dict[bytes, bytes] = {}
        self.problems = Problems()
        self._open: dict[int, list[tuple[bytes, bytes | None]]] = {}
        self._groups: dict[str, _Group] = {}

    def batch(self, buffer: ReadableBuffer, position: int, header: BatchHeader) -> None:
        """Replay the next batch of the log. Blocks this thread until there is memory for a compressed batch.

        Raises MemoryExhaustedError, after which the batch can be replayed again.
        """
        try:
            verify_crc(buffer, position, header)
            found = keys_and_values(buffer, position, header)
        except CorruptBatchError as error:
            self.problems.add(str(error))
            return
        if header.is_control:
            self._marker(header, found[0][0] if found else None)
            return
        newest = self.newest
        for key, value in found:
            if key is None:
                self.problems.add(f"batch at offset {header.base_offset}: a record without a key")
            elif header.is_transactional:
                self._open.setdefault(header.producer_id, []).append((key, value))
            elif value is None:
                newest.pop(key, None)
            else:
                newest[key] = value

    def _marker(self, header: BatchHeader, key: bytes | None) -> None:
        written = self._open.pop(header.producer_id, ())
        if key is None or len(key) < _MARKER_KEY.size or _MARKER_KEY.unpack_from(key)[1] != COMMIT_MARKER:
            return
        for name, value in written:
            if value is None:
                self.newest.pop(name, None)
            else:
                self.newest[name] = value

    def entry(self, key: bytes, value: bytes) -> None:
        """Decode one of the newest values."""
        try:
            name = decode_key(key)
            if name is None:
                return
            group = self._groups.setdefault(name.group_id, _Group())
            if isinstance(name, GroupKey):
                group.metadata = decode_group_value(value)
            else:
                group.offsets[name.topic_partition] = decode_offset_value(value)
        except ProtocolError as error:
            self.problems.add(f"the value of key {key.hex()}: {error}")

    def groups(self) -> Mapping[str, LoadedGroup]:
        """Return the groups with at least one readable record."""
        return {
            group_id: LoadedGroup(metadata=group.metadata, offsets=group.offsets)
            for group_id, group in self._groups.items()
            if group.metadata is not None or group.offsets
        }
