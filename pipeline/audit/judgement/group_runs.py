"""Runs of offsets that the members of a group have committed, and what they say about a difference. Pure.

Members report runs without interruption that touch each other (`counting/committed_ranges.py`). A hole between two
runs was committed without a count: a member was killed before it reported, or does not count. Runs that overlap were
consumed again, after the group's offsets had been set back. Neither is a loss, and nobody can tell how much of a
difference it explains.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from pipeline.audit.judgement.cells import StageCells
from pipeline.audit.judgement.verdicts import Finding, OffsetSpan, Status, Witness
from pipeline.audit.ledger.keys import LIFE_BITS

_BY_RECORD: Final = (
    "its members count one by one the records that they get (confluent-kafka). Records that they did not get may be of "
    "aborted transactions, compacted, skipped by a seek, or lost"
)


def has_faults(stage: StageCells, place: int) -> bool:
    """True if a group's runs of a partition have a hole, or overlap, within the offsets of the hour."""
    row = stage.rows[place]
    offsets = OffsetSpan(first=int(row["first_offset"]), last=int(row["last_offset"]))
    return any(_meets(offsets if offsets.first >= 0 else None, span) for _, span in _faults(stage, place))


def doubted(stage: StageCells, place: int, finding: Finding, *, by_record: bool) -> Finding:
    """Return the finding about a group, as unknown if the group's runs have a hole or overlap within its offsets.

    `by_record`: True if members counted record by record. What they have not seen, they cannot tell from a loss.
    """
    wanted = {Status.MISSING: ("hole",), Status.EXTRA: ("overlap",), Status.CHANGED: ("hole", "overlap")}
    for kind, span in _faults(stage, place):
        if kind in wanted.get(finding.status, ()) and _meets(finding.offsets, span):
            reason = (
                f"offsets {span.first} to {span.last} were committed without a count: a member was killed before it "
                "reported, or does not count"
                if kind == "hole"
                else f"offsets {span.first} to {span.last} were consumed again, after the group's offsets were set back"
            )
            witness = Witness(
                name=f"group {stage.stage.name}", reason=reason, cluster=stage.cluster, partition=finding.source
            )
            return replace(finding, status=Status.UNKNOWN, kind=None, witness=witness)
    if by_record and finding.status in wanted:
        witness = Witness(
            name=f"group {stage.stage.name}", reason=_BY_RECORD, cluster=stage.cluster, partition=finding.source
        )
        return replace(finding, status=Status.UNKNOWN, kind=None, witness=witness)
    return finding


def _faults(stage: StageCells, place: int) -> Iterator[tuple[str, OffsetSpan]]:
    """Yield the holes between runs, and their overlaps."""
    runs = sorted(_runs(stage, int(stage.cells[place])))
    reached = runs[0][1] if runs else 0
    for start, end in runs[1:]:
        if start > reached:
            yield "hole", OffsetSpan(first=reached, last=start - 1)
        elif start < min(reached, end):
            yield "overlap", OffsetSpan(first=start, last=min(reached, end) - 1)
        reached = max(reached, end)


def _runs(stage: StageCells, cell: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each life's run of a partition."""
    for series in stage.series:
        keys = series.positions.keys
        low, high = np.searchsorted(keys, [cell << LIFE_BITS, (cell + 1) << LIFE_BITS])
        for key, end in zip(keys[low:high].tolist(), series.positions.progress["end_offset"][low:high], strict=True):
            start = series.positions.began_at(key)
            if end > start:
                yield start, int(end)


def _meets(offsets: OffsetSpan | None, span: OffsetSpan) -> bool:
    return offsets is None or (span.first <= offsets.last and offsets.first <= span.last)
