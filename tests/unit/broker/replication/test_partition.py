"""When records are seen and acknowledged while the disk is slow, or has no space."""

import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.broker.cluster.view import ClusterView, PartitionView
from pipeline.broker.replicas.logs import log_config
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.partition import Partition
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import topic_settings
from pipeline.errors import DiskFullError
from pipeline.log.appends import AppendInfo
from pipeline.log.files import DiskFiles, Files
from pipeline.log.loader import load_log
from pipeline.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Observed, batch


class _SlowFiles(DiskFiles):
    """A disk whose first flush of a log waits until it may go on."""

    def __init__(self) -> None:
        self.is_reached, self.may_go = threading.Event(), threading.Event()

    def sync_directory(self, path: Path) -> None:
        self.is_reached.set()
        assert self.may_go.wait(TIMEOUT_S)
        super().sync_directory(path)


def _open(path: Path, files: Files, **overrides: str) -> Partition:
    broker = BrokerConfig.from_settings({"broker.id": 1, "log.dirs": str(path), "zookeeper.connect": "z:1"})
    settings = topic_settings({name.replace("_", "."): value for name, value in overrides.items()}, broker)
    path.mkdir(exist_ok=True)
    log = load_log(
        files,
        path,
        TopicPartition("t", 0),
        log_config(settings, 1_000_000),
        recovery_point=Offset(0),
        clean=False,
        now_ms=NOW_MS,
    )
    upkeep: Any = SimpleNamespace(
        disks=DiskThreads(),
        flush_soon=lambda _: None,
        promise_soon=lambda _: None,
        in_sync=InSyncWatch(ClusterView("c"), 10.0),
    )
    own = BrokerId(1)
    partition = Partition(log, settings, Observed(), upkeep, own)
    partition.lead(PartitionView(replicas=(own,), leader=own, leader_epoch=LeaderEpoch(0), isr=(own,)))
    return partition


class _Told:
    """Who waits, and was told of so many bytes when consumers saw as much."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.shown: list[tuple[int, int]] = []

    def arrived(self, size_bytes: int) -> None:
        self.shown.append((self.partition.high_watermark, size_bytes))

    def wake(self) -> None:
        pass


def _append(partition: Partition, **producer: int) -> AppendInfo:
    return partition.append(memoryview(batch(b"x", **producer)), keep_offsets=False, now_ms=NOW_MS)


async def test_an_append_during_a_flush_does_not_expose_unflushed_records(tmp_path: Path) -> None:
    files = _SlowFiles()
    partition = _open(tmp_path / "t-0", files, flush_messages="2")
    assert not partition.awaits_flush(_append(partition))
    assert partition.awaits_flush(_append(partition))
    assert partition.high_watermark == 1
    told = _Told(partition)
    partition.waiters[told] = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partition.flush_up_to, Offset(2))
        await trio.to_thread.run_sync(files.is_reached.wait, TIMEOUT_S)
        assert not partition.awaits_flush(_append(partition))
        assert partition.high_watermark == 1
        files.may_go.set()
    assert partition.high_watermark == 3
    size_bytes = len(batch(b"x"))
    assert [offset for offset, _ in told.shown] == [2, 3]
    for (offset, told_bytes), before in zip(told.shown, (1, 2), strict=True):
        assert told_bytes >= (offset - before) * size_bytes


async def test_records_flushed_by_another_request_are_visible_before_they_are_acknowledged(tmp_path: Path) -> None:
    partition = _open(tmp_path / "t-0", DiskFiles(), flush_messages="1")
    assert partition.awaits_flush(_append(partition))
    partition.log.flush()  # as that of a log directory, or of a new segment
    await partition.flush_up_to(Offset(1))
    assert partition.high_watermark == 1


async def test_a_batch_sent_again_after_a_kill_waits_for_a_flush(tmp_path: Path) -> None:
    path, producer = tmp_path / "t-0", {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    killed = _open(path, DiskFiles(), flush_messages="1")
    assert killed.awaits_flush(_append(killed, **producer))
    partition = _open(path, DiskFiles(), flush_messages="1")
    partition.keeps_promise = True
    again = _append(partition, **producer)
    assert again.duplicate and partition.awaits_flush(again)
    await partition.flush_up_to(Offset(1))
    assert not partition.awaits_flush(_append(partition, **producer))


async def test_a_batch_sent_again_after_a_flush_that_failed_waits_for_the_next(tmp_path: Path) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    partition = _open(tmp_path / "t-0", files, flush_messages="1")
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert partition.awaits_flush(_append(partition, **producer))
    files.capacity_bytes = files.used_bytes
    with pytest.raises(DiskFullError):
        await partition.flush_up_to(Offset(1))
    again = _append(partition, **producer)
    assert again.duplicate
    assert partition.awaits_flush(again)
    files.capacity_bytes = None
    await partition.flush_up_to(Offset(1))
    assert partition.high_watermark == 1
    assert not partition.awaits_flush(_append(partition, **producer))


async def test_flush_waits_end_when_their_records_are_truncated(tmp_path: Path) -> None:
    partition = _open(tmp_path / "t-0", DiskFiles(), flush_messages="1")
    end_offset = Offset(_append(partition).last_offset + 1)
    with pytest.raises(KafkaError) as raised, trio.fail_after(TIMEOUT_S), unwrapped_errors():
        async with trio.open_nursery() as nursery, partition._flushing:
            nursery.start_soon(partition.flush_up_to, end_offset)
            await trio.testing.wait_all_tasks_blocked()
            partition.follow(PartitionView(replicas=(BrokerId(1),), leader_epoch=LeaderEpoch(1)))
            assert await partition.truncate_to(Offset(0))
    assert raised.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_promise_of_flushes_follows_the_settings_and_is_kept_until_it_is_ended(tmp_path: Path) -> None:
    partition = _open(tmp_path / "t-0", DiskFiles())
    loose = partition.settings
    strict = loose.model_copy(update={"flush_messages": 1})
    assert not partition.awaits_flush(_append(partition))
    partition.reconfigure(strict)
    assert partition.awaits_flush(_append(partition))
    await partition.settle_promise()
    assert partition.log.is_flushed_first
    assert partition.log.recovery_point == partition.log.log_end_offset
    partition.reconfigure(loose)
    assert partition.awaits_flush(_append(partition))  # the note is still there
    await partition.settle_promise()
    assert not partition.log.is_flushed_first
    await partition.flush_up_to(partition.log.log_end_offset)
    assert not partition.awaits_flush(_append(partition))


async def test_settings_that_go_to_and_fro_leave_no_promise_that_is_not_kept(tmp_path: Path) -> None:
    partition = _open(tmp_path / "t-0", DiskFiles())
    loose = partition.settings
    strict = loose.model_copy(update={"flush_messages": 1})
    async with trio.open_nursery() as nursery:
        partition.reconfigure(strict)
        nursery.start_soon(partition.settle_promise)
        await trio.testing.wait_all_tasks_blocked()
        partition.reconfigure(loose)
        assert partition.awaits_flush(_append(partition))
    assert (partition.keeps_promise, partition.log.is_flushed_first) == (False, False)
