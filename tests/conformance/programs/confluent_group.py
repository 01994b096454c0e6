"""A member of a consumer group with confluent-kafka: reads and commits until it is told to stop, then leaves."""

import time
from typing import Any

from confluent_kafka import Consumer, KafkaException
from exchange import main, was_told_to_stop


def member(bootstrap: Any, asked: Any) -> Any:
    """What it read, when it was given how many partitions, and the error that ended it."""
    given: list[Any] = []
    values: list[str] = []
    error: str | None = None
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": asked["group"],
            "group.instance.id": asked["instance"],
            "partition.assignment.strategy": asked["strategy"],
            "session.timeout.ms": asked["session_ms"],
            "heartbeat.interval.ms": 500,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([asked["topic"]], on_assign=lambda _, parts: given.append([time.time(), len(parts)]))
    while not was_told_to_stop():
        try:
            messages = consumer.consume(100, timeout=0.1)
            read = [(message.value() or b"").decode() for message in messages if not message.error()]
            failed = [found for message in messages if (found := message.error())]
            if failed and failed[0].fatal():
                error = failed[0].name()
                break
            if read:
                consumer.commit(asynchronous=False)
                values += read
        except KafkaException as failure:
            if failure.args[0].fatal():
                error = failure.args[0].name()
                break
    consumer.close()
    return {"values": values, "given": given, "error": error}


if __name__ == "__main__":
    main({"member": member})
