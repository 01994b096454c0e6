"""Random histories of copied logs with truncations: what is left equals a log that never had the rest, whenever the
machine stops.
"""

import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from pipeline.log.config import LogConfig
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles
from pipeline.log.loader import load_log
from pipeline.log.truncation import restart_at, truncate_to
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.records.batch import place_batch
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.unit.log.conftest import Batches

NAME = TopicPartition("a", 0)
TRANSACTIONAL, CONTROL = 0x10, 0x20
NOW_MS = 1_700_000_000_000


def flagged(batch: bytearray, flags: int) -> bytearray:
    struct.pack_into(">h", batch, 21, struct.unpack_from(">h", batch, 21)[0] | flags)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch


class Leader:
    """Where the batches come from: a new epoch after each truncation, producers with transactions, gaps."""

    def __init__(self, rng: random.Random, batches: Batches) -> None:
        self.rng = rng
        self.batches = batches
        self.epoch = 0
        self.sequence = 0

    def batch(self, end_offset: int) -> bytes:
        rng = self.rng
        base_offset = end_offset + rng.choice([0] * 8 + [1, 30, 2**31, 2**33])
        producer_id = rng.choice([-1, 1, 2, 3])
        self.sequence += 5
        if producer_id >= 0 and rng.random() < 0.3:
            builder = BatchBuilder(Codec.NONE, 1 << 20)
            kind = struct.pack(">hh", 0, rng.choice([0, 1]))
            assert builder.append(kind, struct.pack(">hi", 0, 0), (), NOW_MS)
            batch = flagged(builder.build(producer_id, 0, -1), TRANSACTIONAL | CONTROL)
        elif producer_id >= 0:
            batch = self.batches.make(
                rng.randint(1, 4), size=rng.choice([5, 80]), producer_id=producer_id, epoch=0, sequence=self.sequence
            )
            batch = flagged(batch, rng.choice([0, TRANSACTIONAL]))
        else:
            batch = self.batches.make(
                rng.randint(1, 4), size=rng.choice([5, 80]), timestamp=NOW_MS + rng.randint(0, 99)
            )
        place_batch(batch, 0, base_offset, self.epoch)
        return bytes(batch)


class Follower:
    """A log with a model of what is in it. After a crash it holds a beginning of one of `possible`."""

    def __init__(self, path: Path, rng: random.Random, batches: Batches) -> None:
        self.path, self.rng, self.batches = path, rng, batches
        self.leader = Leader(rng, batches)
        self.config = LogConfig(
            segment_bytes=rng.choice([1, 400, 1000, 1 << 20]), index_interval_bytes=rng.choice([1, 200])
        )
        self.held: list[Any] = []
        self.possible: list[list[Any]] = [[]]
        self.synced = 0
        self.now_ms = NOW_MS
        self.open()

    def open(self) -> None:
        self.files = FaultyFiles(DiskFiles(), self.rng)
        self.directory = open_log_directory(
            self.path,
            self.files,
            self.config,
            broker_id=BrokerId(1),
            cluster_id="c",
            rng=self.rng,
            now_ms=self.now_ms,
        )
        assert not self.directory.failed
        self.log = self.directory.logs.get(NAME) or self.directory.create(NAME, now_ms=self.now_ms)

    @property
    def headers(self) -> Any:
        return [header for _, header in self.held]

    def append(self) -> None:
        batch = self.leader.batch(self.log.log_end_offset)
        self.possible = [self.held, [*self.held, batch]]
        self.batches.append_copied(self.log, batch, self.now_ms)
        self.held, self.possible = self.possible[1], self.possible[1:]

    def truncate(self) -> None:
        """Anywhere, near the end as a rule."""
        ends = self.ends()
        self.move(self.rng.choice(ends[-4:] if self.rng.random() < 0.8 else ends) + self.rng.randint(-1, 1))

    def ends(self) -> list[int]:
        return [0, *(self.batches.next_offset(batch) for batch in self.held)]

    def move(self, offset: int) -> None:
        offset = max(0, offset)
        left = [batch for batch, end in zip(self.held, self.ends()[1:], strict=True) if end <= offset]
        self.possible = [self.held]
        self.synced = min(self.synced, len(left))
        truncate_to(self.log, Offset(offset))
        assert self.log.log_end_offset == (self.batches.next_offset(left[-1]) if left else 0)
        self.held, self.possible = left, [left]
        self.leader.epoch += 1

    def flush(self) -> None:
        self.log.flush()
        self.synced = len(self.held)

    def time_passes(self) -> None:
        self.now_ms += 60_000
        self.directory.flush_due(self.now_ms)

    def restart_cleanly(self) -> None:
        self.directory.close()
        self.synced = len(self.held)
        self.open()

    def live(self, steps: int) -> None:
        actions = [self.append] * 9 + [self.truncate] * 2 + [self.flush, self.time_passes, self.restart_cleanly]
        for _ in range(steps):
            self.rng.choice(actions)()

    def recover(self) -> None:
        """The power came back."""
        self.files.lose_power()
        self.open()
        found = self.batches.raw(self.log)
        assert any(found == possible[: len(found)] for possible in self.possible)
        assert len(found) >= self.synced
        self.held, self.possible = found, [found]

    def check(self, tmp_path: Path) -> None:
        """Is the log what a log is that never had anything else?"""
        log = self.log
        assert self.batches.raw(log) == self.held
        self.batches.check_indexes(log)
        for earlier, later in pairwise(log.snapshot.segments):
            assert earlier.base_offset < later.base_offset
        path = tmp_path / f"never-{self.rng.getrandbits(64):x}"
        path.mkdir()
        never = load_log(
            DiskFiles(), path, NAME, self.config, recovery_point=Offset(0), clean=False, now_ms=self.now_ms
        )
        for batch in self.held:
            self.batches.append_copied(never, batch, self.now_ms)
        assert facts(log) == facts(never)


def facts(log: UnifiedLog) -> tuple[Any, ...]:
    producers = {
        producer_id: (producer.epoch, producer.transaction_start, list(producer.batches))
        for producer_id, producer in log.producers._producers.items()
    }
    return (
        log.log_end_offset,
        log.last_stable_offset,
        log.snapshot.epochs.entries,
        log.last_epoch,
        producers,
        list(log.aborted_transactions(Offset(0), log.log_end_offset)),
        log.snapshot.max_timestamp,
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_a_truncated_log_is_as_one_that_never_had_the_tail(tmp_path: Path, batches: Batches, seed: int) -> None:
    follower = Follower(tmp_path / "logs", random.Random(seed), batches)
    for _ in range(4):
        follower.live(10)
        follower.truncate()
        follower.check(tmp_path)
    follower.restart_cleanly()
    follower.check(tmp_path)


@pytest.mark.long
def test_whenever_the_machine_stops_the_log_is_a_beginning_of_what_it_was(tmp_path: Path, batches: Batches) -> None:
    stopped = 0
    for seed in range(40):
        rng = random.Random(seed)
        follower = Follower(tmp_path / str(seed), rng, batches)
        for _ in range(3):
            follower.live(rng.randint(0, 15))
            follower.files.crash_in = rng.randint(1, 40)
            try:
                follower.truncate()
                follower.live(6)
            except Crash:
                stopped += 1
            follower.recover()
            follower.check(tmp_path)
    assert stopped > 50


@pytest.mark.long
@pytest.mark.parametrize("flushed", [False, True])
def test_a_stop_at_every_step_of_a_truncation(tmp_path: Path, batches: Batches, flushed: bool) -> None:
    for cut in (1, 4):
        for step in range(1, 100):
            follower = Follower(tmp_path / f"{cut}-{step}", random.Random(f"{cut} {step}"), batches)
            follower.config = follower.log.config = LogConfig(segment_bytes=400, index_interval_bytes=1)
            for _ in range(7):
                follower.append()
            if flushed:
                follower.flush()
                follower.time_passes()
            follower.files.crash_in = step
            try:
                follower.move(follower.ends()[-1 - cut])
            except Crash:
                follower.recover()
                follower.check(tmp_path)
            else:
                follower.files.crash_in = None
                for _ in range(3):
                    follower.append()
                follower.recover()
                follower.check(tmp_path)
                break
        assert step > 5


def test_a_stop_at_every_step_of_a_new_beginning(tmp_path: Path, batches: Batches) -> None:
    for start in (0, 3, 2**40):
        for step in range(1, 100):
            follower = Follower(tmp_path / f"{start}-{step}", random.Random(f"{start} {step}"), batches)
            for _ in range(5):
                follower.append()
            follower.flush()
            follower.time_passes()
            follower.log.delete_records(Offset(4))
            follower.directory.checkpoint_log_start_offsets()
            follower.files.crash_in = step
            try:
                restart_at(follower.log, Offset(start))
            except Crash:
                follower.files.lose_power()
                follower.open()
                found = batches.raw(follower.log)
                assert b"".join(found) in b"".join(follower.held)
            else:
                follower.files.crash_in = None
                batch = batches.copied(2, base_offset=start, epoch=9)
                batches.append_copied(follower.log, batch)
                follower.log.flush()
                follower.files.lose_power()
                follower.open()
                assert batches.raw(follower.log) == [batch]
                assert follower.log.log_start_offset == start
                break
        assert step > 5
