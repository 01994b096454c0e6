"""Reads Avro container files of envelopes (`avro_schema.envelope_schema`) back into rows, block by block, by columns.

Rows have the columns key, value, partition, offset, timestamp_ms and headers, as a load gets them from the source: a
value is a framed datum again, or plain bytes.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import cramjam
import numpy as np
import pyarrow as pa
import zstandard
from numpy.typing import NDArray

from pipeline.errors import PipelineError
from pipeline.hadoop.avro.avro_container import MAGIC
from pipeline.hadoop.avro.avro_kernels import FAULT_REASONS, FRAME_SIZE, DatumFault
from pipeline.hadoop.avro.avro_schema import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    VALUE,
    SchemaTable,
    schema_table,
)
from pipeline.hadoop.avro.avro_schema import parse as parse_schema
from pipeline.hadoop.avro.datums import DatumSchema
from pipeline.hadoop.avro.envelope_kernels import (
    ENVELOPE_FIELDS,
    HEADER_END,
    KEY_END,
    KEY_START,
    VALUE_END,
    VALUE_START,
    gather_spans,
    split_envelopes,
)
from pipeline.hadoop.avro.envelope_kernels import OFFSET as OFFSET_FIELD
from pipeline.hadoop.avro.envelope_kernels import PARTITION as PARTITION_FIELD
from pipeline.hadoop.avro.envelope_kernels import TIMESTAMP as TIMESTAMP_FIELD

MAX_BLOCK_BYTES: Final = 1 << 30
MAX_HEADER_BYTES: Final = 64 << 20
_SYNC_SIZE: Final = 16
_STANDARD: Final = [KEY, OFFSET, PARTITION, TIMESTAMP, HEADERS, VALUE]
_NOTHING: Final = np.zeros(0, np.uint8)
_HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


class ContainerError(PipelineError):
    """A file is not a container of envelopes, or is damaged."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name


def _snappy(data: bytes) -> bytes:
    opened = bytes(cramjam.snappy.decompress_raw(data[:-4]))
    if zlib.crc32(opened) != int.from_bytes(data[-4:], "big"):
        raise ValueError("the checksum of a block is wrong")
    return opened


_OPENERS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "null": lambda data: data,
    "snappy": _snappy,
    "deflate": lambda data: zlib.decompressobj(-15).decompress(data, MAX_BLOCK_BYTES),
    "zstandard": lambda data: zstandard.ZstdDecompressor().stream_reader(data).read(MAX_BLOCK_BYTES),
}


@dataclass(slots=True)
class ContainerReader:
    """An opened container. `schema` is that of the values, None for plain bytes."""

    name: str
    file: BinaryIO
    schema: DatumSchema | None = field(init=False)
    _open_block: Callable[[bytes], bytes] = field(init=False)
    _table: SchemaTable = field(init=False)
    _sync: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Read the header. Raises ContainerError."""
        if self.file.read(len(MAGIC)) != MAGIC:
            raise ContainerError(self.name, "is not an Avro container")
        metadata: dict[str, bytes] = {}
        while count := self._read_long():
            if count < 0:
                count = -count
                self._read_long()
            for _ in range(count):
                key = self._read_bytes(MAX_HEADER_BYTES).decode()
                metadata[key] = self._read_bytes(MAX_HEADER_BYTES)
        self._sync = self.file.read(_SYNC_SIZE)
        codec = metadata.get("avro.codec", b"null").decode()
        if codec not in _OPENERS:
            raise ContainerError(self.name, f"has the codec {codec}")
        self._open_block = _OPENERS[codec]
        value = _value_schema(self.name, json.loads(metadata["avro.schema"]))
        text = json.dumps(value)
        parsed = parse_schema(text)
        self._table = schema_table(parsed)
        self.schema = None if value == "bytes" else DatumSchema(0, text, parsed, self._table)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one block after the other. Raises ContainerError for damaged blocks."""
        while first := self.file.read(1):
            count, data = self._read_long(first), self._read_bytes(MAX_BLOCK_BYTES)
            if self.file.read(_SYNC_SIZE) != self._sync:
                raise ContainerError(self.name, "a block does not end with the sync marker")
            try:
                block = np.frombuffer(self._open_block(data), np.uint8)
            except (ValueError, zlib.error, zstandard.ZstdError, cramjam.DecompressionError) as error:
                raise ContainerError(self.name, f"a block cannot be opened: {error}") from error
            if not 0 <= count <= len(block) or len(block) >= MAX_BLOCK_BYTES:
                raise ContainerError(self.name, "a block has more records or bytes than it may")
            yield self._rows(block, count)

    def _rows(self, block: NDArray[np.uint8], count: int) -> pa.RecordBatch:
        envelopes = np.zeros((count, ENVELOPE_FIELDS), dtype=np.int64)
        headers = np.zeros((len(block) // 2 + 1, 4), dtype=np.int64)
        table = self._table
        header_count, fault = split_envelopes(
            table.kind, table.argument, table.child_count, table.children, block, envelopes, headers
        )
        if fault:
            raise ContainerError(self.name, f"a block is damaged: {FAULT_REASONS[DatumFault(fault)]}")
        headers = headers[:header_count]
        pairs = pa.StructArray.from_arrays(
            [
                _column(block, headers[:, 0], headers[:, 1]).cast(pa.string()),
                _column(block, headers[:, 2], headers[:, 3]),
            ],
            fields=list(_HEADERS_TYPE.value_type),
        )
        header_index = np.concatenate([[0], envelopes[:, HEADER_END]]).astype(np.int32)
        return pa.RecordBatch.from_pydict(
            {
                "key": _column(block, envelopes[:, KEY_START], envelopes[:, KEY_END]),
                "value": self._values(block, envelopes[:, VALUE_START], envelopes[:, VALUE_END]),
                "partition": pa.array(envelopes[:, PARTITION_FIELD].astype(np.int32)),
                "offset": pa.array(envelopes[:, OFFSET_FIELD]),
                "timestamp_ms": pa.array(envelopes[:, TIMESTAMP_FIELD]),
                "headers": pa.ListArray.from_arrays(pa.array(header_index), pairs, type=_HEADERS_TYPE),
            }
        )

    def _values(self, block: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.Array:
        if self.schema is not None:
            return _column(block, starts, ends, np.zeros(FRAME_SIZE, np.uint8))
        # Plain bytes begin with their length, whose last byte has no high bit.
        at = starts.copy()
        behind = starts >= 0
        while behind.any():
            rows = np.flatnonzero(behind)
            behind[rows] = block[at[rows]] >= 0x80
            at[rows] += 1
        return _column(block, at, ends)

    def _read_long(self, first: bytes = b"") -> int:
        value = shift = 0
        while True:
            byte = first or self.file.read(1)
            first = b""
            if not byte or shift > 63:
                raise ContainerError(self.name, "ends too early")
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def _read_bytes(self, limit: int) -> bytes:
        length = self._read_long()
        if not 0 <= length <= limit:
            raise ContainerError(self.name, f"has a part of {length} bytes")
        data = self.file.read(length)
        if len(data) < length:
            raise ContainerError(self.name, "ends too early")
        return data


def _value_schema(name: str, envelope: Any) -> Any:
    """Return the schema of the values inside an envelope's schema."""
    try:
        names = [part["name"] for part in envelope["fields"]]
        value = envelope["fields"][-1]["type"][1]
    except (TypeError, KeyError, IndexError) as error:
        raise ContainerError(name, "holds no envelopes of a load") from error
    if names != _STANDARD:
        raise ContainerError(name, f"has the fields {', '.join(names)} in place of {', '.join(_STANDARD)}")
    if isinstance(value, dict) and value.get("name") == "PipelineDatum":
        return value["fields"][0]["type"]
    return value


def _column(
    block: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    prefix: NDArray[np.uint8] = _NOTHING,
) -> pa.Array:
    """Return block[start:end] of all rows as a binary column; a start of -1 is null."""
    present = starts >= 0
    sizes = np.where(present, ends - starts + len(prefix), 0)
    out = np.empty(int(sizes.sum()), dtype=np.uint8)
    out_ends = np.zeros(len(starts) + 1, dtype=np.int64)
    gather_spans(block, np.ascontiguousarray(starts), np.ascontiguousarray(ends), prefix, out, out_ends)
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [validity, pa.py_buffer(out_ends.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)
