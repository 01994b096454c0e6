"""Tables over the bytes of headers, beside the functions for one header."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import CorruptBatchError
from pipeline.records.batch import HEADER_SIZE, BatchHeader, read_header
from pipeline.records.batch_sums import PLAIN_ROW, PlainSum, RunningSums, SumKind
from pipeline.records.raw_headers import impossible, raw_headers

WIRE = struct.Struct(">qiibIhiqqqhii")
SHORTS = st.integers(-(2**15), 2**15 - 1)
INTS = st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 60)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 60) | st.integers(2**63 - 60, 2**63 - 1)
HEADERS = st.builds(
    BatchHeader,
    base_offset=LONGS,
    batch_length=INTS,
    partition_leader_epoch=INTS,
    magic=st.sampled_from([2, 2, 2, 0, 1, 3, -2]),
    crc=st.integers(0, 2**32 - 1),
    attributes=SHORTS,
    last_offset_delta=INTS,
    base_timestamp=LONGS,
    max_timestamp=LONGS,
    producer_id=LONGS,
    producer_epoch=SHORTS,
    base_sequence=INTS,
    record_count=INTS,
)


def is_refused(raw: bytes) -> bool:
    try:
        read_header(raw)
    except CorruptBatchError:
        return True
    return False


@given(st.lists(HEADERS, min_size=1, max_size=20))
def test_tables_refuse_the_headers_that_one_by_one_are_refused(headers: list[BatchHeader]) -> None:
    raw = [WIRE.pack(*header) for header in headers]
    table = raw_headers(b"".join(raw))
    assert [tuple(row) for row in table.tolist()] == headers
    assert impossible(table).tolist() == [is_refused(each) for each in raw]


@pytest.mark.parametrize("kind", SumKind)
@given(data=st.data())
def test_sums_of_many_headers_at_once_are_those_of_one_after_the_other(kind: SumKind, data: st.DataObject) -> None:
    headers = data.draw(st.lists(HEADERS, max_size=12))
    sums = st.builds(PlainSum, size_bytes=st.integers(0, 2**40), crc=st.integers(0, 2**32 - 1))
    plain = data.draw(st.lists(sums, min_size=len(headers), max_size=len(headers)))
    split = data.draw(st.integers(0, len(headers)))
    raw = b"".join(WIRE.pack(*header) for header in headers)
    expected, found = RunningSums(), RunningSums()
    for number, (header, plain_sum) in enumerate(zip(headers, plain, strict=True)):
        of_header = raw[number * HEADER_SIZE : (number + 1) * HEADER_SIZE]
        if kind is SumKind.HEADERS:
            expected.add(of_header, header)
        elif kind is SumKind.FRAMES:
            expected.add_frame(header)
        else:
            expected.add_contents(of_header, header, plain_sum)
    table, rows = raw_headers(raw), np.array(plain, PLAIN_ROW)
    for part in (slice(split), slice(split, None)):
        found.add_headers(table[part], kind, rows[part] if kind is SumKind.CONTENTS else None)
    assert found.total() == expected.total()
