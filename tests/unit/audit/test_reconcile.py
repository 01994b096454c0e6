"""The ledger and the comparison: sums by revision, and what each kind of difference is called."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.message import (
    AuditEvent,
    AuditMessageError,
    AuditSource,
    EpochClaim,
    Tier,
    decode_audit_event,
    encode_audit_event,
    portions,
)
from pipeline.audit.older_ledger import Ledger
from pipeline.audit.reconcile import HourReport, Route, Stage, Status, reconcile
from pipeline.model import TopicPartition
from pipeline.records.batch import read_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.recompression import recompressed
from pipeline.records.tally import HOUR_MS, NOTHING, CodecCounts, Counts

EAST = TopicPartition("clicks", 0)
HUB = TopicPartition("clicks", 3)
ROUTES = [Route(cluster="east", source=EAST, replica=HUB)]
WINDOW_MS = 600_000
HOUR = 10 * HOUR_MS
NOW_MS = HOUR + 10 * HOUR_MS
FULL = Counts(10, 1000, 2, 77)
LESS = Counts(9, 900, 1, 70)


def event(
    tier: Tier,
    cluster: str,
    partition: TopicPartition,
    counts: Counts,
    *,
    revision: int = 10,
    created_ms: int = HOUR,
    start: int = HOUR,
    instance: str = "",
) -> AuditEvent:
    source = AuditSource(tier=tier, cluster=cluster, partition=partition, instance=instance)
    return AuditEvent(
        source=source, revision=revision, created_ms=created_ms, window_ms=WINDOW_MS, windows={start: counts}
    )


PENDING_MAX_MS = 100 * HOUR_MS


def report(
    *events: AuditEvent,
    now_ms: int = NOW_MS,
    routes: Any = ROUTES,
    pending_max_ms: int | None = PENDING_MAX_MS,
) -> list[HourReport]:
    ledger = Ledger()
    for one in events:
        ledger.apply(one)
    return reconcile(
        ledger,
        live_clusters=["east"],
        replica_cluster="hub",
        routes=routes,
        now_ms=now_ms,
        grace_ms=60_000,
        pending_max_ms=pending_max_ms,
    )


def whole_way(
    live: Counts = FULL,
    hub: Counts = FULL,
    load: Counts = FULL,
    *,
    live_at: int = 10,
    hub_at: int = 10,
    load_at: int = 10,
) -> list[AuditEvent]:
    return [
        event(Tier.PRODUCER, "east", EAST, FULL, instance="p1", revision=1),
        event(Tier.BROKER, "east", EAST, live, revision=live_at),
        event(Tier.BROKER, "hub", HUB, hub, revision=hub_at),
        event(Tier.LOAD, "hub", HUB, load, revision=load_at),
    ]


def test_equal_counts_on_the_whole_way_are_exact() -> None:
    (hour,) = report(*whole_way())
    assert hour.status is Status.EXACT
    assert hour.findings == []
    assert list(hour.stages) == [Stage.PRODUCED, Stage.LIVE, Stage.REPLICA, Stage.LOADED]
    assert all(counts == FULL for counts in hour.stages.values())


@pytest.mark.parametrize(
    ("events", "status", "at", "records"),
    [
        (whole_way(live=LESS, hub=LESS, load=LESS), Status.MISSING, Stage.LIVE, 1),
        (whole_way(hub=LESS, load=LESS), Status.MISSING, Stage.REPLICA, 1),
        (whole_way(load=Counts(12, 1200, 3, 78)), Status.EXTRA, Stage.LOADED, 2),
        (whole_way(load=replace(FULL, crc_sum=78)), Status.CHANGED, Stage.LOADED, 0),
        (
            whole_way(hub=LESS, hub_at=9, load_at=9, load=LESS),
            Status.PENDING,
            Stage.REPLICA,
            1,
        ),
        (whole_way(load=Counts(4, 400, 1, 7), load_at=4), Status.PENDING, Stage.LOADED, 6),
    ],
)
def test_a_difference_is_named_where_it_arises(
    events: Sequence[AuditEvent], status: Status, at: Stage, records: int
) -> None:
    (hour,) = report(*events)
    assert hour.status is status
    (finding,) = hour.findings
    assert (finding.at, finding.status, finding.records) == (at, status, records)
    assert "east clicks-0" in str(finding)


def test_a_lost_and_a_doubled_record_do_not_cancel_out() -> None:
    (hour,) = report(*whole_way(hub=Counts(10, 1000, 2, 76)))
    assert hour.status is Status.CHANGED


PLAIN = replace(FULL, codecs=CodecCounts(5, (1, 0, 1, 0, 0)))
PACKED = Counts(10, 500, 2, 99, CodecCounts(5, (0, 0, 0, 0, 2)))
UNCOMPRESSED = replace(FULL, codecs=CodecCounts(5, (2, 0, 0, 0, 0)))
IN_LZ4 = replace(PACKED, codecs=CodecCounts(5, (0, 0, 0, 2, 0)))


def way_of(produced: Counts, live: Counts, hub: Counts, load: Counts) -> list[AuditEvent]:
    return [
        event(Tier.PRODUCER, "east", EAST, produced, instance="p1", revision=1),
        event(Tier.BROKER, "east", EAST, live),
        event(Tier.BROKER, "hub", HUB, hub),
        event(Tier.LOAD, "hub", HUB, load),
    ]


@pytest.mark.parametrize(
    ("counts", "at"),
    [
        ((PLAIN, PLAIN, PACKED, replace(PACKED, codecs=None)), Stage.REPLICA),
        ((PLAIN, PACKED, PACKED, replace(PACKED, codecs=None)), Stage.LIVE),
        ((PLAIN, IN_LZ4, IN_LZ4, replace(IN_LZ4, codecs=None)), Stage.LIVE),
        ((PACKED, UNCOMPRESSED, UNCOMPRESSED, replace(UNCOMPRESSED, codecs=None)), Stage.LIVE),
        (
            (PLAIN, PLAIN, replace(PACKED, codecs=CodecCounts(5, (0, 0, 1, 0, 1))), replace(PACKED, codecs=None)),
            Stage.REPLICA,
        ),
    ],
    ids=["by the mirror", "by the live broker", "into any codec there", "into none there", "one of two batches"],
)
def test_batches_in_another_codec_are_recompressed(counts: tuple[Counts, Counts, Counts, Counts], at: Stage) -> None:
    (hour,) = report(*way_of(*counts))
    assert hour.status is Status.RECOMPRESSED
    (finding,) = hour.findings
    assert (finding.at, finding.status, finding.records) == (at, Status.RECOMPRESSED, 0)
    assert "contents were not compared" in str(finding)


@pytest.mark.parametrize(
    ("hub", "status"),
    [
        (replace(PACKED, records=9), Status.MISSING),
        (replace(PACKED, records=11), Status.EXTRA),
        (replace(PACKED, batches=1, codecs=CodecCounts(5, (0, 0, 0, 0, 1))), Status.CHANGED),
        (replace(PACKED, batches=3, codecs=CodecCounts(5, (0, 0, 0, 0, 3))), Status.CHANGED),
        (replace(PACKED, codecs=CodecCounts(6, (0, 0, 0, 0, 2))), Status.CHANGED),
        (replace(PACKED, codecs=PLAIN.codecs), Status.CHANGED),
        (replace(PACKED, codecs=None), Status.CHANGED),
        (replace(PACKED, bytes=1000), Status.CHANGED),
        (replace(PACKED, codecs=CodecCounts(5, (0, 1, 0, 0, 1))), Status.CHANGED),
        (IN_LZ4, Status.CHANGED),
    ],
    ids=[
        *("fewer records", "more records", "fewer batches", "more batches", "other headers", "same codecs", "unknown"),
        *("not smaller", "two codecs", "a codec that mirrors do not make"),
    ],
)
def test_no_other_difference_of_a_replica_is_recompression(hub: Counts, status: Status) -> None:
    (hour,) = report(*way_of(PLAIN, PLAIN, hub, replace(hub, codecs=None)))
    assert [(finding.at, finding.status) for finding in hour.findings] == [(Stage.REPLICA, status)]
    assert hour.status is status


def test_loads_recompress_nothing() -> None:
    (hour,) = report(*way_of(PLAIN, PLAIN, PLAIN, replace(PACKED, codecs=None)))
    assert [(finding.at, finding.status) for finding in hour.findings] == [(Stage.LOADED, Status.CHANGED)]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4])), min_size=2, max_size=8
    ),
    st.data(),
)
def test_a_lost_and_a_doubled_batch_are_no_recompression(
    built: Sequence[tuple[int, Codec]], data: st.DataObject
) -> None:
    batches, sequence = [], 0
    for records, codec in built:
        builder = BatchBuilder(codec, 1 << 20)
        for _ in range(records):
            builder.append(None, b"x" * 500, (), HOUR)
        batches.append(bytes(builder.build(7, 0, sequence)))
        sequence += records
    packed = [bytes(recompressed(memoryview(batch), Codec.ZSTD).data) for batch in batches]

    def status(replica: Sequence[bytes]) -> Status:
        live, hub = (
            sum((NOTHING.with_batch(read_header(batch)) for batch in log), NOTHING) for log in (batches, replica)
        )
        (hour,) = report(event(Tier.BROKER, "east", EAST, live), event(Tier.BROKER, "hub", HUB, hub))
        return hour.status

    assert status(packed) is Status.RECOMPRESSED
    assert status(batches) is Status.EXACT
    lost, doubled = data.draw(st.permutations(range(len(packed))))[:2]
    other = [packed[doubled] if number == lost else batch for number, batch in enumerate(packed)]
    assert status(other) not in (Status.EXACT, Status.RECOMPRESSED)


def test_a_loss_in_a_past_hour_is_definite_while_traffic_goes_on() -> None:
    later = HOUR + HOUR_MS
    events = [
        *whole_way(hub=LESS, load=LESS),
        event(Tier.PRODUCER, "east", EAST, FULL, revision=2, start=later, instance="p1"),
        event(Tier.BROKER, "east", EAST, FULL, revision=30, start=later),
        event(Tier.BROKER, "hub", HUB, Counts(5, 500, 1, 5), revision=20, start=later),
    ]
    first, second = report(*events)
    assert first.status is Status.MISSING
    assert second.status is Status.PENDING


@pytest.mark.parametrize(
    ("deleted", "status"), [(0, Status.MISSING), (1, Status.MISSING), (3, Status.EXPLAINED), (4, Status.MISSING)]
)
def test_records_that_the_mirror_s_ledger_has_as_deleted_are_explained(deleted: int, status: Status) -> None:
    """Two hours lack one and two records; the ledger knows offsets alone."""
    least = Counts(8, 800, 1, 60)
    events = [
        event(tier, cluster, partition, counts, start=start, revision=revision)
        for tier, cluster, partition, hours in (
            (Tier.BROKER, "east", EAST, (FULL, FULL)),
            (Tier.BROKER, "hub", HUB, (LESS, least)),
        )
        for start, revision, counts in zip((HOUR, HOUR + HOUR_MS), (10, 20), hours, strict=True)
    ]
    routes = [replace(ROUTES[0], deleted_offsets=deleted)]
    hours = report(*events, routes=routes)
    assert [hour.status for hour in hours] == [status, status]
    assert [finding.records for hour in hours for finding in hour.findings] == [1, 2]


def test_an_explained_loss_hides_no_other_difference() -> None:
    routes = [replace(ROUTES[0], deleted_offsets=1)]
    changed = Counts(9, 900, 1, 71)
    (hour,) = report(*whole_way(hub=LESS, load=changed), routes=routes)
    assert [(finding.at, finding.status) for finding in hour.findings] == [
        (Stage.REPLICA, Status.EXPLAINED),
        (Stage.LOADED, Status.CHANGED),
    ]
    assert hour.status is Status.CHANGED
    assert "as the mirror's ledger of gaps says" in str(hour.findings[0])


def test_producers_and_broker_have_a_grace_to_speak() -> None:
    events = whole_way(live=LESS, hub=LESS, load=LESS)
    assert report(*events, now_ms=HOUR + 59_000)[0].status is Status.PENDING
    assert report(*events, now_ms=HOUR + 61_000)[0].status is Status.MISSING


def test_a_replica_ahead_of_its_source_has_too_much_once_the_source_had_time_to_speak() -> None:
    events = whole_way(live=LESS, live_at=9)[1:3]
    assert report(*events, now_ms=HOUR + 59_000)[0].status is Status.PENDING
    (hour,) = report(*events, now_ms=HOUR + 61_000)
    assert hour.status is Status.EXTRA
    assert hour.findings[0].records == 1


def test_uninstrumented_topics_and_unloaded_topics_have_fewer_stages() -> None:
    (hour,) = report(*whole_way()[1:3])
    assert list(hour.stages) == [Stage.LIVE, Stage.REPLICA]
    assert hour.status is Status.EXACT


def test_a_mirrored_partition_of_which_the_replica_says_nothing_is_pending() -> None:
    (hour,) = report(*whole_way()[:2])
    assert hour.status is Status.PENDING


def test_a_partition_that_the_mirror_has_not_taken_up_yet_is_pending_and_then_missing() -> None:
    new = TopicPartition("clicks", 1)
    events = [
        *whole_way(),
        event(Tier.PRODUCER, "east", new, FULL, instance="p1", revision=1),
        event(Tier.BROKER, "east", new, FULL),
    ]
    (hour,) = report(*events)
    assert [(found.source, found.at, found.status) for found in hour.findings] == [(new, Stage.REPLICA, Status.PENDING)]
    (hour,) = report(*events, pending_max_ms=HOUR_MS)
    assert hour.findings[0].status is Status.MISSING
    (hour,) = report(*events, routes=[])
    assert hour.status is Status.EXACT  # the topic is not mirrored at all


def status_after(standstill_ms: int, *events: AuditEvent, **settings: Any) -> Status:
    (hour,) = report(*events, now_ms=HOUR + standstill_ms, pending_max_ms=HOUR_MS, **settings)
    return hour.status


def test_records_that_a_stopped_replica_lacks_are_missing() -> None:
    behind = whole_way(hub=LESS, hub_at=9)[1:3]
    never_told = whole_way()[1:2]
    for events in (behind, never_told):
        assert status_after(HOUR_MS, *events) is Status.PENDING
        assert status_after(HOUR_MS + 1, *events) is Status.MISSING


def test_records_that_a_moving_or_unreachable_replica_lacks_are_pending() -> None:
    behind = whole_way(hub=LESS, hub_at=9)[1:3]
    moving = event(Tier.BROKER, "hub", HUB, LESS, revision=9, created_ms=HOUR + HOUR_MS)
    new = event(Tier.BROKER, "east", EAST, FULL, created_ms=HOUR + HOUR_MS)
    assert status_after(2 * HOUR_MS, behind[0], moving) is Status.PENDING
    assert status_after(2 * HOUR_MS, new, behind[1]) is Status.PENDING
    (hour,) = report(*behind, now_ms=HOUR + 9 * HOUR_MS, pending_max_ms=None)
    assert hour.status is Status.PENDING


def test_records_that_no_load_has_reached_stay_pending() -> None:
    assert status_after(9 * HOUR_MS, *whole_way(load=LESS, load_at=9)) is Status.PENDING


@pytest.mark.parametrize(
    ("load", "quarantined", "status", "records", "text"),
    [
        (LESS, 1, Status.QUARANTINED, 1, "1 records are in the quarantine of the load"),
        (NOTHING, 10, Status.QUARANTINED, 10, "10 records are in the quarantine"),
        (Counts(7, 700, 1, 70), 1, Status.MISSING, 2, "2 records that were replica are missing; 1 records are in the"),
        (FULL, 1, Status.EXTRA, 1, "1 records more than were replica; 1 records are in the quarantine"),
    ],
)
def test_an_hour_with_records_in_quarantine_is_never_exact(
    load: Counts, quarantined: int, status: Status, records: int, text: str
) -> None:
    *others, loaded = whole_way(load=load)
    (hour,) = report(*others, replace(loaded, quarantined={HOUR: quarantined}))
    (finding,) = hour.findings
    assert (hour.status, finding.status, finding.records) == (status, status, records)
    assert text in str(finding)
    (hour,) = report(*others, replace(loaded, quarantined={HOUR: quarantined}), whole_way()[-1])
    assert hour.status is Status.EXACT  # the records were released


@pytest.mark.parametrize(("lost", "status"), [(0, Status.MISSING), (1, Status.EXPLAINED), (2, Status.MISSING)])
def test_offsets_that_a_load_found_deleted_explain_as_many_records(lost: int, status: Status) -> None:
    *others, loaded = whole_way(load=LESS)
    (hour,) = report(*others, replace(loaded, lost_offsets=lost))
    assert hour.status is status
    if status is Status.EXPLAINED:
        assert "as the load says" in str(hour.findings[0])


def test_loads_of_a_cluster_without_replica_follow_on_it() -> None:
    load = event(Tier.LOAD, "east", EAST, FULL)
    (hour,) = report(*whole_way()[:2], load, routes=[])
    assert (list(hour.stages), hour.status) == ([Stage.PRODUCED, Stage.LIVE, Stage.LOADED], Status.EXACT)
    other = event(Tier.BROKER, "east", TopicPartition("clicks", 1), FULL)
    (hour,) = report(*whole_way()[:2], load, other, routes=[])
    assert (hour.status, hour.findings[0].at) == (Status.PENDING, Stage.LOADED)


def test_a_batch_acknowledged_but_never_counted_by_the_broker_is_missing() -> None:
    (hour,) = report(whole_way()[0])
    assert hour.status is Status.MISSING
    assert hour.findings[0].at is Stage.LIVE


counts_values = st.builds(
    Counts,
    records=st.integers(0, 2**40),
    bytes=st.integers(0, 2**50),
    batches=st.integers(0, 2**30),
    crc_sum=st.integers(0, 2**64 - 1),
    codecs=st.none()
    | st.builds(
        CodecCounts,
        header_sum=st.integers(0, 2**64 - 1),
        batches=st.tuples(*[st.integers(0, 2**30)] * len(Codec)),
    ),
)


@given(
    st.dictionaries(st.integers(0, 2**40), counts_values, max_size=5),
    st.text(max_size=5),
    st.integers(0, 2**62),
    st.lists(st.builds(EpochClaim, st.integers(0, 2**31 - 1), st.integers(0, 2**62)), max_size=3),
)
def test_events_survive_the_wire(
    windows: Any,
    instance: str,
    revision: int,
    claims: Sequence[EpochClaim],
) -> None:
    source = AuditSource(tier=Tier.PRODUCER, cluster="east", partition=EAST, instance=instance)
    original = AuditEvent(
        source=source,
        leader_epoch=3,
        claims=tuple(claims),
        revision=revision,
        created_ms=5,
        window_ms=WINDOW_MS,
        windows=windows,
    )
    decoded = decode_audit_event(encode_audit_event(original))
    assert decoded == original
    codecs, expected = ({start: each.codecs for start, each in found.items()} for found in (decoded.windows, windows))
    assert codecs == expected


def test_an_old_event_is_read_and_written_again_byte_by_byte() -> None:
    old = (
        b'{"version":2,"tier":"broker","cluster":"east","instance":"i","topic":"clicks","partition":1,"leader_epoch":3,'
        b'"claims":[[3,9]],"revision":12,"created_ms":5,"window_ms":600000,"windows":[[0,2,70,1,7],[600000,1,60,1,8]]}'
    )
    event = decode_audit_event(old)
    assert event.windows == {0: Counts(2, 70, 1, 7), 600_000: Counts(1, 60, 1, 8)}
    assert event.claims == (EpochClaim(leader_epoch=3, start_offset=9),)
    assert encode_audit_event(event) == old


@pytest.mark.parametrize("count", [0, 1, 5000, 5001])
def test_portions_hold_each_window_once_and_the_claims_even_without_windows(count: int) -> None:
    source = AuditSource(tier=Tier.BROKER, cluster="east", partition=EAST)
    whole = AuditEvent(
        source=source,
        claims=(EpochClaim(3, 9),),
        revision=9,
        created_ms=5,
        window_ms=WINDOW_MS,
        windows=dict.fromkeys(range(count), FULL),
    )
    parts = list(portions(whole))
    assert {part.claims for part in parts} == {(EpochClaim(3, 9),)}
    assert [start for part in parts for start in part.windows] == list(range(count))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"version":1}',
        b'{"version":2}',
        b"\xff",
        b'{"version":2,"windows":3}',
        b"[" * 100_000,
        b'{"version":2,"tier":"load","cluster":"c","topic":"t","partition":Infinity}',
    ],
)
def test_other_values_are_refused(value: bytes) -> None:
    with pytest.raises(AuditMessageError):
        decode_audit_event(value)


@given(
    st.lists(st.tuples(st.integers(0, 2), counts_values), min_size=1, max_size=12), st.randoms(use_true_random=False)
)
def test_order_and_repetition_of_events_change_nothing(steps: Any, randomness: random.Random) -> None:
    cumulative: dict[int, Counts] = {}
    events = []
    for revision, (window, counts) in enumerate(steps):
        start = HOUR + window * WINDOW_MS
        cumulative[start] = cumulative.get(start, NOTHING) + counts
        events.append(event(Tier.BROKER, "east", EAST, cumulative[start], revision=revision, start=start))
    shuffled = events + randomness.sample(events, len(events) // 2)
    randomness.shuffle(shuffled)
    ledger = Ledger()
    for one in shuffled:
        ledger.apply(one)
    found = ledger.counts("east", Tier.BROKER, EAST, WINDOW_MS)
    assert found is not None
    assert {start: window.counts for start, window in found.windows.items()} == cumulative
