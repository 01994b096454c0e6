"""Scenes for the audit's page: a company's topics with faults of all kinds, and a thousand topics."""

from math import sin
from random import Random
from typing import Any

from tests.support.audit_documents import (
    EXACT_HOURS,
    HOURS,
    edge,
    finding,
    flow_document,
    hour_ago,
    hour_document,
    latency_document,
    letters_with,
    partition_entry,
    stage,
    status_document,
    story_document,
    topic_entry,
    watermark,
)

LOST_TOPIC, LOST_HOURS_AGO = "orders", 30
LOST_TEXT = "east orders-7 (replica orders-7): replica: 3 records that were live are missing"
WITNESS = {
    "name": "broker of west",
    "reason": "has not reported payments-2 since 04:58; start it, or wait for its next report",
    "cluster": "west",
    "partition": "payments-2",
}


def company() -> dict[str, Any]:
    """All documents of a company with 26 topics, by the names of `ShownAudit`'s fields."""
    entries = [
        topic_entry(
            "orders", letters_with({30: "-", 31: "-", 200: "c"}), waits_for="orders-7: the replica lacks 3 records"
        ),
        topic_entry(
            "payments", letters_with({5: "u", 6: "u", 0: "u"}), waits_for=f"{WITNESS['name']}: {WITNESS['reason']}"
        ),
        topic_entry("clicks", letters_with({70: "+"})),
        topic_entry("page-views", letters_with(dict.fromkeys(range(90, 96), "x"))),
        topic_entry("ads.impressions", letters_with(dict.fromkeys(range(300), "r"))),
        topic_entry("billing", letters_with({14: "q", 15: "q"})),
        topic_entry("started-yesterday", " " * (HOURS - 20) + "e" * 19 + "p"),
        *(topic_entry(f"service-{number:02}.events", EXACT_HOURS) for number in range(19)),
    ]
    hour_ms = hour_ago(LOST_HOURS_AGO)
    found = finding("orders", 7, "missing", LOST_TEXT, kind="missing", offsets=[1040, 1042])
    partitions = [partition_entry("orders", 7, "missing", [found])]
    partitions += [partition_entry("orders", number, first=1000 * number) for number in range(12) if number != 7]
    sentences = [
        "Producers of east announced 1,200 records in 24 batches, and the brokers of east have them all.",
        "The replica of orders-7 has 3 records fewer, though it has counted past offset 1099.",
        "No gap of the mirror's ledger, and no retention, explains them.",
    ]
    narrowed = found | {"text": f"{LOST_TEXT}: batch at offset 1040, written by producer 4711 of host app-3"}
    return {
        "status": status_document(sorted(entries, key=lambda each: each["topic"])),
        "flow": company_flow(),
        "hours": {
            ("orders", hour_ms): hour_document("orders", hour_ms, "missing", partitions, kind="missing"),
            ("payments", hour_ago(5)): hour_document(
                "payments", hour_ago(5), "unknown", [partition_entry("payments", 0)], missing_witnesses=[WITNESS]
            ),
            ("clicks", hour_ago(3)): hour_document(
                "clicks",
                hour_ago(3),
                "exact",
                [partition_entry("clicks", number) for number in range(3)],
                rests_on=["produced", "live", "replica", "the mirror's ledger of gaps", "sums of content hashes"],
            ),
        },
        "stories": {
            ("orders", hour_ms): story_document("orders", hour_ms, "missing", sentences, [narrowed], is_narrowed=True),
            ("clicks", hour_ago(3)): story_document("clicks", hour_ago(3), "exact", ["All stages have the same."]),
        },
        "latencies": {name: latencies(name) for name in ("ads.impressions", "orders")},
    }


def company_flow() -> dict[str, Any]:
    open_hours = {"p": 26}
    return flow_document(
        [
            stage("produced", "east", 812_345_678, topics=20),
            stage("produced", "west", 401_234_567, topics=18),
            stage("live", "east", 812_345_678, topics=26),
            stage("live", "west", 401_234_567, topics=22),
            stage("mirrored", "hub", 1_213_580_000, topics=26),
            stage("replica", "hub", 1_213_579_998, topics=26),
            stage("loaded:lake", "hub", 1_213_000_000, topics=24),
            stage("loaded:archive", "hub", 1_100_000_000, topics=4),
            stage("stored:lake", "hub", 1_213_000_000, topics=24),
            stage("consumed:billing", "hub", 90_000_000, topics=1),
        ],
        [
            edge("produced", "live", "east", open_hours),
            edge("produced", "live", "west", open_hours),
            edge("live", "mirrored", "east", open_hours),
            edge("live", "mirrored", "west", open_hours),
            edge("live", "replica", "east", open_hours | {"-": 2, "c": 1}, missing_records=3, changed_partitions=1),
            edge("live", "replica", "west", open_hours | {"u": 3}, pending_records=420),
            edge("replica", "loaded:lake", "east", open_hours | {"+": 1}, extra_records=50),
            edge("replica", "loaded:lake", "west", open_hours),
            edge("replica", "loaded:archive", "east", open_hours | {"q": 2}),
            edge("loaded:lake", "stored:lake", "east", open_hours),
            edge("replica", "consumed:billing", "east", open_hours),
        ],
        [
            watermark("orders", 31, "orders-7: the replica lacks 3 records of 2026-10-31 04:00"),
            watermark("payments", 6.5, f"{WITNESS['name']}: {WITNESS['reason']}"),
            watermark("started-yesterday", None, "no window is complete yet"),
            *(watermark(f"service-{number:02}.events", 0.1, "the end of the window") for number in range(12)),
        ],
        left_out=11,
    )


def latencies(topic: str) -> dict[str, Any]:
    """24 hours of windows of ten minutes, one hour of which is missing."""
    stages = {}
    for number, (name, cluster) in enumerate([("live", "east"), ("replica", "hub"), ("loaded:lake", "hub")]):
        base = 4.0 * 20**number
        points = []
        for window in range(144):
            if 60 <= window < 66:
                continue
            wave = 1 + 0.6 * sin(window / 9 + number)
            points.append(
                (
                    hour_ago(23) + window * 600_000,
                    base * wave,
                    base * wave * 3,
                    base * wave * (9 if window != 100 else 300),
                )
            )
        stages[name, cluster] = points
    return latency_document(topic, stages)


def many_topics(number: int, seed: int = 17) -> list[dict[str, Any]]:
    """So many topics of 720 hours, of which one in 60 had a fault for some hours."""
    rng = Random(seed)
    entries = []
    for topic in range(number):
        changes = {}
        if rng.random() < 1 / 60:
            start, letter = rng.randrange(1, HOURS - 30), rng.choice("-+cuuxxrq")
            changes = {start + hour: letter for hour in range(rng.randrange(1, 24))}
        name = f"team-{topic % 40:02}.service-{topic // 40:03}.events.v{topic % 3}"
        entries.append(topic_entry(name, letters_with(changes) if changes else EXACT_HOURS))
    return sorted(entries, key=lambda each: each["topic"])
