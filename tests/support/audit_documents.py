"""Documents of an audit service, in the form of docs/audit/service.md."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

HOUR_MS = 3_600_000
HOURS = 720
NOW_MS = 1_793_530_000_000
"""The time of the service: 2026-11-01 10:46:40."""
HOUR_NOW_MS = NOW_MS // HOUR_MS * HOUR_MS
FROM_MS = HOUR_NOW_MS + HOUR_MS - HOURS * HOUR_MS
EXACT_HOURS = "e" * (HOURS - 1) + "p"

LETTERS = {
    "exact": "e",
    "recompressed": "r",
    "explained": "x",
    "quarantined": "q",
    "pending": "p",
    "unknown": "u",
    "changed": "c",
    "extra": "+",
    "missing": "-",
}


def iso(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def hour_ago(hours: int) -> int:
    """The hour that began so many hours before the present one."""
    return HOUR_NOW_MS - hours * HOUR_MS


def letters_with(changes: Mapping[int, str]) -> str:
    """720 hours that are exact, but for the letters of some hours ago."""
    letters = list(EXACT_HOURS)
    for hours, letter in changes.items():
        letters[HOURS - 1 - hours] = letter
    return "".join(letters)


def clusters(**errors: str | None) -> dict[str, Any]:
    return {
        name: {
            "events": 1000,
            "lag": 0,
            "complete": error is None,
            "unreadable": 0,
            "error": error,
            "read_to": iso(NOW_MS - 1000),
        }
        for name, error in ({"east": None, "west": None, "hub": None} | errors).items()
    }


def topic_entry(
    name: str,
    letters: str = EXACT_HOURS,
    *,
    outside: Mapping[str, int] | None = None,
    waits_for: str = "the hour's end",
) -> dict[str, Any]:
    """A topic of `/v1/status`. Leading hours without counts are left out, as the service does."""
    kept = letters.lstrip(" ")
    complete_ms = HOUR_NOW_MS + 40 * 60_000
    return {
        "topic": name,
        "letters": kept,
        "start": HOURS - len(kept),
        "outside": dict(outside or {}),
        "complete_to": iso(complete_ms),
        "complete_ms": complete_ms,
        "waits_for": waits_for,
    }


def status_document(
    topics: Iterable[dict[str, Any]],
    *,
    unknown: Sequence[dict[str, Any]] = (),
    cluster_states: Mapping[str, Any] | None = None,
    left_out: int = 0,
) -> dict[str, Any]:
    listed = list(topics)
    counts = Counter("".join(topic["letters"] for topic in listed))
    counts.pop(" ", None)
    if any(counts[letter] for letter in "rxqc+-"):
        verdict = "difference"
    else:
        verdict = "exact" if counts and set(counts) == {"e"} and not unknown else "unknown"
    return {
        "judged_ms": NOW_MS,
        "verdict": verdict,
        "exact": verdict == "exact",
        "hour_ms": HOUR_MS,
        "from": iso(FROM_MS),
        "from_ms": FROM_MS,
        "to": iso(FROM_MS + HOURS * HOUR_MS),
        "hours": HOURS,
        "topics": listed,
        "topics_left_out": left_out,
        "counts": dict(counts),
        "first_ms": FROM_MS if listed else None,
        "last_ms": HOUR_NOW_MS if listed else None,
        "unknown": list(unknown),
        "clusters": dict(cluster_states if cluster_states is not None else clusters()),
    }


def stage(name: str, cluster: str, records: int, *, topics: int = 3) -> dict[str, Any]:
    tier, _, own = name.partition(":")
    return {
        "stage": name,
        "tier": tier,
        "name": own,
        "cluster": cluster,
        "records": records,
        "bytes": records * 200,
        "batches": records // 50,
        "topics": topics,
        "counted_ms": NOW_MS - 4000,
    }


def edge(after: str, at: str, cluster: str, hours: Mapping[str, int], **numbers: int) -> dict[str, Any]:
    none = {"missing_records": 0, "extra_records": 0, "pending_records": 0, "changed_partitions": 0}
    return {"after": after, "at": at, "cluster": cluster, "hours": dict(hours), **none, **numbers}


def watermark(topic: str, hours_behind: float | None, waits_for: str) -> dict[str, Any]:
    complete_ms = None if hours_behind is None else NOW_MS - int(hours_behind * HOUR_MS)
    complete_to = None if complete_ms is None else iso(complete_ms)
    return {"topic": topic, "complete_ms": complete_ms, "complete_to": complete_to, "waits_for": waits_for}


def flow_document(
    stages: Sequence[dict[str, Any]] = (),
    edges: Sequence[dict[str, Any]] = (),
    watermarks: Sequence[dict[str, Any]] = (),
    *,
    left_out: int = 0,
) -> dict[str, Any]:
    return {
        "judged_ms": NOW_MS,
        "verdict": "unknown",
        "stages": list(stages),
        "edges": list(edges),
        "watermarks": list(watermarks),
        "watermarks_left_out": left_out,
        "clusters": clusters(),
    }


def finding(topic: str, partition: int, status: str, text: str, **changes: Any) -> dict[str, Any]:
    found = {
        "cluster": "east",
        "source": f"{topic}-{partition}",
        "replica": f"{topic}-{partition}",
        "after": "live",
        "at": "replica",
        "status": status,
        "kind": None,
        "records": 3,
        "quarantined": 0,
        "offsets": None,
        "explanation": None,
        "witness": None,
        "text": text,
    }
    return found | changes


def partition_entry(
    topic: str, partition: int, status: str = "exact", findings: Sequence[dict[str, Any]] = (), *, first: int = 1000
) -> dict[str, Any]:
    counts = {"records": 100, "bytes": 20_000, "batches": 2, "first_offset": first, "last_offset": first + 99}
    stages = dict.fromkeys(("produced", "live", "replica"), counts)
    if status == "missing":
        stages["replica"] = counts | {"records": 97}
    return {
        "cluster": "east",
        "source": f"{topic}-{partition}",
        "replica": f"{topic}-{partition}",
        "status": status,
        "stages": stages,
        "findings": list(findings),
    }


def hour_document(
    topic: str,
    hour_ms: int,
    status: str,
    partitions: Sequence[dict[str, Any]] = (),
    *,
    kind: str | None = None,
    rests_on: Sequence[str] = (),
    missing_witnesses: Sequence[dict[str, Any]] = (),
    in_all: int | None = None,
) -> dict[str, Any]:
    sums = {"records": 100 * len(partitions), "bytes": 20_000 * len(partitions), "batches": 2, "crc_sum": 2**64 - 59}
    return {
        "judged_ms": NOW_MS,
        "topic": topic,
        "hour": iso(hour_ms),
        "hour_ms": hour_ms,
        "status": status,
        "kind": kind,
        "rests_on": list(rests_on),
        "missing_witnesses": list(missing_witnesses),
        "stages": dict.fromkeys(("produced", "live", "replica"), sums),
        "partitions": list(partitions),
        "partitions_in_all": len(partitions) if in_all is None else in_all,
    }


def story_document(
    topic: str,
    hour_ms: int,
    status: str,
    sentences: Sequence[str],
    findings: Sequence[dict[str, Any]] = (),
    **more: Any,
) -> dict[str, Any]:
    return {
        "judged_ms": NOW_MS,
        "topic": topic,
        "hour": iso(hour_ms),
        "status": status,
        "sentences": list(sentences),
        "findings": list(findings),
        "is_narrowed": False,
        "narrowing_error": None,
    } | more


def latency_document(
    topic: str, stages: Mapping[tuple[str, str], Sequence[tuple[int, float, float, float]]]
) -> dict[str, Any]:
    """Points are (start_ms, p50, p95, p99) by stage and cluster."""
    return {
        "judged_ms": NOW_MS,
        "topic": topic,
        "stages": [
            {
                "stage": name,
                "cluster": cluster,
                "points": [
                    {"start_ms": start, "records": 1000, "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}
                    for start, p50, p95, p99 in points
                ],
            }
            for (name, cluster), points in stages.items()
        ],
    }
