"""Events with odd numbers, names and forms: nothing raises, from the record's bytes to the documents."""

import json
from random import Random
from typing import Any

import pytest

from pipeline.audit.collecting.decoding import decode_any_version
from pipeline.audit.events.encoding import AuditMessageError, encode_count_report
from pipeline.audit.events.report import POSITION, ROW, CountReport
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.story import story_of
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.reports.details import latency_document, partitions_document
from pipeline.audit.reports.documents import Knowledge, hour_document
from pipeline.audit.reports.figures import figures_of, latencies_of
from pipeline.audit.reports.flow import flow_document
from pipeline.audit.reports.selection import hours_with_findings
from pipeline.audit.reports.status import GridQuestion, status_document
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EXPECTED, GRACE_MS, HOUR, NOW_MS, PENDING_MAX_MS, WholeWay, signs

NUMBERS = [
    *(0, 1, -1, 5, 100, 2**31 - 1, -(2**31), 2**31, 2**53, 2**62, -(2**62), 2**63 - 1, -(2**63)),
    *(HOUR, HOUR + HOUR_MS, HOUR - 1, HOUR + 600_000),
]
NAMES = ["", "a\x00b", "\ud800", "x" * 300, "east", "hub", "clicks", "_audit", "p1", "../x", "1", "2"]
OLDER = {
    "version": 2, "tier": "broker", "cluster": "east", "instance": "", "topic": "clicks", "partition": 0,
    "leader_epoch": 0, "claims": [[1, 5]], "revision": 5, "created_ms": 5, "window_ms": 600_000,
    "windows": [[0, 5, 100, 1, 7]], "codecs": [[0, 1, 1, 0, 0, 0, 0]],
}  # fmt: skip
EVENTS = [*(json.loads(encode_count_report(each)) for each in [*WholeWay().reports(), *signs()]), OLDER]
STEPS = 12


def mutated(value: Any, rng: Random) -> Any:
    if isinstance(value, dict):
        return {name: mutated(each, rng) if rng.random() < 0.12 else each for name, each in value.items()}
    if isinstance(value, list):
        return [mutated(each, rng) if rng.random() < 0.4 else each for each in value] * rng.choice([1, 1, 1, 1, 2])
    if isinstance(value, bool) or value is None:
        return rng.choice([True, False, 1, None])
    if isinstance(value, int):
        return rng.choice(NUMBERS) if rng.random() < 0.9 else rng.choice([None, "x", 1.5])
    return rng.choice(NAMES)


def hostile_event(rng: Random) -> bytes:
    event = json.loads(json.dumps(rng.choice(EVENTS)))
    if rng.random() < 0.5:
        event = mutated(event, rng)
    for part, dtype in (("rows", ROW), ("positions", POSITION)):
        columns = event.get(part)
        if isinstance(columns, dict) and columns.get("size") in (1, 2) and rng.random() < 0.5:
            columns[rng.choice(dtype.names or ())] = [rng.choice(NUMBERS) for _ in range(columns["size"])]
    if rng.random() < 0.2:
        event["claims"] = [[rng.choice([0, 0, 1]), *(rng.choice(NUMBERS) for _ in range(3))]]
    if rng.random() < 0.2:
        event["latencies"] = [[0, rng.choice(NUMBERS), "p", [[rng.choice(NUMBERS), rng.choice(NUMBERS)], [5, 1]]]]
    return json.dumps(event).encode()


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 2_000), marks=pytest.mark.long)], ids=["60", "2000"]
)
def test_whatever_an_event_says_there_are_documents(seeds: range) -> None:
    accepted = sum(documents_of(Random(seed)) for seed in seeds)
    assert accepted > len(seeds) * STEPS // 4


def documents_of(rng: Random) -> int:
    """Apply some events, and make all documents. Return how many were accepted."""
    ledger = Ledger(settle_ms=GRACE_MS)
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    accepted = 0
    for _ in range(STEPS):
        try:
            event = decode_any_version(hostile_event(rng))
        except AuditMessageError:
            continue
        accepted += 1
        if isinstance(event, CountReport):
            ledger.apply(event)
        else:
            ledger.apply_older(event)
        if rng.random() < 0.3:
            make_all(ledger, judge, rng.choice([NOW_MS, NOW_MS + 10**9, HOUR, 0]))
    return accepted


def make_all(ledger: Ledger, judge: Judge, now_ms: int) -> None:
    judgement = judge.judge(EXPECTED, now_ms)
    knowledge = Knowledge(judged_ms=now_ms, clusters={}, unknown=[], is_complete=True)
    hours, marks = judgement.hours(), judgement.watermarks()
    told = hours_with_findings(judgement, None, 100)
    documents: list[Any] = [hour_document(hour) for hour in hours]
    documents.append(status_document(judgement.letters_by_topic(), marks, knowledge, GridQuestion.read({}, now_ms)))
    documents.append(
        flow_document(ledger, (), told, set(), marks, knowledge, live_clusters=["east"], replica_cluster="hub")
    )
    documents.append(latency_document(ledger.latencies, "clicks", "hub", 0, 2**62))
    for hour in hours[:5]:
        partitions = judgement.partitions_of(hour.topic, hour.hour_ms)
        documents.append(partitions_document(hour, partitions, offset=0, limit=10))
        documents.append(story_of(hour))
    json.dumps(documents)
    figures_of(judgement)
    latencies_of(ledger.latencies, "hub")
