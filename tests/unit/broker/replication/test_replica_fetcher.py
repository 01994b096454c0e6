"""A fetcher with real logs, and a leader on loopback that says what it is told to."""

import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from pipeline.broker.cluster.view import ClusterView, PartitionView
from pipeline.broker.replicas.logs import log_config
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.partition import Partition
from pipeline.broker.replication.replica_fetch_plan import FetchLimits, FollowedPartition
from pipeline.broker.replication.replica_fetcher import FetcherSettings, ReplicaFetcher
from pipeline.broker.replication.replica_fetchers import ReplicaFetchers, fetcher_number
from pipeline.broker.replication.replication_quota import ReplicationThrottle
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import topic_settings
from pipeline.errors import DiskFullError
from pipeline.log.files import DiskFiles, Files
from pipeline.log.loader import load_log
from pipeline.log.log_failure import abandon
from pipeline.log.truncation import truncate_to
from pipeline.model import MAX_INT64, LeaderEpoch, Offset, TopicPartition
from pipeline.net.dialing import PLAIN_DIALER
from pipeline.protocol.errors import ErrorCode
from pipeline.records.batch import place_batch
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Observed, batch
from tests.support.replica_leader import FOLLOWER, LEADER, LONG_WAIT_MS, TOPIC_ID, Leader, leave_fetcher, serving


def settings_for(leader: Leader, max_wait_ms: int = LONG_WAIT_MS) -> FetcherSettings:
    return FetcherSettings(
        limits=FetchLimits(
            own_id=FOLLOWER,
            min_bytes=1,
            max_wait_ms=max_wait_ms,
            max_partition_bytes=1 << 20,
            max_response_bytes=10 << 20,
            max_backoff_s=0.05,
        ),
        request_timeout_s=TIMEOUT_S,
        clock=lambda: NOW_MS,
        dialer=PLAIN_DIALER,
        throttle=ReplicationThrottle(MAX_INT64),
        find_address=lambda _: leader.address,
        find_epoch=lambda: 3,
    )


def replica(path: Path, index: int = 0, files: Files | None = None, **overrides: str) -> Partition:
    broker = BrokerConfig.from_settings({"broker.id": 2, "log.dirs": str(path), "zookeeper.connect": "z:1"})
    settings = topic_settings({name.replace("_", "."): value for name, value in overrides.items()}, broker)
    directory = path / f"t-{index}"
    directory.mkdir()
    log = load_log(
        files or DiskFiles(),
        directory,
        TopicPartition("t", index),
        log_config(settings, 1_000_000),
        recovery_point=Offset(0),
        clean=False,
        now_ms=NOW_MS,
    )
    upkeep: Any = SimpleNamespace(
        disks=DiskThreads(), flush_soon=lambda partition: None, in_sync=InSyncWatch(ClusterView("c"), 10.0)
    )
    partition = Partition(log, settings, Observed(), upkeep, FOLLOWER)
    partition.follow(PartitionView(replicas=(LEADER, FOLLOWER), leader=LEADER, leader_epoch=LeaderEpoch(5)))
    return partition


def follow(fetchers: ReplicaFetchers | ReplicaFetcher, partition: Partition, epoch: int = 5) -> None:
    followed = FollowedPartition(partition.topic_partition, TOPIC_ID, LeaderEpoch(epoch), partition.log)
    if isinstance(fetchers, ReplicaFetchers):
        fetchers.follow(partition, followed, LEADER)
    else:
        fetchers.follow(partition, followed)


async def until(condition: Any) -> None:
    with trio.fail_after(TIMEOUT_S):
        while not condition():
            await trio.sleep(0.002)


def content(partition: Partition) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(partition.log.directory.glob("*.log")))


@asynccontextmanager
async def fetching(leader: Leader, *partitions: Partition, max_wait_ms: int = LONG_WAIT_MS) -> AsyncIterator[Any]:
    async with serving(leader), trio.open_nursery() as nursery:
        fetchers = ReplicaFetchers(settings_for(leader, max_wait_ms), 1)
        for partition in partitions:
            follow(fetchers, partition)
        await nursery.start(fetchers.run)
        yield fetchers
        nursery.cancel_scope.cancel()


async def test_whole_batches_of_many_partitions_are_appended_as_they_come(tmp_path: Path) -> None:
    leader = Leader()
    partitions = [replica(tmp_path, index) for index in range(3)]
    for index in range(3):
        leader.append(index, b"a", b"b")
    async with fetching(leader, *partitions) as fetchers:
        await until(lambda: all(partition.log.log_end_offset == 2 for partition in partitions))
        leader.append(1, b"c")
        await until(lambda: partitions[1].high_watermark == 3)
        assert [content(partition) for partition in partitions] == [leader.records[index] for index in range(3)]
        assert fetchers.counts().bytes_fetched == sum(map(len, leader.records.values()))
        assert fetchers.max_lag == 0
    assert [asked.partition for asked in leader.fetches[-1].topics[0].partitions] == [1]


async def test_a_partition_that_joins_does_not_wait_for_the_long_poll_of_the_others(tmp_path: Path) -> None:
    leader = Leader()
    first, second = replica(tmp_path, 0), replica(tmp_path, 1)
    async with fetching(leader, first) as fetchers:
        await until(lambda: len(leader.fetches) == 2)  # the second one waits
        leader.append(1, b"a")
        follow(fetchers, second)
        await until(lambda: second.log.log_end_offset == 1)
        leader.append(0, b"b")
        await until(lambda: first.log.log_end_offset == 1)
        assert [fetch.session_epoch for fetch in leader.fetches] == list(range(len(leader.fetches)))


async def test_a_corrupt_answer_is_asked_for_again(tmp_path: Path) -> None:
    leader, partition = Leader(), replica(tmp_path)
    leader.append(0, b"a")
    broken = bytearray(leader.records[0])
    broken[-1] ^= 1
    leader.script += [bytes(broken), ErrorCode.CORRUPT_MESSAGE]
    async with fetching(leader, partition) as fetchers:
        await until(lambda: partition.log.log_end_offset == 1)
        assert fetchers.counts().corrupt_answers == 1
    assert content(partition) == leader.records[0]


async def test_an_answer_without_a_whole_batch_is_a_corrupt_one_and_not_asked_for_again_at_once(tmp_path: Path) -> None:
    """A flipped bit in a batch's length on the leader's disk, for as long as it is there."""
    leader, partition = Leader(), replica(tmp_path)
    leader.append(0, b"a")
    longer = bytearray(leader.records[0])
    longer[9] ^= 1
    leader.script += [bytes(longer)] * 3
    with capture_logs() as logs:
        async with fetching(leader, partition) as fetchers:
            await until(lambda: partition.log.log_end_offset == 1)
            assert fetchers.counts().corrupt_answers == 3
    told = [entry for entry in logs if entry["event"] == "corrupt_answer"]
    assert [(entry["topic_partition"], entry["error"]) for entry in told] == [
        ("t-0", f"batch at offset 0: {len(longer)} bytes hold no whole batch")
    ] * 3


@pytest.mark.parametrize("rate", [10**9, MAX_INT64])
async def test_a_throttle_that_is_raised_or_lifted_ends_the_wait_at_the_old_rate(tmp_path: Path, rate: int) -> None:
    leader, partition = Leader(), replica(tmp_path)
    leader.append(0, b"a")
    async with serving(leader), trio.open_nursery() as nursery:
        settings = settings_for(leader)
        settings.throttle.bytes_per_s = 1
        fetchers = ReplicaFetchers(settings, 1)
        follow(fetchers, partition)
        fetchers.throttle(partition.topic_partition, is_throttled=True)
        await nursery.start(fetchers.run)
        await until(lambda: partition.log.log_end_offset == 1)
        leader.append(0, b"b")
        await trio.sleep(0.2)
        assert partition.log.log_end_offset == 1
        settings.throttle.bytes_per_s = rate
        await until(lambda: partition.log.log_end_offset == 2)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR]
)
async def test_a_refused_partition_is_fetched_again(tmp_path: Path, code: ErrorCode) -> None:
    leader, partition = Leader(), replica(tmp_path)
    leader.append(0, b"a")
    leader.script += [code, code]
    async with fetching(leader, partition):
        await until(lambda: partition.log.log_end_offset == 1)


async def test_records_that_the_leader_lacks_are_truncated_first(tmp_path: Path) -> None:
    leader, partition = Leader(), replica(tmp_path)
    for offset, value in enumerate((b"a", b"b", b"c")):
        own = batch(value)
        place_batch(own, 0, offset, 3)
        partition.append_fetched(memoryview(own), Offset(0), Offset(0), NOW_MS)
    leader.append(0, b"a")
    leader.append(0, b"instead")
    leader.epoch_end = (3, 1)
    async with fetching(leader, partition):
        await until(lambda: partition.log.log_end_offset == 2)
        assert leader.questions == 1
    assert content(partition).endswith(leader.records[0][len(leader.records[0]) // 2 :])


async def test_a_log_that_ends_before_the_leaders_start_begins_anew(tmp_path: Path) -> None:
    leader, partition = Leader(), replica(tmp_path)
    leader.starts[0] = 40
    async with fetching(leader, partition):
        await until(lambda: partition.log.log_start_offset == 40)
        leader.append(0, b"a")
        await until(lambda: partition.high_watermark == 41)
        assert content(partition) == leader.records[0]


async def test_an_empty_log_that_starts_behind_the_leaders_end_begins_anew(tmp_path: Path) -> None:
    leader, partition = Leader(), replica(tmp_path)
    await partition.restart_at(Offset(40))
    leader.append(0, b"a")
    async with fetching(leader, partition):
        await until(lambda: partition.high_watermark == 1)
        assert content(partition) == leader.records[0]


async def test_a_change_of_role_waits_for_the_cut_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, partition = Leader(), replica(tmp_path)
    own = batch(b"a")
    place_batch(own, 0, 0, 3)
    partition.append_fetched(memoryview(own), Offset(0), Offset(0), NOW_MS)
    leader.epoch_end = (3, 0)
    reached, may_go = threading.Event(), threading.Event()

    def slow(log: Any, offset: Offset) -> bool:
        reached.set()
        assert may_go.wait(TIMEOUT_S)
        return truncate_to(log, offset)

    monkeypatch.setattr("pipeline.broker.replication.partition.truncate_to", slow)
    async with fetching(leader, partition) as fetchers, trio.open_nursery() as nursery:
        await trio.to_thread.run_sync(reached.wait, TIMEOUT_S)
        events: list[str] = []

        async def leave() -> None:
            await leave_fetcher(fetchers, partition.topic_partition)
            events.append(f"left at {partition.log.log_end_offset}")

        nursery.start_soon(leave)
        await trio.testing.wait_all_tasks_blocked()
        assert events == []
        may_go.set()
        await until(lambda: events == ["left at 0"])
        assert not fetchers.fetchers


async def test_a_partition_is_not_fetched_before_a_refused_truncation_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, partition = Leader(), replica(tmp_path)
    own = batch(b"a", b"b")
    place_batch(own, 0, 0, 3)
    partition.append_fetched(memoryview(own), Offset(0), Offset(0), NOW_MS)
    leader.append(0, b"x")
    leader.append(0, b"y")
    leader.append(0, b"z")
    leader.epoch_end = (3, 1)
    refusals = 2

    def refuse(log: Any, offset: Offset) -> bool:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise DiskFullError(str(tmp_path), "no space")
        assert not leader.fetches
        return truncate_to(log, offset)

    monkeypatch.setattr("pipeline.broker.replication.partition.truncate_to", refuse)
    async with fetching(leader, partition):
        await until(lambda: partition.log.log_end_offset == 3)
        assert leader.questions == 3
    assert content(partition).endswith(leader.records[0])


async def test_batches_are_not_appended_to_a_partition_that_left(tmp_path: Path) -> None:
    leader = Leader()
    first, second = replica(tmp_path, 0), replica(tmp_path, 1)
    async with fetching(leader, first, second) as fetchers:
        await until(lambda: len(leader.fetches) == 2)
        await leave_fetcher(fetchers, first.topic_partition)
        leader.append(0, b"a")
        leader.append(1, b"b")
        await until(lambda: second.log.log_end_offset == 1)
        assert first.log.log_end_offset == 0


async def test_a_full_disk_is_tried_again_and_a_failed_one_takes_its_partition_out(tmp_path: Path) -> None:
    leader, files = Leader(), FaultyFiles(DiskFiles(), random.Random(1))
    full, fine = replica(tmp_path, 0, files), replica(tmp_path, 1)
    files.capacity_bytes = files.used_bytes + 30
    refused: list[DiskFullError] = []
    full.log.on_full = refused.append
    leader.append(0, b"a")
    leader.append(1, b"b")
    async with fetching(leader, full, fine, max_wait_ms=20) as fetchers:
        await until(lambda: bool(refused) and fine.log.log_end_offset == 1)
        files.capacity_bytes = None
        await until(lambda: full.log.log_end_offset == 1)
        abandon(full.log, "the disk failed")
        leader.append(0, b"c")
        leader.append(1, b"d")
        await until(lambda: fine.log.log_end_offset == 2)
        await until(lambda: [p.topic_partition.partition for p in fetchers.partitions] == [1])


async def test_a_follower_with_flush_messages_reports_only_flushed_records(tmp_path: Path) -> None:
    leader, partition = Leader(), replica(tmp_path, flush_messages="1")
    leader.append(0, b"a")
    async with fetching(leader, partition):
        await until(lambda: leader.asked.get(0) is not None and leader.asked[0].fetch_offset == 1)
        assert partition.log.recovery_point == 1


async def test_a_leader_that_comes_back_is_fetched_from_again(tmp_path: Path) -> None:
    leader, partition = Leader(), replica(tmp_path)
    async with trio.open_nursery() as nursery:
        fetchers = ReplicaFetchers(settings_for(leader), 1)
        await nursery.start(fetchers.run)
        follow(fetchers, partition)
        await until(lambda: fetchers.counts().failures > 0)
        async with serving(leader):
            leader.append(0, b"a")
            await until(lambda: partition.log.log_end_offset == 1)
        failures = fetchers.counts().failures
        await until(lambda: fetchers.counts().failures > failures)
        assert leader.address is not None
        async with serving(leader):
            leader.append(0, b"b")
            await until(lambda: partition.log.log_end_offset == 2)
        nursery.cancel_scope.cancel()


async def test_a_fetcher_stops_at_once_also_during_a_long_poll(tmp_path: Path) -> None:
    leader, partition = Leader(), replica(tmp_path)
    async with fetching(leader, partition):
        await until(lambda: len(leader.fetches) == 2)
        began = trio.current_time()
    assert trio.current_time() - began < LONG_WAIT_MS / 2000


def test_partitions_are_spread_over_the_fetchers_by_their_names() -> None:
    numbers = [fetcher_number(TopicPartition("t", index), 4) for index in range(8)]
    assert sorted(numbers) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {fetcher_number(TopicPartition(f"topic-{number}", 0), 4) for number in range(50)} == {0, 1, 2, 3}
