"""Records that brokers hold, and waits, for tests of logs without a topic."""

from random import Random
from typing import Any

import trio

from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import TopicPartition
from tests.support.broker_in_process import TIMEOUT_S
from tests.support.brokers import Brokers, clock

T = TopicPartition("t", 0)


async def wait_for(condition: Any) -> None:
    with trio.fail_after(TIMEOUT_S):
        while not condition():
            await trio.sleep(0.005)


async def produce_records(brokers: Brokers, count: int) -> None:
    async with open_producer(brokers.cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
        for number in range(count):
            await producer.send("t", str(number).encode())
