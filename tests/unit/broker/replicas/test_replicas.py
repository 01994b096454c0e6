"""Replicas on a disk, told their roles by hand."""

import random
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.replicas.logs import log_config
from pipeline.broker.replicas.replicas import Replicas
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.partition import Partition
from pipeline.broker.replication.replica_fetchers import replica_fetchers
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.broker.settings.topic import topic_settings
from pipeline.errors import StorageError
from pipeline.log.checkpoint import BOOT_ID, CLEAN_SHUTDOWN
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.displacement import is_displaced
from pipeline.log.directories.logs_set_aside import LogName
from pipeline.log.files import DiskFiles
from pipeline.log.log_failure import abandon
from pipeline.model import Offset, TopicPartition
from pipeline.net.dialing import PLAIN_DIALER
from pipeline.net.nurseries import unwrapped_errors
from pipeline.records.batch import set_base_offset
from tests.support.broker_in_process import NOW_MS, Observed, batch
from tests.support.replicas import CONFIG, OWN, TOPIC_ID, assigned


class Leaderships:
    """A LeadershipListener that remembers."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def leadership_began(self, partition: Partition) -> None:
        self.events.append(f"{partition.topic_partition} led in {partition.leader_epoch}")

    def leadership_ended(self, topic_partition: TopicPartition) -> None:
        self.events.append(f"{topic_partition} led no more")


@contextmanager
def opened(path: Path) -> Iterator[tuple[Replicas, LogDirectories]]:
    settings = DynamicSettings(CONFIG)
    directories = LogDirectories.open(
        [path],
        DiskFiles(),
        log_config(topic_settings({}, CONFIG), 1_000_000),
        broker_id=OWN,
        cluster_id="c",
        rng=random.Random(1),
        now_ms=NOW_MS,
    )
    view = ClusterView("c")
    yield (
        Replicas(
            directories,
            DiskThreads(),
            Observed(),
            lambda: NOW_MS,
            own_id=OWN,
            in_sync=InSyncWatch(view, 10.0),
            fetchers=replica_fetchers(settings, view, lambda: NOW_MS, PLAIN_DIALER),
            producer_expiration_ms=1_000_000,
        ),
        directories,
    )
    with suppress(StorageError):
        directories.close()


def lose_power(path: Path) -> None:
    """As if the machine had stopped instead of the process, with all on its disk."""
    (path / CLEAN_SHUTDOWN).unlink()
    (path / BOOT_ID).write_text("another boot")


def fetched(replicas: Replicas) -> list[tuple[int, int, bool]]:
    """The partitions that are fetched, from whom and in which epoch, and whether they are throttled."""
    return sorted(
        (partition.topic_partition.partition, partition.leader_epoch, partition.is_throttled)
        for partition in replicas.fetchers.partitions
    )


async def test_a_partition_takes_one_role_after_the_other(tmp_path: Path) -> None:
    with opened(tmp_path) as (replicas, _):
        told = Leaderships()
        replicas.subscribe("t", told)
        name = TopicPartition("t", 0)
        await replicas.assign([assigned(leader=1, epoch=0)])
        partition = replicas.partitions[name]
        assert (partition.is_leader, fetched(replicas)) == (True, [])
        await replicas.assign([assigned(leader=2, epoch=1)])
        assert (partition.is_leader, fetched(replicas)) == (False, [(0, 1, False)])
        await replicas.assign([assigned(leader=1, epoch=0)])  # after ZooKeeper went back
        assert (partition.is_leader, fetched(replicas)) == (False, [])
        with trio.fail_after(60):
            assert await replicas.spent_epochs.take() == {name: 1}
        await replicas.assign([assigned(leader=-1, epoch=2)])
        assert (partition.is_leader, fetched(replicas)) == (False, [])
        await replicas.assign([assigned(leader=1, epoch=3)])
        await replicas.assign([assigned(leader=1, epoch=4)])
        assert partition.is_leader
        assert replicas.partitions[name] is partition
        assert told.events == ["t-0 led in 0", "t-0 led no more", "t-0 led in 3"]


async def test_an_assignment_that_is_repeated_changes_no_partition(tmp_path: Path) -> None:
    with opened(tmp_path) as (replicas, _):
        many = [assigned(index, leader=1 + index % 2, epoch=0) for index in range(150)]
        await replicas.assign(many)
        before = dict(replicas.partitions)
        followed = {id(partition) for partition in replicas.fetchers.partitions}
        await replicas.assign(many)
        assert dict(replicas.partitions) == before
        assert {id(partition) for partition in replicas.fetchers.partitions} == followed
        assert len(followed) == 75


async def test_a_lost_session_ends_leaderships_and_not_following(tmp_path: Path) -> None:
    with opened(tmp_path) as (replicas, _):
        await replicas.assign([assigned(0, leader=1, epoch=0), assigned(1, leader=2, epoch=0)])
        replicas.resign_all()
        assert not any(partition.is_leader for partition in replicas.partitions.values())
        assert fetched(replicas) == [(1, 0, False)]
        await replicas.assign([assigned(0, leader=1, epoch=1), assigned(1, leader=2, epoch=0)])
        assert replicas.partitions[TopicPartition("t", 0)].is_leader


async def test_a_replica_that_a_reassignment_brings_is_throttled_until_it_is_in_sync(tmp_path: Path) -> None:
    with opened(tmp_path) as (replicas, _):
        for isr, expected in (((2,), True), ((1, 2), False), ((2,), True)):
            await replicas.assign(
                [
                    assigned(index, leader=2, epoch=0, isr=isr, follower_replication_throttled_replicas="0:1,1:2")
                    for index in range(2)
                ]
            )
            assert fetched(replicas) == [(0, 0, expected), (1, 0, False)]
        replicas.reconfigure("t", [0, 1], topic_settings({}, CONFIG))
        assert fetched(replicas) == [(0, 0, False), (1, 0, False)]


async def test_the_log_of_another_topic_of_the_same_name_is_set_aside_and_taken_back(tmp_path: Path) -> None:
    name, other = TopicPartition("t", 0), uuid.UUID(int=8)
    with opened(tmp_path) as (replicas, directories):
        assert replicas.lacks(name, other)  # at the first start nobody knows what this broker served before
        await replicas.assign([assigned(leader=1, epoch=0, isr=(1,))])
        partition = replicas.partitions[name]
        partition.append(memoryview(batch(b"a")), keep_offsets=False, now_ms=NOW_MS)
        partition.append(memoryview(batch(b"b")), keep_offsets=False, now_ms=NOW_MS)
        partition.log.flush()
        partition.log.delete_records(Offset(1))
        assert not replicas.lacks(name, TOPIC_ID)
        await replicas.assign([assigned(leader=2, epoch=0, topic_id=other)])
        assert replicas.partitions[name].log.log_end_offset == 0
        assert fetched(replicas) == [(0, 0, False)]
        assert [found.name for found in await replicas.strays()] == [LogName(name, TOPIC_ID)]
        assert not replicas.lacks(name, TOPIC_ID)
    for _ in range(2):  # also after a start
        with opened(tmp_path) as (replicas, directories):
            assert [found.name for found in directories.held()] == [LogName(name, other), LogName(name, TOPIC_ID)]
            assert not replicas.lacks(name, TOPIC_ID)
            await replicas.assign([assigned(leader=1, epoch=3, isr=(1,))])
            found = replicas.partitions[name].log
            assert (found.log_start_offset, found.log_end_offset, found.topic_id) == (1, 2, TOPIC_ID)
            await replicas.assign([assigned(leader=1, epoch=3, isr=(1,), topic_id=other)])
            assert replicas.partitions[name].log.log_end_offset == 0


async def test_logs_are_removed_by_topic_id_and_never_while_they_are_open(tmp_path: Path) -> None:
    name = TopicPartition("t", 0)
    with opened(tmp_path) as (replicas, directories):
        await replicas.assign([assigned(index, leader=1, epoch=0, isr=(1,)) for index in range(3)])
        held = directories.held()
        await replicas.remove(held)
        assert len(replicas.partitions) == 3
        assert all(found.path.exists() for found in held)
        await replicas.close([name])
        assert (name in replicas.partitions, [found.name.topic_partition for found in await replicas.strays()]) == (
            False,
            [name],
        )
        (stray,) = await replicas.strays()
        await replicas.remove([replace(stray, name=LogName(name, uuid.UUID(int=9)))])
        assert stray.path.exists()
        await replicas.remove([stray])
        assert not stray.path.exists()
        assert await replicas.strays() == []
        await replicas.assign([assigned(leader=1, epoch=0, isr=(1,))])
        assert replicas.partitions[name].log.log_end_offset == 0


async def test_a_replica_that_was_never_served_lacks_nothing_and_one_that_was_lost_does(tmp_path: Path) -> None:
    first, other_id = TopicPartition("t", 0), uuid.UUID(int=8)
    with opened(tmp_path) as (replicas, _):
        assert replicas.lacks(first, TOPIC_ID)
        await replicas.logs.settle()
    with opened(tmp_path) as (replicas, _):
        assert not replicas.lacks(first, TOPIC_ID)
        await replicas.assign([assigned(index, leader=1, epoch=0, isr=(1,)) for index in range(2)])
    with opened(tmp_path) as (replicas, _):
        assert not replicas.lacks(first, TOPIC_ID)
        assert not replicas.lacks(first, other_id), "the log of another topic of that name"
    shutil.rmtree(tmp_path / "t-0")
    with opened(tmp_path) as (replicas, _):
        assert replicas.lacks(first, TOPIC_ID)
        assert not replicas.lacks(first, other_id)
        await replicas.close([TopicPartition("t", 1)])
        await replicas.remove(await replicas.strays())
    (tmp_path / "served-replicas").unlink()
    with opened(tmp_path) as (replicas, _):
        assert replicas.lacks(first, other_id)


async def test_logs_that_an_older_version_filled_say_that_it_may_have_served_others(tmp_path: Path) -> None:
    with opened(tmp_path) as (replicas, _):
        await replicas.logs.settle()
        noted = (tmp_path / "served-replicas").read_bytes()
        await replicas.assign([assigned(leader=1, epoch=0, isr=(1,))])
        replicas.partitions[TopicPartition("t", 0)].append(memoryview(batch(b"a")), keep_offsets=False, now_ms=NOW_MS)
    (tmp_path / "served-replicas").write_bytes(noted)
    with opened(tmp_path) as (replicas, _):
        assert replicas.lacks(TopicPartition("t", 1), TOPIC_ID)
        await replicas.logs.settle()
    with opened(tmp_path) as (replicas, _):
        assert not replicas.lacks(TopicPartition("t", 1), TOPIC_ID)


async def test_a_replica_is_noted_before_it_has_a_role_and_its_log_is_made_before_that(tmp_path: Path) -> None:
    """A process killed between the two never served it; a machine that lost power after both may have lost records."""
    name = TopicPartition("t", 0)
    with opened(tmp_path) as (replicas, directories):
        await replicas.logs.settle()
        directories.create(name, is_new=True, topic_id=TOPIC_ID, now_ms=NOW_MS)
    lose_power(tmp_path)
    with opened(tmp_path) as (replicas, directories):
        log = directories.get(name)
        assert log is not None
        assert log.may_lack_tail
        assert not replicas.lacks(name, TOPIC_ID)
        await replicas.assign([assigned(leader=1, epoch=0, isr=(1,))])
    lose_power(tmp_path)
    with opened(tmp_path) as (replicas, _):
        assert replicas.lacks(name, TOPIC_ID)


async def test_a_replica_that_cannot_be_noted_is_not_served(tmp_path: Path) -> None:
    with opened(tmp_path) as (replicas, _):
        await replicas.logs.settle()
        (tmp_path / "served-replicas").unlink()
        (tmp_path / "served-replicas").mkdir()
        await replicas.assign([assigned(leader=1, epoch=0, isr=(1,))])
        assert (list(replicas.partitions), list(replicas.failed)) == ([], [TopicPartition("t", 0)])


async def test_a_follower_begins_with_the_high_watermark_that_was_written_down(tmp_path: Path) -> None:
    name = TopicPartition("t", 0)
    with opened(tmp_path) as (replicas, directories):
        await replicas.assign([assigned(leader=1, epoch=0, isr=(1,))])
        replicas.partitions[name].append(memoryview(batch(b"a", b"b")), keep_offsets=False, now_ms=NOW_MS)
        replicas.partitions[name].high_watermark = Offset(1)
        with trio.move_on_after(0):
            await replicas.upkeep.keep_checkpointed(directories.opened[0], 60_000)  # at its end
    with opened(tmp_path) as (replicas, _):
        await replicas.assign([assigned(leader=2, epoch=1)])
        assert replicas.partitions[name].high_watermark == 1


async def test_a_log_that_cannot_be_opened_is_named_and_leaves_the_others_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as (replicas, _):
        await replicas.assign([assigned(0, leader=1, epoch=0)])
    with opened(tmp_path) as (replicas, directories):
        log = directories.get(TopicPartition("t", 0))
        assert log is not None
        abandon(log, "it is broken")
        assert replicas.lacks(TopicPartition("t", 0), TOPIC_ID)
        await replicas.assign([assigned(0, leader=1, epoch=0), assigned(1, leader=1, epoch=0)])
        assert list(replicas.partitions) == [TopicPartition("t", 1)]
        assert list(replicas.failed) == [TopicPartition("t", 0)]
        with trio.fail_after(60):
            await replicas.failures_changed.wait_and_clear()
        await replicas.assign([assigned(0, leader=2, epoch=1)])
        assert list(replicas.failed) == [TopicPartition("t", 0)]
        assert await replicas.strays() == []


async def test_a_partition_is_opened_while_the_log_of_a_deleted_topic_of_its_name_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, may_look, is_removing, is_opened = (threading.Event() for _ in range(4))
    rename = LogDirectory._rename_deleted

    def look(*arguments: Any) -> bool:
        looks.set()
        assert may_look.wait(60)
        return is_displaced(*arguments)

    def rename_late(*arguments: Any) -> bool:
        is_removing.set()
        assert is_opened.wait(60)
        return rename(*arguments)

    async def remove() -> None:
        await replicas.remove(strays)
        is_removing.set()

    monkeypatch.setattr(LogDirectory, "_rename_deleted", rename_late)
    with opened(tmp_path) as (replicas, _):
        await replicas.assign([assigned(leader=1, epoch=0)])
        await replicas.close([TopicPartition("t", 0)])
        strays = await replicas.strays()
        monkeypatch.setattr("pipeline.broker.replicas.logs.is_displaced", look)
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as opening:
                opening.start_soon(replicas.assign, [assigned(leader=1, epoch=0, topic_id=uuid.UUID(int=8))])
                assert await trio.to_thread.run_sync(looks.wait, 60)
                nursery.start_soon(remove)
                assert await trio.to_thread.run_sync(is_removing.wait, 60)
                may_look.set()
            is_opened.set()
        assert (list(replicas.partitions), dict(replicas.failed)) == ([TopicPartition("t", 0)], {})
        await replicas.remove(await replicas.strays())
        assert await replicas.strays() == []


async def test_a_replica_whose_log_dir_failed_tells_its_leader_nothing_any_more(
    tmp_path: Path, autojump_clock: Any
) -> None:
    with opened(tmp_path) as (replicas, _):
        await replicas.assign([assigned(leader=2, epoch=1)])
        log = replicas.partitions[TopicPartition("t", 0)].log
        assert log.on_failure is not None
        with pytest.raises(StorageError, match="all log dirs are offline"), unwrapped_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(replicas.watch_log_dirs)
                await trio.testing.wait_all_tasks_blocked()
                log.on_failure(StorageError("disk", "is broken"))
        assert list(replicas.failed) == [TopicPartition("t", 0)]
        assert fetched(replicas) == []


@pytest.mark.parametrize("is_leader", [True, False])
async def test_a_record_is_flushed_in_time_where_that_is_less_than_a_second(
    tmp_path: Path, mock_clock: trio.testing.MockClock, is_leader: bool
) -> None:
    """The clock stands still but where it is moved, so the look each second cannot be what flushes."""
    with opened(tmp_path) as (replicas, _):
        await replicas.assign([assigned(leader=1 if is_leader else 2, epoch=0, flush_ms="50")])
        partition = replicas.partitions[TopicPartition("t", 0)]

        def append() -> None:
            if is_leader:
                partition.append(memoryview(batch(b"a")), keep_offsets=False, now_ms=NOW_MS)
            else:
                copied = bytearray(batch(b"a"))
                set_base_offset(copied, 0, partition.log.log_end_offset)
                partition.append_fetched(memoryview(copied), Offset(0), Offset(0), NOW_MS)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(replicas.upkeep.run, CONFIG)
            await trio.testing.wait_all_tasks_blocked()
            for end in (2, 4):
                append()
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(0.04)
                append()
                await trio.testing.wait_all_tasks_blocked()
                assert partition.log.recovery_point == end - 2
                mock_clock.jump(0.02)
                while partition.log.recovery_point < end:
                    await trio.lowlevel.checkpoint()
                while replicas.upkeep.timers:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert mock_clock.current_time() < 1
