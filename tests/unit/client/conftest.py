from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import pytest

from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.producer.producer import Producer, open_producer
from tests.support.scripted_broker import ScriptedCluster

NOW_MS = 1_700_000_000_000
OpenCluster = Callable[..., AbstractAsyncContextManager[Cluster]]
OpenProducer = Callable[..., AbstractAsyncContextManager[Producer]]
OpenConsumer = Callable[..., AbstractAsyncContextManager[Consumer]]


@pytest.fixture
def scripted() -> ScriptedCluster:
    """Brokers 1 and 2 are not started; topic `t` has a partition on broker 1."""
    made = ScriptedCluster()
    made.add_topic("t", [1])
    return made


@pytest.fixture
def connect(scripted: ScriptedCluster) -> OpenCluster:
    @asynccontextmanager
    async def connect(**settings: Any) -> AsyncIterator[Cluster]:
        given = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "default_api_timeout_ms": 60_000, **settings}
        async with open_cluster(ClientConfig(bootstrap=scripted.bootstrap, **given)) as cluster:
            yield cluster

    return connect


@pytest.fixture
def produce() -> OpenProducer:
    @asynccontextmanager
    async def produce(cluster: Cluster, **settings: Any) -> AsyncIterator[Producer]:
        on_delivered = settings.pop("on_delivered", None)
        async with open_producer(
            cluster, ProducerConfig(**settings), clock=lambda: NOW_MS, rng=Random(1), on_delivered=on_delivered
        ) as producer:
            yield producer

    return produce


@pytest.fixture
def consume() -> OpenConsumer:
    @asynccontextmanager
    async def consume(cluster: Cluster, **settings: Any) -> AsyncIterator[Consumer]:
        async with open_consumer(cluster, ConsumerConfig(**{"max_wait_ms": 50, **settings})) as consumer:
            yield consumer

    return consume
