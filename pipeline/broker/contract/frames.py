"""Schema ids of a batch, chunk by chunk, as `records/frame_kernels.py` finds them.

Heavy imports (numba, numpy): for brokers with `confluent.schema.registry.url` alone.
"""

import struct
from collections.abc import Callable, Iterator

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.broker.contract.verdicts import SchemaKey
from pipeline.errors import CorruptBatchError
from pipeline.records.batch import BatchHeader
from pipeline.records.compression import ReadableBuffer
from pipeline.records.frame_kernels import (
    CHUNK_RECORDS,
    COLUMNS,
    GUID_BYTES,
    INDEX,
    MISSING,
    OF_GUID,
    ROWS,
    SIDES,
    START,
    STATE_SIZE,
    STOP,
    TABLE_AT,
    TABLE_ID,
    TABLE_IDS,
    USED,
    read_frames,
)
from pipeline.records.kernels import FAULT_REASONS, Fault

ReadFrames = Callable[..., int]
READ_IN_LOOP: ReadFrames = njit(cache=True)(read_frames.py_func)
"""The same loop for the thread of the event loop: it keeps the interpreter, which a thread may take milliseconds to get
back."""
_STATE = struct.Struct("=8q")
Rows = NDArray[np.intp]


class FrameReader:
    """Arrays for one chunk at a time, used again for the next one and for the next batch.

    Row i of side s: its datum lies in starts[s, i] to ends[s, i] of `buffer`.
    """

    def __init__(self, read: ReadFrames = read_frames) -> None:
        self._read = read
        self._state = np.zeros(STATE_SIZE, dtype=np.int64)
        self._numbers = self._state.data.cast("B").cast("q")  # single numbers are read faster from here
        self._rows = np.empty((COLUMNS, SIDES, CHUNK_RECORDS), dtype=np.int32)
        self._index, self.starts, self.ends = self._rows[INDEX], self._rows[START], self._rows[STOP]
        self.buffer = np.zeros(0, dtype=np.uint8)

    def chunks(self, payload: ReadableBuffer, header: BatchHeader, wanted: int) -> Iterator[int]:
        """Read the records of a payload; yield the index of the first record of each chunk. Raises CorruptBatchError.

        `wanted`: bits of the sides whose ids are looked for.
        """
        # Read-only, so that each kernel is compiled for one type of buffer.
        self.buffer = buffer = np.frombuffer(memoryview(payload).toreadonly(), dtype=np.uint8)
        count = header.record_count
        fields = (0, len(buffer), count, -1, header.last_offset_delta, header.base_timestamp, 0, wanted)
        _STATE.pack_into(self._numbers, 0, *fields)
        first = 0
        while True:
            fault = self._read(buffer, self._state, self._rows)
            if fault:
                raise CorruptBatchError(FAULT_REASONS[Fault(fault)], header.base_offset)
            yield first
            first += self._numbers[ROWS]
            if first >= count:
                return

    def schemas(self, side: int) -> list[SchemaKey]:
        """Return the different ids of the chunk; the position of each is its place."""
        found: list[SchemaKey] = []
        for place in range(self._numbers[USED + side]):
            schema_id = self._numbers[TABLE_ID + side * TABLE_IDS + place]
            if schema_id == OF_GUID:
                at = self._numbers[TABLE_AT + side * TABLE_IDS + place]
                found.append(self.buffer[at : at + GUID_BYTES - 1].tobytes())
            else:
                found.append(schema_id)
        return found

    def rows_of(self, side: int, place: int) -> Rows:
        """Return the rows of the chunk whose id has this place."""
        return np.flatnonzero(self._index[side, : self._numbers[ROWS]] == place)

    def lacks_ids(self, side: int) -> bool:
        """True if a row of the chunk has no id."""
        return self._numbers[MISSING + side] > 0
