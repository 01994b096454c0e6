"""What aiokafka is told by a server, as plain values that any right server gives."""

import asyncio
import uuid
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from exchange import DEADLINE_S, Deadline, main

FIRST_MS = 1_431_849_903_000


class Behaviour:
    """One server, asked in many ways."""

    def __init__(self, bootstrap: Any, admin: Any) -> None:
        self.bootstrap, self.admin = bootstrap, admin

    async def topic(self, partitions: int = 1, **config: Any) -> Any:
        name = f"aiokafka-{uuid.uuid4().hex}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        await self.admin.create_topics([NewTopic(name, partitions, 1, topic_configs=settings)])
        deadline = Deadline(f"{name} being there")
        while await self.error_of(name) or await self.partitions_of(name) != partitions:
            deadline.check()
        return name

    async def error_of(self, name: Any) -> Any:
        return (await self.admin.describe_topics([name]))[0]["error_code"]

    async def partitions_of(self, name: Any) -> Any:
        return len((await self.admin.describe_topics([name]))[0]["partitions"])

    async def produce(self, topic: Any, values: Any, partition: int = 0, **settings: Any) -> Any:
        """Offsets or error names, in the order of the values."""
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=20, **settings) as producer:
            futures = [await producer.send(topic, value, partition=partition) for value in values]
            return [await attempt(offset_of(future)) for future in futures]

    async def produce_batch(self, topic: Any, values: Any) -> Any:
        """All in one batch, a second apart."""
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            batch = producer.create_batch()
            for number, value in enumerate(values):
                assert batch.append(key=None, value=value, timestamp=FIRST_MS + 1000 * number)
            return await offset_of(await producer.send_batch(batch, topic, partition=0))

    async def consume(self, topic: Any, offset: Any, count: Any, **settings: Any) -> Any:
        """Records of partition 0, as soon as there are `count`."""
        partition = TopicPartition(topic, 0)
        async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap, **settings) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, offset)
            found: list[Any] = []
            deadline = Deadline(f"reading {topic}")
            while len(found) < count:
                deadline.check()
                found += (await consumer.getmany(partition, timeout_ms=500)).get(partition, [])
            return found


async def offset_of(future: Any) -> Any:
    record = await asyncio.wait_for(future, DEADLINE_S)
    return record.offset if record is not None else None


async def attempt(awaitable: Any) -> Any:
    """What is awaited, or the name of its error."""
    try:
        return await awaitable
    except KafkaError as error:
        return type(error).__name__


async def unknown_topic(server: Any) -> Any:
    return await server.error_of("never-made")


async def produce_to_unknown_topic(server: Any) -> Any:
    async with AIOKafkaProducer(bootstrap_servers=server.bootstrap, request_timeout_ms=8000) as producer:
        return await attempt(producer.send("never-made", b"value"))


async def creating(server: Any) -> Any:
    name = await server.topic(3)

    async def create(*arguments: Any, **options: Any) -> Any:
        answer = await server.admin.create_topics([NewTopic(*arguments)], **options)
        return answer.topic_errors[0][1]

    return {
        "again": await create(name, 3, 1),
        "name": await create("not a name", 1, 1),
        "no partitions": await create(f"{name}-2", 0, 1),
        "too many replicas": await create(f"{name}-2", 1, 9),
        "only validated": await create(f"{name}-2", 1, 1, validate_only=True),
        "not made": await server.error_of(f"{name}-2"),
        "listed": name in await server.admin.list_topics(),
    }


async def growing(server: Any) -> Any:
    name = await server.topic(2)

    async def grow(topic: Any, count: Any) -> Any:
        answer = await attempt(server.admin.create_partitions({topic: NewPartitions(count)}))
        return answer if isinstance(answer, str) else answer.topic_errors[0][1]

    grown, deadline = await grow(name, 4), Deadline("growing")
    while await server.partitions_of(name) != 4:
        deadline.check()
    return {
        "grown": grown,
        "written": await server.produce(name, [b"value"], partition=3),
        "fewer": await grow(name, 1),
        "unknown": await grow("never-made", 3),
    }


async def deleting(server: Any) -> Any:
    name = await server.topic()

    async def delete() -> Any:
        return (await server.admin.delete_topics([name])).topic_error_codes[0][1]

    deleted, deadline = await delete(), Deadline("deleting")
    while not await server.error_of(name):
        deadline.check()
    return {"deleted": deleted, "then": await server.error_of(name), "again": await delete()}


async def offsets_and_a_batch(server: Any) -> Any:
    name = await server.topic()
    base_offset = await server.produce_batch(name, [b"%d" % n for n in range(10)])
    partition = TopicPartition(name, 0)
    async with AIOKafkaConsumer(bootstrap_servers=server.bootstrap) as consumer:
        consumer.assign([partition])

        async def at(timestamp_ms: Any) -> Any:
            found = (await consumer.offsets_for_times({partition: timestamp_ms}))[partition]
            return found and [found.offset, found.timestamp]

        found = {
            "earliest": (await consumer.beginning_offsets([partition]))[partition],
            "latest": (await consumer.end_offsets([partition]))[partition],
            "before": await at(FIRST_MS - 5),
            "inside": await at(FIRST_MS + 3001),
            "after": await at(FIRST_MS + 99_000),
        }
    read = await server.consume(name, 5, 5)
    committed = await server.consume(name, 9, 1, isolation_level="read_committed")
    return {
        **found,
        "base": base_offset,
        "middle": [[record.offset, record.value.decode()] for record in read],
        "read committed": [record.offset for record in committed],
        "beyond the end": await attempt(server.consume(name, 1000, 1, auto_offset_reset="none")),
        "beyond the end, earliest": (await server.consume(name, 1000, 1, auto_offset_reset="earliest"))[0].offset,
    }


async def sizes(server: Any) -> Any:
    name = await server.topic(max_message_bytes="2000")
    large = await server.topic()
    await server.produce(large, [b"x" * 50_000] * 3)
    found = await server.consume(large, 0, 3, max_partition_fetch_bytes=1000)
    return {
        "too large": await server.produce(name, [b"x" * 5000]),
        "larger than the server takes": await server.produce(large, [b"x" * 2_000_000], max_request_size=4_000_000),
        "larger than the fetch": [len(record.value) for record in found],
    }


async def acknowledging(server: Any) -> Any:
    found = {}
    for acks in (0, 1, "all"):
        name = await server.topic()
        await server.produce(name, [b"%d" % n for n in range(20)], acks=acks)
        found[str(acks)] = [int(record.value) for record in await server.consume(name, 0, 20)] == list(range(20))
    return found


async def idempotence(server: Any) -> Any:
    name = await server.topic()
    offsets = await server.produce(name, [b"%d" % n for n in range(1000)], enable_idempotence=True, max_batch_size=500)
    read = [int(record.value) for record in await server.consume(name, 0, 1000)]
    return {"offsets": offsets == list(range(1000)), "read": read == list(range(1000))}


async def time_of_append(server: Any) -> Any:
    name = await server.topic(message_timestamp_type="LogAppendTime")
    await server.produce_batch(name, [b"0", b"1"])
    return [
        [record.timestamp_type, record.timestamp > FIRST_MS + 10**10] for record in await server.consume(name, 0, 2)
    ]


async def configuring(server: Any) -> Any:
    name = await server.topic(flush_ms="9")

    def resource(**configs: Any) -> Any:
        wanted = {key.replace("_", "."): value for key, value in configs.items()}
        return ConfigResource(ConfigResourceType.TOPIC, name, wanted)

    async def told() -> Any:
        (answer,) = await server.admin.describe_configs([resource(flush_ms="", retention_ms="")])
        return sorted([entry[0], entry[1], entry[3]] for entry in answer.resources[0][4])

    given, deadline = await told(), Deadline("altering")
    answer = (await server.admin.alter_configs([resource(retention_ms="79")]))[0]
    while await told() == given:
        deadline.check()
    return {"given": given, "altered": answer.resources[0][0], "then": await told()}


async def deleting_records(server: Any) -> Any:
    name = await server.topic()
    await server.produce(name, [b"value"] * 10)
    partition = TopicPartition(name, 0)

    async def delete(offset: Any) -> Any:
        found = await attempt(server.admin.delete_records({partition: RecordsToDelete(offset)}))
        return found if isinstance(found, str) else found[partition]

    return {"some": await delete(4), "beyond the end": await delete(11), "all": await delete(-1)}


async def groups(server: Any) -> Any:
    name = await server.topic()
    partition = TopicPartition(name, 0)

    async def described(group: Any) -> Any:
        (answer,) = await server.admin.describe_consumer_groups([group])
        ((error, _, state, kind, protocol, members, *_),) = answer.groups
        return [error, state, kind, protocol, len(members)]

    async with AIOKafkaConsumer(
        bootstrap_servers=server.bootstrap, group_id=name, enable_auto_commit=False
    ) as consumer:
        consumer.assign([partition])
        await consumer.commit({partition: (7, "note")})
    async with AIOKafkaConsumer(name, bootstrap_servers=server.bootstrap, group_id=f"{name}-at-work") as consumer:
        await consumer.getmany(timeout_ms=0)
        at_work = await described(f"{name}-at-work")
    return {
        "coordinator": await server.admin.find_coordinator(name),
        "listed": [kind for group, kind in await server.admin.list_consumer_groups() if group == name],
        "described": await described(name),
        "at work": at_work,
        "committed": list((await server.admin.list_consumer_group_offsets(name))[partition]),
    }


QUESTIONS = [
    unknown_topic,
    produce_to_unknown_topic,
    creating,
    growing,
    deleting,
    offsets_and_a_batch,
    sizes,
    acknowledging,
    idempotence,
    time_of_append,
    configuring,
    deleting_records,
    groups,
]


async def ask(bootstrap: Any) -> Any:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        server = Behaviour(bootstrap, admin)
        return {question.__name__: await question(server) for question in QUESTIONS}
    finally:
        await admin.close()


if __name__ == "__main__":
    main({"ask": lambda bootstrap, _asked: asyncio.run(ask(bootstrap))})
