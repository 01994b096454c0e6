"""Commits of hand-made files to an Iceberg table; as a program, one commit in which the process kills itself.

python -m tests.support.iceberg_commits ROOT TOPIC before|staged|after|never [CATALOG]

`staged` needs an SQL catalog. CATALOG is the catalog's properties as JSON.
"""

import json
import os
import signal
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.hadoop.commit.manifest import DataFile, Manifest, OffsetRange, next_offsets
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.iceberg.store import IcebergStore
from pipeline.hadoop.load.row_files import SummingSink
from pipeline.records.tally import Counts

HOUR_MS = 3_600_000
FIRST_HOUR_MS = 1_699_999_200_000


def commit_rows(store: IcebergStore, count: int, columns: Any = None, run_id: str | None = None) -> Manifest:
    """One more commit of `count` records, an hour after the last one."""
    head = store.read_head()
    file = write_file(store, head, count, columns or {})
    manifest = manifest_of(store, head, file, run_id or f"r{head.next_sequence}")
    store.commit(manifest, head, orphan_age_ms=60_000)
    return manifest


def write_file(store: IcebergStore, head: Any, count: int, columns: Any = ()) -> DataFile:
    first = head.offsets.get(0, 0)
    hour_ms = FIRST_HOUR_MS + (head.next_sequence - 1) * HOUR_MS
    numbers = list(range(first, first + count))
    header = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    rows: dict[str, Any] = {
        "_key": pa.array([b"k"] * count),
        "_offset": pa.array(numbers, pa.int64()),
        "_kafka_partition": pa.array([0] * count, pa.int32()),
        "_timestamp": pa.array([hour_ms * 1000 + n for n in range(count)]).cast(pa.timestamp("us", tz="UTC")),
        "_headers": pa.array([[{"key": "host", "value": b"w"}]] * count, header),
        "_tombstone": pa.array([False] * count),
    }
    for name, kind in dict(columns).items():
        rows[name] = pa.array(["who"] * count if kind == "string" else numbers).cast(kind)
    name = f"hourly/0-{first}-{os.urandom(4).hex()}-0-0-0.parquet"
    files, path = open_filesystem(store.root)
    with files.create(f"{path}/{store.topic}/{name}") as sink:
        summing = SummingSink(sink)
        pq.write_table(pa.table(rows), pa.PythonFile(summing, "w"))
    return DataFile(
        path=name,
        partition=0,
        hour_ms=hour_ms,
        records=count,
        bytes=summing.bytes,
        first_offset=first,
        last_offset=first + count - 1,
        crc32c=summing.crc32c,
    )


def manifest_of(store: Any, head: Any, file: DataFile | None, run_id: str, records: int = 0) -> Manifest:
    first = head.offsets.get(0, 0)
    ranges = (OffsetRange(partition=0, start=first, end=first + (file.records if file else records)),)
    return Manifest(
        sequence=head.next_sequence,
        run_id=run_id,
        created_ms=1_700_000_000_000,
        topic=store.topic,
        topic_id=None,
        format="parquet",
        window_ms=600_000,
        offsets=next_offsets(head.offsets, ranges),
        ranges=ranges,
        files=() if file is None else (file,),
        counts={(0, FIRST_HOUR_MS): Counts(file.records if file else records, 70, 1, 2**63)},
        previous_sha256=head.sha256,
    )


def main(root: str, topic: str, step: str, properties: str = "{}") -> None:
    def die(*_arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    store = IcebergStore(root, topic, json.loads(properties))
    catalog: Any = store.catalog
    real = catalog.commit_table
    if step == "before":
        catalog.commit_table = die
    elif step == "staged":  # the new metadata file is written, the catalog does not point to it yet
        write_metadata = catalog._write_metadata
        catalog._write_metadata = lambda *given, **named: (write_metadata(*given, **named), die())
    elif step == "after":
        catalog.commit_table = lambda *given: (real(*given), die())
    commit_rows(store, 5, run_id="killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
