"""Produce to replica partitions that several mirrors share: a leader refuses copiers older than one that it knows."""

import uuid

import pytest

from pipeline.coordination.znodes import CopierEpoch, copier_path, partition_state_path
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.produce import PartitionProduceResponse
from tests.support.broker_in_process import Broker, Start, batch
from tests.unit.broker.requests.test_large_requests import small_batches

PATH = copier_path("clicks", 0)


async def copy(broker: Broker, offset: int, epoch: int) -> PartitionProduceResponse:
    made = batch(b"a", base_offset=offset)
    return await broker.produce("clicks", made, keep_offsets=True, expected_end=offset, copier_epoch=epoch)


async def claim(broker: Broker, epoch: int) -> PartitionProduceResponse:
    return await broker.produce("clicks", b"", keep_offsets=True, copier_epoch=epoch)


async def test_a_newer_copier_fences_older_ones_and_mirrors_without_epochs(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east")
        assert (await copy(broker, 0, -1)).error_code == ErrorCode.NONE  # until a group has claimed it
        for offset, epoch in ((1, 7), (2, 7), (3, 9)):
            assert (await copy(broker, offset, epoch)).error_code == ErrorCode.NONE
        older = await copy(broker, 4, 8)
        assert older.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert older.error_message == "clicks-0 has a newer copier: its epoch is 9, this copier's is 8."
        alone = await copy(broker, 4, -1)
        assert alone.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert "Give this mirror their zookeeper.connect and mirror.group" in (alone.error_message or "")
        assert (await copy(broker, 4, 9)).log_end_offset == 5


async def test_a_claim_without_records_fences_and_returns_the_log_end_offset(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east")
        assert ((await claim(broker, 3)).error_code, (await claim(broker, 3)).log_end_offset) == (ErrorCode.NONE, 0)
        assert (await copy(broker, 0, 3)).error_code == ErrorCode.NONE
        assert (await claim(broker, 4)).log_end_offset == 1
        assert (await copy(broker, 1, 3)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await claim(broker, 3)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_no_slice_of_a_large_request_of_an_older_copier_is_appended(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east", segment_bytes="100000")
        made = small_batches(5000, 0)
        await claim(broker, 4)
        refused = await broker.produce("clicks", made, keep_offsets=True, expected_end=0, copier_epoch=3)
        assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        copied = await broker.produce("clicks", made, keep_offsets=True, expected_end=0, copier_epoch=5)
        assert (copied.error_code, copied.log_end_offset) == (ErrorCode.NONE, 5000)


async def test_a_restarted_broker_knows_the_newest_copier(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east")
        await copy(broker, 0, 5)
    async with start() as broker:
        for epoch in (4, -1):
            assert (await copy(broker, 1, epoch)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await copy(broker, 1, 5)).error_code == ErrorCode.NONE


async def test_a_recreated_topic_has_had_no_copier(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east")
        await copy(broker, 0, 5)
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="clicks")], timeout_ms=60_000)
        assert (await broker.ask(deletion)).responses[0].error_code == ErrorCode.NONE
        await broker.create("clicks", mirror_source="east")
        assert (await copy(broker, 0, 4)).error_code == ErrorCode.NONE
        kept = await broker.zookeeper.get(PATH)
        assert CopierEpoch.decode(PATH, kept.data).epoch == 4


async def test_an_epoch_of_an_older_topic_of_the_name_does_not_count(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east")
        left_behind = CopierEpoch(topic_id=uuid.UUID(int=5), epoch=1_000)
        await broker.zookeeper.create(PATH, left_behind.encode())
        assert (await copy(broker, 0, 4)).error_code == ErrorCode.NONE
        assert (await copy(broker, 1, 3)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_leader_that_was_deposed_accepts_no_newer_copier(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east")
        assert (await copy(broker, 0, 4)).error_code == ErrorCode.NONE
        path = partition_state_path("clicks", 0)
        state = await broker.zookeeper.get(path)
        await broker.zookeeper.set(path, state.data)  # another version: this broker does not know what it says
        refused = await claim(broker, 5)
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert CopierEpoch.decode(PATH, (await broker.zookeeper.get(PATH)).data).epoch == 4


async def test_an_unreadable_epoch_stops_copies_and_says_so(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east")
        await broker.zookeeper.create(PATH, b"nonsense")
        refused = await copy(broker, 0, 4)
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert PATH in (refused.error_message or "")
        await broker.zookeeper.delete(PATH)
        assert (await copy(broker, 0, 4)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("settings", [{}, {"mirror_source": "east", "mirror_promoted": '{"at":5}'}])
async def test_no_epoch_is_noted_of_a_topic_that_takes_no_copies(start: Start, settings: dict[str, str]) -> None:
    async with start() as broker:
        await broker.create("clicks", 1, **settings)
        assert (await claim(broker, 5)).error_code in {ErrorCode.POLICY_VIOLATION, ErrorCode.PRODUCER_FENCED}
        assert await broker.zookeeper.exists(PATH) is None
