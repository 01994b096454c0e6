"""aiokafka writes, reads, and produces through restarts."""

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from exchange import DEADLINE_S, Deadline, main, read_record, was_told_to_stop, write_record


async def write(bootstrap: Any, asked: Any) -> Any:
    for topic in asked["topics"]:
        codec = None if topic["codec"] == "none" else topic["codec"]
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, linger_ms=10) as producer:
            sent = []
            for record in topic["records"]:
                key, value, headers, timestamp_ms = read_record(record)
                sent.append(
                    await producer.send(
                        topic["name"], value, key, partition=0, timestamp_ms=timestamp_ms, headers=headers
                    )
                )
            await asyncio.wait_for(asyncio.gather(*sent), DEADLINE_S)
    return {}


async def read(bootstrap: Any, asked: Any) -> Any:
    found: dict[str, list[Any]] = {name: [] for name in asked["counts"]}
    deadline = Deadline("reading")
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        partitions = [TopicPartition(name, 0) for name in asked["counts"]]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        while any(len(found[name]) < count for name, count in asked["counts"].items()):
            deadline.check()
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    found[record.topic].append(
                        write_record(record.offset, record.key, record.value, record.headers, record.timestamp)
                    )
    return found


async def produce_until_told(bootstrap: Any, asked: Any) -> Any:
    """Numbered records until standard input ends: those that were acknowledged, with their offsets."""
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=2, request_timeout_ms=120_000
    ) as producer:
        sent: list[Any] = []
        while not was_told_to_stop():
            sent.append(await producer.send(asked["topic"], b"%d" % len(sent), partition=0))
            if len(sent) > 200:
                await asyncio.wait_for(asyncio.shield(sent[-200]), DEADLINE_S)
        delivered = await asyncio.wait_for(asyncio.gather(*sent), DEADLINE_S)
    return {"acknowledged": [[number, record.offset] for number, record in enumerate(delivered)], "sent": len(sent)}


def _synchronous(command: Any) -> Any:
    return lambda bootstrap, asked: asyncio.run(command(bootstrap, asked))


if __name__ == "__main__":
    main({"write": _synchronous(write), "read": _synchronous(read), "produce": _synchronous(produce_until_told)})
