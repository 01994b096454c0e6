"""A new segment on a disk that hangs: its own partition waits, and the event loop does not."""

import random
from pathlib import Path

import trio

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
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.produce import PartitionProduceResponse
from pipeline.testing.faulty_files import FaultyFiles
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import Start, batch
from tests.support.hung_disks import PARTITIONS, ROLL_S, base_offsets, in_dir, leaders, names, until
from tests.support.offsets import commit, fetch

RECORD = bytes(900)
"""Two do not fit into a segment."""


async def test_a_segment_that_is_not_created_holds_up_its_own_partition(start: Start, tmp_path: Path) -> None:
    files, dirs = FaultyFiles(DiskFiles(), random.Random(1)), [tmp_path / "a", tmp_path / "b"]
    answers: dict[str, PartitionProduceResponse] = {}
    async with start(files=files, log_dirs=",".join(map(str, dirs))) as broker:
        await broker.create("t", PARTITIONS, segment_bytes="1024")
        for index in range(PARTITIONS):
            assert (await broker.produce("t", batch(RECORD), partition=index)).error_code == ErrorCode.NONE
        hung, well = in_dir(dirs[0])[0], in_dir(dirs[1])[0]

        async def produce(lane: str) -> None:
            answers[lane] = await broker.produce("t", batch(RECORD), partition=hung, lane=lane)

        async with trio.open_nursery() as nursery:
            files.hangs_below, files.hangs_in = dirs[0], {"creation"}
            nursery.start_soon(produce, "first")
            await until(lambda: files.hanging == 1)
            nursery.start_soon(produce, "second")
            with trio.fail_after(ROLL_S):
                for _ in range(3):
                    assert (await broker.produce("t", batch(RECORD), partition=well)).error_code == ErrorCode.NONE
                found = await broker.fetch("t", 0, partition=well)
                assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, 4)
            assert answers == {}
            assert files.hanging == 1
            files.released.set()
        assert [answer.error_code for answer in answers.values()] == [ErrorCode.NONE] * 2
        assert sorted(answer.base_offset for answer in answers.values()) == [1, 2]
        assert base_offsets(broker, hung) == [0, 1, 2]
    async with start(log_dirs=",".join(map(str, dirs))) as broker:
        assert base_offsets(broker, hung) == [0, 1, 2]
        assert base_offsets(broker, well) == [0, 1, 2, 3]


async def test_a_follower_whose_segment_is_not_created_follows_in_its_other_partitions_and_leads_them(
    start: Start, zookeeper_twin: MemoryZooKeeper, tmp_path: Path
) -> None:
    files, dirs = FaultyFiles(DiskFiles(), random.Random(1)), [tmp_path / "a", tmp_path / "b"]
    places = [CreatableReplicaAssignment(partition_index=index, broker_ids=[2, 1]) for index in range(PARTITIONS)]
    settings = {"segment.bytes": "1024", "min.insync.replicas": "1"}
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in settings.items()]
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=places, configs=configs)
    async with zookeeper_twin.open() as client, start(1, files=files, log_dirs=",".join(map(str, dirs))) as broker:
        async with start(2) as leader:
            response = await leader.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
            assert response.topics[0].error_code == ErrorCode.NONE
            await until(lambda: len(leaders(leader.handle.replicas)) == PARTITIONS)
            for index in range(PARTITIONS):
                assert (await leader.produce("t", batch(RECORD), partition=index)).error_code == ErrorCode.NONE
            hung, well = in_dir(dirs[0]), in_dir(dirs[1])
            files.hangs_below, files.hangs_in = dirs[0], {"creation"}
            for index in range(PARTITIONS):
                found = await leader.produce("t", batch(RECORD), partition=index, acks=-1 if index in well else 1)
                assert found.error_code == ErrorCode.NONE
            await until(lambda: files.hanging == len(hung))
        await until(lambda: set(well) <= leaders(broker.handle.replicas).keys())
        assert not set(hung) & leaders(broker.handle.replicas).keys()
        for index in well:
            assert (await broker.produce("t", batch(RECORD), partition=index)).error_code == ErrorCode.NONE
        files.released.set()
        await until(lambda: len(leaders(broker.handle.replicas)) == PARTITIONS)
        for index in range(PARTITIONS):
            assert (await broker.produce("t", batch(RECORD), partition=index)).error_code == ErrorCode.NONE
            assert base_offsets(broker, index) == ([0, 1, 2, 3] if index in well else [0, 1])
        states = await read_states(client, names(range(PARTITIONS)))
        assert {found.state.leader for found in states.values()} == {1}


async def test_commits_go_on_from_segment_to_segment(start: Start) -> None:
    settings = {"offsets_topic_num_partitions": 1, "offsets_topic_segment_bytes": 1024}
    groups = [f"group-{number}" for number in range(8)]
    async with start(**settings) as broker:
        await broker.create("clicks")
        await broker.create("views")
        response = await broker.ask(FindCoordinatorRequest(coordinator_keys=groups))
        assert {found.error_code for found in response.coordinators} == {ErrorCode.NONE}
        for number, group in enumerate(groups):
            assert await commit(broker, group, "clicks", (0, number, "x" * 700)) == [ErrorCode.NONE]
        journal = broker.handle.replicas.partitions[TopicPartition("__consumer_offsets", 0)].log
        assert len(journal.snapshot.segments) == len(groups)
        for number, group in enumerate(groups):
            _, committed = await fetch(broker, group)
            assert committed["clicks", 0][0] == number
