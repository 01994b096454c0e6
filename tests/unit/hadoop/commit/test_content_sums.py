"""Sums over contents in manifests, checkpoints and states: kept, added up, and absent in what older programs wrote."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.hadoop.commit.checkpoints import decode_checkpoint, encode_checkpoint
from pipeline.hadoop.commit.manifest import AbortedRecords, Manifest, ManifestError, OffsetRange, sha256_of
from pipeline.hadoop.commit.table_state import TableState, with_commits
from pipeline.hadoop.iceberg.snapshot_properties import manifest_in, snapshot_properties
from pipeline.records.content_sums import ContentSums, add_content_sums
from pipeline.records.tally import Counts

SUMS = {(0, 600_000): ContentSums(2, 2**64 - 1, 2**63 + 5, 100, 109)}
COUNTS = {(0, 600_000): Counts(10, 100, 2, 3)}
ABORTED = (AbortedRecords(partition=0, hour_ms=0, records=3, first_offset=110, last_offset=112),)


def manifest(**changes: Any) -> Manifest:
    settings: dict[str, Any] = {
        "sequence": 1,
        "run_id": "r",
        "created_ms": 1_000_000,
        "topic": "t",
        "topic_id": None,
        "format": "avro",
        "window_ms": 600_000,
        "offsets": {0: 113},
        "ranges": (OffsetRange(partition=0, start=100, end=113),),
        "counts": COUNTS,
        "sums": SUMS,
        "aborted": ABORTED,
    }
    return Manifest(**(settings | changes))


def test_a_manifest_keeps_sums_and_aborted_records() -> None:
    written = manifest()
    assert Manifest.decode(written.encode(), "m") == written
    assert json.loads(written.encode())["version"] == 4


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifests_of_older_programs_have_neither(version: int) -> None:
    encoded = manifest(version=version).encode()
    assert "sums" not in json.loads(encoded) and "aborted" not in json.loads(encoded)
    read = Manifest.decode(encoded, "m")
    assert read.sums == {} and read.aborted == () and read.counts == COUNTS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sums", [{"partition": 0}]),
        ("sums", [{"partition": 0, "window_start_ms": 0, **SUMS[0, 600_000]._asdict(), "content_sum": "1"}]),
        ("sums", 5),
        ("aborted", [{"partition": 0}]),
        ("aborted", [{**json.loads(manifest().encode())["aborted"][0], "records": None}]),
        ("version", 5),
    ],
)
def test_damaged_sums_are_a_damaged_manifest(field: str, value: object) -> None:
    document = json.loads(manifest().encode()) | {field: value}
    with pytest.raises(ManifestError):
        Manifest.decode(json.dumps(document).encode(), "m")


def test_states_add_sums_up_and_checkpoints_keep_them() -> None:
    first = manifest(ranges=(OffsetRange(partition=0, start=100, end=113),))
    second = manifest(
        sequence=2,
        previous_sha256=sha256_of(first.encode()),
        offsets={0: 114},
        ranges=(OffsetRange(partition=0, start=113, end=114),),
        sums={(0, 600_000): ContentSums(1, 2, 3, 113, 113), (0, 0): ContentSums(1, 5, 5, 90, 90)},
        counts={(0, 600_000): Counts(1, 1, 1, 1), (0, 0): Counts(1, 1, 1, 1)},
        aborted=(),
    )
    state = with_commits(TableState(), [(each, sha256_of(each.encode())) for each in (first, second)])
    assert state.sums[0, 600_000] == ContentSums(3, 1, 2**63 + 8, 100, 113)
    assert decode_checkpoint(encode_checkpoint(state), "c") == state


def test_a_checkpoint_of_an_older_program_has_none() -> None:
    written = manifest(sums={})
    state = TableState(last=written, sha256=sha256_of(written.encode()), counts=COUNTS)
    table = pq.read_table(pa.BufferReader(encode_checkpoint(state)))
    sink = pa.BufferOutputStream()
    pq.write_table(table.drop_columns(["sum"]), sink)
    read = decode_checkpoint(sink.getvalue().to_pybytes(), "c")
    assert read.sums == {} and read.counts == COUNTS


def test_snapshots_of_iceberg_have_the_sums() -> None:
    read, _ = manifest_in(snapshot_properties(manifest()), "s")
    assert read == manifest()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.permutations(range(6)))
def test_sums_do_not_depend_on_order(sizes: list[int], order: list[int]) -> None:
    parts = [{0: ContentSums(size, 2**63 + size, size, size, 2 * size)} for size in sizes]
    shuffled = [parts[at] for at in order if at < len(parts)]
    assert add_content_sums(parts) == add_content_sums(shuffled)
