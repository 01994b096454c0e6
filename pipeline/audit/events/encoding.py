"""Monitoring events of version 3 as JSON: a list for each column, as docs/audit/events.md describes. Pure."""

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np
from pydantic_core import from_json

from pipeline.audit.events.report import (
    POSITION,
    ROW,
    CountReport,
    LatencyCounts,
    LifeSign,
    ReportedTopic,
    RowClaim,
    Rows,
    SkippedOffsets,
)
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.errors import PipelineError

VERSION: Final = 3
MAX_ROWS: Final = 1_000
"""Rows in one record: at most 600 KB, below the limit of brokers (`message.max.bytes`)."""
MAX_ROWS_READ: Final = 100_000
ROW_BYTES: Final = 8
"""Bytes of JSON that each row has at least. So a record of few bytes does not claim the memory of many rows."""
POSITION_BYTES: Final = 2
"""The same of a position."""
MAX_TOPICS_READ: Final = 100_000
MAX_BUCKETS_READ: Final = 100_000
MAX_SKIPPED_READ: Final = 100_000
MAX_REASON: Final = 300
"""Characters of the reason why a record is no event: errors quote what a hostile writer sent."""
_TYPE_CODES: Final = {("i", 4): "i", ("i", 8): "q", ("u", 8): "Q", ("b", 1): "q"}
"""Type code of the array for a column's values, by kind and size in bytes of its dtype."""


class AuditMessageError(PipelineError):
    """A record of the audit topic is not a monitoring event of a known version."""


def portions(report: CountReport) -> Iterator[CountReport]:
    """Split a report into records of bounded size. Each holds for the rows that it has, so their order is free.

    Only the last one bears the life sign: what it says of closed windows is true once all portions have arrived.
    """
    size = max(len(report.rows), len(report.positions), len(report.skipped), 1)
    starts = range(0, size, MAX_ROWS)
    for start in starts:
        is_last = start + MAX_ROWS >= size
        yield replace(
            report,
            rows=report.rows[start : start + MAX_ROWS],
            positions=report.positions[start : start + MAX_ROWS],
            skipped=report.skipped[start : start + MAX_ROWS],
            claims=report.claims if start == 0 else (),
            latencies=report.latencies if start == 0 else (),
            life=report.life if is_last else None,
        )


def encode_key(report: CountReport) -> bytes:
    """Return the record key: the counter and its process."""
    counter = report.counter
    return "/".join((counter.tier, counter.cluster, counter.name, report.process)).encode()


def encode_count_report(report: CountReport) -> bytes:
    """Return the report as JSON. Columns that are 0 in all rows are left out."""
    document = {
        "version": VERSION,
        **asdict(report.counter),
        "process": report.process,
        "created_ms": report.created_ms,
        "window_ms": report.window_ms,
    }
    parts = {
        "topics": report.topics,
        "rows": _columns(report.rows),
        "positions": _columns(report.positions),
        "claims": report.claims,
        "latencies": report.latencies,
        "skipped": report.skipped,
        "life": None if report.life is None else asdict(report.life),
        "is_after_loss": report.is_after_loss,
        "unseen": report.unseen,
    }
    document |= {name: part for name, part in parts.items() if part}
    return json.dumps(document, separators=(",", ":")).encode()


def decode_count_report(value: bytes) -> CountReport:
    """Return the report in a record's value. Unknown fields are ignored. Raises AuditMessageError."""
    try:
        document = parsed_json(value)
        if document["version"] != VERSION:
            raise AuditMessageError(f"monitoring event of version {str(document['version'])[:20]}; expected {VERSION}")
        topics = tuple(ReportedTopic(str(name), str(topic_id)) for name, topic_id in document.get("topics", ()))
        report = CountReport(
            counter=Counter(
                tier=Tier(document["tier"]),
                cluster=str(document["cluster"]),
                name=str(document["name"]),
                instance=str(document["instance"]),
            ),
            process=str(document["process"]),
            created_ms=_int64(document["created_ms"]),
            window_ms=_int64(document["window_ms"]),
            topics=topics,
            rows=_table(document.get("rows", {}), ROW, len(topics), len(value) // ROW_BYTES),
            positions=_table(document.get("positions", {}), POSITION, len(topics), len(value) // POSITION_BYTES),
            claims=tuple(RowClaim(*map(_int64, claim)) for claim in document.get("claims", ())),
            latencies=tuple(_latency(*each) for each in document.get("latencies", ())),
            skipped=tuple(_skipped(*each) for each in document.get("skipped", ())),
            life=_life(document["life"]) if document.get("life") else None,
            is_after_loss=bool(document.get("is_after_loss", False)),
            unseen=_int64(document.get("unseen", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise AuditMessageError(f"not a monitoring event: {type(error).__name__}: {error}"[:MAX_REASON]) from error
    _check(report)
    return report


def parsed_json(value: bytes) -> Any:
    """Return what JSON says. Raises ValueError, RecursionError."""
    try:
        return from_json(value)  # in half the time
    except ValueError:
        return json.loads(value)  # takes more, such as halves of surrogate pairs in names


def _columns(table: Rows) -> dict[str, Any]:
    if not len(table):
        return {}
    columns = {name: table[name].tolist() for name in table.dtype.names or () if table[name].any()}
    return {"size": len(table), **columns}


def _table(columns: Mapping[str, Any], dtype: np.dtype[np.void], topics: int, bound: int) -> Rows:
    """Return columns as a table of at most `bound` rows. Raises ValueError, OverflowError, TypeError."""
    size = _int64(columns.get("size", 0))
    if not 0 <= size <= min(bound, MAX_ROWS_READ):
        raise ValueError(f"{size} rows")
    table = np.zeros(size, dtype)
    for name in dtype.names or ():
        values = columns.get(name)
        if values is None:
            continue
        if not isinstance(values, list) or len(values) != size:
            raise ValueError(f"column {name} has not {size} values")
        # Integers alone fit an array of the standard library, which takes half the time of one of numpy's.
        table[name] = np.asarray(array(_TYPE_CODES[dtype[name].kind, dtype[name].itemsize], values))
    if size and (table["topic"].min() < 0 or table["topic"].max() >= topics or table["partition"].min() < 0):
        raise ValueError("a row of no topic or partition")
    return table


def _int64(value: Any) -> int:
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{number} is no 64-bit integer")
    return number


def _latency(topic: Any, start_ms: Any, process: Any, buckets: Any) -> LatencyCounts:
    if len(buckets) > MAX_BUCKETS_READ:
        raise ValueError(f"{len(buckets)} buckets")
    pairs = tuple((_int64(key), _int64(records)) for key, records in buckets)
    return LatencyCounts(_int64(topic), _int64(start_ms), str(process), pairs)


def _skipped(
    topic: Any, partition: Any, start_ms: Any, first: Any, last: Any, records: Any, reason: Any
) -> SkippedOffsets:
    start = None if start_ms is None else _int64(start_ms)
    offsets = _int64(first), _int64(last)
    return SkippedOffsets(_int64(topic), _int64(partition), start, *offsets, _int64(records), str(reason))


def _life(document: Mapping[str, Any]) -> LifeSign:
    return LifeSign(
        host=str(document["host"]),
        started_ms=_int64(document["started_ms"]),
        interval_ms=_int64(document["interval_ms"]),
        closed_ms=_int64(document["closed_ms"]),
        is_ended=bool(document["is_ended"]),
        unsent_records=_int64(document["unsent_records"]),
    )


def _check(report: CountReport) -> None:
    """Check indexes. Raises AuditMessageError."""
    topics = len(report.topics)
    if topics > MAX_TOPICS_READ:
        raise AuditMessageError(f"monitoring event of {topics} topics")
    if len(report.skipped) > MAX_SKIPPED_READ:
        raise AuditMessageError(f"monitoring event of {len(report.skipped)} skipped ranges")
    named = [claim.topic for claim in report.claims] + [latency.topic for latency in report.latencies]
    named += [passed.topic for passed in report.skipped]
    if any(not 0 <= topic < topics for topic in named):
        raise AuditMessageError("monitoring event with a claim, latency or skipped range of no topic")
