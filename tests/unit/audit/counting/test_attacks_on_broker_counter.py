"""Attacks on the counter of a broker: kills at any statement, old checkpoints, hostile times, many partitions."""

import itertools
import shutil
import sys
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audit.counting import broker_counter
from pipeline.audit.counting.broker_counter import MAX_FRESH, BrokerCounter
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.producer_counter import LifeClock
from pipeline.audit.counting.windows import HOURS_KEPT, WINDOWS_KEPT, WindowSums
from pipeline.audit.events.encoding import decode_count_report, encode_count_report, portions
from pipeline.audit.events.report import OLDER, CountReport
from pipeline.log.files import DiskFiles
from pipeline.records.batch import HEADER_SIZE
from pipeline.records.batch_hashes import header_table
from pipeline.records.tally import HOUR_MS, MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from tests.support.counted_replicas import (
    CLICKS,
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
)

COUNTING = str(Path(broker_counter.__file__).parent)
OFTEN = 23
"""A kill at each so many-th statement; each kill is a scenario of its own."""


class Kill(BaseException):
    """The process ends here."""


class KillAtStatement:
    """A trace function that ends the process at the n-th statement of the counter."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self.of_line if frame.f_code.co_filename.startswith(COUNTING) else None

    def of_line(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise Kill
        return self.of_line


def publish(broker: BrokerCounter, sent: list[CountReport]) -> None:
    reports = broker.take_reports()
    sent += reports
    broker.published(reports)


def live(log: Log, checkpoints: PartitionCheckpoints, sent: list[CountReport]) -> None:
    """A life of a broker: it starts, appends, reports, fails to report, is truncated, and reports again."""
    broker = counter(checkpoints)
    load(broker, log)
    for number, shape in enumerate([(3, 0, 7), (2, WINDOW_MS, 8), (2, 0, 9), (1, HOUR_MS, 4)]):
        log.committed = log.log_end_offset
        tell(broker, CLICKS, log.append(shape))
        if number % 2:
            broker.put_back(broker.take_reports())
        publish(broker, sent)
    del log.batches[-1:]
    broker.truncated(CLICKS)
    tell(broker, CLICKS, log.append((5, 0, 5)))
    log.committed = log.log_end_offset
    publish(broker, sent)


@pytest.mark.long
def test_a_kill_at_any_statement_changes_no_sum(tmp_path: Path) -> None:
    def lives(number: int) -> bool:
        """Kill one life at this statement, and go on with another; False if it ended before."""
        directory = tmp_path / str(number)
        (directory / str(CLICKS)).mkdir(parents=True)
        checkpoints = PartitionCheckpoints([directory], DiskFiles())
        log = Log()
        sent: list[CountReport] = []
        before = sys.gettrace()
        kill = KillAtStatement(number)
        sys.settrace(kill)
        try:
            live(log, checkpoints, sent)
        except Kill:
            pass
        finally:
            sys.settrace(before)
        log.lead(1)
        log.committed = log.log_end_offset
        restarted = counter(checkpoints)
        load(restarted, log)
        publish(restarted, sent)
        assert told(*sent) == log.expected(), number
        found = checkpoints.read(CLICKS)
        assert found is not None
        assert (found.up_to, rows_of(found.rows)) == (log.log_end_offset, log.expected())
        shutil.rmtree(directory)
        return kill.left <= 0

    killed = sum(1 for _ in itertools.takewhile(lives, itertools.count(1, OFTEN)))
    assert killed > 50


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append", "publish", "kill", "old", "empty"]),
            st.integers(1, 5),
            st.integers(0, 3 * WINDOW_MS),
        ),
        max_size=25,
    ),
    st.integers(0, 10),
)
def test_a_checkpoint_that_comes_back_older_or_empty_only_costs_time(
    tmp_path_factory: pytest.TempPathFactory, history: Any, which: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    (directory / str(CLICKS)).mkdir()
    path = directory / str(CLICKS) / "audit-checkpoint"
    checkpoints = PartitionCheckpoints([directory], DiskFiles())
    log, broker, kept = Log(), counter(checkpoints), [b""]
    sent: list[CountReport] = []
    load(broker, log)
    for kind, records, timestamp in history:
        if kind == "append":
            tell(broker, CLICKS, log.append((records, timestamp, records)))
        elif kind == "publish":
            publish(broker, sent)
            kept += [path.read_bytes()] if path.exists() else []
        else:
            if kind != "kill":
                path.write_bytes(b"" if kind == "empty" else kept[which % len(kept)])
            log.lead(log.leader_epoch + 1)
            broker = counter(checkpoints)
            load(broker, log)
    publish(broker, sent)
    assert told(*sent) == log.expected()


HOSTILE_TIMES = [
    -62_135_596_800_000,  # year 1
    253_402_300_799_999,  # the end of year 9999
    -1,
    0,
    -(2**63),
    2**63 - 1,
    MIN_TIMESTAMP_MS,
    MAX_TIMESTAMP_MS,
]


def test_hostile_times_survive_reports_and_checkpoints(tmp_path: Path) -> None:
    (tmp_path / str(CLICKS)).mkdir()
    checkpoints = PartitionCheckpoints([tmp_path], DiskFiles())
    log, broker = Log(), counter(checkpoints)
    sent: list[CountReport] = []
    load(broker, log)
    tell(broker, CLICKS, log.append(*((1, time, 7) for time in HOSTILE_TIMES)))
    publish(broker, sent)
    assert told(*sent) == log.expected()
    found = checkpoints.read(CLICKS)
    assert found is not None
    assert rows_of(found.rows) == log.expected()
    again = counter(checkpoints)
    load(again, log)
    assert rows_of(only(again.take_reports()).rows) == log.expected()


@pytest.mark.long
def test_200_000_batches_with_distinct_hours_are_bounded_and_a_restart_knows_them(tmp_path: Path) -> None:
    (tmp_path / str(CLICKS)).mkdir()
    checkpoints = PartitionCheckpoints([tmp_path], DiskFiles())
    log, broker = Log(), counter(checkpoints)
    sent: list[CountReport] = []
    load(broker, log)
    number = 0
    for _ in range(20):
        shapes = [(1, (number + at) * HOUR_MS, 7) for at in range(10_000)]
        number += len(shapes)
        tell(broker, CLICKS, log.append(*shapes))
        publish(broker, sent)
    rows = rows_of(broker._sums.rows.rows())
    assert len(rows) == HOURS_KEPT + WINDOWS_KEPT + 1
    assert rows[OLDER, HOUR_MS].batches == number - HOURS_KEPT
    assert all(len(encode_count_report(part)) < 1_000_000 for report in sent for part in portions(report))
    assert (tmp_path / str(CLICKS) / "audit-checkpoint").stat().st_size < 1_000_000
    again = counter(checkpoints)
    log.batches.clear()
    log.log_start_offset = number
    load(again, log)
    assert rows_of(again._sums.rows.rows()) == rows


def test_partitions_with_all_their_rows_take_bounded_memory() -> None:
    """2,000 of them, as many as a broker has, take 160 MB."""
    partitions, hours = 100, HOURS_KEPT + 10
    table = header_table([header(hour, timestamp=hour * HOUR_MS) for hour in range(hours)] * partitions)
    numbers = np.repeat(np.arange(partitions), hours)
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        sums = WindowSums(WINDOW_MS)
        sums.add(table, numbers)
        sums.take_changed()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(sums.rows()) == partitions * (HOURS_KEPT + WINDOWS_KEPT + 1)
    assert kept_bytes - before_bytes < partitions * 100_000


def test_reports_are_what_their_encoding_says(tmp_path: Path) -> None:
    checkpoints = PartitionCheckpoints([tmp_path], DiskFiles())
    broker = counter(checkpoints)
    logs = [Log(topic_partition=CLICKS._replace(partition=number)) for number in range(700)]
    for log in logs:
        load(broker, log)
        tell(broker, log.topic_partition, log.append((1, 0, 7), (2, HOUR_MS, 8)))
    reports = broker.take_reports()
    parts = [part for report in reports for part in portions(report)]
    assert all(len(encode_count_report(part)) < 700_000 for part in parts)
    found = [decode_count_report(encode_count_report(part)) for part in parts]
    assert sum(len(part.rows) for part in found) == 4 * len(logs)
    assert sorted(number for part in found for number in part.positions["partition"].tolist()) == list(range(700))
    assert sum(len(part.claims) for part in found) == len(logs)
    records = sum(int(part.rows["records"][part.rows["span_ms"] == HOUR_MS].sum()) for part in found)
    assert records == 3 * len(logs)
    assert [part.life is not None for part in found] == [False] * (len(found) - 1) + [True]


def test_a_clock_that_jumps_by_a_day_closes_no_hour_to_come(tmp_path: Path) -> None:
    (tmp_path / str(CLICKS)).mkdir()
    wall_ms, steady_s = 1_000 * HOUR_MS, 0.0
    times = LifeClock(lambda: wall_ms, lambda: steady_s)
    checkpoints = PartitionCheckpoints([tmp_path], DiskFiles())
    broker = BrokerCounter("east", WINDOW_MS, checkpoints, lambda: wall_ms, LIFE, times=times)
    load(broker, Log())
    created, started_ms = [], wall_ms
    for jump_ms in (0, 24 * HOUR_MS, 0, -48 * HOUR_MS, 0, 24 * HOUR_MS):
        wall_ms += jump_ms + 10_000
        steady_s += 10
        *_, report = broker.take_reports()
        assert report.life is not None
        assert report.life.closed_ms <= report.created_ms
        assert report.life.closed_ms <= wall_ms
        created.append(report.created_ms - started_ms)
    assert created == sorted(created)
    assert created[-1] <= 2 * 60_000


def test_noted_headers_are_bounded_and_a_killed_broker_counts_them_again(tmp_path: Path) -> None:
    """Whatever was noted, summed or reported at the kill: the log has it, and the next life counts it."""
    checkpoints = PartitionCheckpoints([tmp_path], DiskFiles())
    logs = [Log(topic_partition=CLICKS._replace(partition=number)) for number in range(3)]
    for log in logs:
        (tmp_path / str(log.topic_partition)).mkdir()
    killed_after = [MAX_FRESH - 5, MAX_FRESH, 2 * MAX_FRESH + 7]
    most = 0
    for life, headers in enumerate(killed_after):
        broker = counter(checkpoints)
        for log in logs:
            log.lead(life)
            load(broker, log)
        if life:
            broker.published(broker.take_reports())
        for number in range(headers):
            log = logs[number % (life + 1)]
            tell(broker, log.topic_partition, log.append((1, number % 3 * WINDOW_MS, number)))
            noted = sum(sum(replica.fresh_sizes) for replica in broker._replicas.values())
            assert noted == broker._fresh < MAX_FRESH
            assert sum(len(replica.fresh) for replica in broker._replicas.values()) == noted * HEADER_SIZE
            most = max(most, noted)
    assert most == MAX_FRESH - 1
    for log in logs:
        broker = counter(checkpoints)
        load(broker, log)
        assert told(*broker.take_reports()) == log.expected()
