"""Reads quarantine files back, record by record. They are few, and their values are plain bytes.

Times stay numbers, since a record may be set aside for a time that no calendar has.
"""

import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import cramjam
import fastavro
import zstandard

from pipeline.errors import PipelineError
from pipeline.hadoop.avro.avro_container import MAGIC
from pipeline.hadoop.avro.avro_schema import TIMESTAMP

_SYNC_SIZE: Final = 16
_LONG: Final = "long"
_METADATA: Final = {"type": "map", "values": "bytes"}


class QuarantineFileError(PipelineError):
    """A quarantine file cannot be read."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name


_OPENERS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "null": bytes,
    "snappy": lambda data: bytes(cramjam.snappy.decompress_raw(data[:-4])),
    "deflate": lambda data: zlib.decompress(data, -15),
    "zstandard": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}


def quarantined_records(data: bytes, name: str) -> Iterator[dict[str, Any]]:
    """Yield the records of the file `data`, by the names of its fields. Raises QuarantineFileError that has `name`."""
    stream = io.BytesIO(data)
    if stream.read(len(MAGIC)) != MAGIC:
        raise QuarantineFileError(name, "is no Avro file")
    try:
        metadata: Any = _read(stream, _METADATA)
        open_block = _OPENERS[metadata.get("avro.codec", b"null").decode()]
        envelope = json.loads(metadata["avro.schema"])
        for part in envelope["fields"]:
            if part["name"] == TIMESTAMP:
                part["type"] = "long"
        schema = fastavro.parse_schema(envelope)
        stream.seek(_SYNC_SIZE, io.SEEK_CUR)
        while stream.tell() < len(data):
            count, size = _read(stream, _LONG), _read(stream, _LONG)
            block = io.BytesIO(open_block(stream.read(size)))
            stream.seek(_SYNC_SIZE, io.SEEK_CUR)
            for _ in range(count):
                yield _read(block, schema)
    except (KeyError, TypeError, ValueError, EOFError, IndexError, zlib.error, zstandard.ZstdError) as error:
        raise QuarantineFileError(name, f"is damaged: {error!r}") from error
    except cramjam.DecompressionError as error:
        raise QuarantineFileError(name, f"is damaged: {error}") from error


def _read(stream: io.BytesIO, schema: Any) -> Any:
    return fastavro.schemaless_reader(stream, schema, None)
