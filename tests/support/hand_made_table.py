"""A table whose files a test writes by hand, as earlier versions of the load wrote them, and commits."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.hadoop.avro.avro_columns import RECORD_FIELDS
from pipeline.hadoop.avro.avro_schema import parse, schema_table
from pipeline.hadoop.avro.datums import DatumSchema
from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.manifest import DataFile, Manifest, OffsetRange, next_offsets
from pipeline.hadoop.commit.publication import commit, read_head
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.load.row_files import AvroFile, SummingSink

HOUR_MS = 3_600_000
FIRST_HOUR_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS


@dataclass
class HandMadeTable:
    """Each `add_...` commits one file of partition 0, a minute between its records, one hour after the file before."""

    root: str
    topic: str = "visits"
    rows: int = 0
    hours: int = 0
    removed: list[str] = field(default_factory=list)

    def add_parquet(self, columns: Any, count: int, **about: Any) -> DataFile:
        """`columns`: arrays by name, beside those of the record."""
        table = pa.table(self._record_columns(count) | columns)
        return self._commit("parquet", count, lambda sink, _: pq.write_table(table, pa.PythonFile(sink, "w")), about)

    def add_avro(self, schema: str | None, values: Any, codec: str = "snappy", **about: Any) -> DataFile:
        """`values`: framed datums of the schema, or plain bytes, or None. Without hour: a file of the quarantine."""
        count = len(values)
        record = self._record_columns(count)
        rows = pa.RecordBatch.from_pydict(
            {
                "key": record["_key"],
                "value": pa.array(values, pa.binary()),
                "partition": record["_partition"],
                "offset": record["_offset"],
                "timestamp_ms": record["_timestamp"].cast(pa.int64()),
                "headers": record["_headers"],
            }
        )
        parsed = None if schema is None else parse(schema)
        datums = None if schema is None else DatumSchema(0, schema, parsed, schema_table(parsed))

        def write(sink: Any, name: str) -> None:
            is_aside = about.get("hour_ms", 0) is None
            file = AvroFile(sink, datums, codec, name, with_reason=is_aside)
            file.add(rows.append_column("reason", pa.array(["no datum"] * count)) if is_aside else rows, None)
            file.finish()

        return self._commit("avro", count, write, about)

    def rearrange(self, operation: Any, removed: Any, added: Any = ()) -> Manifest:
        """Commit without new records."""
        return self._publish(operation=operation, removed=tuple(removed), files=tuple(added), ranges=())

    def _record_columns(self, count: int) -> Any:
        first = self.rows
        start = FIRST_HOUR_MS + self.hours * HOUR_MS
        kinds = {field.name: field.type for field in RECORD_FIELDS}
        return {
            "_key": pa.array([b"k%d" % n for n in range(first, first + count)], kinds["_key"]),
            "_offset": pa.array(range(first, first + count), kinds["_offset"]),
            "_partition": pa.array([0] * count, kinds["_partition"]),
            "_timestamp": pa.array([start + n % 60 * 60_000 for n in range(count)]).cast(kinds["_timestamp"]),
            "_headers": pa.array([[{"key": "host", "value": b"w"}]] * count, kinds["_headers"]),
            "_tombstone": pa.array([False] * count, kinds["_tombstone"]),
        }

    def _commit(self, suffix: str, count: int, write: Any, about: Any) -> DataFile:
        files, path = open_filesystem(self.root)
        layout = topic_layout(path, self.topic)
        name = f"hourly/{self.hours:04d}/0-{self.rows}-r{self.hours}-0-0-0.{suffix}"
        with files.create(layout.absolute(name)) as sink:
            summing = SummingSink(sink)
            write(summing, name)
        file = DataFile(
            path=name,
            partition=0,
            hour_ms=FIRST_HOUR_MS + self.hours * HOUR_MS,
            records=count,
            bytes=summing.bytes,
            first_offset=self.rows,
            last_offset=self.rows + count - 1,
            crc32c=summing.crc32c,
        )
        file = replace(file, **about)
        ranges = (OffsetRange(partition=0, start=self.rows, end=self.rows + count),)
        self._publish(files=(file,), ranges=ranges, format=suffix)
        self.rows += count
        self.hours += 1
        return file

    def _publish(self, **parts: Any) -> Manifest:
        files, path = open_filesystem(self.root)
        layout = topic_layout(path, self.topic)
        head = read_head(files, layout)
        manifest = Manifest(
            sequence=head.next_sequence,
            run_id=f"r{head.next_sequence}",
            created_ms=1_000 * head.next_sequence,
            topic=self.topic,
            topic_id=None,
            window_ms=600_000,
            offsets=next_offsets(head.offsets, parts["ranges"]),
            previous_sha256=head.sha256,
            **({"format": "parquet"} | parts),
        )
        commit(files, layout, manifest, head)
        return manifest


def framed(schema: str, values: Any) -> Any:
    """Datums of the schema behind an id."""
    import io

    import fastavro

    parsed = parse(schema)
    datums = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        datums.append(b"\0\0\0\0\7" + out.getvalue())
    return datums


def table_at(path: Path) -> HandMadeTable:
    return HandMadeTable(path.as_uri())
