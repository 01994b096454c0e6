"""Choice of a record's partition: by key as in the Java client; without a key one after the other, by bytes.

Pure but for the random generator that is passed in. Equal keys of all clients go to the same partition, so this hash is
Kafka's murmur2 (seed 0x9747b28c) and must never change.
"""

from collections.abc import Sequence
from random import Random
from struct import Struct
from typing import Protocol

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORDS = tuple(Struct(f"<{count}I").unpack_from for count in range(33))


class Partitioner(Protocol):
    """A program's own choice of partitions."""

    def partition(
        self, topic: str, key: bytes | None, value: bytes | None, partitions: int, led: Sequence[int]
    ) -> int | None:
        """Return the partition of a record, from 0 to `partitions` - 1; None for the sticky partition.

        `led` are the partitions that have a leader now; all, if none has one. `key` and `value` are encoded. An error
        raised here is raised by `send`. Must not wait.
        """


def murmur2(data: bytes) -> int:
    """Return the murmur2 of `org.apache.kafka.common.utils.Utils.murmur2`, as an unsigned 32-bit integer."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    count = length >> 2
    for word in _WORDS[count](data) if count < len(_WORDS) else Struct(f"<{count}I").unpack_from(data):
        word = word * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER ^ (word ^ word >> 24) * _MULTIPLIER
        value &= _MASK
    if length & 3:
        value = (value ^ int.from_bytes(data[count << 2 :], "little")) * _MULTIPLIER & _MASK
    value = (value ^ (value >> 13)) * _MULTIPLIER & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a record with this key, in a topic of this many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def next_sticky_partition(partitions: Sequence[int], current: int | None, rng: Random) -> int:
    """Return another partition for the next records without key (KIP-480, KIP-794), uniformly among `partitions`.

    `partitions` are the partitions with a leader, or all if none has one; never empty.
    """
    others = [partition for partition in partitions if partition != current]
    return rng.choice(others or partitions)
