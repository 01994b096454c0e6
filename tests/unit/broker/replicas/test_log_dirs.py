"""Several log dirs: what fails, what goes on."""

import random
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
import trio

from pipeline.coordination.partition_states import read_states
from pipeline.coordination.znodes import BrokerRegistration, broker_path
from pipeline.errors import ConfigurationError, StorageError
from pipeline.log.files import DiskFiles
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from pipeline.testing.faulty_files import FaultyFiles
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Start, batch

CLEAN = ".kafka_cleanshutdown"


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    return [tmp_path / "one", tmp_path / "two"]


def setting(dirs: list[Path]) -> str:
    return ",".join(map(str, dirs))


def where(dirs: list[Path], topic: str, partitions: int) -> list[int]:
    """In which directory each partition lies."""
    return [next(n for n, path in enumerate(dirs) if (path / f"{topic}-{i}").exists()) for i in range(partitions)]


async def fail(broker: Broker, files: FaultyFiles, partition: int) -> None:
    files.fail_sync_in = 1
    result = await broker.produce("synced", batch(b"x"), partition=partition)
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_topic_that_there_was_no_room_for_is_led_once_there_is(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.broker.replicas.replicas.ROOM_CHECK_S", 0.05, raising=False)
    files = FaultyFiles(DiskFiles(), random.Random(1))
    async with start(files=files, log_dirs=setting(dirs)) as broker:
        await broker.create("before", 2)
        files.capacity_bytes = files.used_bytes
        made = CreatableTopic(name="new", num_partitions=3, replication_factor=1)
        await broker.ask(CreateTopicsRequest(topics=[made], timeout_ms=0))
        names = {TopicPartition("new", index) for index in range(3)}
        with trio.fail_after(TIMEOUT_S):
            while broker.handle.replicas.failed.keys() != names:
                await trio.sleep(0.01)
        files.capacity_bytes = None
        with trio.fail_after(TIMEOUT_S):
            for name in names:
                while (await broker.produce("new", batch(b"a"), partition=name.partition)).error_code:
                    await trio.sleep(0.01)
        assert not broker.handle.replicas.failed


async def test_a_failed_sync_takes_its_log_dir_offline_alone(start: Start, dirs: list[Path]) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    async with start(files=files, log_dirs=setting(dirs)) as broker:
        await broker.create("synced", 4, flush_messages="1")
        lies_in = where(dirs, "synced", 4)
        assert sorted(lies_in) == [0, 0, 1, 1]
        for index in range(4):
            assert (await broker.produce("synced", batch(b"a"), partition=index)).error_code == ErrorCode.NONE
        assert broker.handle.disk_trouble() is None
        first = lies_in.index(0)
        await fail(broker, files, first)
        partition = broker.handle.replicas.partitions[TopicPartition("synced", first)]
        assert partition.high_watermark == 1
        for index in range(4):
            expected = ErrorCode.KAFKA_STORAGE_ERROR if lies_in[index] == 0 else ErrorCode.NONE
            assert (await broker.produce("synced", batch(b"b"), partition=index)).error_code == expected
            assert (await broker.fetch("synced", 0, partition=index)).error_code == expected
        health = broker.handle.disk_trouble()
        assert health is not None
        assert f"log dir {dirs[0]} is offline" in health
        async with httpx.AsyncClient(base_url=f"http://{broker.handle.http_address}", timeout=60) as http:
            answer = await http.get("/healthz")
            assert (await http.get("/readyz")).status_code == 200  # others are served
        assert answer.status_code == 503
        assert str(dirs[0]) in answer.json()["reason"]
        count = broker.metrics.get_sample_value("kafka_log_logmanager_offlinelogdirectorycount")
        offline = broker.metrics.get_sample_value("kafka_server_replicamanager_offlinereplicacount")
        assert (count, offline) == (1, 2)
        await broker.create("later", 3)
        assert where(dirs, "later", 3) == [1, 1, 1]
    assert [(path / CLEAN).exists() for path in dirs] == [False, True]
    async with start(log_dirs=setting(dirs)) as broker:
        assert broker.handle.disk_trouble() is None
        assert (await broker.fetch("synced", 0, partition=first)).error_code == ErrorCode.NONE


async def test_a_wrong_length_on_the_disk_is_an_error_of_reads_behind_it_and_of_health(
    start: Start, dirs: list[Path]
) -> None:
    async with start(log_dirs=setting(dirs)) as broker:
        await broker.create("t")
        for value in (b"a", b"b", b"c", b"d"):
            await broker.produce("t", batch(value))
        segment = dirs[where(dirs, "t", 1)[0]] / "t-0" / "00000000000000000000.log"
        size_bytes = len(batch(b"a"))
        with segment.open("r+b") as file:
            file.seek(size_bytes + 9)
            file.write(b"\1")
        assert (await broker.fetch("t", 2)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert [(await broker.fetch("t", offset)).error_code for offset in (0, 1, 3)] == [ErrorCode.NONE] * 3
        async with httpx.AsyncClient(base_url=f"http://{broker.handle.http_address}", timeout=60) as http:
            health = await http.get("/healthz")
            assert (await http.get("/readyz")).status_code == 200
        assert health.status_code == 503
        assert f"t-0: {segment}: is damaged at position {4 * size_bytes}" in health.json()["reason"]


async def test_an_unclean_election_chooses_a_replica_that_still_has_its_disk(
    start: Start, zookeeper_twin: MemoryZooKeeper, dirs: list[Path]
) -> None:
    files, name = FaultyFiles(DiskFiles(), random.Random(1)), TopicPartition("synced", 0)
    async with zookeeper_twin.open() as client, start(1, files=files, log_dirs=setting(dirs)) as broker:

        async def until_led_by(leader: int) -> tuple[BrokerId, ...]:
            with trio.fail_after(TIMEOUT_S):
                while True:
                    found = (await read_states(client, [name])).get(name)
                    if found is not None and found.state.leader == leader:
                        return found.state.isr
                    await trio.sleep(0.01)

        places = [CreatableReplicaAssignment(partition_index=0, broker_ids=[BrokerId(1), BrokerId(2)])]
        settings = {"unclean.leader.election.enable": "true", "flush.messages": "1", "min.insync.replicas": "1"}
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in settings.items()]
        topic = CreatableTopic(
            name="synced", num_partitions=-1, replication_factor=-1, assignments=places, configs=configs
        )
        async with start(2) as second:
            response = await broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
            assert response.topics[0].error_code == ErrorCode.NONE
            with trio.fail_after(TIMEOUT_S):
                while name not in second.handle.replicas.partitions:
                    await trio.sleep(0.01)
        await until_led_by(1)
        while (await until_led_by(1)) != (1,):
            await trio.sleep(0.01)
        await fail(broker, files, 0)
        assert await until_led_by(-1) == (1,)  # nobody else is there
        async with start(2):
            assert await until_led_by(2) == (2,)
            registered = await client.get(broker_path(BrokerId(1)))
            assert BrokerRegistration.decode(BrokerId(1), registered.data).offline_replicas == {"synced": (0,)}


@pytest.mark.parametrize("replicas", [(1,), (1, 2)])
async def test_the_last_replica_in_sync_leads_again_once_its_log_can_be_read(
    start: Start, zookeeper_twin: MemoryZooKeeper, dirs: list[Path], replicas: tuple[int, ...]
) -> None:
    name = TopicPartition("synced", 0)
    async with zookeeper_twin.open() as client:

        async def until(leader: int, isr: tuple[int, ...]) -> None:
            with trio.fail_after(TIMEOUT_S):
                while True:
                    found = (await read_states(client, [name])).get(name)
                    if found is not None and (found.state.leader, found.state.isr) == (leader, isr):
                        return
                    await trio.sleep(0.01)

        places = [CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)]
        configs = [CreatableTopicConfig(name="min.insync.replicas", value="1")]
        topic = CreatableTopic(
            name="synced", num_partitions=-1, replication_factor=-1, assignments=places, configs=configs
        )
        async with start(1, log_dirs=setting(dirs)) as broker:
            async with start(2):
                response = await broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
                assert response.topics[0].error_code == ErrorCode.NONE
                await until(1, replicas)
            await until(1, (1,))
            assert (await broker.produce("synced", batch(b"a"))).error_code == ErrorCode.NONE
            lies_in = dirs[where(dirs, "synced", 1)[0]]
        moved = lies_in.with_name("moved")
        lies_in.rename(moved)
        lies_in.write_bytes(b"no directory")
        async with start(1, log_dirs=setting(dirs)), start(2):
            await until(-1, (1,))
        lies_in.unlink()
        moved.rename(lies_in)
        async with start(1, log_dirs=setting(dirs)) as broker:
            await until(1, (1,))
            with trio.fail_after(TIMEOUT_S):
                while (await broker.fetch("synced", 0)).high_watermark != 1:
                    await trio.sleep(0.01)


async def test_a_broker_without_any_log_dir_ends(start: Start, dirs: list[Path]) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    with trio.fail_after(TIMEOUT_S), pytest.raises(StorageError, match="all log dirs are offline"):
        async with start(files=files, log_dirs=setting(dirs)) as broker:
            await broker.create("synced", 2, flush_messages="1")
            await fail(broker, files, 0)
            await fail(broker, files, 1)
            await trio.sleep_forever()


async def test_a_partition_is_not_made_anew_while_its_log_dir_is_away(start: Start, dirs: list[Path]) -> None:
    async with start(log_dirs=setting(dirs)) as broker:
        await broker.create("t", 2)
        for index in range(2):
            await broker.produce("t", batch(b"a"), partition=index)
    lost = where(dirs, "t", 2).index(0)
    moved = dirs[0].with_name("moved")
    dirs[0].rename(moved)
    dirs[0].write_bytes(b"no directory")
    async with start(log_dirs=setting(dirs)) as broker:
        assert (await broker.fetch("t", 0, partition=lost)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await broker.fetch("t", 0, partition=1 - lost)).high_watermark == 1
        health = broker.handle.disk_trouble()
        assert health is not None
        assert f"log dir {dirs[0]} is offline" in health
        await broker.create("new", 1)
        assert where(dirs, "new", 1) == [1]
    dirs[0].unlink()
    moved.rename(dirs[0])
    async with start(log_dirs=setting(dirs)) as broker:
        assert (await broker.fetch("t", 0, partition=lost)).high_watermark == 1


async def test_a_partition_in_two_log_dirs_is_served_from_neither(start: Start, dirs: list[Path]) -> None:
    async with start(log_dirs=setting(dirs)) as broker:
        await broker.create("t", 1)
        await broker.produce("t", batch(b"a"))
    here = where(dirs, "t", 1)[0]
    shutil.copytree(dirs[here] / "t-0", dirs[1 - here] / "t-0")
    async with start(log_dirs=setting(dirs)) as broker:
        assert (await broker.fetch("t", 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        health = broker.handle.disk_trouble()
        assert health is not None
        assert "as well; move one of the two away" in health
    (dirs[1 - here] / "t-0").rename(dirs[0].parent / "away")
    async with start(log_dirs=setting(dirs)) as broker:
        assert (await broker.fetch("t", 0)).high_watermark == 1


async def test_a_moved_log_dir_and_one_in_use_are_refused_by_name(start: Start, dirs: list[Path]) -> None:
    async with start(1, log_dirs=str(dirs[0])):
        with pytest.raises(ConfigurationError, match="one is in use by another process"):
            async with start(2, log_dirs=setting([dirs[1], dirs[0]])):
                pass
    with pytest.raises(ConfigurationError, match=r"one belongs to broker\.id 1, not 2"):
        async with start(2, log_dirs=setting([dirs[1], dirs[0]])):
            pass


async def test_a_follower_is_not_made_anew_while_its_log_dir_is_away_though_its_leader_never_changed(
    start: Start, dirs: list[Path]
) -> None:
    names = [TopicPartition("synced", index) for index in range(2)]
    places = [CreatableReplicaAssignment(partition_index=index, broker_ids=[2, 1]) for index in range(2)]
    configs = [CreatableTopicConfig(name="min.insync.replicas", value="1")]
    topic = CreatableTopic(name="synced", num_partitions=-1, replication_factor=-1, assignments=places, configs=configs)
    async with start(2) as leader:

        async def until_followed(broker: Broker, end_offsets: Sequence[int | None]) -> None:
            with trio.fail_after(TIMEOUT_S):
                while True:
                    found = [broker.handle.replicas.partitions.get(name) for name in names]
                    if [each and each.log.log_end_offset for each in found] == list(end_offsets):
                        return
                    await trio.sleep(0.01)

        async with start(1, log_dirs=setting(dirs)) as broker:
            response = await leader.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
            assert response.topics[0].error_code == ErrorCode.NONE
            await until_followed(broker, [0, 0])
            for index in range(2):
                assert (await leader.produce("synced", batch(b"a"), partition=index)).error_code == ErrorCode.NONE
            await until_followed(broker, [1, 1])
        lost = where(dirs, "synced", 2).index(0)
        moved = dirs[0].with_name("moved")
        dirs[0].rename(moved)
        dirs[0].write_bytes(b"no directory")
        async with start(1, log_dirs=setting(dirs)) as broker:
            await until_followed(broker, [None if index == lost else 1 for index in range(2)])
            assert list(broker.handle.replicas.failed) == [names[lost]]
            assert leader.handle.replicas.partitions[names[lost]].leader_epoch == 0
            assert not (dirs[1] / str(names[lost])).exists()
            assert (await leader.produce("synced", batch(b"b"), partition=lost)).error_code == ErrorCode.NONE
        dirs[0].unlink()
        moved.rename(dirs[0])
        async with start(1, log_dirs=setting(dirs)) as broker:
            await until_followed(broker, [2 if index == lost else 1 for index in range(2)])
            assert not broker.handle.replicas.failed


async def test_a_log_that_meets_an_error_that_nobody_foresaw_fails_alone(
    start: Start, dirs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(log_dirs=str(dirs[0]), log_retention_check_interval_ms=1) as broker:
        await broker.create("t", 2, retention_ms="1000")
        roll = UnifiedLog.add_segment

        def roll_others(log: UnifiedLog, base_offset: Offset, now_ms: int) -> None:
            if log.topic_partition.partition == 0:
                raise struct.error("nobody foresaw this")
            roll(log, base_offset, now_ms)

        with monkeypatch.context() as patch, trio.fail_after(TIMEOUT_S):
            patch.setattr(UnifiedLog, "add_segment", roll_others)
            for index in range(2):
                await broker.produce("t", batch(b"old", timestamp_ms=NOW_MS - 10_000_000), partition=index)
            while TopicPartition("t", 0) not in broker.handle.replicas.failed:
                await trio.sleep(0.01)
            while broker.handle.replicas.partitions[TopicPartition("t", 1)].log.log_start_offset == 0:
                await trio.sleep(0.01)
        assert broker.metrics.get_sample_value("kafka_server_replicamanager_offlinereplicacount") == 1
        assert broker.metrics.get_sample_value("kafka_log_logmanager_offlinelogdirectorycount") == 0
        assert "nobody foresaw this" in str(broker.handle.disk_trouble())
        answers = [(await broker.produce("t", batch(b"new"), partition=index)).error_code for index in range(2)]
        assert answers == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert (dirs[0] / CLEAN).read_text() == "t-0\n"
    async with start(log_dirs=str(dirs[0])) as broker:
        assert broker.handle.disk_trouble() is None
        assert (await broker.fetch("t", 0)).error_code == ErrorCode.NONE
