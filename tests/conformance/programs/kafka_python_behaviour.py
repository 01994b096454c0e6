"""What kafka-python is told by a server, as plain values that any right server gives."""

import uuid
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetSpec, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
    from kafka.errors import KafkaError
    from kafka.protocol.admin.topics import ElectionType
    from kafka.structs import OffsetAndMetadata

from exchange import DEADLINE_S, Deadline, main

FIRST_MS = 1_431_849_903_000


class Behaviour:
    """One server, asked in many ways."""

    def __init__(self, bootstrap: Any) -> None:
        self.bootstrap = bootstrap
        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def topic(self, partitions: int = 1, **config: Any) -> Any:
        name = f"kafka-python-{uuid.uuid4().hex}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, topic_configs=settings)], wait_for_metadata=True)
        return name

    def error_of(self, name: Any) -> Any:
        return self.admin.describe_topics([name])[0]["error_code"]

    def produce(self, topic: Any, values: Any, timestamps: Any = None, partition: int = 0, **settings: Any) -> Any:
        """Offsets or error names, in the order of the values."""
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=200, **settings)
        futures = [
            producer.send(topic, value, partition=partition, timestamp_ms=timestamps[number] if timestamps else None)
            for number, value in enumerate(values)
        ]
        outcome = [attempt(lambda future=future: future.get(DEADLINE_S).offset) for future in futures]
        producer.close()
        return outcome

    def consume(self, topic: Any, offset: Any, count: Any, **settings: Any) -> Any:
        """Records of partition 0, as soon as there are `count`."""
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, enable_auto_commit=False, **settings)
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, offset)
        found: list[Any] = []
        deadline = Deadline(f"reading {topic}")
        try:
            while len(found) < count:
                deadline.check()
                found += consumer.poll(500).get(partition, [])
        finally:
            consumer.close()
        return found


def attempt(call: Any) -> Any:
    """What a call gives, or the name of its error."""
    try:
        return call()
    except KafkaError as error:
        return type(error).__name__


def unknown_topic(server: Any) -> Any:
    return server.error_of("never-made")


def produce_to_unknown_topic(server: Any) -> Any:
    producer = KafkaProducer(bootstrap_servers=server.bootstrap, max_block_ms=1000)
    found = attempt(lambda: producer.send("never-made", b"value").get(10))
    producer.close()
    return found


def creating(server: Any) -> Any:
    name = server.topic(3)

    def create(*arguments: Any, **options: Any) -> Any:
        return attempt(lambda: server.admin.create_topics([NewTopic(*arguments)], **options) and None)

    return {
        "again": create(name, 3, 1),
        "name": create("not a name", 1, 1),
        "no partitions": create(f"{name}-2", 0, 1),
        "too many replicas": create(f"{name}-2", 1, 9),
        "only validated": create(f"{name}-2", 1, 1, validate_only=True),
        "not made": server.error_of(f"{name}-2"),
        "partitions": len(server.admin.describe_topics([name])[0]["partitions"]),
    }


def growing(server: Any) -> Any:
    name = server.topic(2)

    def grow(topic: Any, count: Any) -> Any:
        return attempt(lambda: server.admin.create_partitions({topic: NewPartitions(count)}) and None)

    grown = grow(name, 4)
    deadline = Deadline("growing")
    while len(server.admin.describe_topics([name])[0]["partitions"]) != 4:
        deadline.check()
    return {
        "grown": grown,
        "written": server.produce(name, [b"value"], partition=3),
        "fewer": grow(name, 1),
        "unknown": grow("never-made", 3),
    }


def deleting(server: Any) -> Any:
    name = server.topic()
    server.produce(name, [b"old"])

    def delete() -> Any:
        return attempt(lambda: server.admin.delete_topics([name]) and None)

    deleted, deadline = delete(), Deadline("deleting")
    while server.error_of(name) == 0:
        deadline.check()
    return {"deleted": deleted, "then": server.error_of(name), "again": delete()}


def listing_offsets(server: Any) -> Any:
    name = server.topic()
    server.produce(name, [b"%d" % n for n in range(10)], timestamps=[FIRST_MS + 1000 * n for n in range(10)])
    partition = TopicPartition(name, 0)
    consumer = KafkaConsumer(bootstrap_servers=server.bootstrap)

    def at(timestamp_ms: Any) -> Any:
        found = consumer.offsets_for_times({partition: timestamp_ms})[partition]
        return found and [found.offset, found.timestamp]

    def listed(spec: Any) -> Any:
        found = server.admin.list_partition_offsets({partition: spec})[partition]
        return [found.offset, found.timestamp]

    found = {
        "earliest": consumer.beginning_offsets([partition])[partition],
        "latest": consumer.end_offsets([partition])[partition],
        "before": at(FIRST_MS - 5),
        "between": at(FIRST_MS + 3001),
        "after": at(FIRST_MS + 99_000),
        "newest": listed(OffsetSpec.MAX_TIMESTAMP),
        "earliest local": listed(OffsetSpec.EARLIEST_LOCAL),
        "latest tiered": listed(OffsetSpec.LATEST_TIERED)[0],
    }
    consumer.close()
    return found


def reading(server: Any) -> Any:
    name = server.topic()
    server.produce(name, [b"%d" % n for n in range(10)], timestamps=[FIRST_MS + n for n in range(10)])
    return {
        "middle of a batch": [record.offset for record in server.consume(name, 5, 5)],
        "beyond the end": attempt(lambda: server.consume(name, 1000, 1, auto_offset_reset="none")),
        "beyond the end, earliest": server.consume(name, 1000, 1, auto_offset_reset="earliest")[0].offset,
    }


def sizes(server: Any) -> Any:
    name = server.topic(max_message_bytes="2000")
    large = server.topic()
    server.produce(large, [b"x" * 50_000] * 3)
    return {
        "too large": server.produce(name, [b"x" * 5000]),
        "larger than the server takes": server.produce(large, [b"x" * 2_000_000], max_request_size=4_000_000),
        "larger than the fetch": [len(r.value) for r in server.consume(large, 0, 3, max_partition_fetch_bytes=1000)],
    }


def acknowledging(server: Any) -> Any:
    found = {}
    for acks in (0, 1, "all"):
        name = server.topic()
        server.produce(name, [b"%d" % n for n in range(20)], acks=acks, enable_idempotence=False)
        found[str(acks)] = [int(record.value) for record in server.consume(name, 0, 20)] == list(range(20))
    return found


def idempotence(server: Any) -> Any:
    name = server.topic()
    offsets = server.produce(name, [b"%d" % n for n in range(1000)], enable_idempotence=True, batch_size=500)
    read = [int(record.value) for record in server.consume(name, 0, 1000)]
    return {"offsets": offsets == list(range(1000)), "read": read == list(range(1000))}


def cluster(server: Any) -> Any:
    found = server.admin.describe_cluster()
    return {"brokers": len(found["brokers"]), "has id": bool(found["cluster_id"])}


def configuring(server: Any) -> Any:
    name = server.topic(flush_ms="9")

    def told(*keys: Any) -> Any:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        (entries,) = server.admin.describe_configs([resource], config_filter="all")["topic"].values()
        return [[entries[key]["value"], entries[key]["config_source"], entries[key]["read_only"]] for key in keys]

    def change(settings: Any, kind: Any = ConfigResourceType.TOPIC, target: Any = name, **options: Any) -> Any:
        found = attempt(lambda: server.admin.alter_configs([ConfigResource(kind, target, settings)], **options))
        return found if isinstance(found, str) else "done"

    def changed(key: Any, settings: Any, **options: Any) -> Any:
        """Once it counts: a server may answer before."""
        before, outcome, deadline = told(key), change(settings, **options), Deadline(f"change of {key}")
        while told(key) == before:
            deadline.check()
        return [outcome, *told(key)]

    broker = {"kind": ConfigResourceType.BROKER, "target": "1"}
    return {
        "given": told("flush.ms", "flush.messages", "cleanup.policy"),
        "set": changed("segment.bytes", {"segment.bytes": "2097152"}),
        "by AlterConfigs": changed("retention.ms", {"retention.ms": "79"}, incremental=False),
        "kept": told("segment.bytes"),
        "broker": change({"log.index.interval.bytes": "4096"}, **broker),
    }


def deleting_records(server: Any) -> Any:
    name, compacted = server.topic(), server.topic(cleanup_policy="compact")
    server.produce(name, [b"value"] * 10)

    def delete(topic: Any, offset: Any) -> Any:
        partition = TopicPartition(topic, 0)
        found = attempt(lambda: server.admin.delete_records({partition: offset}))
        return found if isinstance(found, str) else found[partition]["low_watermark"]

    return {
        "some": delete(name, 4),
        "fewer": delete(name, 2),
        "beyond the end": delete(name, 11),
        "all": delete(name, -1),
        "compacted": delete(compacted, 0),
    }


def describing(server: Any) -> Any:
    name = server.topic(3)
    server.produce(name, [b"value"] * 10)
    partition = TopicPartition(name, 0)
    (broker,) = server.admin.describe_log_dirs()
    sizes = [
        {found["partition_index"]: found["partition_size"] > 0 for found in topic["partitions"]}
        for log_dir in broker["log_dirs"]
        for topic in log_dir["topics"]
        if topic["name"] == name
    ]
    (producer,) = server.admin.describe_producers([partition])[partition].active_producers
    page = server.admin.describe_topic_partitions([name], response_partition_limit=2)
    (topic,) = page["topics"]
    elected = server.admin.elect_leaders(ElectionType.PREFERRED, {name: [0]}, raise_errors=False)
    return {
        "log dirs": [broker["broker"], [sorted(found.items()) for found in sizes]],
        "producer": [producer.producer_epoch, producer.last_sequence, producer.current_transaction_start_offset],
        "partitions": [[found["partition_index"], found["leader_id"]] for found in topic["partitions"]],
        "operations": topic["topic_authorized_operations"],
        "next": page["next_cursor"]["partition_index"],
        "election": elected.replica_election_results[0].partition_result[0].error_code,
    }


def groups(server: Any) -> Any:
    name, other = server.topic(2), server.topic()
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)

    def names(found: Any) -> Any:
        return found if isinstance(found, str) else {str(key.partition): error.__name__ for key, error in found.items()}

    def committed() -> Any:
        return sorted(
            [at.partition, found.offset] for at, found in server.admin.list_group_offsets([name])[name].items()
        )

    positions = {first: OffsetAndMetadata(7, "note", -1), second: OffsetAndMetadata(9, "", -1)}
    found = {
        "committed": names(server.admin.alter_group_offsets(name, positions)),
        "listed": [
            [group["protocol_type"], group["group_state"]]
            for group in server.admin.list_groups()
            if group["group_id"] == name
        ],
        "offsets": committed(),
        "described": described(server, name),
        "one deleted": names(server.admin.delete_group_offsets(name, [first])),
        "offsets left": committed(),
        "none to delete": names(attempt(lambda: server.admin.delete_group_offsets(name, [TopicPartition(other, 0)]))),
        "of no group": names(attempt(lambda: server.admin.delete_group_offsets("never-made", [first]))),
    }
    consumer = KafkaConsumer(name, bootstrap_servers=server.bootstrap, group_id=name)
    deadline = Deadline("joining")
    while not consumer.assignment():
        deadline.check()
        consumer.poll(100)
    found["at work"] = described(server, name)
    found["deleted at work"] = deletion(server, name)
    found["offsets deleted at work"] = names(attempt(lambda: server.admin.delete_group_offsets(name, [second])))
    consumer.close()
    return {**found, "deleted": deletion(server, name), "again": deletion(server, name)}


def described(server: Any, group: Any) -> Any:
    found = server.admin.describe_groups([group])[group]
    return [found["group_state"], found["protocol_type"], found["protocol_data"], len(found["members"])]


def deletion(server: Any, group: Any) -> Any:
    ((_, error),) = server.admin.delete_groups([group]).items()
    return getattr(error, "__name__", error)


QUESTIONS = [
    unknown_topic,
    produce_to_unknown_topic,
    creating,
    growing,
    deleting,
    listing_offsets,
    reading,
    sizes,
    acknowledging,
    idempotence,
    cluster,
    configuring,
    deleting_records,
    describing,
    groups,
]


def ask(bootstrap: Any, _asked: Any) -> Any:
    server = Behaviour(bootstrap)
    return {question.__name__: question(server) for question in QUESTIONS}


if __name__ == "__main__":
    main({"ask": ask})
