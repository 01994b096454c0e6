"""Logs without a topic: what is removed, what is kept, and what comes back."""

import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pipeline.broker.replicas import strays as stray_keeper
from pipeline.broker.replicas.strays import ASSIGNED_ELSEWHERE, NOT_REMOVED
from pipeline.client.admin.elections import alter_reassignments
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.coordination.deleted_topics import DeletedTopic, mark_deleted, remove_znodes, write_record
from pipeline.coordination.znodes import TopicAssignment, encode_uuid, partition_state_path, topic_path
from pipeline.errors import DiskFullError
from pipeline.log.directories.logs_set_aside import LogName
from pipeline.log.files import DiskFiles
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Start, batch
from tests.support.brokers import replicated_cluster
from tests.support.strays import T, produce_records, wait_for
from tests.support.znodes import remove_tree


async def topic_id_of(client: MemoryClient, name: str) -> uuid.UUID:
    return TopicAssignment.decode(name, (await client.get(topic_path(name))).data).id


def strays(broker: Broker) -> list[LogName]:
    return [stray.name for stray in broker.handle.strays.strays]


async def test_a_topic_whose_znode_vanished_is_kept_and_served_again_when_it_is_restored(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.create("other")
        await broker.produce("t", batch(b"a"))
        topic_id, backup = await topic_id_of(broker.zookeeper, "t"), zookeeper_twin.backup()
        directory = broker.handle.replicas.partitions[T].log.directory
        await remove_tree(broker.zookeeper, topic_path("t"))
        await wait_for(lambda: strays(broker))
        assert strays(broker) == [LogName(T, topic_id)]
        assert directory.exists()
        assert (await broker.produce("other", batch(b"b"))).error_code == ErrorCode.NONE
        zookeeper_twin.restore(backup)
        await wait_for(lambda: not strays(broker))
        await wait_for(lambda: T in broker.handle.replicas.partitions)
        await wait_for(lambda: broker.handle.replicas.partitions[T].is_leader)
        assert (await broker.fetch("t", 0)).high_watermark == 1
        assert (await broker.produce("t", batch(b"b"))).base_offset == 1


async def test_no_log_is_removed_when_zookeeper_comes_back_without_the_topic(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with start() as broker:
        await broker.create("before")
        backup = zookeeper_twin.backup()
        await broker.create("t", 2)
        await broker.produce("t", batch(b"a"))
        zookeeper_twin.restore(backup)
        await wait_for(lambda: len(strays(broker)) == 2)
        assert (await broker.produce("before", batch(b"b"))).error_code == ErrorCode.NONE
    async with start() as broker:
        await wait_for(lambda: len(strays(broker)) == 2)
        assert all(stray.path.exists() for stray in broker.handle.strays.strays)


async def test_no_log_is_removed_when_the_whole_tree_is_wiped(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", 3)
        await broker.produce("t", batch(b"a"))
        await remove_tree(broker.zookeeper, "/")
        await wait_for(lambda: len(strays(broker)) == 3)
        assert all(stray.path.exists() for stray in broker.handle.strays.strays)


async def test_a_broker_that_was_down_removes_the_log_of_a_deleted_topic_when_it_is_back(
    start: Start, zookeeper_twin: MemoryZooKeeper, tmp_path: Path
) -> None:
    async with start() as broker:
        for name in ("t", "recreated", "lost"):
            await broker.create(name)
            await broker.produce(name, batch(b"old"))
    async with zookeeper_twin.open() as client:
        for name in ("t", "recreated"):
            await mark_deleted(client, name, await topic_id_of(client, name), NOW_MS)
            await remove_znodes(client, name, NOW_MS)
        lost = await topic_id_of(client, "lost")
        await remove_tree(client, topic_path("lost"))
        for name in ("recreated", "lost"):
            again = TopicAssignment(topic=name, topic_id=uuid.uuid4(), partitions={0: (BrokerId(1),)})
            await client.create(again.path, again.encode())
    async with start() as broker:
        for name in ("recreated", "lost"):
            assert (await broker.fetch(name, 0)).high_watermark == 0
        await wait_for(lambda: strays(broker) == [LogName(TopicPartition("lost", 0), lost)])
        await wait_for(lambda: not (tmp_path / "broker-1" / "t-0").exists())
        (stray,) = broker.handle.strays.strays
        assert stray.path == tmp_path / "broker-1" / f"{encode_uuid(lost)}-stray" / "lost-0"
        assert stray.path.exists()


async def test_a_stray_is_removed_once_its_deletion_is_recorded(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a"))
        topic_id = await topic_id_of(broker.zookeeper, "t")
        await remove_tree(broker.zookeeper, topic_path("t"))
        await wait_for(lambda: strays(broker))
        (stray,) = broker.handle.strays.strays
        record = DeletedTopic(topic_id=topic_id, topic="t", timestamp_ms=NOW_MS, is_complete=True)
        await write_record(broker.zookeeper, record)
        await wait_for(lambda: not strays(broker))
        assert not stray.path.exists()


class FullAtDeletion(DiskFiles):
    """A disk without room for the names of deleted logs."""

    is_full = True

    def rename(self, source: Path, target: Path) -> None:
        if self.is_full and target.name.endswith("-delete"):
            raise DiskFullError(str(source), "No space left on device")
        super().rename(source, target)


async def test_a_log_that_cannot_be_removed_is_named_until_it_is_removed(start: Start) -> None:
    files = FullAtDeletion()
    async with start(files=files) as broker:
        await broker.create("t")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
        assert [result.error_code for result in (await broker.ask(request)).responses] == [0]
        await wait_for(lambda: strays(broker))
        (stray,) = broker.handle.strays.strays
        assert (stray.reason, stray.path.exists()) == (NOT_REMOVED, True)
        await broker.create("t")  # whose name the log that is left does not take
        assert (await broker.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
        files.is_full = False
        await wait_for(lambda: not strays(broker))
        assert (await broker.produce("t", batch(b"b"))).base_offset == 1


async def test_committed_offsets_go_with_a_deleted_topic_and_outlast_one_that_is_missing(start: Start) -> None:
    async with start() as broker:
        told: list[tuple[str, int | None]] = []
        await broker.create("deleted")
        await broker.create("t")
        broker.handle.replicas.in_sync.view.subscribe_deletions(lambda *what: told.append(what))
        await remove_tree(broker.zookeeper, topic_path("t"))
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="deleted")], timeout_ms=30_000)
        assert [result.error_code for result in (await broker.ask(request)).responses] == [0]
        await wait_for(lambda: strays(broker))
        assert told == [("deleted", None)]


async def test_a_deletion_that_is_heard_of_after_the_topic_was_recreated_is_told_with_its_time(start: Start) -> None:
    async with start() as broker:
        told: list[tuple[str, int | None]] = []
        await broker.create("t")
        broker.handle.replicas.in_sync.view.subscribe_deletions(lambda *what: told.append(what))
        found = await broker.zookeeper.get(topic_path("t"))
        assignment = TopicAssignment.decode("t", found.data)
        await write_record(broker.zookeeper, DeletedTopic(topic="t", topic_id=assignment.id, timestamp_ms=5))
        await broker.zookeeper.set(topic_path("t"), replace(assignment, topic_id=uuid.uuid4()).encode())
        await wait_for(lambda: told)
        assert told == [("t", 5)]


async def test_no_lost_topic_is_created_because_somebody_asks_for_it(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async def ask_for(broker: Broker) -> ErrorCode:
        (topic,) = (await broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))).topics
        return ErrorCode(topic.error_code)

    async def ask_for_coordinator(broker: Broker) -> ErrorCode:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=["readers"])
        return ErrorCode((await broker.ask(request)).coordinators[0].error_code)

    settings = {"auto_create_topics_enable": True, "offsets_topic_replication_factor": 1}
    async with start(**settings) as broker:
        await broker.create("t")
        assert await ask_for_coordinator(broker) == ErrorCode.NONE
        backup = zookeeper_twin.backup()
        lost = await topic_id_of(broker.zookeeper, "t")
        for name in ("t", "__consumer_offsets"):
            await remove_tree(broker.zookeeper, topic_path(name))
        await wait_for(lambda: broker.handle.replicas.in_sync.view.topic("t") is None)
        assert await ask_for(broker) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await wait_for(lambda: broker.handle.replicas.in_sync.view.topic("__consumer_offsets") is None)
        assert await ask_for_coordinator(broker) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    async with start(**settings) as broker:
        await wait_for(lambda: strays(broker))
        assert await ask_for(broker) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await ask_for_coordinator(broker) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        zookeeper_twin.restore(backup)
        await wait_for(lambda: T in broker.handle.replicas.partitions)
        assert await topic_id_of(broker.zookeeper, "t") == lost
        await wait_for(lambda: not strays(broker))
        assert await ask_for_coordinator(broker) == ErrorCode.NONE
        await remove_tree(broker.zookeeper, topic_path("t"))
        await wait_for(lambda: broker.handle.replicas.in_sync.view.topic("t") is None)
        await write_record(broker.zookeeper, DeletedTopic(topic="t", topic_id=lost, timestamp_ms=NOW_MS))
        assert await ask_for(broker) == ErrorCode.NONE
        assert await topic_id_of(broker.zookeeper, "t") != lost


async def test_a_replica_that_was_moved_away_is_removed_once_the_leader_has_all_of_it(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, 2) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1, replication_factor=2)])
        await brokers.wait_for_isr("t", 2)
        await brokers.wait_until(lambda: len(brokers.replicas("t")) == 2)
        leader = brokers.leader("t")
        assert leader is not None
        other = 3 - leader
        log = brokers.replica(other, "t").log
        await produce_records(brokers, 20)
        await brokers.stop(other)
        async with brokers.zookeeper.open() as client:
            assignment = TopicAssignment.decode("t", (await client.get(topic_path("t"))).data)
            await client.set(assignment.path, replace(assignment, partitions={0: (leader,)}).encode())
        assert log.directory.exists()
        await brokers.start(other)
        await brokers.wait_until(lambda: not log.directory.exists())
        assert not brokers.handles[other].strays.strays


async def test_a_replica_that_an_old_assignment_lacks_is_kept_while_the_leader_lacks_its_records(
    tmp_path: Path,
) -> None:
    async with replicated_cluster(tmp_path, 2) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1, replication_factor=1)])
        await brokers.wait_until(lambda: brokers.leader("t") is not None)
        old = brokers.leader("t")
        assert old is not None
        new = BrokerId(3 - old)
        backup = brokers.zookeeper.backup()
        await alter_reassignments(brokers.cluster, {T: [new]}, timeout_s=TIMEOUT_S)
        await brokers.wait_until(lambda: brokers.leader("t") == new and len(brokers.replicas("t")) == 1)
        await produce_records(brokers, 20)
        log = brokers.replica(new, "t").log
        brokers.zookeeper.restore(backup)
        keeper = brokers.handles[new].strays
        await brokers.wait_until(lambda: len(keeper.strays) == 1)
        for _ in range(3):
            await keeper.look()
        (stray,) = keeper.strays
        assert (stray.path, stray.reason) == (log.directory, ASSIGNED_ELSEWHERE)
        assert log.log_end_offset == 20
        assert log.directory.exists()


async def test_a_moved_replica_that_cannot_be_removed_is_let_go_once_and_removed_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, refused, rename = True, 0, DiskFiles.rename

    def rename_unless_full(self: DiskFiles, source: Path, target: Path) -> None:
        nonlocal refused
        if is_full and target.name.endswith("-delete"):
            refused += 1
            raise DiskFullError(str(source), "No space left on device")
        rename(self, source, target)

    monkeypatch.setattr(DiskFiles, "rename", rename_unless_full)
    monkeypatch.setattr(stray_keeper, "LOOK_AGAIN_S", 0.05)
    async with replicated_cluster(tmp_path, 2) as brokers, brokers.zookeeper.open() as client:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=6, replication_factor=1)])
        await brokers.wait_until(lambda: all(brokers.leader("t", index) is not None for index in range(6)))
        moved = [index for index in range(6) if brokers.leader("t", index) == 1]
        logs = [brokers.replica(1, "t", index).log for index in moved]
        await produce_records(brokers, 60)
        targets = {TopicPartition("t", index): [BrokerId(2)] for index in moved}
        await alter_reassignments(brokers.cluster, targets, timeout_s=TIMEOUT_S)
        keeper = brokers.handles[1].strays
        await brokers.wait_until(lambda: [stray.reason for stray in keeper.strays] == [NOT_REMOVED] * len(moved))

        async def versions() -> list[int]:
            return [(await client.get(partition_state_path("t", index))).version for index in moved]

        before, refused_before = await versions(), refused
        await brokers.wait_until(lambda: refused >= refused_before + 3 * len(moved))
        assert await versions() == before
        assert [stray.reason for stray in keeper.strays] == [NOT_REMOVED] * len(moved)
        is_full = False
        await brokers.wait_until(lambda: not keeper.strays)
        assert not any(log.directory.exists() for log in logs)


class HeldUp(DiskFiles):
    """A disk that takes its time to rename what is deleted."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_go_on = threading.Event()

    def rename(self, source: Path, target: Path) -> None:
        if target.name.endswith("-delete"):
            self.begun.set()
            assert self.may_go_on.wait(TIMEOUT_S)
        super().rename(source, target)


async def test_roles_change_while_logs_are_removed(start: Start) -> None:
    files = HeldUp()
    async with start(files=files) as broker:
        await broker.create("big", 20)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="big")], timeout_ms=TIMEOUT_S * 1000)
        assert [result.error_code for result in (await broker.ask(request)).responses] == [0]
        await wait_for(files.begun.is_set)
        await broker.create("t")  # led while the disk is held up
        assert (await broker.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
        files.may_go_on.set()
        await wait_for(lambda: not strays(broker))
        await broker.create("big", 20)
        assert (await broker.fetch("big", 0, partition=19)).high_watermark == 0


async def test_a_topic_that_is_deleted_while_logs_are_removed_is_named_as_no_stray(start: Start) -> None:
    files = HeldUp()
    with capture_logs() as told:
        async with start(files=files) as broker:
            for topic in ("first", "second"):
                await broker.create(topic)
            await _delete(broker, "first")
            await wait_for(files.begun.is_set)
            await _delete(broker, "second")
            await wait_for(lambda: not broker.handle.replicas.partitions)
            files.may_go_on.set()
            await wait_for(lambda: sum(event["event"] == "replica_removed" for event in told) == 2)
            assert not strays(broker)
    assert [event for event in told if event["event"] == "stray_log"] == []


async def _delete(broker: Broker, topic: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=TIMEOUT_S * 1000)
    assert [result.error_code for result in (await broker.ask(request)).responses] == [0]
