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
    GUID_BYTES,
    MISSING,
    NO_ID,
    OF_GUID,
    ROWS,
    SIDES,
    STATE_SIZE,
    TABLE_IDS,
    read_frames,
)
from pipeline.records.kernels import FAULT_REASONS, Fault

ReadFrames = Callable[..., int]
READ_IN_LOOP: ReadFrames = njit(cache=True)(read_frames.py_func)
"""The same loop for the thread of the event loop: it keeps the interpreter, which a thread may take milliseconds to get
back."""
_STATE = struct.Struct("=10q")
Rows = NDArray[np.intp]


class FrameReader:
    """Arrays for one chunk at a time, used again for the next one and for the next batch.

    Row i of side s: its datum lies in starts[s, i] to ends[s, i] of `buffer`.
    """

    def __init__(self, read: ReadFrames = read_frames) -> None:
        self._read = read
        self._state = np.zeros(STATE_SIZE, dtype=np.int64)
        self._table_id = np.empty((SIDES, TABLE_IDS), dtype=np.int64)
        self._table_at = np.empty((SIDES, TABLE_IDS), dtype=np.int64)
        self._used = np.zeros(SIDES, dtype=np.int64)
        self._index = np.empty((SIDES, CHUNK_RECORDS), dtype=np.uint8)
        self.starts = np.empty((SIDES, CHUNK_RECORDS), dtype=np.int32)
        self.ends = np.empty((SIDES, CHUNK_RECORDS), dtype=np.int32)
        self.buffer = np.zeros(0, dtype=np.uint8)

    def chunks(self, payload: ReadableBuffer, header: BatchHeader, wanted: int) -> Iterator[int]:
        """Read the records of a payload; yield the index of the first record of each chunk. Raises CorruptBatchError.

        `wanted`: bits of the sides whose ids are looked for.
        """
        # Read-only, so that each kernel is compiled for one type of buffer.
        self.buffer = buffer = np.frombuffer(memoryview(payload).toreadonly(), dtype=np.uint8)
        count = header.record_count
        fields = (0, len(buffer), count, -1, header.last_offset_delta, header.base_timestamp, 0, wanted, 0, 0)
        state = self._state
        _STATE.pack_into(state.data.cast("B"), 0, *fields)
        first = 0
        while True:
            fault = self._read(
                buffer, state, self._table_id, self._table_at, self._used, self._index, self.starts, self.ends
            )
            if fault:
                raise CorruptBatchError(FAULT_REASONS[Fault(fault)], header.base_offset)
            yield first
            first += int(state[ROWS])
            if first >= count:
                return

    def schemas(self, side: int) -> list[SchemaKey]:
        """Return the different ids of the chunk; the position of each is its place."""
        found: list[SchemaKey] = []
        for place in range(self._used[side]):
            schema_id = int(self._table_id[side, place])
            if schema_id == OF_GUID:
                at = int(self._table_at[side, place])
                found.append(self.buffer[at : at + GUID_BYTES - 1].tobytes())
            else:
                found.append(schema_id)
        return found

    def rows_of(self, side: int, place: int) -> Rows:
        """Return the rows of the chunk whose id has this place."""
        return np.flatnonzero(self._index[side, : self._state[ROWS]] == place)

    def rows_without_id(self, side: int) -> Rows | None:
        """Return the rows of the chunk without an id; None if there are none."""
        return self.rows_of(side, NO_ID) if self._state[MISSING + side] else None
