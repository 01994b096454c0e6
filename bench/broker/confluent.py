"""The process of one confluent-kafka client: `python -m bench.broker.confluent JSON` prints its figures as JSON.

Records are slices of log-like text, so that a codec has as much to do as it would have with logs. Nothing is measured
before the client has the metadata of its topic.
"""

import json
import random
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.lines import LOG_EVENTS, LOG_LINES, log_events, log_lines

DEADLINE_S = 300
POLL_EVERY = 1000
WORDS = b"GET POST /index /images/logo.png HTTP/1.1 200 404 Mozilla/5.0 Chrome Safari referrer session user".split()
TEXT_BYTES = 1 << 20
TIME = struct.Struct(">d")
FRAME = struct.Struct(">bi")
NEVER_RESTING = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 1}
"""Settings of a consumer that asks for more as soon as its queue has room. With librdkafka's defaults it rests for a
second whenever the queue is full, so that a faster broker would look slower."""


def payloads(record_bytes: int) -> Iterator[bytes]:
    """Without end, different ones one after the other."""
    source = random.Random(record_bytes)
    text = bytearray()
    while len(text) < TEXT_BYTES + record_bytes:
        text += b"%08x " % source.getrandbits(32) + b" ".join(source.choices(WORDS, k=12)) + b"\n"
    step = record_bytes + 1 if record_bytes < 5000 else record_bytes // 7
    ready = [bytes(text[at : at + record_bytes]) for at in range(0, TEXT_BYTES, step)]
    while True:
        yield from ready


def payloads_of(asked: dict[str, Any]) -> Iterator[bytes]:
    """What was asked for, without end."""
    match asked.get("payloads"):
        case name if name == LOG_LINES:
            return log_lines()
        case name if name == LOG_EVENTS:
            return log_events(asked["schema_id"])
        case _ if "frame_of" in asked:
            frame = FRAME.pack(0, asked["frame_of"])
            return (frame + value[FRAME.size :] for value in payloads(asked["record_bytes"]))
        case _:
            return payloads(asked["record_bytes"])


class Deliveries:
    """Counts what was not delivered."""

    def __init__(self) -> None:
        self.failures: list[Any] = []

    def __call__(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failures.append(error)


def security(asked: dict[str, Any]) -> dict[str, Any]:
    """Settings of TLS and SASL, which a file holds: a password on a command line is seen by all."""
    path = asked.get("settings")
    found: dict[str, Any] = {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
    return found


def open_producer(asked: dict[str, Any], **settings: object) -> Any:
    from confluent_kafka import Producer

    given = {"bootstrap.servers": asked["bootstrap"], "acks": asked["acks"], "compression.type": asked["codec"]}
    producer = Producer(
        {**given, **security(asked), **{key.replace("_", "."): value for key, value in settings.items()}}
    )
    producer.list_topics(asked["topic"], timeout=30)
    return producer


def produce(asked: dict[str, Any]) -> dict[str, float]:
    """As fast as it goes, spread over `partitions` in turn if there are more than one."""
    batches = {"batch_size": asked["batch_bytes"]} if asked.get("batch_bytes") else {}
    producer = open_producer(
        asked, linger_ms=asked.get("linger_ms", 5), queue_buffering_max_messages=500_000, **batches
    )
    deliveries = Deliveries()
    records, partitions = asked["records"], asked["partitions"]
    values = payloads_of(asked)
    started = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(asked["topic"], next(values), partition=number % partitions, on_delivery=deliveries)
                break
            except BufferError:
                producer.poll(0.05)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    left = producer.flush(DEADLINE_S)
    elapsed_s = time.perf_counter() - started
    if left or deliveries.failures:
        raise RuntimeError(f"{left} records left, {len(deliveries.failures)} failed: {deliveries.failures[:1]}")
    return {"records_per_s": records / elapsed_s}


def consume(asked: dict[str, Any]) -> dict[str, float]:
    """From the start of all partitions, without a group; measured from the first record to the last."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": asked["bootstrap"], "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, **NEVER_RESTING, **security(asked)})
    consumer.assign([TopicPartition(asked["topic"], partition, 0) for partition in range(asked["partitions"])])
    seen, started = 0, 0.0
    deadline = time.monotonic() + DEADLINE_S
    while seen < asked["records"] and time.monotonic() < deadline:
        messages = consumer.consume(10_000, timeout=0.2)
        if messages and not started:
            started = time.perf_counter()
        seen += len(messages)
    elapsed_s = time.perf_counter() - started
    consumer.close()
    if seen < asked["records"]:
        raise RuntimeError(f"{seen} of {asked['records']} records came")
    return {"records_per_s": seen / elapsed_s}


def latency(asked: dict[str, Any]) -> dict[str, float]:
    """Milliseconds from produce() to the acknowledgement at a steady rate, without lingering."""
    producer = open_producer(asked, linger_ms=0)
    value = next(payloads(asked["record_bytes"]))
    rate, records = asked["rate"], asked["records"]
    warm_up = min(records // 10, rate)
    taken_s: list[float] = []
    failures: list[Any] = []

    def delivered_since(sent: float) -> Any:
        def delivered(error: Any, _message: Any) -> None:
            taken_s.append(time.perf_counter() - sent)
            if error is not None:
                failures.append(error)

        return delivered

    began = time.perf_counter()
    for number in range(records):
        due = began + number / rate
        while (now := time.perf_counter()) < due:
            producer.poll(due - now)
        producer.produce(asked["topic"], value, partition=0, on_delivery=delivered_since(time.perf_counter()))
        producer.poll(0)
    if producer.flush(DEADLINE_S) or failures:
        raise RuntimeError(f"not all were delivered: {failures[:1]}")
    return in_ms(taken_s[warm_up:])


def delay(asked: dict[str, Any]) -> dict[str, float]:
    """Milliseconds from produce() at the source to the record at the destination, at a steady rate.

    The first tenth does not count; each value begins with the time of its produce().
    """
    from confluent_kafka import Consumer, TopicPartition

    rate, records, partitions = asked["rate"], asked["records"], asked["partitions"]
    settings = {"bootstrap.servers": asked["destination"], "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, "fetch.queue.backoff.ms": 1})
    consumer.assign([TopicPartition(asked["replica"], number, asked["begins_at"]) for number in range(partitions)])
    producer = open_producer(asked, linger_ms=asked["linger_ms"])
    rest = next(payloads(asked["record_bytes"]))[TIME.size :]
    deliveries = Deliveries()

    def send() -> None:
        began = time.perf_counter()
        for number in range(records):
            due = began + number / rate
            while (now := time.perf_counter()) < due:
                producer.poll(due - now)
            producer.produce(
                asked["topic"],
                TIME.pack(time.perf_counter()) + rest,
                partition=number % partitions,
                on_delivery=deliveries,
            )
            producer.poll(0)
        producer.flush(DEADLINE_S)

    sender = threading.Thread(target=send)
    sender.start()
    taken_s: list[float] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(taken_s) < records and time.monotonic() < deadline:
        messages = consumer.consume(1000, timeout=0.01)
        now = time.perf_counter()
        taken_s += [now - TIME.unpack_from(message.value() or b"")[0] for message in messages]
    sender.join()
    consumer.close()
    if len(taken_s) < records or deliveries.failures:
        raise RuntimeError(f"{len(taken_s)} of {records} records came; {deliveries.failures[:1]}")
    return in_ms(taken_s[records // 10 :])


def in_ms(taken_s: list[float]) -> dict[str, float]:
    ordered = sorted(taken_s)
    return {
        name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    }


ACTIONS = {"produce": produce, "consume": consume, "latency": latency, "delay": delay}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(ACTIONS[given["action"]](given)))
