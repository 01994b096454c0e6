import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.hadoop.commit import Head
from pipeline.hadoop.manifest import (
    Manifest,
    ManifestError,
    OffsetRange,
    WindowCount,
    check_follows,
    committed_counts,
    committed_files,
    committed_offsets,
    fold_counts,
    sha256_of,
)

EMPTY = Head(manifest=None, sha256=None)


def after(manifest):
    return Head(manifest=manifest, sha256=sha256_of(manifest.encode()))


def test_what_is_written_is_read(make_manifest):
    manifest = make_manifest(EMPTY)
    assert Manifest.decode(manifest.encode(), "m") == manifest
    assert json.loads(manifest.encode())["offsets"] == {"0": 10}


def test_manifests_add_up(make_manifest):
    first = make_manifest(EMPTY)
    second = make_manifest(after(first), records=5)
    third = make_manifest(after(second), records=2, partition=1)
    manifests = [first, second, third]
    for manifest, head in zip(manifests, [EMPTY, after(first), after(second)], strict=True):
        check_follows(manifest, head.manifest, head.sha256)
    assert committed_offsets(manifests) == {0: 15, 1: 2}
    assert [count.records for count in committed_counts(manifests)] == [15, 2]
    assert committed_counts(manifests)[0].crc_sum == 0
    assert sum(file.records for file in committed_files(manifests)) == 17
    assert list(committed_files(manifests, quarantined=True)) == []


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 2}', b'{"version": 1}', b"\xff"])
def test_damage_is_named(data):
    with pytest.raises(ManifestError, match="m7"):
        Manifest.decode(data, "m7")


def test_what_does_not_follow_is_refused(make_manifest):
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


def test_a_recorded_gap_is_lawful(make_manifest):
    first = make_manifest(EMPTY)
    second = replace(
        make_manifest(after(first)),
        skipped=(OffsetRange(partition=0, start=10, end=12),),
        ranges=(OffsetRange(partition=0, start=12, end=14),),
        offsets={0: 14},
    )
    check_follows(second, first, sha256_of(first.encode()))


COUNTS = st.builds(
    WindowCount,
    partition=st.integers(0, 2),
    window_start_ms=st.integers(0, 2),
    records=st.integers(0, 9),
    bytes=st.integers(0, 9),
    batches=st.integers(0, 9),
    crc_sum=st.integers(0, 2**64 - 1),
)


@given(st.lists(COUNTS), st.lists(COUNTS))
def test_folding_counts_is_independent_of_order_and_grouping(left, right):
    assert fold_counts(left + right) == fold_counts(right + left)
    assert fold_counts([*fold_counts(left), *fold_counts(right)]) == fold_counts(left + right)
