"""kafka-python writes, reads, and produces through restarts. Its snappy is `snappy.py` beside this file."""

import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from exchange import DEADLINE_S, Deadline, main, read_record, was_told_to_stop, write_record


def write(bootstrap: Any, asked: Any) -> Any:
    for topic in asked["topics"]:
        codec = None if topic["codec"] == "none" else topic["codec"]
        producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, linger_ms=10)
        sent = []
        for record in topic["records"]:
            key, value, headers, timestamp_ms = read_record(record)
            sent.append(
                producer.send(topic["name"], value, key, headers=headers, partition=0, timestamp_ms=timestamp_ms)
            )
        producer.flush(DEADLINE_S)
        for future in sent:
            future.get(DEADLINE_S)
        producer.close()
    return {}


def read(bootstrap: Any, asked: Any) -> Any:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(name, 0) for name in asked["counts"]])
    consumer.seek_to_beginning()
    found: dict[str, list[Any]] = {name: [] for name in asked["counts"]}
    deadline = Deadline("reading")
    while any(len(found[name]) < count for name, count in asked["counts"].items()):
        deadline.check()
        for records in consumer.poll(1000).values():
            for record in records:
                found[record.topic].append(
                    write_record(record.offset, record.key, record.value, record.headers, record.timestamp)
                )
    consumer.close()
    return found


def produce_until_told(bootstrap: Any, asked: Any) -> Any:
    """Numbered records until standard input ends: those that were acknowledged, with their offsets."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=2)
    sent: list[Any] = []
    while not was_told_to_stop():
        sent.append(producer.send(asked["topic"], b"%d" % len(sent), partition=0))
        if len(sent) > 200:
            sent[-200].get(DEADLINE_S)
    producer.flush(DEADLINE_S)
    acknowledged = [[number, future.get(DEADLINE_S).offset] for number, future in enumerate(sent)]
    producer.close()
    return {"acknowledged": acknowledged, "sent": len(sent)}


if __name__ == "__main__":
    main({"write": write, "read": read, "produce": produce_until_told})
