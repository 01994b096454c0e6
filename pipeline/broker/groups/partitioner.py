"""Which partition of `__consumer_offsets` keeps a group: Kafka's hash of its id. Pure."""

import struct
from operator import mul

HASHED_AT_ONCE = 64
_POWERS_OF_31 = [pow(31, exponent, 1 << 32) for exponent in reversed(range(HASHED_AT_ONCE))]


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: of UTF-16 units, 32 bits with a sign."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    value = 0
    for start in range(0, len(units), HASHED_AT_ONCE):
        part = units[start : start + HASHED_AT_ONCE]
        value = (value * pow(31, len(part), 1 << 32) + sum(map(mul, part, _POWERS_OF_31[-len(part) :]))) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_of_group(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that keeps a group."""
    number = java_hash(group_id)
    # Java's abs leaves the smallest number negative; Kafka takes 0 instead.
    return 0 if number == -(2**31) else abs(number) % partitions
