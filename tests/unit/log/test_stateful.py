"""Random histories of a log on a faulty disk, beside a list of batch headers."""

import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pipeline.errors import DiskFullError, OffsetOutOfRangeError, OffsetOverlapError, StorageError
from pipeline.log.config import LogConfig
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles
from pipeline.model import BrokerId, TopicPartition
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.support.steps import to_end
from tests.unit.log.conftest import Batches

NAME = TopicPartition("a", 0)


class LogMachine(RuleBasedStateMachine):
    batches: ClassVar[Batches]

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="log-"))
        self.model: list[Any] = []
        self.kept = 0
        self.sequence = 0
        self.now_ms = self.batches.now_ms

    def teardown(self) -> None:
        self.files.lose_power()
        shutil.rmtree(self.path)

    @initialize(
        seed=st.integers(0, 2**32),
        segment_bytes=st.sampled_from([300, 1000, 5000]),
        interval=st.sampled_from([1, 300]),
    )
    def start(self, seed: int, segment_bytes: int, interval: int) -> None:
        self.rng = random.Random(seed)
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_ms=1000,
            flush_ms=1000,
        )
        self.reopen()

    def reopen(self) -> None:
        self.files = FaultyFiles(DiskFiles(), self.rng)
        self.directory = open_log_directory(
            self.path / "logs",
            self.files,
            self.config,
            broker_id=BrokerId(1),
            cluster_id="c",
            rng=self.rng,
            now_ms=self.now_ms,
        )
        assert not self.directory.failed
        self.log = self.directory.logs.get(NAME) or self.directory.create(NAME, now_ms=self.now_ms)
        found = self.batches.read_all(self.log)
        assert found == self.model[: len(found)]
        assert self.log.log_end_offset >= self.kept
        self.model = found
        mine = [header for header in found if header.producer_id == 1]
        self.sequence = mine[-1].last_sequence + 1 if mine else 0
        self.acknowledge()
        self.batches.check_indexes(self.log)

    @property
    def end(self) -> int:
        return self.model[-1].next_offset if self.model else 0

    def acknowledge(self) -> None:
        self.kept = max(self.kept, self.log.recovery_point)

    @rule(
        count=st.integers(1, 4),
        size=st.sampled_from([1, 40, 400]),
        step_ms=st.integers(-500, 900),
        idempotent=st.booleans(),
        is_flushed=st.booleans(),
    )
    def append(self, count: int, size: int, step_ms: int, idempotent: bool, is_flushed: bool) -> None:
        producer = {"producer_id": 1, "epoch": 0, "sequence": self.sequence} if idempotent else {}
        batch = self.batches.make(count, size=size, timestamp=self.now_ms + step_ms, **producer)
        self.model.append(self.batches.expected(batch, self.end))
        info = self.batches.append(self.log, batch, self.now_ms)
        assert list(info.headers) == self.model[-1:]
        self.sequence += count if idempotent else 0
        if is_flushed:
            self.flush()
        self.acknowledge()

    @rule(gaps=st.lists(st.sampled_from([0, 0, 1, 50, 2**31 - 1, 2**33]), min_size=1, max_size=3))
    def append_keeping_offsets(self, gaps: Sequence[int]) -> None:
        together = bytearray()
        end = self.end
        expected = []
        for gap in gaps:
            batch = self.batches.make(2, base_offset=end + gap, timestamp=self.now_ms)
            expected.append(self.batches.expected(batch, end + gap))
            end += gap + 2
            together += batch
        self.model += expected
        assert list(self.batches.append_keeping(self.log, together, self.now_ms).headers) == expected
        self.acknowledge()

    @precondition(lambda self: self.end > 0)
    @rule(data=st.data())
    def overlap(self, data: Any) -> None:
        base_offset = data.draw(st.integers(0, self.end - 1))
        with pytest.raises(OffsetOverlapError):
            self.batches.append_keeping(self.log, self.batches.make(1, base_offset=base_offset))

    @precondition(lambda self: any(header.producer_id == 1 for header in self.model))
    @rule()
    def append_again(self) -> None:
        last = [header for header in self.model if header.producer_id == 1][-1]
        batch = self.batches.make(last.record_count, producer_id=1, epoch=0, sequence=last.base_sequence)
        info = self.batches.append(self.log, batch, self.now_ms)
        assert info.duplicate
        assert (info.base_offset, info.last_offset) == (last.base_offset, last.last_offset)

    @rule(capacity=st.integers(0, 3000), is_flushed=st.booleans())
    def fill_the_disk(self, capacity: int, is_flushed: bool) -> None:
        self.files.capacity_bytes = self.files.used_bytes + capacity
        try:
            for _ in range(5):
                batch = self.batches.make(1, size=300, timestamp=self.now_ms)
                expected = self.batches.expected(batch, self.end)
                self.batches.append(self.log, batch, self.now_ms)
                self.model.append(expected)
                if is_flushed:
                    self.log.flush()
        except DiskFullError:
            assert self.log.failure is None
        self.files.capacity_bytes = None
        self.acknowledge()

    @rule(milliseconds=st.sampled_from([1, 500, 1000, 60_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.directory.flush_due(self.now_ms)
        self.acknowledge()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.end
        self.acknowledge()

    @rule(data=st.data(), max_bytes=st.sampled_from([1, 200, 10_000]))
    def read(self, data: Any, max_bytes: int) -> None:
        interesting = [header.base_offset + delta for header in self.model for delta in (-1, 0, 1)] or [0]
        offset = data.draw(st.sampled_from(interesting) | st.integers(-1, self.end + 1))
        up_to = data.draw(st.sampled_from([self.end, *[header.base_offset for header in self.model]]))
        if not 0 <= offset <= self.end:
            with pytest.raises(OffsetOutOfRangeError):
                self.batches.read(self.log, offset, max_bytes, up_to)
            return
        expected = [h for h in self.model if h.last_offset >= offset and h.next_offset <= up_to and offset < up_to]
        found = self.batches.read(self.log, offset, max_bytes, up_to)
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        assert list(self.log.headers(max(0, offset))) == [h for h in self.model if h.last_offset >= offset]

    @rule(data=st.data())
    def look_up_a_time(self, data: Any) -> None:
        times = [header.max_timestamp for header in self.model] or [0]
        timestamp = data.draw(st.sampled_from(times)) + data.draw(st.integers(-2, 2))
        batch = next((header for header in self.model if header.max_timestamp >= timestamp), None)
        found = to_end(self.log.offset_for_timestamp(timestamp))
        if batch is None:
            assert found is None
        else:
            delta = max(0, timestamp - batch.base_timestamp)
            assert found == (batch.base_timestamp + delta, batch.base_offset + delta)

    @rule()
    def restart(self) -> None:
        self.directory.close()
        self.kept = self.end
        self.reopen()

    @rule()
    def lose_power(self) -> None:
        self.files.lose_power()
        self.reopen()

    @rule(changes=st.integers(1, 8), more=st.booleans())
    def lose_power_at_a_change(self, changes: int, more: bool) -> None:
        self.files.crash_in = changes
        try:
            for _ in range(4):
                self.append(2, 200, 0, more, is_flushed=not more)
            self.flush()
            self.directory.close()
        except Crash:
            pass
        self.files.lose_power()
        self.reopen()

    @rule(number=st.integers(1, 4))
    def a_sync_fails(self, number: int) -> None:
        self.append(1, 1, 0, False, is_flushed=False)
        self.files.fail_sync_in = number
        try:
            self.log.flush()
        except StorageError:
            assert self.log.failure is not None
            with pytest.raises(StorageError):
                self.log.flush()
        else:
            self.acknowledge()
            with pytest.raises(StorageError):
                self.directory.close()
        self.files.lose_power()
        self.reopen()

    @invariant()
    def the_end_is_known(self) -> None:
        assert self.log.log_end_offset == self.end
        assert self.log.recovery_point <= self.end


def test_random_histories(batches: Batches) -> None:
    phases = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking a history takes minutes
    LogMachine.batches = batches
    run_state_machine_as_test(LogMachine, settings=settings(max_examples=50, stateful_step_count=30, phases=phases))
