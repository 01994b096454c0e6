"""Events of version 2: read, refused, and summed up to hours."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.events.encoding import AuditMessageError
from pipeline.audit.events.older import OlderEvent, OlderSource, decode_older_event
from pipeline.audit.events.tiers import Tier
from pipeline.audit.ledger.ledger import Ledger, SeriesKey
from pipeline.audit.ledger.row_table import ABSENT
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS, NOTHING, CodecCounts, Counts

CLICKS = TopicPartition("clicks", 1)
HOUR = 10 * HOUR_MS
WINDOW_MS = 600_000
OLD = (
    b'{"version":2,"tier":"broker","cluster":"east","instance":"i","topic":"clicks","partition":1,"leader_epoch":3,'
    b'"claims":[[3,9]],"revision":12,"created_ms":5,"window_ms":600000,"windows":[[0,2,70,1,7],[600000,1,60,1,8]]}'
)


def event(tier: Tier, windows: dict[int, Counts], **changes: Any) -> OlderEvent:
    instance = "" if tier is Tier.LOAD else "i"
    base = OlderEvent(
        source=OlderSource(tier, "east", CLICKS, instance),
        revision=10,
        created_ms=HOUR,
        window_ms=WINDOW_MS,
        windows=windows,
    )
    return replace(base, **changes)


def hours(events: Sequence[OlderEvent], tier: Tier = Tier.BROKER) -> dict[int, tuple[int, int]]:
    """Return records and sum of CRCs of each hour in the ledger."""
    ledger = Ledger()
    for one in events:
        ledger.apply_older(one)
    return {
        start: (int(row["records"]), int(row["crc_sum"]))
        for start, table in ledger.series[SeriesKey(tier, "east")].hours.items()
        for row in table.rows
        if row["revision"] != ABSENT and row["records"]
    }


def test_an_event_that_an_older_program_wrote_is_read() -> None:
    found = decode_older_event(OLD)
    assert found.source == OlderSource(Tier.BROKER, "east", CLICKS, "i")
    assert found.windows == {0: Counts(2, 70, 1, 7), 600_000: Counts(1, 60, 1, 8)}
    assert (found.claims, found.revision, found.leader_epoch) == (((3, 9),), 12, 3)
    assert hours([found]) == {0: (3, 15)}


def test_codecs_quarantine_and_lost_offsets_are_read() -> None:
    value = OLD.replace(b'"claims":[[3,9]]', b'"claims":[],"codecs":[[0,5,1,0,0,0,0]],"quarantined":[[0,3]]')
    found = decode_older_event(value.replace(b'"revision"', b'"lost_offsets":4,"revision"'))
    assert found.windows[0].codecs == CodecCounts(5, (1, 0, 0, 0, 0))
    assert (found.quarantined, found.lost_offsets) == ({0: 3}, 4)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'{"version":1}',
        b'{"version":2}',
        b'{"version":2,"windows":3}',
        b"[" * 100_000,
        OLD.replace(b'"partition":1', b'"partition":Infinity'),
        OLD.replace(b'"partition":1', b'"partition":-1'),
        OLD.replace(b'"tier":"broker"', b'"tier":"group"'),
        OLD.replace(b"[0,2,70,1,7]", b"[0,-2,70,1,7]"),
        OLD.replace(b"[0,2,70,1,7]", b"[5,2,70,1,7]"),
        OLD.replace(b'"window_ms":600000', b'"window_ms":7'),
        OLD.replace(b'"window_ms":600000', b'"window_ms":0'),
        OLD.replace(b'"revision":12', b'"revision":99999999999999999999'),
    ],
)
def test_other_values_are_refused(value: bytes) -> None:
    with pytest.raises(AuditMessageError):
        decode_older_event(value)


counts_values = st.builds(
    Counts,
    records=st.integers(0, 2**40),
    bytes=st.integers(0, 2**50),
    batches=st.integers(0, 2**30),
    crc_sum=st.integers(0, 2**62),
    codecs=st.none()
    | st.builds(
        CodecCounts, header_sum=st.integers(0, 2**60), batches=st.tuples(*[st.integers(0, 2**20)] * len(Codec))
    ),
)


@pytest.mark.parametrize("tier", [Tier.PRODUCER, Tier.BROKER, Tier.LOAD])
@given(
    steps=st.lists(st.tuples(st.integers(0, 7), counts_values), min_size=1, max_size=12),
    randomness=st.randoms(use_true_random=False),
)
def test_order_and_repetition_of_events_change_nothing(tier: Tier, steps: Any, randomness: random.Random) -> None:
    """Events are cumulative for each window, and name the windows that changed."""
    cumulative: dict[int, Counts] = {}
    events = []
    for revision, (window, counts) in enumerate(steps):
        start = HOUR + window * WINDOW_MS
        cumulative[start] = cumulative.get(start, NOTHING) + counts
        events.append(event(tier, {start: cumulative[start]}, revision=revision, created_ms=HOUR + revision))
    expected: dict[int, Counts] = {}
    for start, counts in cumulative.items():
        hour = start - start % HOUR_MS
        expected[hour] = expected.get(hour, NOTHING) + counts
    shuffled = events + randomness.sample(events, len(events) // 2)
    randomness.shuffle(shuffled)
    wanted = {hour: (counts.records, counts.crc_sum) for hour, counts in expected.items() if counts.records}
    assert hours(shuffled, tier) == wanted


def test_a_window_that_a_claim_makes_void_leaves_the_sums() -> None:
    first, second = Counts(10, 100, 1, 5), Counts(4, 40, 1, 6)
    events = [
        event(Tier.BROKER, {HOUR: first}, revision=10),
        event(Tier.BROKER, {HOUR + WINDOW_MS: second}, revision=14),
        event(Tier.BROKER, {}, revision=12, leader_epoch=1, claims=((1, 12),)),
    ]
    assert hours(events[:2]) == {HOUR: (14, 11)}
    assert hours(events) == {HOUR: (10, 5)}
    assert hours([events[2], *events[:2]]) == {HOUR: (10, 5)}
    again = event(Tier.BROKER, {HOUR + WINDOW_MS: Counts(2, 20, 1, 3)}, revision=12, leader_epoch=1)
    assert hours([*events, again]) == {HOUR: (12, 8)}


def test_quarantined_records_that_were_released_are_counted() -> None:
    aside = event(Tier.LOAD, {HOUR: Counts(8, 80, 1, 5)}, quarantined={HOUR: 2})
    released = event(Tier.LOAD, {HOUR: Counts(10, 100, 2, 9)}, created_ms=HOUR + 1)
    assert hours([aside, released], Tier.LOAD) == hours([released, aside], Tier.LOAD) == {HOUR: (10, 9)}
