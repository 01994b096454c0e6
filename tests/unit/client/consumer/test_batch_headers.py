"""Headers of many partitions: few requests, few at once, and no doubtful answer taken for none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.client.consumer.batch_headers import MAX_ALONE, MAX_EMPTY_ANSWERS, BatchHeaders
from pipeline.errors import DeadlineExceededError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import FetchRequest
from tests.support.brokers import serving_cluster
from tests.support.mirrors import DEADLINE_S, make, publish


async def test_batches_that_need_requests_alone_are_asked_for_some_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_cluster(tmp_path / "east") as east:
        await make(east, partitions=40)
        for number in range(40):
            await publish(east, b"x" * 2000, partition=number)
        request, under_way, most, sent = east.request, 0, 0, 0

        async def count(broker: Any, message: Any, **settings: Any) -> Any:
            nonlocal under_way, most, sent
            under_way, sent = under_way + 1, sent + 1
            most = max(most, under_way)
            try:
                return await request(broker, message, **settings)
            finally:
                under_way -= 1

        monkeypatch.setattr(east, "request", count)
        headers, found = BatchHeaders(east), {}

        async def find(number: int) -> None:
            found[number] = await headers.header_at(TopicPartition("clicks", number), 0, timeout_s=DEADLINE_S)

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(find, number)
        assert [header.next_offset for _, header in sorted(found.items()) if header is not None] == [1] * 40
        assert (most, sent) == (MAX_ALONE, 40)  # the first one with the answer to all


async def test_a_partition_that_had_no_leader_is_asked_for_once_the_cluster_says_that_it_has_one(
    tmp_path: Path,
) -> None:
    """The other partition has its leader, so that the topic is known, and nothing else needs newer metadata."""
    async with serving_cluster(tmp_path / "east") as east:
        await make(east, partitions=2)
        await publish(east, b"a0")
        topic = east.view.topics["clicks"]
        leaderless = replace(topic, partitions={**topic.partitions, 0: replace(topic.partitions[0], leader=None)})
        east.view = replace(east.view, topics={**east.view.topics, "clicks": leaderless})
        headers = BatchHeaders(east)
        with trio.fail_after(DEADLINE_S):
            while True:
                try:
                    header = await headers.header_at(TopicPartition("clicks", 0), 0, timeout_s=DEADLINE_S)
                    break
                except KafkaError as error:
                    assert error.code is ErrorCode.LEADER_NOT_AVAILABLE
                    await trio.sleep(0.01)
        assert header is not None
        assert header.next_offset == 1


@pytest.mark.parametrize("empty", [1, MAX_EMPTY_ANSWERS, MAX_EMPTY_ANSWERS + 1])
async def test_a_batch_that_a_slow_disk_does_not_give_at_once_is_asked_for_again(
    empty: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_cluster(tmp_path / "east") as east:
        await make(east)
        await publish(east, b"a0")
        request, left = east.request, empty

        async def lack_records(broker: Any, message: Any, **settings: Any) -> Any:
            nonlocal left
            response = await request(broker, message, **settings)
            if left > 0 and isinstance(message, FetchRequest):
                left -= 1
                (topic,) = response.responses
                (partition,) = topic.partitions
                emptied = replace(topic, partitions=(replace(partition, records=None),))
                return replace(response, responses=(emptied,))
            return response

        monkeypatch.setattr(east, "request", lack_records)
        header = await BatchHeaders(east).header_at(TopicPartition("clicks", 0), 0, timeout_s=DEADLINE_S)
        assert (header is not None) == (empty <= MAX_EMPTY_ANSWERS)


async def test_a_leader_that_does_not_answer_causes_a_look_for_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_cluster(tmp_path / "east") as east:
        await make(east)
        await publish(east, b"a0")

        async def hang(broker: Any, message: Any, **settings: Any) -> Any:
            await trio.lowlevel.checkpoint()
            raise DeadlineExceededError("no answer")

        monkeypatch.setattr(east, "request", hang)
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(east.wait_for_new_view)
                with pytest.raises(DeadlineExceededError):
                    await BatchHeaders(east).header_at(TopicPartition("clicks", 0), 0, timeout_s=DEADLINE_S)
