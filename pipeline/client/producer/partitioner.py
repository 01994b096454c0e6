"""Choice of a record's partition: by key as in the Java client; without a key one partition per batch.

Pure but for the random generator that is passed in. Equal keys of all clients go to the same partition, so this hash is
Kafka's murmur2 (seed 0x9747b28c) and must never change.
"""

from collections.abc import Sequence
from random import Random

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Return the murmur2 of `org.apache.kafka.common.utils.Utils.murmur2`, as an unsigned 32-bit integer."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ (word >> 24)) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if length > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ (value >> 13)) * _MULTIPLIER & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a record with this key, in a topic of this many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def next_sticky_partition(partitions: Sequence[int], current: int | None, rng: Random) -> int:
    """Return another partition for the next batch of records without key (KIP-480), uniformly among `partitions`.

    `partitions` are the partitions with a leader, or all if none has one; never empty.
    """
    others = [partition for partition in partitions if partition != current]
    return rng.choice(others or partitions)
