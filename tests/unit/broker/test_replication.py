"""Three brokers in one process: what is acknowledged, committed and seen while replicas come and go."""

from collections.abc import Callable
from typing import Any

import trio

from pipeline.broker.partition import Partition
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tests.unit.broker.conftest import TIMEOUT_S, Broker, Start, batch

T = TopicPartition("t", 0)


async def until(condition: Callable[[], Any]) -> Any:
    with trio.fail_after(TIMEOUT_S):
        while not (found := condition()):
            await trio.sleep(0.01)
    return found


async def create(broker: Broker, replicas: int, **settings: str) -> None:
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=replicas, configs=configs)
    response = await broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_S * 1000))
    assert response.topics[0].error_code == 0, response.topics[0]


def partition_of(broker: Broker) -> Partition | None:
    return broker.handle.replicas.partitions.get(T)


def led_by(*brokers: Broker) -> Broker | None:
    return next((broker for broker in brokers if (found := partition_of(broker)) and found.is_leader), None)


async def test_what_is_acknowledged_is_on_all_replicas_in_sync(start: Start) -> None:
    async with start(1) as first, start(2) as second, start(3) as third:
        brokers = (first, second, third)
        await until(lambda: all(len(broker.handle.replicas.in_sync.view.brokers) == 3 for broker in brokers))
        await create(first, 3, min_insync_replicas="2")
        leader: Broker = await until(lambda: led_by(*brokers))
        for number in range(20):
            answer = await leader.produce("t", batch(b"%d" % number))
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, number)
            ends = [partition_of(broker).log.log_end_offset for broker in brokers]  # type: ignore[union-attr]
            assert ends == [number + 1] * 3
        assert (await leader.fetch("t", 0)).high_watermark == 20
