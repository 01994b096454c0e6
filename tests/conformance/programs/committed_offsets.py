"""What clients are told of the offsets that they commit without joining a group, as plain values."""

import asyncio
from typing import Any

import aiokafka
import confluent_kafka
import kafka
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import KafkaException
from exchange import DEADLINE_S, main
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

NOTE = "näch\tste"
TOO_LONG = "x" * 4097
QUIET = {"log_level": 0}


def confluent(bootstrap: Any, asked: Any) -> Any:
    """librdkafka through confluent-kafka."""
    topic = asked["topic"]
    settings = {"bootstrap.servers": bootstrap, "group.id": asked["group"], "enable.auto.commit": False, **QUIET}
    consumer = confluent_kafka.Consumer(settings)

    def part(index: Any, *offset: Any, name: Any = topic, **more: Any) -> Any:
        return confluent_kafka.TopicPartition(name, index, *offset, **more)

    def commit(*parts: Any) -> Any:
        try:
            done = consumer.commit(offsets=list(parts), asynchronous=False)
        except KafkaException as error:
            return error.args[0].name()
        return [found.error.name() if found.error else found.offset for found in done]

    def committed() -> Any:
        found = consumer.committed([part(0), part(1), part(2)], timeout=DEADLINE_S)
        return [[item.offset, item.metadata] for item in found]

    answers = {
        "before": committed(),
        "commit": commit(part(0, 5, metadata=NOTE), part(1, 7)),
        "after": committed(),
        "again": commit(part(0, 3, metadata="")),
        "no topic": commit(part(0, 1, name="never-made")),
        "no partition": commit(part(9, 1)),
        "long note": commit(part(0, 1, metadata=TOO_LONG)),
        "some": commit(part(1, 8), part(9, 1)),
        "at last": committed(),
    }
    consumer.close()
    return answers


def kafka_python(bootstrap: Any, asked: Any) -> Any:
    """kafka-python."""
    topic = asked["topic"]
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=asked["group"], enable_auto_commit=False)

    def commit(offset: Any, metadata: Any) -> Any:
        try:
            consumer.commit({kafka.TopicPartition(topic, 0): OffsetAndMetadata(offset, metadata, -1)})
        except KafkaError as error:
            return type(error).__name__
        return offset

    def committed(index: Any) -> Any:
        found = consumer.committed(kafka.TopicPartition(topic, index), metadata=True)
        return None if found is None else [found.offset, found.metadata]

    answers = {
        "before": [committed(0), committed(1)],
        "commit": commit(5, NOTE),
        "after": [committed(0), committed(1)],
        "long note": commit(1, TOO_LONG),
        "at last": [committed(0), committed(1)],
    }
    consumer.close()
    return answers


def aio(bootstrap: Any, asked: Any) -> Any:
    """aiokafka."""
    return asyncio.run(_aio(bootstrap, asked))


async def _aio(bootstrap: Any, asked: Any) -> Any:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=asked["group"], enable_auto_commit=False)
    await consumer.start()
    here, there = (AioTopicPartition(asked["topic"], index) for index in range(2))
    consumer.assign([here, there])

    async def commit(offset: Any, metadata: Any) -> Any:
        try:
            await consumer.commit({here: (offset, metadata)})
        except aiokafka.errors.KafkaError as error:
            return type(error).__name__
        return offset

    answers = {
        "before": [await consumer.committed(here), await consumer.committed(there)],
        "commit": await commit(5, NOTE),
        "long note": await commit(1, TOO_LONG),
        "at last": [await consumer.committed(here), await consumer.committed(there)],
    }
    await consumer.stop()
    return answers


if __name__ == "__main__":
    main({"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aio})
