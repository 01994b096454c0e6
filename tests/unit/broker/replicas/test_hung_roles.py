"""Roles of replicas while the disk of one log dir hangs: the partitions of the other log dir get theirs in time."""

import random
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.broker.replicas import logs as replica_logs
from pipeline.broker.replicas.logs import AssignedPartition
from pipeline.broker.replicas.replicas import Replicas
from pipeline.coordination.partition_states import read_states
from pipeline.log.files import DiskFiles
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from pipeline.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from pipeline.testing.faulty_files import FaultyFiles
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Start, batch
from tests.support.hung_disks import leaders, names, opened, until
from tests.support.replicas import TOPIC_ID, assigned

BOUND_S = 40.0
"""More than one wait for a disk that does not answer, less than CHANGES of them, and less than the hang."""
CHANGES = 60
STALLED_S = 3.0
"""Longer than any call of a disk that is merely busy."""
OTHER_ID = uuid.UUID(int=8)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("runtime.disk_threads", "replicas.logs"):
        monkeypatch.setattr(f"pipeline.broker.{module}.STALLED_S", STALLED_S)


def led(indexes: Sequence[int], epoch: int, topic_id: uuid.UUID = TOPIC_ID) -> list[AssignedPartition]:
    return [assigned(index, leader=1, epoch=epoch, isr=(1,), topic_id=topic_id) for index in indexes]


def append(replicas: Replicas, index: int) -> None:
    partition = replicas.partitions[TopicPartition("t", index)]
    partition.append(memoryview(batch(b"x")), keep_offsets=False, now_ms=NOW_MS)


async def assign_again(replicas: Replicas, items: Sequence[AssignedPartition]) -> None:
    """Assign what was postponed, each time a log dir has answered, until all have a role."""
    with trio.fail_after(TIMEOUT_S):
        while await replicas.assign(items):
            await replicas.wait_for_answers()


@pytest.mark.parametrize("kind", ["creation", "sync_directory", "opening", "sync"])
async def test_new_partitions_of_the_other_log_dir_get_their_roles_and_change_them(tmp_path: Path, kind: str) -> None:
    async with opened(tmp_path) as (replicas, directories, files):
        files.hangs_below, files.hangs_in = tmp_path / "a", {kind}
        with trio.fail_after(BOUND_S):
            postponed = await replicas.assign(led(range(4), 0))
        assert postponed == names([0, 2])
        assert leaders(replicas) == {1: 0, 3: 0}
        assert files.hanging == 1
        with trio.fail_after(BOUND_S):
            for epoch in range(2, CHANGES, 2):
                await replicas.assign([assigned(1, leader=2, epoch=epoch - 1)])
                assert await replicas.assign(led(range(4), epoch)) == postponed
            assert await replicas.assign(led([4, 5], 0)) == []
        assert leaders(replicas) == {1: CHANGES - 2, 3: CHANGES - 2, 4: 0, 5: 0}
        append(replicas, 1)
        assert not replicas.failed
        assert await replicas.strays() == []
        assert not any(replicas.lacks(name, TOPIC_ID) for name in postponed)
        files.released.set()
        await replicas.wait_for_answers()
        await assign_again(replicas, led(range(4), CHANGES))
        assert leaders(replicas) == {**dict.fromkeys(range(4), CHANGES), 4: 0, 5: 0}
        assert [len(directory.logs) for directory in directories.opened] == [2, 4]


async def test_the_log_of_another_topic_that_cannot_be_renamed_holds_up_its_own_partition_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (replicas, directories, files):
        await replicas.assign(led(range(2), 0))
        append(replicas, 0)
        files.hangs_below, files.hangs_in = tmp_path / "a", {"rename"}
        with trio.fail_after(BOUND_S):
            postponed = await replicas.assign(led(range(2), 0, OTHER_ID))
        assert postponed == names([0])
        assert leaders(replicas) == {1: 0}
        with trio.fail_after(BOUND_S):
            await replicas.assign(led([1], 1, OTHER_ID))
            await replicas.close(names([0]))
            assert await replicas.strays() == [
                found
                for found in directories.held()
                if found.name.topic_partition.partition == 1 and found.is_set_aside
            ]
        files.released.set()
        await replicas.wait_for_answers()
        await assign_again(replicas, led([0], 1, OTHER_ID))
        assert leaders(replicas) == {0: 1, 1: 1}
        assert replicas.partitions[TopicPartition("t", 0)].log.log_end_offset == 0
        await assign_again(replicas, led([0], 2))
        assert replicas.partitions[TopicPartition("t", 0)].log.log_end_offset == 1


async def test_a_removal_that_hangs_holds_up_a_partition_of_that_name_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (replicas, directories, files):
        await replicas.assign(led(range(4), 0))
        await replicas.close(names(range(4)))
        files.hangs_below, files.hangs_in = tmp_path / "a", {"rename"}
        with trio.fail_after(BOUND_S):
            await replicas.remove(await replicas.strays())
        assert {name.partition for name in directories.logs} == {2} or {
            name.partition for name in directories.logs
        } == set()
        with trio.fail_after(BOUND_S):
            postponed = await replicas.assign(led(range(4), 0, OTHER_ID))
        assert postponed == names([0, 2])
        assert leaders(replicas) == {1: 0, 3: 0}
        files.released.set()
        await replicas.wait_for_answers()
        await assign_again(replicas, led([0, 2], 0, OTHER_ID))
        assert leaders(replicas) == dict.fromkeys(range(4), 0)
        assert await replicas.strays() == []


async def test_a_log_dir_that_stays_silent_counts_as_failed_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.broker.replicas.replicas.HUNG_S", 5.0)
    async with opened(tmp_path) as (replicas, _, files), trio.open_nursery() as nursery:
        nursery.start_soon(replicas.watch_log_dirs)
        files.hangs_below = tmp_path / "a"
        await replicas.assign(led(range(2), 0))
        with trio.fail_after(TIMEOUT_S):
            await replicas.failures_changed.wait_and_clear()
        assert list(replicas.failed) == names([0])
        assert any("has not answered for" in problem for problem in replicas.problems())
        with trio.fail_after(BOUND_S):
            assert await replicas.assign(led(range(2), 1)) == names([0])
        assert (list(replicas.failed), leaders(replicas)) == (names([0]), {1: 1})
        files.released.set()
        with trio.fail_after(TIMEOUT_S):
            await replicas.wait_for_answers()
            await assign_again(replicas, led(range(2), 2))
            await replicas.failures_changed.wait_and_clear()
        assert (dict(replicas.failed), leaders(replicas)) == ({}, {0: 2, 1: 2})
        nursery.cancel_scope.cancel()


async def test_a_partition_that_waits_for_long_is_not_failed_while_its_log_dir_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy host, where the calls before its own take long, but each of them ends."""
    monkeypatch.setattr("pipeline.broker.replicas.replicas.HUNG_S", 0.5)
    looks = 0
    give_up_waiting = Replicas._give_up_waiting

    def noted(replicas: Replicas) -> None:
        nonlocal looks
        give_up_waiting(replicas)
        looks += 1

    async with opened(tmp_path) as (replicas, _, files), trio.open_nursery() as nursery:
        files.hangs_below = tmp_path / "a"
        assert await replicas.assign(led(range(2), 0)) == names([0])
        files.released.set()
        await until(lambda: not replicas.disks.waiting_s(tmp_path / "a"))
        monkeypatch.setattr(Replicas, "_give_up_waiting", noted)
        nursery.start_soon(replicas.watch_log_dirs)
        await until(lambda: looks > 0)
        assert dict(replicas.failed) == {}
        nursery.cancel_scope.cancel()


async def test_many_calls_that_were_late_end_with_roles_once_the_log_dir_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call takes a while, so that some are always under way: answers are waited for all the same."""
    open_logs = replica_logs._open_logs

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.03)
        return open_logs(*arguments)

    monkeypatch.setattr(replica_logs, "LOGS_PER_THREAD", 1)
    monkeypatch.setattr(replica_logs, "_open_logs", slowly)
    partitions = range(60)
    async with opened(tmp_path, ["a"]) as (replicas, _, files):
        files.hangs_below = tmp_path / "a"
        assert await replicas.assign(led(partitions, 0))
        files.released.set()
        await assign_again(replicas, led(partitions, 0))
        assert leaders(replicas) == dict.fromkeys(partitions, 0)


async def test_logs_that_need_no_disk_are_opened_although_a_flush_in_their_log_dir_hangs(tmp_path: Path) -> None:
    """Nobody waits for an answer of that log dir, so each answer is late: it counts for the next assignment."""
    released = threading.Event()
    async with opened(tmp_path, ["a"]) as (replicas, _, _), trio.open_nursery() as nursery:
        await replicas.assign(led(range(4), 0))
        await replicas.close(names(range(4)))
        nursery.start_soon(replicas.disks.run, tmp_path / "a", released.wait)
        try:
            await until(lambda: replicas.disks.is_stalled(tmp_path / "a"))
            await assign_again(replicas, led(range(4), 1))
            assert leaders(replicas) == dict.fromkeys(range(4), 1)
            append(replicas, 0)
        finally:
            released.set()


async def test_a_log_dir_that_hangs_fails_no_partitions_that_wait_for_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.broker.replicas.replicas.HUNG_S", 0.5)
    async with opened(tmp_path) as (replicas, _, files), trio.open_nursery() as nursery:
        files.hangs_below = tmp_path
        assert await replicas.assign(led(range(4), 0)) == names(range(4))
        with monkeypatch.context() as patch:
            patch.setattr(replicas.disks, "waiting_s", lambda log_dir: float(log_dir.name == "a"))
            nursery.start_soon(replicas.watch_log_dirs)
            await until(lambda: bool(replicas.failed))
            assert sorted(replicas.failed) == names([0, 2])
        files.released.set()
        await assign_again(replicas, led(range(4), 1))
        assert leaders(replicas) == dict.fromkeys(range(4), 1)
        nursery.cancel_scope.cancel()


async def test_tails_that_one_log_dir_does_not_settle_hold_up_no_roles(tmp_path: Path) -> None:
    async with opened(tmp_path) as (replicas, _, files):
        await replicas.assign(led(range(2), 0))
        files.hangs_below, files.hangs_in = tmp_path / "a", {"rename"}
        with trio.fail_after(BOUND_S):
            await replicas.logs.settle(dict.fromkeys(names([7]), OTHER_ID))
            await replicas.assign(led(range(2), 1))
        assert leaders(replicas) == {0: 1, 1: 1}
        assert files.hanging == 1


async def create(broker: Broker, partitions: int, **settings: str) -> None:
    """A topic whose preferred leader is broker 2."""
    places = [CreatableReplicaAssignment(partition_index=index, broker_ids=[2, 1]) for index in range(partitions)]
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=places, configs=configs)
    response = await broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    assert response.topics[0].error_code == ErrorCode.NONE


async def read_all(broker: Broker, index: int) -> int:
    """The end of what consumers read of a partition."""
    return (await broker.fetch("t", 0, partition=index)).high_watermark


async def test_a_log_dir_that_hangs_is_described_without_its_space(start: Start, tmp_path: Path) -> None:
    files, dirs = FaultyFiles(DiskFiles(), random.Random(1)), [tmp_path / "a", tmp_path / "b"]
    async with start(files=files, log_dirs=",".join(map(str, dirs))) as broker:
        await broker.create("t", 2)
        files.hangs_below, files.hangs_in = dirs[0], {"volume"}
        try:
            for _ in range(2):
                hung, well = (await broker.ask(DescribeLogDirsRequest(topics=None), timeout_s=BOUND_S)).results
                assert (hung.error_code, hung.total_bytes, len(hung.topics)) == (ErrorCode.NONE, -1, 1)
                assert well.total_bytes > 0
        finally:
            files.released.set()


async def test_a_follower_whose_flush_hangs_leads_its_other_partitions_when_their_leader_leaves(
    start: Start, zookeeper_twin: MemoryZooKeeper, tmp_path: Path
) -> None:
    files, dirs = FaultyFiles(DiskFiles(), random.Random(1)), [tmp_path / "a", tmp_path / "b"]
    partitions = 4
    async with zookeeper_twin.open() as client, start(1, files=files, log_dirs=",".join(map(str, dirs))) as broker:
        async with start(2) as leader:
            await create(broker, partitions, flush_messages="1", min_insync_replicas="1")
            replicas = broker.handle.replicas
            await until(lambda: len(leaders(leader.handle.replicas)) == partitions)
            for index in range(partitions):
                assert (await leader.produce("t", batch(b"a"), partition=index)).error_code == ErrorCode.NONE
            hung = [index for index in range(partitions) if (dirs[0] / f"t-{index}").exists()]
            well = [index for index in range(partitions) if index not in hung]
            assert hung and well
            files.hangs_below = dirs[0]
            for index in range(partitions):
                assert (await leader.produce("t", batch(b"b"), partition=index, acks=1)).error_code == ErrorCode.NONE
            await until(lambda: files.hanging >= len(hung))
        with trio.fail_after(TIMEOUT_S):
            while set(well) - leaders(replicas).keys():
                await trio.sleep(0.01)
        assert not set(hung) & leaders(replicas).keys()
        for index in well:
            assert (await broker.produce("t", batch(b"c"), partition=index)).error_code == ErrorCode.NONE
        assert files.hanging >= len(hung)
        files.released.set()
        await until(lambda: len(leaders(replicas)) == partitions)
        for index in range(partitions):
            assert (await broker.produce("t", batch(b"d"), partition=index)).error_code == ErrorCode.NONE
            assert await read_all(broker, index) == (4 if index in well else 3)
        states = await read_states(client, names(range(partitions)))
        assert {found.state.leader for found in states.values()} == {1}
