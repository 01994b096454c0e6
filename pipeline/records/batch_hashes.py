"""Hashes of batch headers, for many headers at once and for a single one. Pure.

Sums of these hashes, modulo 2**64, do not depend on order, and sums of parts add up. By such sums the audit tells that
two tiers handled the same batches.

Invariants:

A. Content and place hashes mix each 64-bit word into a state by a bijection (the finalizer of splitmix64, after Steele,
   Lea and Flood, "Fast splittable pseudorandom number generators", 2014). So two batches that differ in one word
   always have different hashes, and no hash is linear in the CRC.
B. Content hashes cover all that a copy keeps, wherever the copy lies: neither base offset nor leader epoch. Place
   hashes cover the base offset as well.
C. Header hashes cover the fields that neither brokers nor recompression change, and are CRC-32C of them.
D. The functions over tables and their scalar twins return the same.

A changed batch keeps its content hash only if its CRC-32C is equal: by accident with probability 2**-32, and never
after a single burst of up to 32 wrong bits. If hashes differ, their sums are equal with probability 2**-64.
"""

import struct
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Final

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from pipeline.records.batch import BatchHeader
from pipeline.records.raw_headers import RawHeaders

HEADER: Final = np.dtype([(name, np.int64) for name in BatchHeader._fields])
"""Row of a table of headers: the fields of BatchHeader, widened, so that a table is made by one copy."""

HeaderTable = NDArray[np.void]
Hashes = NDArray[np.uint64]

_OF_BROKERS: Final = 0x0F
"""Attribute bits that a broker may change when it appends: codec, timestamp type."""
_KEPT_FIELDS: Final = struct.Struct(">hiqqhii")
_KEPT_ROW: Final = np.dtype(
    {
        "names": [
            "attributes",
            "last_offset_delta",
            "base_timestamp",
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "record_count",
        ],
        "formats": [">i2", ">i4", ">i8", ">i8", ">i2", ">i4", ">i4"],
    }
)
_SEED: Final = 0x9E3779B97F4A7C15
_FIRST_FACTOR: Final = 0xBF58476D1CE4E5B9
_SECOND_FACTOR: Final = 0x94D049BB133111EB
_WORD: Final = (1 << 64) - 1


def header_table(headers: Sequence[BatchHeader]) -> HeaderTable:
    """Return the headers as a table of dtype HEADER, in the same order."""
    fields = list(chain.from_iterable(headers))
    return np.fromiter(fields, np.int64, len(fields)).view(HEADER)


def table_of_raw(headers: RawHeaders) -> HeaderTable:
    """Return headers as they are in a log as a table of dtype HEADER."""
    return headers.astype(HEADER)


def content_hashes(table: HeaderTable) -> Hashes:
    """Return the hash of each batch, wherever it lies (invariant B)."""
    hashes = np.full(len(table), _SEED, np.uint64)
    for word in (
        _joined(table["crc"], table["batch_length"]),
        _unsigned(table["base_timestamp"]),
        _unsigned(table["max_timestamp"]),
        _unsigned(table["producer_id"]),
        _joined(table["producer_epoch"] & 0xFFFF | (table["attributes"] & 0xFFFF) << 16, table["base_sequence"]),
        _joined(table["last_offset_delta"], table["record_count"]),
    ):
        hashes = _mixed(hashes, word)
    return hashes


def place_hashes(table: HeaderTable, contents: Hashes | None = None) -> Hashes:
    """Return the hash of each batch with its base offset. `contents`: the content hashes, if they are known."""
    return _mixed(content_hashes(table) if contents is None else contents, _unsigned(table["base_offset"]))


def header_hashes(table: HeaderTable) -> Hashes:
    """Return the CRC-32C of the fields of each header that recompression and LogAppendTime keep (invariant C)."""
    kept = np.empty(len(table), _KEPT_ROW)
    for name in _KEPT_ROW.names or ():
        kept[name] = table[name]
    kept["attributes"] &= ~_OF_BROKERS
    columns = np.ascontiguousarray(kept.view(np.uint8).reshape(len(table), _KEPT_ROW.itemsize).T)
    of_zeros, by_octet = _crc_tables()
    found = np.full(len(table), of_zeros, np.uint32)
    for changes, octets in zip(by_octet, columns, strict=True):
        if len(octets) and (octets == octets[0]).all():  # most octets are, such as the upper ones of numbers
            if octets[0]:
                found ^= changes[octets[0]]
        else:
            found ^= changes[octets]
    return found.astype(np.uint64)


def content_hash_of(header: BatchHeader) -> int:
    """Return the content hash of one batch."""
    value = _SEED
    for word in (
        _joined_words(header.crc, header.batch_length),
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        _joined_words(header.producer_epoch & 0xFFFF | (header.attributes & 0xFFFF) << 16, header.base_sequence),
        _joined_words(header.last_offset_delta, header.record_count),
    ):
        value = _mixed_word(value, word & _WORD)
    return value


def place_hash_of(header: BatchHeader) -> int:
    """Return the hash of one batch with its base offset."""
    return placed_hash(content_hash_of(header), header.base_offset)


def placed_hash(content_hash: int, base_offset: int) -> int:
    """Return the hash of a batch with its base offset, from its content hash."""
    return _mixed_word(content_hash, base_offset & _WORD)


def header_hash_of(header: BatchHeader) -> int:
    """Return the CRC-32C of the fields of one header that recompression and LogAppendTime keep."""
    return crc32c(
        _KEPT_FIELDS.pack(
            header.attributes & ~_OF_BROKERS,
            header.last_offset_delta,
            header.base_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
        )
    )


def sum_of(hashes: Hashes) -> int:
    """Return the sum of hashes modulo 2**64."""
    return int(hashes.sum(dtype=np.uint64))


@cache
def _crc_tables() -> tuple[np.uint32, NDArray[np.uint32]]:
    """Return the CRC of a row of zeros, and what each octet at each place changes in it: a CRC is linear."""
    size = _KEPT_ROW.itemsize
    of_zeros = crc32c(bytes(size))
    changes = [
        [crc32c(bytes(at) + bytes([octet]) + bytes(size - at - 1)) for octet in range(256)] for at in range(size)
    ]
    return np.uint32(of_zeros), np.array(changes, np.uint32) ^ np.uint32(of_zeros)


def _unsigned(column: NDArray[np.int64]) -> Hashes:
    return np.ascontiguousarray(column).view(np.uint64)


def _joined(low: NDArray[np.int64], high: NDArray[np.int64]) -> Hashes:
    """Return words of two 32-bit halves."""
    return (low & 0xFFFFFFFF | high << 32).view(np.uint64)


def _joined_words(low: int, high: int) -> int:
    return low & 0xFFFFFFFF | (high & 0xFFFFFFFF) << 32


def _mixed(hashes: Hashes, words: Hashes) -> Hashes:
    """Mix a word into each hash (invariant A)."""
    mixed = hashes + np.uint64(_SEED)
    mixed ^= words
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_FIRST_FACTOR)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_SECOND_FACTOR)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _mixed_word(value: int, word: int) -> int:
    mixed = (value + _SEED & _WORD) ^ word
    mixed = (mixed ^ mixed >> 30) * _FIRST_FACTOR & _WORD
    mixed = (mixed ^ mixed >> 27) * _SECOND_FACTOR & _WORD
    return mixed ^ mixed >> 31
