"""Decoding of audit topics: whatever a record holds, the others are read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.collecting.clocks import StoredAt
from pipeline.audit.collecting.decoding import decode_portion
from pipeline.audit.events.encoding import encode_count_report
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.records.batch import HEADER_SIZE, BatchHeader, read_header, set_base_offset
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec

REPORT = CountReport(counter=Counter(tier=Tier.BROKER, cluster="east"), process="1", created_ms=5, window_ms=600_000)
WELL = encode_count_report(REPORT)
OLDER = json.dumps(
    {
        "version": 2, "tier": "broker", "cluster": "east", "instance": "", "topic": "clicks", "partition": 0,
        "leader_epoch": 0, "claims": [], "revision": 5, "created_ms": 5, "window_ms": 600_000,
        "windows": [[0, 5, 100, 1, 7]],
    }
).encode()  # fmt: skip


def opened(*values: bytes | None, base_offset: int = 0) -> tuple[BatchHeader, bytes, StoredAt]:
    builder = BatchBuilder(Codec.NONE, 10_000_000)
    for value in values:
        assert builder.append(None, value, (), 0)
    built = builder.build()
    set_base_offset(built, 0, base_offset)
    return read_header(built, 0), bytes(built[HEADER_SIZE:]), StoredAt(None, 5, 0)


def test_events_of_both_versions_are_read_in_order() -> None:
    decoded = decode_portion([opened(WELL, OLDER), opened(WELL, base_offset=2)], 0)
    kinds = [isinstance(event, CountReport) for event in decoded.events]
    assert (kinds, decoded.unreadable, decoded.error) == ([True, False, True], 0, None)


def test_records_before_the_position_and_tombstones_are_passed_over() -> None:
    decoded = decode_portion([opened(b"old", WELL, None)], 1)
    assert (len(decoded.events), decoded.unreadable) == (1, 0)


def test_a_record_that_is_no_event_is_counted_and_the_first_reason_kept() -> None:
    decoded = decode_portion([opened(b"", WELL, b'{"version":9}', b"\xff")], 0)
    assert (len(decoded.events), decoded.unreadable) == (1, 3)
    assert decoded.error is not None
    assert "not a monitoring event" in decoded.error


def test_events_of_few_bytes_do_not_claim_much_memory() -> None:
    rows = {"topics": [["clicks", ""]], "rows": {"size": 100_000}}
    hollow = json.dumps({**json.loads(WELL), **rows}).encode()
    decoded = decode_portion([opened(hollow, WELL)], 0)
    assert (len(decoded.events), decoded.unreadable) == (1, 1)
    assert "100000 rows" in str(decoded.error)


def test_a_portion_has_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was compressed may have more rows than the memory can hold, in few bytes."""
    monkeypatch.setattr("pipeline.audit.collecting.decoding.MAX_ROWS", 25)
    rows = {"topics": [["clicks", ""]], "rows": {"size": 10, "span_ms": [3_600_000] * 10}}
    event = json.dumps({**json.loads(WELL), **rows}).encode()
    decoded = decode_portion([opened(event, event, event), opened(event, WELL, base_offset=3)], 0)
    assert (len(decoded.events), decoded.unreadable) == (3, 2)
    assert "more than 25 rows" in str(decoded.error)


def test_a_batch_whose_records_cannot_be_read_is_named_and_the_next_one_read() -> None:
    header, payload, stored_at = opened(WELL, WELL)
    decoded = decode_portion([(header, payload[:-1], stored_at), opened(WELL, base_offset=2)], 0)
    assert (decoded.damaged, len(decoded.events)) == ([(0, 2)], 1)


JSON_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from([WELL, OLDER]), st.data())
def test_no_field_of_an_event_raises_anything(event: bytes, data: st.DataObject) -> None:
    document = json.loads(event)
    name = data.draw(
        st.sampled_from([*document, "rows", "positions", "claims", "latencies", "life", "topics", "codecs"])
    )
    document[name] = data.draw(JSON_VALUES)
    decode_portion([opened(json.dumps(document).encode())], 0)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything(value: bytes) -> None:
    decode_portion([opened(value, b"[" * 100_000)], 0)
