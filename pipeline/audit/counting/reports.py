"""Reports of a broker's counter, put together from its rows and replicas. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pipeline.audit.counting.counted_replica import CountedReplica
from pipeline.audit.counting.latency_table import TopicWindow
from pipeline.audit.counting.naming import name_partitions
from pipeline.audit.events.encoding import MAX_ROWS
from pipeline.audit.events.report import POSITION, CountReport, LatencyCounts, ReportedTopic, RowClaim, Rows

MAX_BUCKETS: Final = 20_000
"""Buckets of latencies in one report: about 250 KB."""


def replica_reports(
    empty: CountReport, replicas: Sequence[CountedReplica], rows: Rows
) -> Iterator[tuple[CountReport, Sequence[CountedReplica], Sequence[Rows]]]:
    """Yield reports, the replicas that each is about, and the rows of each replica. `empty`: a report without rows.

    A report has at most MAX_ROWS rows, or one replica. `rows` have the numbers of the replicas as their partition.
    """
    rows = rows[np.lexsort((rows["start_ms"], rows["span_ms"], rows["partition"]))]
    replicas = sorted(replicas, key=lambda replica: replica.number)
    numbers = np.array([replica.number for replica in replicas], np.int64)
    begins = np.searchsorted(rows["partition"], numbers).tolist()
    ends = np.searchsorted(rows["partition"], numbers, side="right").tolist()
    first = 0
    for place in range(1, len(replicas) + 1):
        if place < len(replicas) and ends[place] - begins[first] <= MAX_ROWS and place - first < MAX_ROWS:
            continue
        by_replica = [rows[begin:end] for begin, end in zip(begins[first:place], ends[first:place], strict=True)]
        yield _report(empty, replicas[first:place], by_replica), replicas[first:place], by_replica
        first = place


def _report(empty: CountReport, replicas: Sequence[CountedReplica], by_replica: Sequence[Rows]) -> CountReport:
    rows, positions = np.concatenate(by_replica), np.zeros(len(replicas), POSITION)
    for position, replica in zip(positions, replicas, strict=True):
        now = replica.position
        position["partition"] = replica.number
        position["end_offset"], position["start_offset"] = now.end_offset, now.start_offset
        position["counted_from"], position["leader_epoch"] = now.counted_from, now.leader_epoch
        position["is_leader"], position["cleaned_to"] = now.is_leader, now.compacted_to + 1
    sizes = list(map(len, by_replica))
    rows["revision"] = np.repeat([replica.up_to for replica in replicas], sizes)
    rows["leader_epoch"] = np.repeat(positions["leader_epoch"], sizes)  # claims of older epochs void no leader's rows
    topics = name_partitions({replica.number: replica.name for replica in replicas}, rows, positions)
    index = {topic: number for number, topic in enumerate(topics)}
    claims = tuple(
        RowClaim(index[replica.name.topic], replica.name.partition, claim.leader_epoch, claim.start_offset)
        for replica in replicas
        for claim in replica.claims
    )
    return replace(empty, topics=topics, rows=rows, positions=positions, claims=claims)


def latency_reports(
    empty: CountReport,
    changed: Sequence[tuple[TopicWindow, tuple[tuple[int, int], ...]]],
    topics: Mapping[int, ReportedTopic],
    process: str,
) -> Iterator[CountReport]:
    """Yield reports of latencies, each of about MAX_BUCKETS buckets or one window. `empty`: without rows."""
    first = buckets = 0
    for place, (_, found) in enumerate(changed):
        if place > first and buckets + len(found) > MAX_BUCKETS:
            yield _latencies(empty, changed[first:place], topics, process)
            first, buckets = place, 0
        buckets += len(found)
    if changed:
        yield _latencies(empty, changed[first:], topics, process)


def _latencies(
    empty: CountReport,
    changed: Sequence[tuple[TopicWindow, tuple[tuple[int, int], ...]]],
    topics: Mapping[int, ReportedTopic],
    process: str,
) -> CountReport:
    index: dict[ReportedTopic, int] = {}
    latencies = tuple(
        LatencyCounts(index.setdefault(topics[window.topic], len(index)), window.start_ms, process, buckets)
        for window, buckets in changed
    )
    return replace(empty, topics=tuple(index), latencies=latencies)
