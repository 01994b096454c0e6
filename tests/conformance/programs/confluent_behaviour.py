"""What confluent-kafka (librdkafka) is told by a server, as plain values that any right server gives."""

import uuid
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from exchange import DEADLINE_S, Deadline, main

FIRST_MS = 1_431_849_903_000
QUIET = {"log_level": 0}


class Behaviour:
    """One server, asked in many ways."""

    def __init__(self, bootstrap: Any) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def topic(self, partitions: int = 1, **config: Any) -> Any:
        name = f"confluent-{uuid.uuid4().hex}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(DEADLINE_S)
        self.wait_for_partitions(name, partitions)
        return name

    def wait_for_partitions(self, name: Any, count: Any) -> None:
        deadline = Deadline(f"{name} having {count} partitions")
        while len(self.admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions) != count:
            deadline.check()

    def produce(self, topic: Any, values: Any, partition: int = 0, timestamps: Any = None, **settings: Any) -> Any:
        """Offsets or error names, in the order of the values."""
        outcome = {}
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 50, **QUIET, **settings})
        for number, value in enumerate(values):

            def delivered(error: Any, message: Any, number: Any = number) -> None:
                outcome[number] = error.name() if error else message.offset()

            extra = {"timestamp": timestamps[number]} if timestamps else {}
            producer.produce(topic, value, partition=partition, on_delivery=delivered, **extra)
        assert producer.flush(DEADLINE_S) == 0
        return [outcome[number] for number in range(len(values))]

    def consume(self, topic: Any, offset: Any, count: Any, **settings: Any) -> Any:
        """Messages or error names of partition 0, as soon as there are `count`."""
        consumer = self.consumer(**settings)
        consumer.assign([TopicPartition(topic, 0, offset)])
        found: list[Any] = []
        deadline = Deadline(f"reading {topic}")
        while len(found) < count:
            deadline.check()
            found += [m.error().name() if m.error() else m for m in consumer.consume(count - len(found), timeout=1)]
        consumer.close()
        return found

    def consumer(self, **settings: Any) -> Any:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                **QUIET,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )


def answer(futures: Any) -> Any:
    """The names of the errors of an admin call, None for success."""
    names: list[Any] = []
    for future in futures.values():
        try:
            future.result(DEADLINE_S)
            names.append(None)
        except KafkaException as error:
            names.append(error.args[0].name())
    return names[0] if len(names) == 1 else names


def unknown_topic(server: Any) -> Any:
    return server.admin.list_topics("never-made", timeout=DEADLINE_S).topics["never-made"].error.name()


def invalid_topic_name(server: Any) -> Any:
    return server.admin.list_topics("not a name", timeout=DEADLINE_S).topics["not a name"].error.name()


def cluster(server: Any) -> Any:
    found = server.admin.list_topics(timeout=DEADLINE_S)
    described = server.admin.describe_cluster().result(DEADLINE_S)
    return {
        "brokers": sorted(found.brokers),
        "controller": found.controller_id,
        "same id": described.cluster_id == found.cluster_id != "",
        "nodes": [node.id for node in described.nodes],
    }


def produce_to_unknown_topic(server: Any) -> Any:
    settings = {"topic.metadata.propagation.max.ms": 500, "message.timeout.ms": 20000}
    return server.produce("never-made", [b"value"], **settings)


def produce_to_unknown_partition(server: Any) -> Any:
    settings = {"topic.metadata.propagation.max.ms": 500, "message.timeout.ms": 20000}
    name = server.topic()
    server.admin.list_topics(name, timeout=DEADLINE_S)
    try:
        return server.produce(name, [b"value"], partition=3, **settings)
    except KafkaException as error:
        return [error.args[0].name()]


def creating(server: Any) -> Any:
    name = server.topic(3)
    other = f"other-{name}"

    def create(*arguments: Any, **options: Any) -> Any:
        validate_only = options.pop("validate_only", False)
        return answer(server.admin.create_topics([NewTopic(*arguments, **options)], validate_only=validate_only))

    found = {
        "again": create(name, 3, 1),
        "name": create("not a name", 1, 1),
        "long name": create("x" * 250, 1, 1),
        "no partitions": create(other, 0, 1),
        "too many replicas": create(other, 1, 9),
        "unknown setting": create(other, 1, 1, config={"no.such.setting": "1"}),
        "wrong value": create(other, 1, 1, config={"max.message.bytes": "many"}),
        "only validated": create(other, 1, 1, validate_only=True),
        "not made": server.admin.list_topics(other, timeout=DEADLINE_S).topics[other].error.name(),
        "defaults": create(other),
        "two": answer(server.admin.create_topics([NewTopic(f"{name}-2", 1, 1), NewTopic(f"{name}-3", 2, 1)])),
        "assigned": create(f"{name}-4", 2, replica_assignment=[[1], [1]]),
    }
    server.wait_for_partitions(f"{name}-4", 2)
    described = server.admin.describe_topics(TopicCollection([name, f"{name}-4", "never-made"]))
    return {**found, "described": [describe(future) for future in described.values()]}


def describe(future: Any) -> Any:
    try:
        return len(future.result(DEADLINE_S).partitions)
    except KafkaException as error:
        return error.args[0].name()


def growing(server: Any) -> Any:
    name = server.topic(2)

    def grow(topic: Any, count: Any) -> Any:
        return answer(server.admin.create_partitions([NewPartitions(topic, count)]))

    grown = grow(name, 4)
    server.wait_for_partitions(name, 4)
    return {
        "grown": grown,
        "written": server.produce(name, [b"value"], partition=3),
        "same": grow(name, 4),
        "fewer": grow(name, 1),
        "unknown": grow("never-made", 3),
    }


def deleting(server: Any) -> Any:
    name = server.topic()
    server.produce(name, [b"old"] * 3)
    deleted = answer(server.admin.delete_topics([name]))
    deadline = Deadline("deleting")
    while (error := server.admin.list_topics(name, timeout=DEADLINE_S).topics[name].error) is None:
        deadline.check()
    again = answer(server.admin.delete_topics([name]))
    server.admin.create_topics([NewTopic(name, 1, 1)])[name].result(DEADLINE_S)
    server.wait_for_partitions(name, 1)
    return {"deleted": deleted, "then": error.name(), "again": again, "anew": server.produce(name, [b"new"])}


def listing_offsets(server: Any) -> Any:
    name = server.topic()
    server.produce(name, [b"%d" % n for n in range(10)], timestamps=[FIRST_MS + 1000 * n for n in range(10)])
    consumer = server.consumer()

    def at(timestamp_ms: Any) -> Any:
        return consumer.offsets_for_times([TopicPartition(name, 0, timestamp_ms)], timeout=DEADLINE_S)[0].offset

    def listed(spec: Any) -> Any:
        futures = server.admin.list_offsets({TopicPartition(name, 0): spec})
        found = next(iter(futures.values())).result(DEADLINE_S)
        return [found.offset, found.timestamp]

    found = {
        "watermarks": consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=DEADLINE_S),
        "before": at(FIRST_MS - 5),
        "exact": at(FIRST_MS + 3000),
        "between": at(FIRST_MS + 3001),
        "after": at(FIRST_MS + 99_000),
        "earliest": listed(OffsetSpec.earliest()),  # type: ignore[no-untyped-call]
        "latest": listed(OffsetSpec.latest()),  # type: ignore[no-untyped-call]
        "newest": listed(OffsetSpec.max_timestamp()),  # type: ignore[no-untyped-call]
        "by time": listed(OffsetSpec.for_timestamp(FIRST_MS + 8500)),
    }
    consumer.close()
    return found


def reading(server: Any) -> Any:
    name = server.topic()
    server.produce(name, [b"%d" % n for n in range(10)], timestamps=[FIRST_MS + n for n in range(10)])
    middle = server.consume(name, 5, 6, enable_partition_eof=True)
    committed = server.consume(name, 0, 10, isolation_level="read_committed")
    return {
        "middle of a batch": [m if isinstance(m, str) else m.offset() for m in middle],
        "read committed": len(committed),
        "beyond the end": server.consume(name, 1000, 1, auto_offset_reset="error"),
        "beyond the end, earliest": server.consume(name, 1000, 1, auto_offset_reset="earliest")[0].offset(),
        "timestamp": list(server.consume(name, 3, 1)[0].timestamp()),
    }


def sizes(server: Any) -> Any:
    name = server.topic(max_message_bytes="2000")
    large = server.topic()
    server.produce(large, [b"x" * 50_000] * 3)
    return {
        "too large": server.produce(name, [b"x" * 5000]),
        "fits when compressed": server.produce(name, [b"x" * 5000], **{"compression.type": "gzip"}),
        "larger than the server takes": server.produce(large, [b"x" * 2_000_000], **{"message.max.bytes": 4_000_000}),
        "larger than the fetch": [
            len(m.value()) for m in server.consume(large, 0, 3, fetch_message_max_bytes=1000, fetch_max_bytes=1000000)
        ],
    }


def acknowledging(server: Any) -> Any:
    found = {}
    for acks in ("0", "1", "all"):
        name = server.topic()
        server.produce(name, [b"%d" % n for n in range(20)], acks=acks)
        values = [message.value().decode() for message in server.consume(name, 0, 20)]
        found[acks] = values == [str(n) for n in range(20)]
    return found


def idempotence(server: Any) -> Any:
    name = server.topic()
    values = [b"%d" % n for n in range(2000)]
    settings = {"enable.idempotence": True, "batch.num.messages": 50, "max.in.flight.requests.per.connection": 5}
    offsets = server.produce(name, values, **settings)
    read = [message.value() for message in server.consume(name, 0, 2000)]
    return {"offsets": offsets == list(range(2000)), "read": read == values}


def time_of_append(server: Any) -> Any:
    name = server.topic(message_timestamp_type="LogAppendTime")
    server.produce(name, [b"value"], timestamps=[FIRST_MS])
    (message,) = server.consume(name, OFFSET_BEGINNING, 1)
    kind, timestamp_ms = message.timestamp()
    return {"kind": kind, "now": timestamp_ms > FIRST_MS + 10**10}


def configuring(server: Any) -> Any:
    name = server.topic(flush_ms="9")

    def entry(key: Any, kind: Any = ConfigResource.Type.TOPIC, target: Any = name) -> Any:
        (future,) = server.admin.describe_configs([ConfigResource(kind, target)]).values()
        return future.result(DEADLINE_S)[key]

    def told(key: Any) -> Any:
        found = entry(key)
        return [found.value, ConfigSource(found.source).name, found.is_default, found.is_read_only, found.is_sensitive]

    def change(
        *entries: Any, kind: Any = ConfigResource.Type.TOPIC, target: Any = name, validate_only: bool = False
    ) -> Any:
        configs = [ConfigEntry(key, value, incremental_operation=operation) for key, operation, value in entries]
        resource = ConfigResource(kind, target, incremental_configs=configs)
        return answer(server.admin.incremental_alter_configs([resource], validate_only=validate_only))

    def changed(key: Any, *entries: Any) -> Any:
        """Once it counts: a server may answer before."""
        before, outcome, deadline = entry(key).value, change(*entries), Deadline(f"change of {key}")
        while entry(key).value == before:
            deadline.check()
        return [outcome, *told(key)]

    set_, delete, append, subtract = (
        AlterConfigOpType.SET, AlterConfigOpType.DELETE, AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT,
    )  # fmt: skip
    broker: dict[str, Any] = {"kind": ConfigResource.Type.BROKER, "target": "1"}
    return {
        "given": told("flush.ms"),
        "default": told("max.message.bytes"),
        "synonyms": sorted(entry("segment.bytes").synonyms),
        "set": changed("segment.bytes", ("segment.bytes", set_, "2097152")),
        "appended": changed("cleanup.policy", ("cleanup.policy", append, "compact")),
        "subtracted": changed("cleanup.policy", ("cleanup.policy", subtract, "delete")),
        "deleted": changed("flush.ms", ("flush.ms", delete, None)),
        "two, one wrong": change(("retention.ms", set_, "77"), ("flush.ms", set_, "many")),
        "not a list": change(("segment.bytes", append, "1")),
        "unknown setting": change(("no.such.setting", set_, "1")),
        "only validated": change(("retention.ms", set_, "78"), validate_only=True),
        "nothing of these": told("retention.ms"),
        "unknown topic": change(("retention.ms", set_, "77"), target="never-made"),
        "unknown topic described": answer(
            server.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "never-made")])
        ),
        "broker": change(("message.max.bytes", set_, "1048588"), **broker),
        "broker again": change(("message.max.bytes", delete, None), **broker),
        "broker, wrong value": change(("message.max.bytes", set_, "many"), **broker),
        "broker, read-only": change(("num.partitions", set_, "2"), **broker),
        "replaced": answer(
            server.admin.alter_configs([ConfigResource(ConfigResource.Type.TOPIC, name, {"retention.ms": "79"})])
        ),
    }


def deleting_records(server: Any) -> Any:
    name, compacted = server.topic(), server.topic(cleanup_policy="compact")
    server.produce(name, [b"value"] * 10)

    def delete(topic: Any, offset: Any, partition: int = 0) -> Any:
        (future,) = server.admin.delete_records([TopicPartition(topic, partition, offset)]).values()
        try:
            return future.result(DEADLINE_S).low_watermark
        except KafkaException as error:
            return error.args[0].name()

    return {
        "some": delete(name, 4),
        "fewer": delete(name, 2),
        "read": server.consume(name, 4, 1)[0].offset(),
        "before the start": server.consume(name, 3, 1, auto_offset_reset="error"),
        "beyond the end": delete(name, 11),
        "all": delete(name, OFFSET_END),
        "compacted": delete(compacted, 0),
        "unknown": delete("never-made", 0),
    }


def authorized_operations(server: Any) -> Any:
    name = server.topic()
    described = server.admin.describe_topics(TopicCollection([name]), include_authorized_operations=True)
    cluster = server.admin.describe_cluster(include_authorized_operations=True).result(DEADLINE_S)
    return {
        "topic": sorted(item.name for item in described[name].result(DEADLINE_S).authorized_operations),
        "cluster": sorted(item.name for item in cluster.authorized_operations),
    }


def electing(server: Any) -> Any:
    name = server.topic()

    def elect(kind: Any, *partitions: Any) -> Any:
        found = server.admin.elect_leaders(kind, [TopicPartition(*partition) for partition in partitions]).result(
            DEADLINE_S
        )
        return [error and error.name() for error in found.values()]

    return {
        "preferred": elect(ElectionType.PREFERRED, (name, 0)),
        "unclean": elect(ElectionType.UNCLEAN, (name, 0)),
        "unknown": elect(ElectionType.PREFERRED, (name, 7)),
    }


def groups(server: Any) -> Any:
    name = server.topic(2)

    def asked(*positions: Any) -> Any:
        return [ConsumerGroupTopicPartitions(name, list(positions) or None)]

    def altered(*positions: Any) -> Any:
        try:
            found = server.admin.alter_consumer_group_offsets(asked(*positions))[name].result(DEADLINE_S)
        except KafkaException as error:
            return error.args[0].name()
        return [position.error and position.error.name() for position in found.topic_partitions]

    def described(group: Any) -> Any:
        found = server.admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
        return [found.state.name, found.is_simple_consumer_group, found.partition_assignor, len(found.members)]

    found = {
        "committed": altered(TopicPartition(name, 0, 7), TopicPartition(name, 1, 9)),
        "listed": [
            [group.is_simple_consumer_group, group.state.name, group.type.name]
            for group in server.admin.list_consumer_groups().result(DEADLINE_S).valid
            if group.group_id == name
        ],
        "described": described(name),
        "unknown": described("never-made"),
        "offsets": [
            position.offset
            for position in server.admin.list_consumer_group_offsets(asked())[name].result(DEADLINE_S).topic_partitions
        ],
    }
    consumer, deadline = server.consumer(group_id=name), Deadline("joining")
    consumer.subscribe([name])
    while not consumer.assignment():
        deadline.check()
        consumer.poll(0.1)
    found["at work"] = described(name)
    found["altered at work"] = altered(TopicPartition(name, 0, 8))
    found["deleted at work"] = answer(server.admin.delete_consumer_groups([name]))
    consumer.close()
    return {
        **found,
        "deleted": answer(server.admin.delete_consumer_groups([name])),
        "again": answer(server.admin.delete_consumer_groups([name])),
    }


QUESTIONS = [
    unknown_topic,
    invalid_topic_name,
    cluster,
    produce_to_unknown_topic,
    produce_to_unknown_partition,
    creating,
    growing,
    deleting,
    listing_offsets,
    reading,
    sizes,
    acknowledging,
    idempotence,
    time_of_append,
    configuring,
    deleting_records,
    authorized_operations,
    electing,
    groups,
]


def ask(bootstrap: Any, _asked: Any) -> Any:
    server = Behaviour(bootstrap)
    return {question.__name__: question(server) for question in QUESTIONS}


if __name__ == "__main__":
    main({"ask": ask})
