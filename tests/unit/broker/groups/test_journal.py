"""The journal over partitions on a real disk, in a loop of their own."""

import random
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio

from pipeline.broker.cluster.view import ClusterView, PartitionView, TopicView
from pipeline.broker.groups import journal as journals
from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC, GroupJournal
from pipeline.broker.groups.journal_reader import READ_BYTES
from pipeline.broker.groups.journal_writer import MAX_UNDER_WAY, JournalWrite, journal_error
from pipeline.broker.groups.model import LoadedGroup, OffsetAndMetadata
from pipeline.broker.groups.offsets import journal_records
from pipeline.broker.groups.partitioner import java_hash, partition_of_group
from pipeline.broker.replicas.logs import log_config
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.observer import NoObserver
from pipeline.broker.replication.partition import Partition
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import TopicSettings, topic_settings
from pipeline.errors import BatchTooLargeError, DiskFullError, StorageError
from pipeline.log.config import DAY_MS
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.files import DiskFiles
from pipeline.model import BrokerEndpoint, BrokerId, HostPort, LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.support.loop_steps import measured_steps

NOW_MS = 1_700_000_000_000
NAME = TopicPartition(GROUP_METADATA_TOPIC, 0)
TOPIC_ID = uuid.UUID(int=7)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)
TIMEOUT_MS = 5000
MAX_STEP_S = 0.2


def committed(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset=Offset(offset), commit_timestamp_ms=NOW_MS)


def one(offset: int, group_id: str = "g", name: TopicPartition = A) -> list[tuple[bytes, bytes | None]]:
    return journal_records(group_id, {name: committed(offset)})


@dataclass
class Heard:
    """A listener that remembers."""

    loaded: list[tuple[int, Mapping[str, LoadedGroup]]] = field(default_factory=list)
    unloaded: list[int] = field(default_factory=list)

    def on_loaded(self, partition: int, groups: Mapping[str, LoadedGroup]) -> None:
        self.loaded.append((partition, groups))

    def on_unloaded(self, partition: int) -> None:
        self.unloaded.append(partition)


@dataclass
class Rig:
    """One partition of the journal and its disk; `partition` is this broker's replica."""

    journal: GroupJournal
    directories: LogDirectories
    disk: FaultyFiles
    heard: Heard
    settings: TopicSettings
    view: ClusterView
    partition: Any = None

    async def open(self, epoch: int = 0, isr: tuple[int, ...] = (1,)) -> None:
        """Lead it, together with the others of the ISR."""
        if self.partition is None:
            log = self.directories.get(NAME) or self.directories.create(
                NAME, is_new=True, now_ms=NOW_MS, topic_id=TOPIC_ID, config=log_config(self.settings, DAY_MS)
            )
            upkeep: Any = SimpleNamespace(
                disks=DiskThreads(), flush_soon=lambda _: None, in_sync=InSyncWatch(self.view, 10.0)
            )
            self.partition = Partition(log, self.settings, NoObserver(), upkeep, BrokerId(1))
        brokers = tuple(BrokerId(number) for number in isr)
        self.view.set_brokers({own: BrokerEndpoint(id=own, address=HostPort("h", 9092)) for own in brokers})
        self.partition.lead(
            PartitionView(replicas=brokers, leader=BrokerId(1), leader_epoch=LeaderEpoch(epoch), isr=brokers)
        )
        self.journal.leadership_began(self.partition)

    def close(self) -> None:
        """Lead it no more."""
        self.partition.resign()
        self.journal.leadership_ended(NAME)

    def follower_has(self, end_offset: int | None = None) -> None:
        """Broker 2 has all before there, or all there is."""
        end_offset = self.partition.log.log_end_offset if end_offset is None else end_offset
        leadership = self.partition.leading()
        leadership.follower_fetched(BrokerId(2), Offset(end_offset), Offset(0), broker_epoch=-1, has_epoch=True)

    async def loaded(self, known: int) -> Mapping[str, LoadedGroup]:
        """What is loaded after so many loads."""
        with trio.fail_after(60):
            while len(self.heard.loaded) == known:
                await trio.lowlevel.checkpoint()
        return self.heard.loaded[-1][1]

    async def reopen(self) -> Mapping[str, LoadedGroup]:
        """What is loaded when the partition is led anew."""
        known = len(self.heard.loaded)
        self.close()
        await self.open(self.partition.leader_epoch + 1)
        return await self.loaded(known)

    @property
    def batches(self) -> int:
        return sum(1 for _ in self.partition.log.headers(self.partition.log.log_start_offset))

    def code(self, group_id: str = "g") -> ErrorCode:
        try:
            self.journal.check(group_id)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


@asynccontextmanager
async def running(path: Path, **settings: str) -> AsyncIterator[Rig]:
    disk = FaultyFiles(DiskFiles(), random.Random(1))
    config = BrokerConfig.from_settings(
        {"broker.id": 1, "log.dirs": str(path), "zookeeper.connect": "memory:0", "listeners": "PLAINTEXT://127.0.0.1:0"}
    )
    chosen = topic_settings({key.replace("_", "."): value for key, value in settings.items()}, config)
    view = ClusterView("cluster")
    view.set_topic(
        TopicView(
            name=GROUP_METADATA_TOPIC,
            topic_id=TOPIC_ID,
            partitions={0: PartitionView(replicas=(BrokerId(1),))},
            settings=chosen,
        )
    )
    directories = LogDirectories.open(
        config.log_dirs,
        disk,
        log_config(chosen, DAY_MS),
        broker_id=BrokerId(1),
        cluster_id="cluster",
        rng=random.Random(1),
        now_ms=NOW_MS,
    )
    journal, heard = GroupJournal(view, lambda: NOW_MS, partitions=50, timeout_ms=TIMEOUT_MS), Heard()
    journal.subscribe(heard)
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        yield Rig(journal, directories, disk, heard, chosen, view)
        nursery.cancel_scope.cancel()
    with suppress(StorageError):
        directories.close()


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
def test_groups_are_where_kafka_looks_for_them(group_id: str, number: int, partition: int) -> None:
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


async def test_what_is_written_is_loaded_again(tmp_path: Path) -> None:
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


async def test_large_writes_at_once_hold_up_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        records = [record for number in range(8_000) for record in one(number, name=TopicPartition("a", number))]
        with measured_steps() as steps:
            writes = [rig.journal.begin("g", records) for _ in range(40)]
            for write in writes:
                await write.wait()
        assert rig.batches == len(writes)
        assert steps.longest_s < MAX_STEP_S


async def test_one_batch_holds_no_more_than_the_topic_allows(tmp_path: Path) -> None:
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


async def test_who_asked_may_go_and_the_write_is_done(tmp_path: Path) -> None:
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


def damage(path: Path) -> None:
    """A payload at a thirtieth, and halfway the format of a batch: its header cannot be read."""
    (segment,) = path.glob(f"{NAME}/*.log")
    damaged = bytearray(segment.read_bytes())
    size = len(damaged) // 300
    damaged[10 * size + 70] ^= 1
    damaged[150 * size + 16] = 9
    segment.write_bytes(damaged)


async def test_damage_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        for number in range(300):
            await rig.journal.write("g", one(number, name=TopicPartition("a", number)))
        damage(tmp_path)
        with structlog.testing.capture_logs() as told:
            offsets = (await rig.reopen())["g"].offsets
        (line,) = (line for line in told if line["event"] == "group_journal_damaged")
        assert (line["partition"], line["passed_over"] > 0, len(line["first"]) > 0) == (0, True, True)
        missing = {number for number in range(300) if TopicPartition("a", number) not in offsets}
        assert {10, 150} <= missing
        assert len(missing) < 150
        assert TopicPartition("a", 299) in offsets
        assert rig.code() == ErrorCode.NONE


async def test_others_go_on_while_a_long_journal_is_loaded(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        padding = "x" * 200
        for number in range(30):
            value = OffsetAndMetadata(offset=Offset(number), metadata=padding, commit_timestamp_ms=NOW_MS)
            change = {TopicPartition("a", index): value for index in range(500)}
            await rig.journal.write("g", journal_records("g", change))
        assert rig.partition.log.snapshot.size_bytes > 2 * READ_BYTES
        rig.close()
        known = len(rig.heard.loaded)
        await rig.open(1)
        assert rig.code() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await rig.journal.write("g", one(1))
        turns = 0
        with trio.fail_after(60):
            while len(rig.heard.loaded) == known:
                await trio.lowlevel.checkpoint()
                turns += 1
        assert turns > 30
        assert {found.offset for found in rig.heard.loaded[-1][1]["g"].offsets.values()} == {29}


async def test_very_many_groups_are_told_in_slices_and_taken_back_if_the_partition_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "SLICE_GROUPS", 10)
    async with running(tmp_path) as rig:
        await rig.open()
        for number in range(35):
            await rig.journal.write(f"g{number}", one(number, f"g{number}"))
        assert len(await rig.reopen()) == 10
        assert rig.code() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        rig.close()
        assert rig.heard.unloaded == [0, 0]
        known = len(rig.heard.loaded)
        await rig.open(rig.partition.leader_epoch + 1)
        with trio.fail_after(60):
            while rig.code() is not ErrorCode.NONE:
                await trio.lowlevel.checkpoint()
        told = [groups for _, groups in rig.heard.loaded[known:]]
        assert [len(groups) for groups in told] == [10, 10, 10, 5]
        assert {group_id for groups in told for group_id in groups} == {f"g{number}" for number in range(35)}


async def test_a_load_ends_when_the_partition_goes(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        await rig.journal.write("g", one(1))
        rig.close()
        await rig.open(1)
        rig.close()
        assert rig.code() == ErrorCode.NOT_COORDINATOR
        assert await rig.reopen() == {"g": LoadedGroup(offsets={A: committed(1)})}
        assert len(rig.heard.loaded) == 2
        assert rig.heard.unloaded == [0]


# With followers


async def wait_for(write: JournalWrite) -> ErrorCode:
    try:
        await write.wait()
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


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


async def test_nothing_is_loaded_before_all_is_committed_that_the_log_held(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.open()
        await rig.journal.write("g", one(1))
        rig.close()
        rig.partition.high_watermark = Offset(0)
        await rig.open(1, isr=(1, 2))
        await turns(100)
        assert rig.code() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert rig.journal.is_loading
        rig.follower_has()
        assert (await rig.loaded(1))["g"].offsets == {A: committed(1)}
        assert rig.code() == ErrorCode.NONE


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


async def test_who_waits_too_long_is_told_and_the_write_goes_on(tmp_path: Path, autojump_clock: Any) -> None:
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
async def test_after_a_power_failure_every_acknowledged_write_is_there(tmp_path: Path, seed: int) -> None:
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
