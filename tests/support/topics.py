"""Requests about topics, as tests send them to a broker."""

from typing import Any

from pipeline.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
)
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.broker_in_process import Broker


async def create(broker: Broker, *topics: CreatableTopic, validate_only: bool = False) -> list[Any]:
    request = CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=validate_only)
    return list((await broker.ask(request)).topics)


async def describe(broker: Broker, *names: str) -> list[Any]:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    return list((await broker.ask(request)).topics)


def topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **more)


async def ask_for(broker: Broker, *names: str) -> list[int]:
    """Error codes of these topics, as producers and consumers ask for them."""
    topics = [MetadataRequestTopic(name=name) for name in names]
    return [found.error_code for found in (await broker.ask(MetadataRequest(topics=topics), timeout_s=60)).topics]


async def names_of(broker: Broker) -> list[str]:
    return [found.name for found in (await broker.ask(MetadataRequest(topics=None))).topics]
