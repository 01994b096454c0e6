"""Hashes of headers: of tables as of single headers, and different for different batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records.batch import BatchHeader
from pipeline.records.batch_hashes import (
    HEADER,
    content_hash_of,
    content_hashes,
    header_hash_of,
    header_hashes,
    header_table,
    place_hash_of,
    place_hashes,
    sum_of,
)
from pipeline.records.tally import NOTHING

int16, int32, int64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
headers = st.lists(
    st.builds(
        BatchHeader,
        int64,
        int32,
        int32,
        st.just(2),
        st.integers(0, 2**32 - 1),
        int16,
        int32,
        int64,
        int64,
        int64,
        int16,
        int32,
        int32,
    ),
    max_size=20,
)
ONE = BatchHeader(7, 88, 3, 2, 5, 0x19, 2, 100, 200, 9, 1, 4, 3)


@given(headers)
def test_tables_hash_as_single_headers(found: list[BatchHeader]) -> None:
    table = header_table(found)
    assert table.dtype == HEADER
    assert [BatchHeader(*row) for row in table.tolist()] == found
    contents = content_hashes(table)
    assert contents.tolist() == list(map(content_hash_of, found))
    assert place_hashes(table).tolist() == place_hashes(table, contents).tolist() == list(map(place_hash_of, found))
    assert header_hashes(table).tolist() == list(map(header_hash_of, found))
    assert sum_of(contents) == sum(map(content_hash_of, found)) % 2**64


@given(headers)
def test_header_sums_are_those_of_reports_of_version_2(found: list[BatchHeader]) -> None:
    counts = NOTHING
    for header in found:
        counts = counts.with_batch(header._replace(attributes=header.attributes & ~7))
    assert counts.codecs is not None
    assert counts.codecs.header_sum == sum_of(header_hashes(header_table(found)))


KEPT_BY_COPIES = set(BatchHeader._fields) - {"base_offset", "partition_leader_epoch", "magic"}


@pytest.mark.parametrize("field", BatchHeader._fields)
def test_what_a_hash_covers(field: str) -> None:
    other = ONE._replace(**{field: 11})
    assert (content_hash_of(other) != content_hash_of(ONE)) is (field in KEPT_BY_COPIES)
    assert (place_hash_of(other) != place_hash_of(ONE)) is (field in KEPT_BY_COPIES | {"base_offset"})
    rewritten = {"batch_length", "crc", "max_timestamp"}
    assert (header_hash_of(other) != header_hash_of(ONE)) is (field in KEPT_BY_COPIES - rewritten)


def test_codec_and_timestamp_type_do_not_change_header_hashes() -> None:
    assert header_hash_of(ONE) == header_hash_of(ONE._replace(attributes=0x12))
    assert header_hash_of(ONE) != header_hash_of(ONE._replace(attributes=0x29))


def test_two_changed_crcs_whose_sum_is_kept_are_found() -> None:
    """The fault that sums of CRCs cannot find."""
    batches = [ONE._replace(crc=100), ONE._replace(crc=200)]
    changed = [ONE._replace(crc=101), ONE._replace(crc=199)]
    assert sum(header.crc for header in batches) == sum(header.crc for header in changed)
    assert sum_of(content_hashes(header_table(batches))) != sum_of(content_hashes(header_table(changed)))


def test_batches_that_changed_places_are_found_by_place_alone() -> None:
    batches = [ONE._replace(base_offset=0), ONE._replace(base_offset=3, crc=9)]
    swapped = [ONE._replace(base_offset=3), ONE._replace(base_offset=0, crc=9)]
    contents, places = (
        [sum_of(hashes(header_table(each))) for each in (batches, swapped)] for hashes in (content_hashes, place_hashes)
    )
    assert contents[0] == contents[1]
    assert places[0] != places[1]
