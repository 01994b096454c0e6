"""Records that a table lacks or holds twice, with the reasons that the table knows."""

from pipeline.audit.judgement.verdicts import OffsetSpan
from pipeline.audit.narrowing.access import LoadedOffsets
from pipeline.audit.narrowing.records import PlacedContent, RecordContent
from pipeline.audit.narrowing.table_offsets import compare_with_files

NOTHING = RecordContent(1, None, None, ())
RECORDS = [PlacedContent(offset=offset, content=NOTHING) for offset in range(10)]


def span(first: int, last: int) -> OffsetSpan:
    return OffsetSpan(first=first, last=last)


def test_each_record_that_no_file_holds_has_the_reason_that_is_known() -> None:
    held = LoadedOffsets(offsets=[0, 0, 2, 4], loaded_to=8, skipped=[span(1, 1)], aborted=[span(2, 3)])
    found = compare_with_files(RECORDS, held)
    assert [(str(each.kind), each.offsets.first, each.offsets.last, each.detail) for each in found] == [
        ("doubled", 0, 0, "more than one file holds it"),
        ("missing", 1, 1, "the load skipped it as lost"),
        ("missing", 3, 3, "no file holds it, as it may belong to an aborted transaction"),
        ("missing", 5, 7, "no file holds it"),
        ("missing", 8, 9, "the load has come to offset 8"),
    ]
