"""Checkpoints of a broker's counts: whole or none, bounded, and those of version 2 are read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.audit.counting.checkpoints import PartitionCheckpoints, SavedCounts
from pipeline.audit.counting.windows import HOURS_KEPT, WINDOWS_KEPT, WindowSums
from pipeline.audit.events.report import OLDER
from pipeline.log.files import DiskFiles
from pipeline.records.batch_hashes import header_table
from pipeline.records.tally import HOUR_MS, NOTHING, Counts
from tests.support.counted_replicas import (
    CLICKS,
    FIRST_TOPIC_ID,
    WINDOW_MS,
    Log,
    counter,
    header,
    load,
    only,
    rows_of,
    tell,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / str(CLICKS)).mkdir()
    return tmp_path / str(CLICKS) / "audit-checkpoint"


@pytest.fixture
def checkpoints(path: Path) -> PartitionCheckpoints:
    return PartitionCheckpoints([path.parent.parent], DiskFiles())


def saved(rows: Any, up_to: int = 9) -> SavedCounts:
    return SavedCounts(
        topic_partition=CLICKS,
        topic_id=str(FIRST_TOPIC_ID),
        cluster="east",
        window_ms=WINDOW_MS,
        up_to=up_to,
        counted_from=4,
        leader_epoch=2,
        rows=rows,
    )


def assert_equal(found: SavedCounts | None, expected: SavedCounts) -> None:
    assert found is not None
    assert rows_of(found.rows) == rows_of(expected.rows)
    assert [getattr(found, name) for name in SavedCounts.__slots__ if name != "rows"] == [
        getattr(expected, name) for name in SavedCounts.__slots__ if name != "rows"
    ]


def test_what_was_written_and_appended_is_read(checkpoints: PartitionCheckpoints) -> None:
    assert checkpoints.read(CLICKS) is None
    sums = WindowSums(WINDOW_MS)
    sums.add(header_table([header(0, timestamp=5), header(1, timestamp=HOUR_MS)]))
    assert checkpoints.write(saved(sums.take_changed(), 2))
    sums.add(header_table([header(2, timestamp=HOUR_MS)]))
    assert checkpoints.append(saved(sums.take_changed(), 3))
    assert checkpoints.append(saved(sums.take_changed(), 4))
    assert_equal(checkpoints.read(CLICKS), saved(sums.rows(), 4))


def test_an_hour_that_was_folded_later_counts_once(checkpoints: PartitionCheckpoints) -> None:
    sums = WindowSums(WINDOW_MS)
    times = [number * HOUR_MS for number in range(HOURS_KEPT)]
    sums.add(header_table([header(number, timestamp=time) for number, time in enumerate(times)]))
    checkpoints.write(saved(sums.take_changed()))
    for number in range(HOURS_KEPT, HOURS_KEPT + 30):
        sums.add(header_table([header(number, timestamp=number * HOUR_MS)]))
        checkpoints.append(saved(sums.take_changed()))
    assert_equal(checkpoints.read(CLICKS), saved(sums.rows()))
    assert rows_of(sums.rows())[OLDER, HOUR_MS].batches == 30
    assert len(sums.rows()) == HOURS_KEPT + WINDOWS_KEPT + 1


@pytest.fixture
def content(checkpoints: PartitionCheckpoints, path: Path) -> bytes:
    sums = WindowSums(WINDOW_MS)
    for number in range(3):
        sums.add(header_table([header(number)]))
        store = checkpoints.append if number else checkpoints.write
        store(saved(sums.take_changed(), number + 1))
    return path.read_bytes()


def test_any_damage_is_noticed(content: bytes, checkpoints: PartitionCheckpoints, path: Path) -> None:
    lines = content.splitlines(keepends=True)
    assert len(lines) == 3
    ends = np.cumsum([len(line) for line in lines]).tolist()
    for at in range(0, len(content), 31):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        found = checkpoints.read(CLICKS)
        whole = sum(end <= at for end in ends)
        assert (None if found is None else found.up_to) == (whole or None)


def test_a_file_that_was_cut_off_anywhere_is_an_earlier_checkpoint(
    content: bytes, checkpoints: PartitionCheckpoints, path: Path
) -> None:
    ends = np.cumsum([len(line) for line in content.splitlines(keepends=True)]).tolist()
    for size in sorted({*range(0, len(content), 29), *ends, *(end - 1 for end in ends)}):
        path.write_bytes(content[:size])
        found = checkpoints.read(CLICKS)
        whole = sum(end <= size for end in ends)
        if size == ends[0] - 1:  # the first line may lack its line end
            whole = 1
        assert (None if found is None else found.up_to) == (whole or None)


def older(*windows: tuple[int, Counts], revision: int) -> bytes:
    """Return a line as programs of version 2 wrote it."""
    codecs = [
        (start, found.codecs.header_sum, *found.codecs.batches) for start, found in windows if found.codecs is not None
    ]
    document = {
        "version": 2,
        "tier": "broker",
        "cluster": "east",
        "instance": str(FIRST_TOPIC_ID),
        "topic": CLICKS.topic,
        "partition": CLICKS.partition,
        "leader_epoch": 3,
        "claims": [],
        "revision": revision,
        "created_ms": 1,
        "window_ms": WINDOW_MS,
        "windows": [(start, c.records, c.bytes, c.batches, c.crc_sum) for start, c in windows],
        "codecs": codecs,
    }
    return json.dumps(document).encode() + b"\n"


class UnreadableLog(Log):
    def headers(self, offset: int) -> Any:
        pytest.fail("was read")


def counts(log: Log) -> Counts:
    found = NOTHING
    for one in log.batches:
        found = found.with_batch(one)
    return found


def test_a_checkpoint_of_version_2_goes_on(checkpoints: PartitionCheckpoints, path: Path) -> None:
    log = UnreadableLog()
    log.append((3, 0, 7), (2, WINDOW_MS, 8))
    first, second = (NOTHING.with_batch(batch) for batch in log.batches)
    lines = [older((0, first), revision=3), older((WINDOW_MS, second), revision=5)]
    path.write_bytes(b"".join(lines))
    found = checkpoints.read(CLICKS)
    assert found is not None
    assert (found.up_to, found.counted_from, found.leader_epoch) == (5, 0, 3)
    by_start = {(row["start_ms"], row["span_ms"]): row for row in found.rows}
    assert sorted(by_start) == [(0, WINDOW_MS), (0, HOUR_MS), (WINDOW_MS, WINDOW_MS)]
    hour = by_start[0, HOUR_MS]
    assert (hour["records"], hour["batches"], hour["bytes"], hour["crc_sum"]) == (5, 2, 200, 15)
    assert (hour["has_sums"], hour["none"], hour["first_offset"], hour["last_offset"]) == (False, 2, -1, -1)
    broker = counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((4, HOUR_MS, 9)))
    report = only(broker.take_reports())
    has_sums = {(int(row["start_ms"]), int(row["span_ms"])): bool(row["has_sums"]) for row in report.rows}
    assert has_sums == {
        (0, WINDOW_MS): False,
        (WINDOW_MS, WINDOW_MS): False,
        (0, HOUR_MS): False,
        (HOUR_MS, WINDOW_MS): True,
        (HOUR_MS, HOUR_MS): True,
    }
    broker.published([report])
    again = checkpoints.read(CLICKS)
    assert again is not None
    assert (again.up_to, again.counted_from) == (9, 0)


def test_a_checkpoint_of_version_2_that_lacks_records_began_where_the_log_does(
    checkpoints: PartitionCheckpoints, path: Path
) -> None:
    log = Log(log_start_offset=2)
    log.append((3, 0, 7))
    path.write_bytes(older((0, counts(log)), revision=5))
    broker = counter(checkpoints)
    load(broker, log)
    assert only(broker.take_reports()).positions["counted_from"].tolist() == [2]


def test_a_checkpoint_of_version_2_with_20_000_windows_is_bounded(
    checkpoints: PartitionCheckpoints, path: Path
) -> None:
    windows = [(number * HOUR_MS, Counts(1, 100, 1, 5)) for number in range(20_000)]
    path.write_bytes(older(*windows, revision=20_000))
    found = checkpoints.read(CLICKS)
    assert found is not None
    assert len(found.rows) == HOURS_KEPT + WINDOWS_KEPT + 1
    assert rows_of(found.rows)[OLDER, HOUR_MS].records == 20_000 - HOURS_KEPT


@pytest.mark.parametrize("change", [{"window_ms": 60_000}, {"cluster": "west"}, {"topic_id": "other"}, {"up_to": 10}])
def test_a_checkpoint_of_other_counts_is_not_taken_up(checkpoints: PartitionCheckpoints, change: Any) -> None:
    log = Log()
    log.append((3, 0, 7))
    checkpoints.write(replace(saved(WindowSums(WINDOW_MS).rows(), 3), **change))
    broker = counter(checkpoints)
    load(broker, log)
    report = only(broker.take_reports())
    assert (rows_of(report.rows), report.positions["counted_from"].tolist()) == (log.expected(), [0])
