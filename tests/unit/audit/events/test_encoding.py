"""Monitoring events of version 3: what is encoded is decoded again, and hostile bytes give one error alone."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.events.encoding import (
    MAX_ROWS,
    AuditMessageError,
    decode_count_report,
    encode_count_report,
    parsed_json,
    portions,
)
from pipeline.audit.events.report import (
    OLDER,
    POSITION,
    ROW,
    CountReport,
    LatencyCounts,
    LifeSign,
    ReportedTopic,
    RowClaim,
    SkippedOffsets,
    SkipReason,
)
from pipeline.audit.events.tiers import Counter, Tier

LIFE = LifeSign(host="web-1", started_ms=5, interval_ms=10_000, closed_ms=7)


def filled(dtype: np.dtype[np.void], size: int, seed: int) -> np.ndarray:
    """A table of random values, each within the bounds of its column."""
    rng = np.random.default_rng(seed)
    table = np.zeros(size, dtype)
    for name in dtype.names or ():
        if dtype[name].kind == "b":
            table[name] = rng.integers(0, 2, size)
        else:
            bounds = np.iinfo(dtype[name])
            table[name] = rng.integers(bounds.min, bounds.max, size, dtype[name], endpoint=True)
    table["topic"] = rng.integers(0, 2, size)
    table["partition"] = rng.integers(0, 2**31 - 1, size)
    return table


def report_of(seed: int, size: int) -> CountReport:
    return CountReport(
        counter=Counter(tier=Tier.BROKER, cluster="east"),
        process="1",
        created_ms=1_700_000_000_000,
        window_ms=600_000,
        topics=[ReportedTopic("clicks", "id"), ReportedTopic("visits")],
        rows=filled(ROW, size, seed),
        positions=filled(POSITION, size, seed + 1),
        claims=[RowClaim(1, 3, 7, 2**40)],
        latencies=[LatencyCounts(0, 600_000, "1", ((-3, 5), (8, 1)))],
        skipped=[
            SkippedOffsets(0, 1, None, 5, 9, 5, SkipReason.LOST),
            SkippedOffsets(1, 2, -600_000, 5, 9, 2, SkipReason.ABORTED),
        ],
        life=LIFE,
    )


def assert_equal(left: CountReport, right: CountReport) -> None:
    assert np.array_equal(left.rows, right.rows)
    assert np.array_equal(left.positions, right.positions)
    assert [_rest_of(left)] == [_rest_of(right)]


def _rest_of(report: CountReport) -> list[object]:
    lists = [list(each) for each in (report.topics, report.claims, report.latencies, report.skipped)]
    return [report.counter, report.process, report.created_ms, report.window_ms, report.life, *lists]


@given(st.integers(0, 2**32), st.integers(0, 20))
def test_a_decoded_report_is_the_encoded_one(seed: int, size: int) -> None:
    report = report_of(seed, size)
    assert_equal(decode_count_report(encode_count_report(report)), report)


def test_a_row_of_older_hours_and_an_empty_report_are_encoded() -> None:
    rows = np.zeros(1, ROW)
    rows["start_ms"] = OLDER
    report = replace(report_of(0, 0), rows=rows)
    assert decode_count_report(encode_count_report(report)).rows["start_ms"].tolist() == [OLDER]
    alone = CountReport(counter=Counter(tier=Tier.PRODUCER, cluster="east"), process="x", created_ms=1, window_ms=2)
    assert_equal(decode_count_report(encode_count_report(alone)), alone)


def test_portions_hold_all_rows_once_and_the_last_one_bears_the_life_sign() -> None:
    report = report_of(1, 2 * MAX_ROWS + 1)
    parts = list(portions(report))
    assert np.array_equal(np.concatenate([part.rows for part in parts]), report.rows)
    assert np.array_equal(np.concatenate([part.positions for part in parts]), report.positions)
    assert [part.life for part in parts] == [None, None, LIFE]
    assert [len(part.claims) for part in parts] == [1, 0, 0]


def test_portions_hold_all_skipped_ranges_once() -> None:
    ranges = tuple(SkippedOffsets(0, 0, None, first, first, 1, SkipReason.LOST) for first in range(MAX_ROWS + 1))
    parts = list(portions(replace(report_of(1, 1), skipped=ranges)))
    assert len(parts) == 2 and (*parts[0].skipped, *parts[1].skipped) == ranges


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=20,
    ),
    st.sampled_from(sorted(json.loads(encode_count_report(report_of(0, 2))))),
    st.sampled_from([None, "records", "topic", "size", "has_sums", "crc_sum"]),
)
def test_a_field_of_any_other_value_is_read_or_refused(value: object, field: str, column: str | None) -> None:
    document = json.loads(encode_count_report(report_of(0, 2)))
    if column is not None and isinstance(document[field], dict):
        document[field][column] = value
    else:
        document[field] = value
    try:
        decode_count_report(json.dumps(document).encode())
    except AuditMessageError:
        return


@pytest.mark.parametrize(("part", "dtype"), [("rows", ROW), ("positions", POSITION)])
def test_columns_hold_integers_of_their_size_alone(part: str, dtype: np.dtype[np.void]) -> None:
    for name in dtype.names or ():
        for value in (1.5, 1.0, "1", None, [1], 2**64, -(2**63) - 1):
            document = json.loads(encode_count_report(report_of(0, 2)))
            document[part][name] = [0, value]
            with pytest.raises(AuditMessageError):
                decode_count_report(json.dumps(document).encode())


@pytest.mark.parametrize("value", [b"\xff" * 100_000, b'{"version":"' + b"x" * 100_000 + b'"}'])
def test_a_refusal_does_not_quote_a_whole_record(value: bytes) -> None:
    with pytest.raises(AuditMessageError) as refused:
        decode_count_report(value)
    assert len(str(refused.value)) <= 300


@given(st.binary(max_size=50))
def test_any_bytes_are_read_or_refused(value: bytes) -> None:
    with pytest.raises(AuditMessageError):
        decode_count_report(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.booleans())
def test_json_means_what_it_means_to_the_standard_library(value: object, ascii_alone: bool) -> None:
    """Also numbers of any size, NaN and Infinity, and halves of surrogate pairs."""
    text = json.dumps(value, ensure_ascii=ascii_alone).encode(errors="surrogatepass")
    assert repr(parsed_json(text)) == repr(json.loads(text))
    repeated = b'{"a": 1, "a": ' + text + b"}"
    assert repr(parsed_json(repeated)) == repr(json.loads(repeated))
