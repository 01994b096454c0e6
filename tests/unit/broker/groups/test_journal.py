"""The journal over partitions on a real disk, in a loop of their own."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.broker.cluster.view import PartitionView
from pipeline.broker.groups.journal_writer import MAX_UNDER_WAY, JournalWrite, journal_error
from pipeline.broker.groups.model import LoadedGroup
from pipeline.broker.groups.offsets import journal_records
from pipeline.broker.groups.records import java_hash, partition_of_group
from pipeline.errors import BatchTooLargeError, DiskFullError, StorageError
from pipeline.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.testing.faulty_files import Crash
from tests.support.group_journals import MAX_STEP_S, TIMEOUT_MS, A, B, committed, one, running, turns
from tests.support.loop_steps import measured_steps


@pytest.mark.parametrize(
    ("group_id", "number", "partition"),
    [
        ("", 0, 0),
        ("a", 97, 47),
        ("polygenelubricants", -(2**31), 0),
        ("😀", 1772899, 49),
        ("hello world", 1794106052, 2),
        ("a" * 63, -1877504895, 45),
        ("a" * 64, 1926890496, 46),
        ("a" * 65, -395936671, 21),
        ("ab" * 16_383, 930717599, 49),
    ],
)
def test_groups_are_in_the_partition_where_kafka_looks_for_them(group_id: str, number: int, partition: int) -> None:
    assert java_hash(group_id) == number
    assert partition_of_group(group_id, 50) == partition


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BatchTooLargeError(10, 5), ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (StorageError("x", "broken"), ErrorCode.NOT_COORDINATOR),
        (DiskFullError("x", "full"), ErrorCode.NOT_COORDINATOR),
        (KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), ErrorCode.NOT_COORDINATOR),
        (KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_errors_of_the_log_are_told_as_a_coordinator_does(error: Exception, code: ErrorCode) -> None:
    assert journal_error(error).code == code  # type: ignore[arg-type]


async def test_written_records_are_loaded_again(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        assert rig.code() == ErrorCode.NOT_COORDINATOR
        await rig.open()
        assert (rig.code(), rig.heard.loaded) == (ErrorCode.NONE, [(0, {})])
        await rig.journal.write("g", one(1))
        await rig.journal.write("g", one(2))
        await rig.journal.write("h", one(3, "h", B))
        await rig.journal.write("h", [])
        assert await rig.reopen() == {
            "g": LoadedGroup(offsets={A: committed(2)}),
            "h": LoadedGroup(offsets={B: committed(3)}),
        }
        assert rig.heard.unloaded == [0]
        epochs = {header.partition_leader_epoch for header in rig.partition.log.headers(Offset(0))}
        assert epochs == {0}
        rig.close()
        assert (rig.code(), rig.heard.unloaded) == (ErrorCode.NOT_COORDINATOR, [0, 0])
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
            await rig.journal.write("g", one(4))


async def test_writes_at_once_share_an_append_and_keep_their_order(tmp_path: Path) -> None:
    async with running(tmp_path, flush_messages="1") as rig:
        await rig.open()
        order: list[int] = []

        async def write(number: int) -> None:
            await rig.journal.begin("g", one(number), ended=lambda _: order.append(number)).wait()

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(write, number)
        assert sorted(order) == list(range(200))
        assert rig.batches < 10
        loaded = await rig.reopen()
        assert loaded["g"].offsets[A].offset == order[-1]


@pytest.mark.long
async def test_large_writes_at_once_hold_up_no_other_task(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        records = [record for number in range(8_000) for record in one(number, name=TopicPartition("a", number))]
        with measured_steps() as steps:
            writes = [rig.journal.begin("g", records) for _ in range(40)]
            for write in writes:
                await write.wait()
        assert rig.batches == len(writes)
        assert steps.longest_s < MAX_STEP_S


async def test_a_batch_of_the_journal_is_no_larger_than_its_topic_allows(tmp_path: Path) -> None:
    async with running(tmp_path, max_message_bytes="2000") as rig:
        await rig.open()

        async def write(number: int) -> None:
            await rig.journal.write("g", one(number, name=TopicPartition("a", number)))

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(write, number)
        large = journal_records("g", {TopicPartition("a", number): committed(1) for number in range(100)})
        with pytest.raises(KafkaError, match="INVALID_COMMIT_OFFSET_SIZE"):
            await rig.journal.write("g", large)
        assert rig.batches > 1
        assert len((await rig.reopen())["g"].offsets) == 100


async def test_a_write_is_done_although_its_client_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path, flush_messages="1") as rig:
        await rig.open()
        applied = trio.Event()
        with trio.CancelScope() as scope:
            scope.cancel()
            await rig.journal.begin("g", one(5), ended=lambda _: applied.set()).wait()
        with trio.fail_after(60):
            await applied.wait()
        assert (await rig.reopen())["g"].offsets == {A: committed(5)}


async def test_a_failed_flush_is_no_success(tmp_path: Path) -> None:
    async with running(tmp_path, flush_messages="1") as rig:
        await rig.open()
        await rig.journal.write("g", one(1))
        rig.disk.fail_sync_in = 1
        told: list[KafkaError | None] = []
        with pytest.raises(KafkaError, match="NOT_COORDINATOR") as failure:
            await rig.journal.begin("g", one(2), ended=told.append).wait()
        assert told == [failure.value]
        assert rig.code() == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_full_disk_refuses_and_takes_again(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        await rig.journal.write("g", one(1))
        rig.disk.capacity_bytes = rig.disk.used_bytes
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
            await rig.journal.write("g", one(2))
        rig.disk.capacity_bytes = None
        await rig.journal.write("g", one(3))
        assert (await rig.reopen())["g"].offsets == {A: committed(3)}


# With followers


async def wait_for(write: JournalWrite) -> ErrorCode:
    try:
        await write.wait()
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def test_writes_are_under_way_together_and_end_in_order_as_they_are_committed(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open(isr=(1, 2))
        rig.follower_has()
        ended: list[int] = []
        for number in range(20):
            rig.journal.begin("g", one(number), ended=lambda _, number=number: ended.append(number))  # type: ignore[misc]
            await turns(3)
        assert (rig.batches, ended) == (MAX_UNDER_WAY, [])
        rig.follower_has(3)
        await turns()
        assert (rig.batches, ended) == (MAX_UNDER_WAY + 1, [0, 1, 2])
        for _ in range(3):
            rig.follower_has()
            await turns()
        assert ended == list(range(20))
        assert rig.batches < 20


async def test_a_write_whose_leadership_ends_is_refused_and_the_next_load_says_what_came_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open(isr=(1, 2))
        ended: list[KafkaError | None] = []
        writes = [rig.journal.begin("g", one(number), ended=ended.append) for number in range(2)]
        await turns()
        last = rig.journal.begin("g", one(9), ended=ended.append)
        rig.close()
        assert [await wait_for(write) for write in (*writes, last)] == [ErrorCode.NOT_COORDINATOR] * 3
        assert [error and error.code for error in ended] == [ErrorCode.NOT_COORDINATOR] * 3
        await turns()
        assert len(ended) == 3
        assert (await rig.reopen())["g"].offsets == {A: committed(1)}


async def test_too_few_in_sync_refuse_at_once_and_what_is_under_way_may_come_all_the_same(tmp_path: Path) -> None:
    async with running(tmp_path, min_insync_replicas="2") as rig:
        await rig.open(isr=(1, 2))
        ended: list[KafkaError | None] = []
        write = rig.journal.begin("g", one(1), ended=ended.append)
        await turns()
        both, alone = (BrokerId(1), BrokerId(2)), (BrokerId(1),)
        state = PartitionView(replicas=both, leader=alone[0], leader_epoch=LeaderEpoch(0), isr=alone, state_version=1)
        rig.partition.update(state)
        assert await wait_for(write) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await wait_for(rig.journal.begin("g", one(2))) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (rig.batches, ended) == (1, [])
        rig.partition.update(replace(state, isr=both, state_version=2))
        rig.follower_has()
        await turns()
        assert ended == [None]


async def test_a_client_that_waits_too_long_is_told_and_its_write_goes_on(tmp_path: Path, autojump_clock: Any) -> None:
    async with running(tmp_path) as rig:
        await rig.open(isr=(1, 2))
        ended: list[KafkaError | None] = []
        began = trio.current_time()
        assert await wait_for(rig.journal.begin("g", one(1), ended=ended.append)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (trio.current_time() - began, ended) == (pytest.approx(TIMEOUT_MS / 1000), [])
        rig.follower_has()
        await turns()
        assert ended == [None]


@pytest.mark.parametrize("seed", range(8))
async def test_acknowledged_writes_survive_a_loss_of_power(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged: dict[TopicPartition, int] = {}
    begun: dict[TopicPartition, int] = {}
    stopped = False
    try:
        async with running(tmp_path, flush_messages="1", segment_bytes="2048") as rig:
            await rig.open()
            rig.disk.rng = rng
            rig.disk.crash_in = rng.randint(1, 60)
            for number in range(200):
                name = TopicPartition("a", rng.randrange(5))
                begun[name] = number
                await rig.journal.write("g", one(number, name=name))
                acknowledged[name] = number
    except* Crash:
        stopped = True
    assert stopped
    rig.disk.lose_power()
    async with running(tmp_path) as rig:
        await rig.open(1)
        groups = await rig.loaded(0)
        offsets = groups["g"].offsets if groups else {}
        for name, number in acknowledged.items():
            assert offsets[name].offset in {number, begun[name]}


async def test_a_stopping_broker_begins_no_write_and_no_load(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        await rig.loaded(0)
    assert rig.code() is ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaError) as raised:
        await rig.journal.write("g", one(1))
    assert raised.value.code is ErrorCode.NOT_COORDINATOR
    rig.journal.leadership_began(rig.partition)
