"""Faults of a copy: what arrives instead of the batches of a topic. Each batch has as many records as any other.

Batches keep valid checksums, so that no reader notices.
"""

from collections.abc import Callable, Mapping

import crc32c

from pipeline.records.batch import read_header, set_base_offset

CRC_POSITION = 17
CRC_START = 21

Copied = dict[int, list[bytearray]]
"""Batches by partition."""
Forgery = Callable[[Copied], Copied]


def lose_one(copied: Copied) -> Copied:
    """Leave a batch of partition 0 out, in the middle: its offsets stay free."""
    return {**copied, 0: copied[0][:1] + copied[0][2:]}


def double_one(copied: Copied) -> Copied:
    """Append the first batch of partition 0 once more, at the end."""
    return {**copied, 0: [*copied[0], moved(copied[0][0], read_header(copied[0][-1]).next_offset)]}


def change_one(copied: Copied) -> Copied:
    """Change a byte of a record of partition 0, with a checksum that fits."""
    return {**copied, 0: [copied[0][0], changed(copied[0][1]), *copied[0][2:]]}


def lose_one_and_double_one(copied: Copied) -> Copied:
    """Have the first batch of partition 0 again in the place of the second."""
    first, second, *others = copied[0]
    return {**copied, 0: [first, moved(first, read_header(second).base_offset), *others]}


def swap_between_partitions(copied: Copied) -> Copied:
    """Exchange the second batches of both partitions."""
    ours, theirs = copied[0][1], copied[1][1]
    here, there = read_header(ours).base_offset, read_header(theirs).base_offset
    return {
        0: [copied[0][0], moved(theirs, here), *copied[0][2:]],
        1: [copied[1][0], moved(ours, there), *copied[1][2:]],
    }


def reorder(copied: Copied) -> Copied:
    """Exchange the first two batches of partition 0."""
    first, second, *others = copied[0]
    return {
        **copied,
        0: [moved(second, read_header(first).base_offset), moved(first, read_header(second).base_offset), *others],
    }


FORGERIES: Mapping[str, Forgery] = {
    "record lost": lose_one,
    "record doubled": double_one,
    "byte changed": change_one,
    "one lost and one doubled": lose_one_and_double_one,
    "two records swapped between partitions": swap_between_partitions,
    "batches reordered": reorder,
}


def moved(batch: bytearray, base_offset: int) -> bytearray:
    """Return a copy of a batch at another offset."""
    found = bytearray(batch)
    set_base_offset(found, 0, base_offset)
    return found


def changed(batch: bytearray) -> bytearray:
    """Return a batch with another last byte and a checksum that fits."""
    found = bytearray(batch)
    found[-2] ^= 1
    found[CRC_POSITION:CRC_START] = crc32c.crc32c(bytes(found[CRC_START:])).to_bytes(4, "big")
    return found
