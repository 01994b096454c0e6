"""Comparison of the records of a log with the offsets that a table's files hold. Pure."""

from collections import Counter
from collections.abc import Sequence

from pipeline.audit.judgement.verdicts import DiscrepancyKind, OffsetSpan
from pipeline.audit.narrowing.access import LoadedOffsets
from pipeline.audit.narrowing.records import PlacedContent, RecordDifference, join_differences


def compare_with_files(records: Sequence[PlacedContent], held: LoadedOffsets) -> list[RecordDifference]:
    """Return the records that no file holds, with the reason if the table knows one, and those that are there twice."""
    counts = Counter(held.offsets)
    found = [
        _one(DiscrepancyKind.MISSING, record.offset, _reason(record.offset, held))
        for record in records
        if not counts[record.offset]
    ]
    found += [
        _one(DiscrepancyKind.DOUBLED, record.offset, "more than one file holds it")
        for record in records
        if counts[record.offset] > 1
    ]
    return join_differences(found)


def _one(kind: DiscrepancyKind, offset: int, detail: str) -> RecordDifference:
    return RecordDifference(kind=kind, offsets=OffsetSpan(first=offset, last=offset), records=1, detail=detail)


def _reason(offset: int, held: LoadedOffsets) -> str:
    if offset >= held.loaded_to:
        return f"the load has come to offset {held.loaded_to}"
    if any(span.first <= offset <= span.last for span in held.skipped):
        return "the load skipped it as lost"
    if any(span.first <= offset <= span.last for span in held.aborted):
        return "no file holds it, as it may belong to an aborted transaction"
    return "a file that cannot be read may hold it" if held.damaged else "no file holds it"
