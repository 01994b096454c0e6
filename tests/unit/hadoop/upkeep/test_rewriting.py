"""Files that were written again, beside those that they stand for."""

from typing import Any

from pipeline.hadoop.upkeep.rewriting import match_files
from tests.unit.hadoop.upkeep.test_compaction import file_of


def test_files_are_matched_one_by_one() -> None:
    old = [file_of(0), file_of(0, path="other", schema_id=3, first_offset=3, last_offset=5)]
    new = [file_of(0, path="a"), file_of(0, path="b", schema_id=3, first_offset=3, last_offset=5)]
    assert match_files(old[::-1], new) == [((old[0],), new[0]), ((old[1],), new[1])]
    assert match_files(old, [new[0], file_of(0, path="b", first_offset=3, last_offset=6)]) is None


def test_files_of_a_kind_that_lie_side_by_side_are_one() -> None:
    released: Any = {"path": "released", "first_offset": 4, "last_offset": 4, "records": 1}
    old = [file_of(0, records=9), file_of(0, **released), file_of(0, path="other", schema_id=3, first_offset=2)]
    new = [file_of(0, path="a"), file_of(0, path="b", schema_id=3, first_offset=2)]
    assert match_files(old, new) == [((old[0], old[1]), new[0]), ((old[2],), new[1])]
    assert match_files(old, [file_of(0, path="a", records=11), new[1]]) is None
