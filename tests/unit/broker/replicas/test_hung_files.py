"""Files of segments and indexes on a disk that hangs: their own partition waits, and the event loop does not."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trio

from pipeline.broker.replication.partition import Partition
from pipeline.broker.requests.context import SEARCHERS
from pipeline.broker.runtime.disk_threads import STALLED_S
from pipeline.errors import RollDueError, StorageError
from pipeline.log.checkpoint import CLEAN_SHUTDOWN
from pipeline.log.files import DiskFiles
from pipeline.log.held_files import release_files
from pipeline.model import Offset
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pipeline.protocol.messages.produce import PartitionProduceResponse
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Start, batch
from tests.support.hung_disks import PARTITIONS, ROLL_S, base_offsets, in_dir, names, opened, until
from tests.support.replicas import assigned
from tests.support.transactions import PRODUCER, TRANSACTIONAL, marker, with_attributes

ENTRIES = 400
"""More batches than the entries of an index that are kept in memory."""
WIDE = 3 * 2**31


@dataclass
class Hung:
    """A broker with partitions in two log dirs, of which the first hangs in calls that open or create a file."""

    broker: Broker
    files: FaultyFiles
    dirs: Sequence[Path]
    hung: int
    well: int

    def hang(self) -> None:
        self.files.hangs_below, self.files.hangs_in = self.dirs[0], {"opening", "creation"}

    @property
    def partition(self) -> Partition:
        return self.broker.handle.replicas.partitions[names([self.hung])[0]]

    async def check_the_other(self, *, keep_offsets: bool = False) -> None:
        """Records go into the partition of the other log dir, and out of it, while the first one hangs."""
        with trio.fail_after(ROLL_S):
            await until(lambda: self.files.hanging > 0)
            end = self.broker.handle.replicas.partitions[names([self.well])[0]].log.log_end_offset
            made = batch(b"x", base_offset=end if keep_offsets else 0)
            found = await self.broker.produce("t", made, partition=self.well, keep_offsets=keep_offsets)
            assert (found.error_code, found.base_offset) == (ErrorCode.NONE, end)
            assert (await self.broker.fetch("t", end, partition=self.well)).error_code == ErrorCode.NONE
        assert self.files.hanging > 0


@asynccontextmanager
async def hung(start: Start, tmp_path: Path, **settings: str) -> AsyncIterator[Hung]:
    files, dirs = FaultyFiles(DiskFiles(), random.Random(1)), [tmp_path / "a", tmp_path / "b"]
    async with start(files=files, log_dirs=",".join(map(str, dirs))) as broker:
        try:
            await broker.create("t", PARTITIONS, **settings)
            found = Hung(broker, files, dirs, in_dir(dirs[0])[0], in_dir(dirs[1])[0])
            keeps = "mirror_source" in settings
            for index in (found.hung, found.well):
                made = await broker.produce("t", batch(b"x"), partition=index, keep_offsets=keeps)
                assert made.error_code == ErrorCode.NONE
            yield found
        finally:
            files.released.set()


async def _produce_while_hung(found: Hung, records: bytearray, *, keep_offsets: bool = False) -> int:
    answers: list[PartitionProduceResponse] = []

    async def produce() -> None:
        made = await found.broker.produce("t", records, partition=found.hung, lane="hung", keep_offsets=keep_offsets)
        answers.append(made)

    async with trio.open_nursery() as nursery:
        found.hang()
        nursery.start_soon(produce)
        await found.check_the_other(keep_offsets=keep_offsets)
        assert answers == []
        found.files.released.set()
    (answer,) = answers
    assert answer.error_code == ErrorCode.NONE
    return answer.base_offset


async def test_an_index_that_is_not_written_holds_up_its_own_partition(start: Start, tmp_path: Path) -> None:
    async with hung(start, tmp_path, index_interval_bytes="0") as found:
        many = b"".join(batch(b"x", timestamp_ms=NOW_MS + number) for number in range(ENTRIES))
        made = await found.broker.produce("t", many, partition=found.hung)
        assert made.error_code == ErrorCode.NONE
        assert await _produce_while_hung(found, batch(b"y")) == ENTRIES + 1
        assert base_offsets(found.broker, found.hung) == list(range(ENTRIES + 2))
        for offset in (0, 7, ENTRIES + 1):
            data = await found.broker.fetch("t", offset, partition=found.hung, partition_max_bytes=1)
            assert isinstance(data.records, memoryview)
            assert int.from_bytes(data.records[:8], "big") == offset


async def test_an_append_opens_no_file(start: Start, tmp_path: Path) -> None:
    async with hung(start, tmp_path) as found:
        found.partition.log.flush()
        release_files(found.partition.log)
        await _produce_beside_the_hang(found.broker, found)
    async with start(files=found.files, log_dirs=",".join(map(str, found.dirs))) as broker:
        await _produce_beside_the_hang(broker, found)
        assert base_offsets(broker, found.hung) == [0, 1, 2]


async def _produce_beside_the_hang(broker: Broker, found: Hung) -> None:
    found.files.released.clear()
    found.hang()
    with trio.fail_after(ROLL_S):
        made = await broker.produce("t", batch(b"y"), partition=found.hung)
    assert (made.error_code, found.files.hanging) == (ErrorCode.NONE, 0)
    found.files.hangs_below = None


async def test_an_append_opens_its_file_where_half_of_the_descriptors_are_used(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.broker.replicas.logs.is_half_free", lambda: False)
    async with hung(start, tmp_path) as found:
        found.partition.log.flush()
        release_files(found.partition.log)
        assert (await found.broker.produce("t", batch(b"y"), partition=found.hung)).base_offset == 1


@pytest.mark.parametrize("max_wait_ms", [0, 100])
async def test_a_closed_segment_that_is_not_opened_holds_up_no_reads_of_others(
    start: Start, tmp_path: Path, max_wait_ms: int
) -> None:
    async with hung(start, tmp_path, segment_bytes="1024") as found:
        for _ in range(2):
            made = await found.broker.produce("t", batch(bytes(900)), partition=found.hung)
            assert made.error_code == ErrorCode.NONE
        found.partition.log.flush()
        release_files(found.partition.log)
        async with trio.open_nursery() as nursery:
            answers = []

            async def fetch(lane: str) -> None:
                data = await found.broker.fetch("t", 0, partition=found.hung, max_wait_ms=max_wait_ms, lane=lane)
                answers.append((data.error_code, len(data.records or b"")))

            found.hang()
            nursery.start_soon(fetch, "hung")
            await found.check_the_other()
            with trio.fail_after(STALLED_S + ROLL_S):
                await until(lambda: len(answers) == 1)
                await fetch("again")
            assert answers == [(ErrorCode.NONE, 0)] * 2
            assert found.files.hanging == 1
            found.files.released.set()
        await until(lambda: not found.files.hanging)
        data = await found.broker.fetch("t", 0, partition=found.hung)
        assert isinstance(data.records, memoryview)
        assert int.from_bytes(data.records[:8], "big") == 0


async def test_an_index_that_is_not_opened_holds_up_no_reads_of_others(start: Start, tmp_path: Path) -> None:
    async with hung(start, tmp_path, index_interval_bytes="0") as found:
        many = b"".join(batch(b"x", timestamp_ms=NOW_MS + number) for number in range(ENTRIES))
        for records in (many, batch(b"y")):  # the second one waits for the block of the index
            assert (await found.broker.produce("t", records, partition=found.hung)).error_code == ErrorCode.NONE
        async with trio.open_nursery() as nursery:
            found.hang()
            nursery.start_soon(partial(found.broker.fetch, "t", 7, partition=found.hung, lane="hung"))
            await found.check_the_other()
            found.files.released.set()
        data = await found.broker.fetch("t", 7, partition=found.hung)
        assert isinstance(data.records, memoryview)
        assert int.from_bytes(data.records[:8], "big") == 7


@pytest.mark.parametrize("index_interval_bytes", ["0", "4096"])
async def test_a_batch_that_is_not_in_the_page_cache_holds_up_no_reads_of_others(
    start: Start, tmp_path: Path, index_interval_bytes: str
) -> None:
    async with hung(start, tmp_path, index_interval_bytes=index_interval_bytes) as found:
        many = b"".join(batch(b"x", timestamp_ms=NOW_MS + number) for number in range(ENTRIES))
        for records in (many, batch(b"y")):
            assert (await found.broker.produce("t", records, partition=found.hung)).error_code == ErrorCode.NONE
        async with trio.open_nursery() as nursery:
            found.files.hangs_below, found.files.hangs_in = found.dirs[0], {"read"}
            nursery.start_soon(partial(found.broker.fetch, "t", 7, partition=found.hung, lane="hung"))
            await found.check_the_other()
            newest = await found.broker.fetch("t", ENTRIES + 1, partition=found.hung)
            assert isinstance(newest.records, memoryview)
            assert int.from_bytes(newest.records[:8], "big") == ENTRIES + 1
            found.files.released.set()
        data = await found.broker.fetch("t", 7, partition=found.hung)
        assert isinstance(data.records, memoryview)
        assert int.from_bytes(data.records[:8], "big") == 7


async def test_a_closed_segment_that_cannot_be_opened_is_an_error_of_its_partition(
    start: Start, tmp_path: Path
) -> None:
    async with hung(start, tmp_path, segment_bytes="1024") as found:
        for _ in range(2):
            await found.broker.produce("t", batch(bytes(900)), partition=found.hung)
        found.partition.log.flush()
        release_files(found.partition.log)
        path = found.partition.log.directory / f"{0:020d}.log"
        path.rename(path.with_name("away"))
        data = await found.broker.fetch("t", 0, partition=found.hung)
        assert data.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        path.with_name("away").rename(path)
        data = await found.broker.fetch("t", 0, partition=found.hung)
        assert data.error_code == ErrorCode.NONE


async def test_batches_wide_apart_hold_up_their_own_partition(start: Start, tmp_path: Path) -> None:
    async with hung(start, tmp_path, mirror_source="east:t") as found:
        wide = [1, 2, WIDE, WIDE + 1, 2 * WIDE]
        records = bytearray(b"".join(batch(b"y", base_offset=offset) for offset in wide))
        assert await _produce_while_hung(found, records, keep_offsets=True) == 1
        assert base_offsets(found.broker, found.hung) == [0, *wide]


async def test_a_follower_appends_batches_wide_apart_as_far_as_the_disk_answers(tmp_path: Path) -> None:
    async with opened(tmp_path) as (replicas, _, files):
        await replicas.assign([assigned(0, leader=2, epoch=0)])
        partition = replicas.partitions[names([0])[0]]
        wide = [0, 1, WIDE]
        records = memoryview(b"".join(batch(b"y", base_offset=offset) for offset in wide))
        size = len(records) // len(wide)
        files.hangs_below, files.hangs_in = partition.log.directory, {"creation"}
        with pytest.raises(RollDueError) as wide_apart:
            partition.append_fetched(records, Offset(0), Offset(0), NOW_MS)
        assert (files.hanging, partition.log.log_end_offset) == (0, 2)
        files.released.set()
        await partition.roll(wide_apart.value, NOW_MS)
        assert partition.append_fetched(records[-size:], Offset(0), Offset(0), NOW_MS) is not None
        assert partition.log.log_end_offset == WIDE + 1


async def test_an_abort_marker_waits_for_no_index_file(start: Start, tmp_path: Path) -> None:
    async with hung(start, tmp_path, mirror_source="east:t") as found:
        made = with_attributes(batch(b"b", base_offset=1, base_sequence=0, **PRODUCER), TRANSACTIONAL)
        await found.broker.produce("t", made, partition=found.hung, keep_offsets=True)
        found.hang()
        with trio.fail_after(ROLL_S):
            answer = await found.broker.produce("t", marker(2, commits=False), partition=found.hung, keep_offsets=True)
        assert answer.error_code == ErrorCode.NONE
        found.files.released.set()
        aborted = found.partition.log.aborted_transactions
        assert [entry.first_offset for entry in aborted(Offset(0), Offset(3))] == [1]
    async with start(log_dirs=",".join(map(str, found.dirs))) as broker:
        log = broker.handle.replicas.partitions[names([found.hung])[0]].log
        assert [entry.first_offset for entry in log.aborted_transactions(Offset(0), Offset(3))] == [1]


async def _search(broker: Broker, partition: int, lane: str = "") -> int:
    asked = [ListOffsetsPartition(partition_index=partition, timestamp=1)]
    response = await broker.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=asked)]), lane=lane)
    (data,) = response.topics[0].partitions
    assert data.error_code == ErrorCode.NONE
    found: int = data.offset
    return found


async def test_searches_in_a_log_dir_that_hangs_hold_up_none_of_others(start: Start, tmp_path: Path) -> None:
    async with hung(start, tmp_path, segment_bytes="1024") as found:
        for _ in range(2):
            await found.broker.produce("t", batch(bytes(900)), partition=found.hung)
        found.partition.log.flush()
        release_files(found.partition.log)
        async with trio.open_nursery() as nursery:
            found.hang()
            for number in range(SEARCHERS):
                nursery.start_soon(_search, found.broker, found.hung, f"hung {number}")
            await until(lambda: found.files.hanging == SEARCHERS)
            with trio.fail_after(ROLL_S):
                assert await _search(found.broker, found.well) == 0
            assert found.files.hanging == SEARCHERS
            found.files.released.set()


@pytest.mark.parametrize("call", ["sync", "opening"])
async def test_a_stop_gives_up_calls_that_hang_and_leaves_no_mark_of_their_log_dir(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr("pipeline.broker.runtime.disk_threads.HUNG_S", 1.0)
    files, dirs = FaultyFiles(DiskFiles(), random.Random(1)), [tmp_path / "a", tmp_path / "b"]
    with trio.fail_after(TIMEOUT_S / 2), pytest.raises(StorageError, match="has not answered"), unwrapped_errors():
        async with start(files=files, log_dirs=",".join(map(str, dirs))) as broker, trio.open_nursery() as nursery:
            await broker.create("t", PARTITIONS, flush_messages="1", segment_bytes="1024")
            for index in [*range(PARTITIONS)] * 2:
                assert (await broker.produce("t", batch(bytes(900)), partition=index)).error_code == ErrorCode.NONE
            files.hangs_below, files.hangs_in = dirs[0], {call}
            hung = in_dir(dirs[0])[0]
            if call == "sync":
                nursery.start_soon(partial(broker.produce, "t", batch(b"x"), partition=hung))
            else:
                release_files(broker.handle.replicas.partitions[names([hung])[0]].log)
                nursery.start_soon(_search, broker, hung)
            await until(lambda: files.hanging == 1)
            nursery.cancel_scope.cancel()
    assert files.hanging >= 1
    assert [path for path in dirs if (path / CLEAN_SHUTDOWN).exists()] == dirs[1:]
    files.released.set()
    await until(lambda: not files.hanging)
