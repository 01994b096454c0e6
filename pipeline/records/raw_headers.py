"""Batch headers as tables over their bytes, for many headers at once. Pure.

`impossible` is the twin over tables of the checks of `read_header`.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.model import MAX_INT64
from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader
from pipeline.records.compression import ReadableBuffer

_FORMATS: Final = (">i8", ">i4", ">i4", "i1", ">u4", ">i2", ">i4", ">i8", ">i8", ">i8", ">i2", ">i4", ">i4")
RAW_HEADER: Final = np.dtype(list(zip(BatchHeader._fields, _FORMATS, strict=True)))
"""The 61 bytes of a header as they are in a log."""

RawHeaders = NDArray[np.void]


def raw_headers(headers: ReadableBuffer) -> RawHeaders:
    """Return a table over the bytes of headers, one after the other, without copying them."""
    return np.frombuffer(headers, RAW_HEADER)


def octets_of(headers: RawHeaders) -> NDArray[np.uint8]:
    """Return a row of HEADER_SIZE octets for each header."""
    return headers.view(np.uint8).reshape(len(headers), HEADER_SIZE)


def impossible(headers: RawHeaders) -> NDArray[np.bool_]:
    """Return for each header if no batch can have it: `read_header` refuses the same ones."""
    base_offset = headers["base_offset"].astype(np.int64)
    delta = headers["last_offset_delta"].astype(np.int64)
    records = headers["record_count"]
    found: NDArray[np.bool_] = (
        (headers["magic"] != MAGIC)
        | (headers["batch_length"] < HEADER_SIZE - LOG_OVERHEAD)
        | (delta < 0)
        | (base_offset < 0)
        | (base_offset >= MAX_INT64 - np.maximum(delta, 0))
        | (records < 0)
        | (records > delta + 1)
    )
    return found
