"""Marks of producers that count their own batches for the audit: bit 61 of the producer id. Pure.

A broker hands out a marked id to a producer that asks for one. So every tier tells from a batch header alone whether
its producer has counted it. Ids without the mark are below 2**61, and ids of producers that are not idempotent are -1.
"""

from typing import Final

MARK: Final = 1 << 61


def mark_producer_id(producer_id: int) -> int:
    """Return the id with the mark. Raises ValueError if it is negative or 2**61 and more."""
    if not 0 <= producer_id < MARK:
        raise ValueError(f"producer id {producer_id} cannot be marked: it must be at least 0 and below {MARK}")
    return producer_id | MARK


def is_marked(producer_id: int) -> bool:
    """True if the producer with this id counts its batches."""
    return producer_id >= 0 and bool(producer_id & MARK)
