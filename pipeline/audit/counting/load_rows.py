"""Reports of loads: what their commits counted by partition and window, as rows of hours and windows. Pure.

Invariants:
A. A report has the hours and windows that changed lately, each with all that was loaded of it so far; so reports may be
   repeated. An hour of which a part is not known any more is left out.
B. Each root of a topic's loads has a name of its own, so that two tables of one topic do not stand for each other.
C. A load counts the same hours as brokers do: the newest ones of each partition. All earlier ones are in one row, if
   they are all known.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

import numpy as np

from pipeline.audit.counting.windows import HOURS_KEPT, WINDOWS_KEPT
from pipeline.audit.events.report import OLDER, POSITION, ROW, CountReport, LatencyCounts, ReportedTopic, SkippedOffsets
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.records.content_sums import ContentSums
from pipeline.records.tally import HOUR_MS, NOTHING, Counts

MAX_ROOT_NAME: Final = 100
_ENDS_SHOWN: Final = 35
_IN_NAMES: Final = "/:@+,;=~!$&'()*"

Place = tuple[int, int]
"""Partition, and start of a window in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedCounts:
    """All that the commits of a topic's table say, as far as it is known: `is_known` tells for which windows.

    `changed` are the places that later commits changed, so that they are reported. `offsets` are the ends of what was
    loaded, by partition, and `starts` the first loaded offsets where they are known.
    """

    counts: Mapping[Place, Counts]
    sums: Mapping[Place, ContentSums] = field(default_factory=dict)
    aside: Mapping[Place, int] = field(default_factory=dict)
    changed: Collection[Place]
    offsets: Mapping[int, int]
    starts: Mapping[int, int] = field(default_factory=dict)
    lost: Mapping[int, int] = field(default_factory=dict)
    skipped: Sequence[SkippedOffsets] = ()
    latencies: Sequence[LatencyCounts] = ()
    is_known: Callable[[int], bool] = lambda _start_ms: True


def name_of_root(url: str) -> str:
    """Return the name of a load's root: the URL without passwords, short, and equal for equal roots only.

    Only characters that are printable stand in it; a long one is shortened in its middle and bears a checksum.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    path = "/" + "/".join(piece for piece in parts.path.split("/") if piece not in ("", "."))
    scheme = {"": "file", "s3a": "s3"}.get(parts.scheme, parts.scheme)
    whole = f"{scheme}://{host}{path}"
    name = quote(whole, safe=_IN_NAMES, errors="surrogatepass")
    if len(name) <= MAX_ROOT_NAME:
        return name
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{name[:_ENDS_SHOWN]}...{name[-_ENDS_SHOWN:]}~{digest}"


def load_report(
    known: CommittedCounts, *, tier: Tier, datacenter: str, root: str, topic: str, window_ms: int, now_ms: int
) -> CountReport:
    """Return the report of a topic's table below a root URL (invariants A to C)."""
    hours, older = _newest(known, HOUR_MS, HOURS_KEPT), _older(known)
    windows = {} if window_ms == HOUR_MS else _newest(known, window_ms, WINDOWS_KEPT)
    spans = [(place, places, HOUR_MS) for place, places in hours.items()]
    spans += [(place, places, window_ms) for place, places in windows.items()]
    spans += [((partition, OLDER), places, HOUR_MS) for partition, (_, places) in older.items()]
    rows = np.zeros(len(spans), ROW)
    for row, ((partition, start), places, span_ms) in zip(rows, spans, strict=True):
        row["partition"], row["start_ms"], row["span_ms"] = partition, start, span_ms
        row["revision"] = known.offsets.get(partition, 0)
        row["until_ms"] = older[partition][0] if start == OLDER else 0
        _fill(row, known, places)
    positions = np.zeros(len(known.offsets), POSITION)
    for position, (partition, end) in zip(positions, sorted(known.offsets.items()), strict=True):
        position["partition"], position["end_offset"] = partition, end
        position["start_offset"] = known.starts.get(partition, -1)
        position["counted_from"] = known.starts.get(partition, 0)
        position["lost_offsets"] = known.lost.get(partition, 0)
    return CountReport(
        counter=Counter(tier=tier, cluster=datacenter, name=name_of_root(root)),
        process="",
        created_ms=now_ms,
        window_ms=window_ms,
        topics=[ReportedTopic(topic)],
        rows=rows,
        positions=positions,
        latencies=known.latencies,
        skipped=known.skipped,
    )


def _newest(known: CommittedCounts, span_ms: int, kept: int) -> dict[Place, list[Place]]:
    """Return the windows of each changed span that is among the newest ones of its partition, and wholly known."""
    spans = _spans(known, span_ms)
    changed = {(partition, start - start % span_ms) for partition, start in known.changed}
    return {
        (partition, start): starts[start]
        for partition, starts in sorted(spans.items())
        for start in sorted(starts)[-kept:]
        if (partition, start) in changed and known.is_known(start)
    }


def _spans(known: CommittedCounts, span_ms: int) -> dict[int, dict[int, list[Place]]]:
    """Return the windows of each span, by partition and start of the span."""
    spans: dict[int, dict[int, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for partition, start in {*known.counts, *known.aside}:
        spans[partition][start - start % span_ms].append((partition, start))
    return spans


def _older(known: CommittedCounts) -> dict[int, tuple[int, list[Place]]]:
    """Return for each changed partition the earliest hour with a row, and the windows before it, if all are known."""
    found = {}
    changed = {partition for partition, _ in known.changed}
    for partition, starts in sorted(_spans(known, HOUR_MS).items()):
        if partition not in changed or len(starts) <= HOURS_KEPT:
            continue
        *earlier, until_ms = sorted(starts)[: len(starts) - HOURS_KEPT + 1]
        if all(known.is_known(start) for start in earlier):
            found[partition] = until_ms, [place for start in earlier for place in starts[start]]
    return found


def _fill(row: np.void, known: CommittedCounts, places: Sequence[Place]) -> None:
    total, sums = NOTHING, None
    is_whole = True
    for place in places:
        counts, found = known.counts.get(place, NOTHING), known.sums.get(place)
        total += counts
        is_whole &= counts.batches == (0 if found is None else found.batches)
        if found is not None:
            sums = found if sums is None else sums.plus(found)
    row["records"], row["bytes"], row["batches"] = total.records, total.bytes, total.batches
    row["crc_sum"] = total.crc_sum
    row["quarantined"] = sum(known.aside.get(place, 0) for place in places)
    row["first_offset"] = row["last_offset"] = -1
    if is_whole and sums is not None:
        for name in ContentSums._fields[1:]:
            row[name] = getattr(sums, name)
        row["has_sums"] = True
