import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.hadoop.commit.manifest import (
    Manifest,
    ManifestError,
    OffsetRange,
    Operation,
    PartitionEnd,
    TableSchema,
    add_counts,
    check_follows,
    sha256_of,
)
from pipeline.hadoop.commit.publication import Head
from pipeline.hadoop.commit.table_state import TableState, with_commits
from pipeline.records.tally import Counts

OLD_MANIFEST = b"""{"counts": [
  {"batches": 1, "bytes": 70, "crc_sum": 9223372036854775808, "partition": 0, "records": 10, "window_start_ms": 600000},
  {"batches": 2, "bytes": 30, "crc_sum": 7, "partition": 1, "records": 4, "window_start_ms": 0}
 ],
 "created_ms": 1700000000000,
 "files": [
  {"bytes": 100, "crc32c": 5, "first_offset": 0, "hour_ms": 1699999200000, "last_offset": 9, \
"partition": 0, "path": "hourly/2023/11/14/22/0-0-r1-0-1-0.avro", "records": 10}
 ],
 "format": "avro",
 "offsets": {"0": 10, "1": 4},
 "previous_sha256": "ab",
 "ranges": [
  {"end": 10, "partition": 0, "start": 0}
 ],
 "run_id": "r1",
 "sequence": 2,
 "skipped": [],
 "topic": "clicks",
 "topic_id": null,
 "version": 1,
 "window_ms": 600000}
"""

EMPTY = Head(manifest=None, sha256=None)
END = PartitionEnd(partition=0, leader_epoch=4, base_offset=8, last_offset=9, records=2, codec=0, crc=9, frame_crc=5)


def after(manifest: Manifest) -> Head:
    return Head(manifest=manifest, sha256=sha256_of(manifest.encode()))


def test_a_written_manifest_is_read(make_manifest: Callable[..., Any]) -> None:
    manifest = make_manifest(EMPTY)
    assert Manifest.decode(manifest.encode(), "m") == manifest
    assert json.loads(manifest.encode())["offsets"] == {"0": 10}


def test_an_old_manifest_is_read_and_written_again_byte_by_byte() -> None:
    old = Manifest.decode(OLD_MANIFEST, "m")
    assert old.counts == {(0, 600_000): Counts(10, 70, 1, 2**63), (1, 0): Counts(4, 30, 2, 7)}
    assert (old.records, old.offsets, old.ranges[0].end) == (10, {0: 10, 1: 4}, 10)
    assert old.encode() == OLD_MANIFEST


def test_folders_of_manifests_before_version_3_are_hourly_and_other_formats_are_refused(
    make_manifest: Callable[..., Any],
) -> None:
    hive = replace(make_manifest(EMPTY), path_format="hive")
    assert Manifest.decode(hive.encode(), "m") == hive
    second = Manifest.decode(replace(hive, version=2).encode(), "m")
    assert (second.version, second.path_format) == (2, "hourly")
    assert b"path_format" not in second.encode()
    with pytest.raises(ManifestError, match="unknown format daily"):
        Manifest.decode(hive.encode().replace(b'"hive"', b'"daily"'), "m")


@pytest.mark.parametrize("wrong", ["1", 1.5, True, [1], {"a": 1}])
def test_a_number_of_another_type_is_damage(make_manifest: Callable[..., Any], wrong: Any) -> None:
    whole = replace(make_manifest(EMPTY), ends=(END,))
    document = json.loads(whole.encode())
    places: list[tuple[Any, str]] = [(document, name) for name in ("sequence", "created_ms", "window_ms")]
    places += [(part, name) for key in ("files", "ranges", "ends", "counts") for part in document[key] for name in part]
    tried = 0
    for holder, name in places:
        if type(holder[name]) is not int:
            continue
        tried += 1
        before, holder[name] = holder[name], wrong
        with pytest.raises(ManifestError, match="is damaged"):
            Manifest.decode(json.dumps(document).encode(), "m")
        holder[name] = before
    assert tried > 20
    assert Manifest.decode(json.dumps(document).encode(), "m") == whole


def test_a_commit_that_rearranges_files_is_read_back_and_takes_files_away(make_manifest: Callable[..., Any]) -> None:
    first = replace(make_manifest(EMPTY), ends=(END,))
    compacted = replace(
        first.files[0], path="hourly/2023/11/14/22/0-0-r2-0-1-0.avro", record_type="shop.Order", schema_id=7
    )
    second = replace(
        first,
        sequence=2,
        operation=Operation.COMPACT,
        ranges=(),
        counts={},
        files=(compacted,),
        removed=tuple(file.path for file in first.files),
        schemas=(TableSchema(record_type=None, subject="clicks-value", version=3, schema_id=7, text='"int"'),),
        previous_sha256=after(first).sha256,
    )
    check_follows(second, first, sha256_of(first.encode()))
    assert Manifest.decode(second.encode(), "m") == second
    state = with_commits(TableState(), [(first, sha256_of(first.encode())), (second, sha256_of(second.encode()))])
    assert state.data_files() == [compacted]
    with pytest.raises(ManifestError, match="no live file"):
        with_commits(TableState(), [(replace(first, removed=("hourly/other.avro",)), "checksum")])
    loaded = replace(second, ranges=first.ranges)
    with pytest.raises(ManifestError, match="compact"):
        check_follows(loaded, first, sha256_of(first.encode()))


@pytest.mark.parametrize("change", [(b'"records": 10, ', b""), (b'"batches": 1', b'"batches": 1, "odd": 2')])
def test_a_count_of_another_shape_is_damage(change: Any) -> None:
    with pytest.raises(ManifestError, match="m7"):
        Manifest.decode(OLD_MANIFEST.replace(*change), "m7")


def test_manifests_add_up(make_manifest: Callable[..., Any]) -> None:
    first = make_manifest(EMPTY)
    second = make_manifest(after(first), records=5)
    third = make_manifest(after(second), records=2, partition=1)
    state = with_commits(TableState(), [(each, sha256_of(each.encode())) for each in (first, second, third)])
    assert (state.sequence, state.offsets) == (3, {0: 15, 1: 2})
    assert {key: count.records for key, count in state.counts.items()} == {(0, 600_000): 15, (1, 600_000): 2}
    assert state.counts[0, 600_000].crc_sum == 0
    assert sum(file.records for file in state.data_files()) == 17
    assert state.data_files(quarantined=True) == []


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"version": 3}', b'{"version": 2}', b'{"version": 1}', b'{"version": "1"}', b"\xff"]
)
def test_damage_is_named(data: bytes) -> None:
    with pytest.raises(ManifestError, match="m7"):
        Manifest.decode(data, "m7")


def test_a_manifest_that_does_not_follow_the_last_is_refused(make_manifest: Callable[..., Any]) -> None:
    first = make_manifest(EMPTY)
    second = make_manifest(after(first))
    gap = OffsetRange(partition=0, start=11, end=12)
    wrong = [
        replace(second, sequence=3),
        replace(second, previous_sha256="other"),
        replace(second, ranges=(gap,), offsets={0: 12}),
        replace(second, offsets={0: 21}),
        replace(second, offsets={0: 20, 1: 0}),
    ]
    for manifest in wrong:
        with pytest.raises(ManifestError):
            check_follows(manifest, first, sha256_of(first.encode()))
    check_follows(second, first, sha256_of(first.encode()))


def test_a_recorded_gap_is_lawful(make_manifest: Callable[..., Any]) -> None:
    first = make_manifest(EMPTY)
    second = replace(
        make_manifest(after(first)),
        skipped=(OffsetRange(partition=0, start=10, end=12),),
        ranges=(OffsetRange(partition=0, start=12, end=14),),
        offsets={0: 14},
        lost={0: 2},
    )
    check_follows(second, first, sha256_of(first.encode()))


COUNTS = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.builds(Counts, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 2**64 - 1)),
)


@given(st.lists(COUNTS), st.lists(COUNTS))
def test_adding_counts_is_independent_of_order_and_grouping(left: Any, right: Any) -> None:
    assert add_counts(left + right) == add_counts(right + left)
    assert add_counts([add_counts(left), add_counts(right)]) == add_counts(left + right)
