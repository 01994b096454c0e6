"""What compaction does with the batches of transactions."""

from pathlib import Path

import pytest

from pipeline.log.segment_names import SNAPSHOT_SUFFIX, segment_path
from pipeline.records.batch import (
    DELETE_HORIZON,
)
from tests.support.cleaning import (
    ABORT,
    COMMIT,
    DAY_MS,
    NOW_MS,
    Directory,
    committed,
    headers,
    kinds,
    marker,
    state,
    transactional,
)


@pytest.fixture
def log(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_records_of_a_committed_transaction_are_records_like_others(log: Directory) -> None:
    log.add_pairs((b"k", b"1"))
    log.add(transactional([(b"k", b"2"), (b"l", b"3")], 1), marker(COMMIT, 3))
    log.add_pairs((b"l", b"4"), (b"m", b"5"))
    log.take(log.clean())
    assert kinds(log.content()) == [(2, 1), (3, 1), (5, 2)]
    assert state(committed(log.content(), log.aborted)) == {b"k": b"2", b"l": b"4", b"m": b"5"}


def test_records_of_an_aborted_transaction_go_and_supersede_nothing(log: Directory) -> None:
    log.add_pairs((b"k", b"1"))
    log.add(transactional([(b"k", b"2"), (b"l", b"3")], 1), transactional([(b"k", b"4")], 3, producer=6))
    log.add(marker(ABORT, 4), marker(COMMIT, 5, producer=6))
    log.add_pairs((b"m", b"5"))
    log.index((5, 1, 4))
    (first, second) = log.clean()
    assert (kinds(first), kinds(second)) == ([(3, 1)], [(4, 1), (5, 1), (6, 1)])
    log.take([first, second])
    assert state(committed(log.content(), log.aborted)) == {b"k": b"4", b"m": b"5"}
    assert [transaction.last_offset for transaction in log.aborted] == [4]


def test_a_marker_stays_until_its_horizon_and_its_entry_goes_when_it_gets_that(log: Directory) -> None:
    log.add(transactional([(b"k", b"1")], 0), marker(ABORT, 1))
    log.add(transactional([(b"k", b"2")], 2), marker(COMMIT, 3))
    log.add_pairs((b"k", b"3"))
    log.index((5, 0, 1))
    seen = []
    for now_ms in (NOW_MS, NOW_MS, NOW_MS, NOW_MS + DAY_MS - 1, NOW_MS + DAY_MS):
        log.take(log.clean(now_ms=now_ms))
        marked = [header.last_offset for header in headers(log.content()) if header.attributes & DELETE_HORIZON]
        seen.append((kinds(log.content()), marked, len(log.aborted)))
        assert state(committed(log.content(), log.aborted)) == {b"k": b"3"}
    both, one = [(1, 1), (3, 1), (4, 1)], [(4, 1)]
    assert seen == [(both, [], 1), (both, [1, 3], 0), (both, [1, 3], 0), (both, [1, 3], 0), (one, [], 0)]


def test_a_marker_stays_for_an_entry_or_a_snapshot_that_may_tell_of_its_transaction(log: Directory) -> None:
    log.add(marker(ABORT, 0), marker(ABORT, 1, producer=6))
    log.add_pairs((b"k", b"3"))
    segment_path(log.path, 1, SNAPSHOT_SUFFIX).write_bytes(b"")
    for now_ms in (NOW_MS, NOW_MS + DAY_MS, NOW_MS + 2 * DAY_MS):
        log.index((5, 0, 0))
        log.take(log.clean(now_ms=now_ms))
        assert kinds(log.content()) == [(0, 1), (1, 1), (2, 1)]
        assert not log.aborted
    log.take(log.clean(now_ms=NOW_MS + DAY_MS))
    assert kinds(log.content()) == [(1, 1), (2, 1)]
    segment_path(log.path, 1, SNAPSHOT_SUFFIX).rename(segment_path(log.path, 2, SNAPSHOT_SUFFIX))
    log.take(log.clean(now_ms=NOW_MS + DAY_MS))
    assert kinds(log.content()) == [(2, 1)]


def test_a_batch_kept_for_its_sequence_number_is_of_no_transaction(log: Directory) -> None:
    log.add(transactional([(b"k", b"1")], 0), marker(ABORT, 1))
    log.add_pairs((b"k", b"3"))
    log.index((5, 0, 1))
    for now_ms in (NOW_MS, NOW_MS, NOW_MS + DAY_MS):
        log.take(log.clean(now_ms=now_ms, kept_offsets=(0,)))
        assert not headers(log.content())[0].is_transactional
    assert kinds(log.content()) == [(0, 0), (2, 1)]
    assert not log.aborted


def test_a_batch_kept_as_the_end_of_a_segment_does_not_keep_its_marker(log: Directory) -> None:
    """The segment with the marker has an index, so the one before it stays a segment, and ends where it ended."""
    log.add(transactional([(b"k", b"1")], 0))
    log.add(marker(ABORT, 1))
    log.add_pairs((b"k", b"3"))
    log.index((5, 0, 1))
    for now_ms in (NOW_MS, NOW_MS, NOW_MS, NOW_MS + DAY_MS):
        log.take(log.clean(now_ms=now_ms))
    assert kinds(log.content()) == [(2, 1)] and not log.aborted


def test_a_control_batch_of_another_kind_stays(log: Directory) -> None:
    log.add(marker(7, 0))
    log.add_pairs((b"k", b"1"))
    for days in range(4):
        log.take(log.clean(now_ms=NOW_MS + days * DAY_MS))
        assert kinds(log.content()) == [(0, 1), (1, 1)]
