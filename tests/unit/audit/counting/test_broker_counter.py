"""Counting along: every batch once, through restarts, lost reports, logs that lost their end and new leaders."""

import itertools
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.counting import broker_counter
from pipeline.audit.counting.broker_counter import MAX_APPENDED
from pipeline.audit.counting.checkpoints import PartitionCheckpoints, SavedCounts
from pipeline.audit.events.report import RowClaim
from pipeline.log.files import DiskFiles
from pipeline.records.tally import HOUR_MS
from tests.support.counted_replicas import (
    CLICKS,
    INTERNAL,
    LIFE,
    WINDOW_MS,
    Log,
    counter,
    header,
    load,
    only,
    rows_of,
    tell,
    told,
    with_rows,
)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Any:
    (tmp_path / str(CLICKS)).mkdir()
    return PartitionCheckpoints([tmp_path], DiskFiles())


def test_appended_batches_are_told_by_window_and_hour(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 10, 7), (2, WINDOW_MS, 8), (2, HOUR_MS, 8)))
    reports = broker.take_reports()
    report = only(reports)
    assert report.rows["revision"].tolist() == [7] * 5
    assert rows_of(report.rows) == log.expected()
    broker.published(reports)
    assert with_rows(broker.take_reports()) == []


def test_reports_bear_positions_and_the_life_of_the_broker(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints, itertools.count(100).__next__)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 10, 7)))
    *_, life = reports = broker.take_reports()
    (position,) = only(reports).positions.tolist()
    assert position == (0, 0, 3, 0, 0, 0, True, 0, 1)
    assert life.life is not None
    assert [report.life for report in reports[:-1]] == [None] * (len(reports) - 1)
    assert (life.life.host, life.life.started_ms, life.life.interval_ms) == (LIFE.host, LIFE.started_ms, 10_000)
    assert life.life.closed_ms == life.created_ms
    assert {report.process for report in reports} == {"7"}
    log.log_start_offset = 2
    report = only(broker.take_reports())
    assert (len(report.rows), report.positions["start_offset"].tolist()) == (0, [2])
    assert with_rows(broker.take_reports()) == []


def test_windows_close_before_the_first_batch_that_is_not_committed(checkpoints: PartitionCheckpoints) -> None:
    log, now = Log(committed=0), itertools.count(100)
    broker = counter(checkpoints, lambda: next(now))
    load(broker, log)
    before = next(now)
    tell(broker, CLICKS, log.append((3, 10, 7)))
    for _ in range(3):
        life = broker.take_reports()[-1].life
        assert life is not None
        assert life.closed_ms == before + 1
    later = next(now)
    tell(broker, CLICKS, log.append((1, 10, 7)))
    log.committed = 3
    life = broker.take_reports()[-1].life
    assert life is not None
    assert life.closed_ms == later + 1
    log.committed = 4
    *_, report = broker.take_reports()
    assert report.life is not None
    assert report.life.closed_ms == report.created_ms


def test_latencies_are_those_of_leaders(checkpoints: PartitionCheckpoints) -> None:
    log, now = Log(), itertools.repeat(WINDOW_MS + 500)
    broker = counter(checkpoints, lambda: next(now))
    load(broker, log)
    tell(broker, CLICKS, log.append((3, WINDOW_MS + 400, 7), (2, -1, 8), (1, WINDOW_MS + 900, 8)))
    reports = broker.take_reports()
    (latency,) = [latency for report in reports for latency in report.latencies]
    assert (latency.start_ms, latency.process) == (WINDOW_MS, "7/3")
    assert [records for _, records in latency.buckets] == [1, 3]
    broker.put_back(reports)
    assert [report.latencies for report in broker.take_reports() if report.latencies] == [(latency,)]
    log.is_leader = False
    tell(broker, CLICKS, log.append((3, WINDOW_MS + 400, 7)))
    assert not any(report.latencies for report in broker.take_reports())


def test_internal_topics_are_not_counted(checkpoints: PartitionCheckpoints) -> None:
    broker = counter(checkpoints)
    log = Log(batches=[header(0)])
    log.topic_partition = INTERNAL
    load(broker, log)
    tell(broker, INTERNAL, [header(1)])
    broker.truncated(INTERNAL)
    broker.removed(INTERNAL)
    assert with_rows(broker.take_reports()) == []


def test_counts_that_could_not_be_published_are_reported_again(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 10, 7)))
    reports = broker.take_reports()
    assert with_rows(broker.take_reports()) == []
    broker.put_back(reports)
    again = only(broker.take_reports())
    assert rows_of(again.rows) == rows_of(only(reports).rows)
    assert (again.claims, again.positions.tolist()) == (only(reports).claims, only(reports).positions.tolist())


def test_a_report_that_was_overtaken_is_not_lost_from_the_checkpoint(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 10, 7)))
    broker.published(broker.take_reports())
    tell(broker, CLICKS, log.append((3, WINDOW_MS, 7)))
    first = broker.take_reports()
    tell(broker, CLICKS, log.append((3, 2 * WINDOW_MS, 7)))
    second = broker.take_reports()
    broker.published(first)
    assert stored(checkpoints).up_to == 3
    broker.published(second)
    assert (stored(checkpoints).up_to, rows_of(stored(checkpoints).rows)) == (9, log.expected())


def test_a_log_that_lost_its_end_is_counted_anew(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 0, 7), (2, 0, 8)))
    first = broker.take_reports()
    broker.published(first)
    log.batches.pop()
    log.lead(1)
    restarted = counter(checkpoints)
    load(restarted, log)
    report = only(restarted.take_reports())
    assert rows_of(report.rows) == log.expected()
    assert told(*first, report) == log.expected()


def test_a_log_that_lost_all_voids_what_was_told_of_it(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 0, 7)))
    first = broker.take_reports()
    broker.published(first)
    log.batches.clear()
    log.lead(1)
    restarted = counter(checkpoints)
    load(restarted, log)
    untold = restarted.take_reports()
    restarted.put_back(untold)
    assert told(*first, *restarted.take_reports(), *first) == {}


def test_a_log_that_lost_its_end_and_grew_again_is_not_taken_for_the_old_one(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((1, 0, 7)))
    first = broker.take_reports()
    broker.published(first)
    log.batches.clear()
    log.lead(1)
    restarted = counter(checkpoints)
    load(restarted, log)
    tell(restarted, CLICKS, log.append((1, 0, 8)))
    again = counter(checkpoints)
    load(again, log)
    assert told(*first, *again.take_reports()) == log.expected()


def test_a_topic_created_again_is_counted_by_itself(checkpoints: PartitionCheckpoints) -> None:
    broker = counter(checkpoints, itertools.count().__next__)
    former, log = Log(), Log(uuid.UUID(int=2))
    load(broker, former)
    tell(broker, CLICKS, former.append((3, 0, 7), (3, 0, 8), (1, WINDOW_MS, 9)))
    late = broker.take_reports()
    broker.removed(CLICKS)
    load(broker, log)
    tell(broker, CLICKS, log.append((2, 0, 5)))
    broker.published(late)
    assert checkpoints.read(CLICKS) is None
    broker.put_back(late)
    report = only(broker.take_reports())
    assert rows_of(report.rows) == log.expected()
    assert told(report, *late) == log.expected()


def test_a_counter_that_began_in_the_middle_says_so(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(log_start_offset=5), counter(checkpoints)
    log.append((3, 0, 7))
    load(broker, log)
    first = broker.take_reports()
    assert only(first).positions[["start_offset", "counted_from", "end_offset"]].tolist() == [(5, 5, 8)]
    broker.published(first)
    log.log_start_offset = 8
    again = counter(checkpoints)
    load(again, log)
    assert only(again.take_reports()).positions["counted_from"].tolist() == [5]


def test_a_checkpoint_from_before_the_beginning_of_the_log_has_a_gap(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 0, 7)))
    broker.published(broker.take_reports())
    log.append((2, 0, 7), (2, 0, 7))
    del log.batches[:2]
    log.log_start_offset = 5
    again = counter(checkpoints)
    load(again, log)
    report = only(again.take_reports())
    assert report.positions[["start_offset", "counted_from", "end_offset"]].tolist() == [(5, 5, 7)]


def test_a_damaged_checkpoint_only_costs_time(checkpoints: PartitionCheckpoints, tmp_path: Path) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 0, 7)))
    broker.published(broker.take_reports())
    (tmp_path / str(CLICKS) / "audit-checkpoint").write_bytes(b"\x00" * 40)
    restarted = counter(checkpoints)
    load(restarted, log)
    assert rows_of(only(restarted.take_reports()).rows) == log.expected()


def stored(checkpoints: PartitionCheckpoints) -> SavedCounts:
    found = checkpoints.read(CLICKS)
    assert found is not None
    return found


@pytest.fixture
def appending(checkpoints: PartitionCheckpoints, tmp_path: Path) -> Any:
    """A broker that told of two batches: the second is appended to the checkpoint."""
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    for shape in [(3, 0, 7), (2, WINDOW_MS, 8)]:
        tell(broker, CLICKS, log.append(shape))
        broker.published(broker.take_reports())
    assert (tmp_path / str(CLICKS) / "audit-checkpoint").read_bytes().count(b"\n") == 2
    return log, broker


def test_a_counter_appends_changed_rows_and_resumes_from_its_checkpoint(
    appending: Any, checkpoints: PartitionCheckpoints
) -> None:
    log, _ = appending
    found = stored(checkpoints)
    assert (found.up_to, rows_of(found.rows)) == (log.log_end_offset, log.expected())
    restarted = counter(checkpoints)
    log.headers = lambda _offset: pytest.fail("was read")
    load(restarted, log)
    report = only(restarted.take_reports())
    assert (report.claims, rows_of(report.rows)) == ((RowClaim(0, 0, 0, 0),), log.expected())
    assert with_rows(restarted.take_reports()) == []


def test_a_line_that_was_not_appended_to_its_end_is_not_there(
    appending: Any, checkpoints: PartitionCheckpoints, tmp_path: Path
) -> None:
    log, _ = appending
    path = tmp_path / str(CLICKS) / "audit-checkpoint"
    path.write_bytes(path.read_bytes()[:-1])
    assert stored(checkpoints).up_to == 3
    restarted = counter(checkpoints)
    load(restarted, log)
    restarted.published(restarted.take_reports())
    assert rows_of(stored(checkpoints).rows) == log.expected()


@pytest.mark.long
def test_a_checkpoint_is_written_whole_again_before_it_grows_long(
    appending: Any, checkpoints: PartitionCheckpoints, tmp_path: Path
) -> None:
    log, broker = appending
    path = tmp_path / str(CLICKS) / "audit-checkpoint"
    lines = []
    for number in range(2 * MAX_APPENDED):
        tell(broker, CLICKS, log.append((1, number % 3 * WINDOW_MS, number)))
        broker.published(broker.take_reports())
        lines.append(path.read_bytes().count(b"\n"))
        assert rows_of(stored(checkpoints).rows) == log.expected()
    assert (min(lines), max(lines)) == (1, MAX_APPENDED // 2 + 1)


def test_few_checkpoints_are_replaced_in_one_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_counter, "MAX_REPLACED", 2)
    checkpoints = PartitionCheckpoints([tmp_path], DiskFiles())
    broker = counter(checkpoints)
    logs = [Log(topic_partition=CLICKS._replace(partition=number)) for number in range(5)]
    for log in logs:
        (tmp_path / str(log.topic_partition)).mkdir()
        load(broker, log)
    written = []
    for number in range(4):
        for log in logs:
            tell(broker, log.topic_partition, log.append((1, number * WINDOW_MS, 7)))
        broker.published(broker.take_reports())
        found = [checkpoints.read(log.topic_partition) for log in logs]
        written.append(sum(saved is not None for saved in found))
        assert all(rows_of(saved.rows) == log.expected() for saved, log in zip(found, logs, strict=True) if saved)
    assert written == [2, 4, 5, 5]


def test_the_whole_checkpoint_is_written_after_a_failure(
    appending: Any, checkpoints: PartitionCheckpoints, tmp_path: Path
) -> None:
    log, broker = appending
    path = tmp_path / str(CLICKS) / "audit-checkpoint"
    path.unlink()
    for shape in [(1, 0, 9), (1, 0, 10)]:
        tell(broker, CLICKS, log.append(shape))
        broker.published(broker.take_reports())
    assert rows_of(stored(checkpoints).rows) == log.expected()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 3 * WINDOW_MS), st.integers(0, 2**32 - 1)),
        st.tuples(st.sampled_from(["publish", "lose", "kill after sending", "kill", "power failure"])),
    ),
    max_size=20,
)


@given(steps, st.integers(1, 9))
def test_whatever_happens_the_reports_end_exact(
    tmp_path_factory: pytest.TempPathFactory, history: Any, max_fresh: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    (directory / str(CLICKS)).mkdir()
    checkpoints = PartitionCheckpoints([directory], DiskFiles())
    now_ms = itertools.count().__next__
    log, sent, broker = Log(), [], counter(checkpoints, now_ms)
    load(broker, log)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(broker_counter, "MAX_FRESH", max_fresh)
        for kind, *shape in history:
            if kind == "append":
                tell(broker, CLICKS, log.append(tuple(shape)))
                continue
            reports = broker.take_reports() if kind != "kill" else []
            if kind in {"publish", "kill after sending", "power failure"}:
                sent += reports
            if kind in {"publish", "power failure"}:
                broker.published(reports)
            if kind == "lose":
                broker.put_back(reports)
            if kind == "power failure":
                del log.batches[len(log.batches) // 2 :]
            if kind in {"kill", "kill after sending", "power failure"}:
                log.lead(log.leader_epoch + 1)
                broker = counter(checkpoints, now_ms)
                load(broker, log)
        sent += broker.take_reports()
    assert told(*sent) == log.expected()


def test_many_rows_are_reported_bit_by_bit_and_windows_close_with_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_counter, "MAX_TAKEN", 10)
    now_ms = itertools.count(100).__next__
    broker = counter(PartitionCheckpoints([tmp_path], DiskFiles()), now_ms)
    logs = [Log(topic_partition=CLICKS._replace(partition=number)) for number in range(7)]
    for log in logs:
        load(broker, log)
        tell(broker, log.topic_partition, log.append((1, 0, 7), (1, WINDOW_MS, 7)))
    seen, closed = [], []
    for _ in range(4):
        reports = broker.take_reports()
        seen.append(sorted(number for report in reports for number in report.positions["partition"].tolist()))
        life = reports[-1].life
        assert life is not None
        closed.append(life.closed_ms == reports[-1].created_ms)
    assert [len(partitions) for partitions in seen] == [3, 3, 1, 0]
    assert sorted(itertools.chain(*seen)) == list(range(7))
    assert closed == [False, False, True, True]


def test_all_is_reported_again_if_the_audit_topic_lost_it(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 10, 7), (2, HOUR_MS, 8)))
    broker.published(broker.take_reports())
    broker.report_again()
    report = only(broker.take_reports())
    assert (rows_of(report.rows), report.claims) == (log.expected(), (RowClaim(0, 0, 0, 0),))


def test_a_report_says_up_to_where_the_log_may_have_been_compacted(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 0, 7)))
    assert only(broker.take_reports()).positions["cleaned_to"].tolist() == [1]
    log.compacted_to = 2
    assert only(broker.take_reports()).positions["cleaned_to"].tolist() == [3]
