"""Transactions in copied logs: where the log is stable, what was aborted, and that both survive."""

import random
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from pipeline.log.config import LogConfig
from pipeline.log.directories.shutdown import close_log
from pipeline.log.expiry import delete_segments, take_expired
from pipeline.log.files import DiskFiles
from pipeline.log.producer_state import ProducerStates
from pipeline.log.transactions import is_abort
from pipeline.model import Offset
from pipeline.records.batch import read_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.support.bombs import bomb
from tests.unit.log.conftest import Batches, Opener

TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT, COMMIT = 0, 1


def flagged(batch: bytearray, flags: int) -> bytearray:
    struct.pack_into(">h", batch, 21, struct.unpack_from(">h", batch, 21)[0] | flags)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch


def data(
    batches: Batches, offset: int, producer_id: int, sequence: int = 0, count: int = 2, epoch: int = 0
) -> bytearray:
    made = batches.make(count, producer_id=producer_id, epoch=epoch, sequence=sequence, base_offset=offset)
    return flagged(made, TRANSACTIONAL)


def marker(offset: int, producer_id: int, kind: int, now_ms: int, epoch: int = 0) -> bytearray:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    assert builder.append(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), (), now_ms)
    batch = builder.build(producer_id, epoch, -1)
    struct.pack_into(">q", batch, 0, offset)
    return flagged(batch, TRANSACTIONAL | CONTROL)


def history(batches: Batches) -> tuple[Sequence[tuple[Any, ...]], ...]:
    """Batches of a copied log; the last stable offset after each; transactions that were aborted."""
    steps = [
        (data(batches, 0, 1), 0),
        (batches.make(1, base_offset=2), 0),
        (data(batches, 3, 2), 0),
        (marker(5, 1, ABORT, batches.now_ms), 3),
        (data(batches, 6, 1, sequence=2), 3),
        (marker(8, 2, COMMIT, batches.now_ms), 6),
        (data(batches, 9, 3, epoch=4), 6),
        (marker(11, 1, ABORT, batches.now_ms), 9),
        (marker(12, 3, ABORT, batches.now_ms, epoch=5), 13),
        (data(batches, 13, 2, sequence=2), 13),
        (data(batches, 15, 2, sequence=4), 13),
    ]
    aborted = [(1, 0, 5, 3), (1, 6, 11, 9), (3, 9, 12, 13)]
    return steps, aborted


CONFIGS = [LogConfig(), LogConfig(segment_bytes=300)]


@pytest.mark.parametrize("config", CONFIGS)
def test_stable_offsets_and_aborted_transactions_follow_from_the_markers(
    open_log: Opener, batches: Batches, config: LogConfig, tmp_path: Path
) -> None:
    log = open_log(config)
    steps, aborted = history(batches)
    for batch, stable in steps:
        batches.append_keeping(log, batch)
        assert log.last_stable_offset == stable
    for clean in (True, False, False):
        for start in range(18):
            for end in range(start, 18):
                expected = [found for found in aborted if found[2] >= start and found[1] < end]
                assert log.aborted_transactions(Offset(start), Offset(end)) == expected
        assert log.last_stable_offset == 13
        if clean:
            close_log(log)
        else:
            for path in (tmp_path / "events-0").glob("*.snapshot"):
                path.unlink()
        log = open_log(config, clean=clean)
    batches.append_keeping(log, marker(17, 2, COMMIT, batches.now_ms))
    assert log.last_stable_offset == 18


def test_the_index_is_kafkas_and_goes_with_its_segment(open_log: Opener, batches: Batches, tmp_path: Path) -> None:
    log = open_log(LogConfig(retention_ms=0))
    for batch, _ in history(batches)[0][:4]:
        batches.append_keeping(log, batch)
    path = tmp_path / "events-0" / "00000000000000000000.txnindex"
    expired = take_expired(log, log.log_end_offset, batches.now_ms + 10**6)
    assert path.read_bytes() == struct.pack(">hqqqq", 0, 1, 0, 5, 3)
    assert path.with_name(path.name + ".deleted") in delete_segments(log, expired)
    assert log.aborted_transactions(Offset(0), Offset(9)) == []


def test_producers_with_an_open_transaction_are_kept_and_snapshots_tell_of_it(batches: Batches) -> None:
    states = ProducerStates(expiration_ms=10)
    states.update(read_header(data(batches, 7, 1)), 0)
    for producer_id in range(2, 6):
        states.update(read_header(batches.make(1, producer_id=producer_id, epoch=0, sequence=0)), 1000)
    assert states.first_unstable_offset == 7
    assert len(states) == 5
    restored = ProducerStates(expiration_ms=10)
    restored.restore(states.snapshot())
    assert restored.first_unstable_offset == 7
    assert sorted(producer.transaction_start for producer in restored.active()) == [-1, -1, -1, -1, 7]
    ended = restored.end_transaction(read_header(marker(9, 1, COMMIT, 0)))
    assert ended == (1, 7, 9)
    assert restored.first_unstable_offset is None
    assert restored.end_transaction(read_header(marker(10, 1, COMMIT, 0))) is None


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_every_step_leaves_what_the_batches_tell(
    tmp_path: Path, open_log: Opener, batches: Batches, seed: int
) -> None:
    change, finished = 1, False
    while not finished:
        files = FaultyFiles(DiskFiles(), random.Random(f"{seed} {change}"))
        for path in (tmp_path / "events-0").glob("*"):
            path.unlink()
        steps, aborted = history(batches)
        log = open_log(CONFIGS[1], files=files)
        recovery_point = 0
        files.crash_in = change
        try:
            for number, (batch, _) in enumerate(steps):
                batches.append_keeping(log, batch)
                if number % 4 == 3:
                    log.flush()
                    recovery_point = log.recovery_point
            finished = True
        except Crash:
            pass
        files.lose_power()
        log = open_log(CONFIGS[1], recovery_point=recovery_point)
        end = log.log_end_offset
        assert end >= recovery_point
        stable = [stable for batch, stable in steps if read_header(batch).next_offset <= end]
        assert log.last_stable_offset == (stable[-1] if stable else 0)
        assert log.aborted_transactions(Offset(0), end) == [found for found in aborted if found[2] < end]
        change += 1
    assert change > 15


def test_an_abort_whose_marker_a_crash_took_is_forgotten(open_log: Opener, batches: Batches, tmp_path: Path) -> None:
    log = open_log(LogConfig(segment_bytes=1))
    batches.append_keeping(log, data(batches, 0, 1))
    batches.append_keeping(log, marker(2, 1, ABORT, batches.now_ms))
    (tmp_path / "events-0" / f"{2:020d}.log").write_bytes(b"")
    log = open_log()
    assert (log.log_end_offset, log.last_stable_offset) == (2, 0)
    assert log.aborted_transactions(Offset(0), Offset(10)) == []


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
@pytest.mark.parametrize("kind", [ABORT, COMMIT])
@pytest.mark.parametrize(("value_bytes", "is_marker"), [(60_000, True), (70_000, False)])
def test_a_control_batch_is_opened_up_to_64_kib(codec: Codec, kind: int, value_bytes: int, is_marker: bool) -> None:
    builder = BatchBuilder(codec, 1 << 20)
    assert builder.append(struct.pack(">hh", 0, kind), bytes(value_bytes), (), 0)
    batch = flagged(builder.build(1, 0, -1), TRANSACTIONAL | CONTROL)
    assert is_abort(bytes(batch), read_header(batch)) is ((kind == ABORT) if is_marker else None)


def test_a_control_batch_that_is_a_bomb_takes_no_memory() -> None:
    batch = flagged(bomb(Codec.GZIP, 100 << 20, 0), TRANSACTIONAL | CONTROL)
    tracemalloc.start()
    try:
        assert is_abort(bytes(batch), read_header(batch)) is None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 << 20
