"""Manifests for tests of commits."""

from pipeline.hadoop.commit.manifest import DataFile, Manifest, OffsetRange, next_offsets
from pipeline.hadoop.commit.publication import Head
from pipeline.records.tally import Counts


def manifest_after(head: Head, *, run_id: str = "r1", records: int = 10, partition: int = 0) -> Manifest:
    start = head.offsets.get(partition, 0)
    ranges = (OffsetRange(partition=partition, start=start, end=start + records),)
    file = DataFile(
        path=f"hourly/2023/11/14/22/{partition}-{start}-{run_id}-0-1-0.avro",
        partition=partition,
        hour_ms=1_699_999_200_000,
        records=records,
        bytes=100,
        first_offset=start,
        last_offset=start + records - 1,
        crc32c=5,
    )
    return Manifest(
        sequence=head.next_sequence,
        run_id=run_id,
        created_ms=1_700_000_000_000,
        topic="clicks",
        topic_id=None,
        format="avro",
        window_ms=600_000,
        offsets=next_offsets(head.offsets, ranges),
        ranges=ranges,
        files=(file,),
        counts={(partition, 600_000): Counts(records, 70, 1, 2**63)},
        previous_sha256=head.sha256,
    )
