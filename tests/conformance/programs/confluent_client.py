"""confluent-kafka writes, reads, and produces through restarts."""

from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from exchange import DEADLINE_S, Deadline, main, read_record, was_told_to_stop, write_record

QUIET = {"log_level": 0}


def write(bootstrap: Any, asked: Any) -> Any:
    failures = []
    for topic in asked["topics"]:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": topic["codec"], **QUIET})
        for record in topic["records"]:
            key, value, headers, timestamp_ms = read_record(record)
            producer.produce(
                topic["name"],
                value,
                key,
                partition=0,
                headers=headers,
                timestamp=timestamp_ms,
                on_delivery=lambda error, _: failures.append(str(error)) if error else None,
            )
        assert producer.flush(DEADLINE_S) == 0
    assert not failures, failures
    return {}


def read(bootstrap: Any, asked: Any) -> Any:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **QUIET})
    consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING) for name in asked["counts"]])
    found: dict[str, list[Any]] = {name: [] for name in asked["counts"]}
    deadline = Deadline("reading")
    while any(len(found[name]) < count for name, count in asked["counts"].items()):
        deadline.check()
        for message in consumer.consume(1000, timeout=1):
            assert message.error() is None, message.error()
            found[message.topic() or ""].append(
                write_record(
                    message.offset(), message.key(), message.value(), message.headers() or [], message.timestamp()[1]
                )
            )
    consumer.close()
    return found


def produce_until_told(bootstrap: Any, asked: Any) -> Any:
    """Numbered records until standard input ends: those that were acknowledged, with their offsets."""
    acknowledged = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        acknowledged.append([int(message.value()), message.offset()])

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, **QUIET})
    number = 0
    while not was_told_to_stop():
        producer.produce(asked["topic"], b"%d" % number, partition=0, on_delivery=delivered)
        number += 1
        while len(producer) > 200:
            producer.poll(0.1)
        producer.poll(0.001)
    assert producer.flush(DEADLINE_S) == 0
    return {"acknowledged": acknowledged, "sent": number}


def consume_until_told(bootstrap: Any, asked: Any) -> Any:
    """The offsets read from a topic while it is written; once standard input has ended, up to the end of the log."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **QUIET})
    partition = TopicPartition(asked["topic"], 0, OFFSET_BEGINNING)
    consumer.assign([partition])
    offsets, end, deadline = [], None, None
    while end is None or len(offsets) < end:
        if deadline is not None:
            deadline.check()
        if end is None and was_told_to_stop():
            deadline = deadline or Deadline("reading to the end")
            # librdkafka has no leader for a moment after it lost its connection, and says so rather than wait.
            with suppress(KafkaException):
                end = consumer.get_watermark_offsets(partition, timeout=5)[1]
        offsets += [message.offset() for message in consumer.consume(1000, timeout=0.2) if message.error() is None]
    consumer.close()
    return {"offsets": offsets}


if __name__ == "__main__":
    main({"write": write, "read": read, "produce": produce_until_told, "consume": consume_until_told})
