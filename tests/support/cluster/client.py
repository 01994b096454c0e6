"""The client of the fault tests: `python -m tests.support.cluster.client JSON`, until its standard input ends.

An idempotent acks=all producer and two members of a group, of confluent-kafka. It writes at a steady rate to all
partitions of some topics in turn; at the end it reads them back, from the start and without the group, and prints as
JSON what became of the records. It says `steady` once records are acknowledged in every partition and the group reads.

Invariants: a value, which is a number, is used once, and numbers grow; a key belongs to one partition of one topic.
What counts as lost, doubled and out of order is decided by `judge`.

librdkafka begins a new producer epoch also when a broker refuses a batch that came before the one it follows, and sends
again in all partitions what was not acknowledged yet (its issue 4953). No broker can recognise these records: they are
those whose copies are of rising epochs of one producer. Two copies of one epoch are a fault of the broker.
"""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, product

import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Part

from pipeline.client import ClientConfig, open_cluster, parse_addresses
from pipeline.client.consumer.batch_headers import BatchHeaders
from pipeline.model import TopicPartition

KEYS_OF_PARTITION = 8
MEMBERS = 2
FLUSH_DEADLINE_S = 180
READ_DEADLINE_S = 180
POLL_S = 0.1
SHOWN = 5

COMMON = {"reconnect.backoff.max.ms": 500, "socket.timeout.ms": 4000, "log_level": 0}
PRODUCER = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "request.timeout.ms": 3000,
    "message.timeout.ms": 300_000,
    "topic.metadata.refresh.interval.ms": 1000,
}
"""Requests that are not answered are given up soon, so that the client's patience does not hide the cluster's stops."""


Place = tuple[str, int]
"""A topic and a partition."""


def place_of(message: Message) -> "Place":
    """The topic and partition that a message came from or went to."""
    return message.topic() or "", message.partition() or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the client is to do."""

    bootstrap: str
    topics: Sequence[str]
    partitions: int
    """Of each topic."""
    group: str
    records_per_s: int = 500

    @property
    def places(self) -> list[Place]:
        return [(topic, number) for topic, number in product(self.topics, range(self.partitions))]


@dataclass(slots=True, kw_only=True)
class Written:
    """What the producer was told."""

    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    failed: Counter[str] = field(default_factory=Counter)
    acknowledged_at: dict[Place, float] = field(default_factory=dict)
    """The latest time."""
    longest_stop_s: float = 0.0
    longest_wait_s: float = 0.0

    def note(self, error: KafkaError | None, message: Message) -> None:
        """The delivery callback."""
        if error is not None:
            self.failed[str(error)] += 1
            return
        now = time.monotonic()
        place = place_of(message)
        self.longest_stop_s = max(self.longest_stop_s, now - self.acknowledged_at.get(place, now))
        self.acknowledged_at[place] = now
        self.longest_wait_s = max(self.longest_wait_s, message.latency() or 0.0)
        self.acknowledged.add(int(message.value() or b""))


@dataclass(slots=True, kw_only=True)
class Read:
    """What the group was given; a record may come again after a rebalance."""

    values: set[int] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    read_at: float = 0.0
    longest_stop_s: float = 0.0

    def note(self, messages: Iterable[Message]) -> None:
        now = time.monotonic()
        with self.lock:
            for message in messages:
                if message.error() is not None:
                    self.errors[str(message.error())] += 1
                    continue
                self.values.add(int(message.value() or b""))
                self.longest_stop_s = max(self.longest_stop_s, now - (self.read_at or now))
                self.read_at = now


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of the records. Times are in seconds."""

    acknowledged: int
    failed: Mapping[str, int]
    lost: int
    doubled: int
    disordered: int
    unread: int
    sent_again: int
    """Copies that the client sent in another producer epoch."""
    examples: Mapping[str, Sequence[int | str]]
    longest_stop_s: float
    """Between two acknowledgements of one partition."""
    longest_wait_s: float
    """From sending to the acknowledgement."""
    longest_reading_stop_s: float

    @property
    def faults(self) -> list[str]:
        """What is wrong, in words."""
        counts = {"lost": self.lost, "doubled": self.doubled, "out of order": self.disordered, "unread": self.unread}
        found = [f"{count} {what} {self.examples.get(what, '')}" for what, count in counts.items() if count]
        return found + [f"{count} failed: {error}" for error, count in self.failed.items()]


Log = Mapping[Place, Mapping[int, tuple[bytes, int]]]
"""All that a reader finds: keys and values by their offsets, in order."""


Copy = tuple[Place, int]
"""The place and offset of a record."""
ProducerEpoch = tuple[int, int]
"""The id of a producer and its epoch."""


def copies_in(log: Log) -> Mapping[int, Sequence[Copy]]:
    """Where the values are that are there more than once, in the order of their offsets."""
    copies: dict[int, list[Copy]] = {}
    for place, records in log.items():
        for offset, (_, value) in records.items():
            copies.setdefault(value, []).append((place, offset))
    return {value: found for value, found in copies.items() if len(found) > 1}


def sent_again(copies: Iterable[Sequence[Copy]], epochs: Mapping[Copy, ProducerEpoch]) -> set[Copy]:
    """All but the first copies of values that a producer sent again, to the same partition in newer epochs."""
    again: set[Copy] = set()
    for found in copies:
        (producer_id, _), *_ = ordered = [epochs[copy] for copy in found]
        is_of_one = {place for place, _ in found} == {found[0][0]} and {name for name, _ in ordered} == {producer_id}
        if is_of_one and all(before < after for before, after in pairwise(ordered)):
            again.update(found[1:])
    return again


async def epochs_of(bootstrap: str, copies: Iterable[Sequence[Copy]]) -> Mapping[Copy, ProducerEpoch]:
    """The producer and epoch of the batch of each copy. Raises PipelineError."""
    epochs = {}
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster:
        headers = BatchHeaders(cluster)
        for (topic, partition), offset in (copy for found in copies for copy in found):
            header = await headers.header_at(TopicPartition(topic, partition), offset, timeout_s=READ_DEADLINE_S)
            assert header is not None
            epochs[(topic, partition), offset] = header.producer_id, header.producer_epoch
    return epochs


def without(log: Log, copies: Collection[Copy]) -> Log:
    """The log without some records."""
    return {
        place: {offset: record for offset, record in records.items() if (place, offset) not in copies}
        for place, records in log.items()
    }


def judge(written: Written, log: Log, read: Read, sent_again: int = 0) -> Verdict:
    """What is wrong with what a reader finds, after what the producer was told."""
    found = Counter(value for records in log.values() for _, value in records.values())
    doubled = [value for value, times in found.items() if times > 1]
    disordered = []
    for records in log.values():
        latest: dict[bytes, int] = {}
        for key, value in records.values():
            if value < latest.get(key, -1):
                disordered.append(value)
            latest[key] = value
    lost = sorted(written.acknowledged - found.keys())
    unread = sorted(found.keys() - read.values)
    places = [f"{value} at {_places_of(value, log)}" for value in doubled[:SHOWN]]
    faults: dict[str, Sequence[int | str]] = {
        "lost": lost,
        "doubled": places,
        "out of order": disordered,
        "unread": unread,
    }
    return Verdict(
        acknowledged=len(written.acknowledged),
        failed=dict(written.failed),
        lost=len(lost),
        doubled=len(doubled),
        disordered=len(disordered),
        unread=len(unread),
        sent_again=sent_again,
        examples={what: values[:SHOWN] for what, values in faults.items() if values},
        longest_stop_s=written.longest_stop_s,
        longest_wait_s=written.longest_wait_s,
        longest_reading_stop_s=read.longest_stop_s,
    )


def _places_of(value: int, log: Log) -> str:
    return ", ".join(
        f"{topic}-{partition} offset {offset}"
        for (topic, partition), records in log.items()
        for offset, (_, found) in records.items()
        if found == value
    )


def produce(asked: Asked, written: Written, ended: threading.Event) -> None:
    """At a steady rate until `ended`; then waits until all is acknowledged or has failed."""
    producer = Producer({"bootstrap.servers": asked.bootstrap, **COMMON, **PRODUCER})
    places = asked.places
    keys = KEYS_OF_PARTITION * len(places)
    began = time.monotonic()
    while not ended.is_set():
        due = int((time.monotonic() - began) * asked.records_per_s)
        while written.sent < due:
            number = written.sent
            topic, partition = places[number % len(places)]
            key = b"%d" % (number % keys)
            producer.produce(topic, b"%d" % number, key=key, partition=partition, on_delivery=written.note)
            written.sent += 1
        producer.poll(0.002)
    left = producer.flush(FLUSH_DEADLINE_S)
    if left:
        written.failed[f"not delivered within {FLUSH_DEADLINE_S} s"] += left


def consume(asked: Asked, read: Read, ended: threading.Event) -> None:
    """As a member of the group until `ended`."""
    settings = {"bootstrap.servers": asked.bootstrap, "group.id": asked.group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "auto.commit.interval.ms": 1000, **COMMON})
    consumer.subscribe(list(asked.topics))
    while not ended.is_set():
        read.note(consumer.consume(500, timeout=POLL_S))
    consumer.close()


def read_back(asked: Asked) -> Log:
    """All records of the topics. Raises TimeoutError."""
    settings = {"bootstrap.servers": asked.bootstrap, "group.id": f"{asked.group}-again", **COMMON}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    parts = [Part(topic, number, 0) for topic, number in asked.places]
    ends = {(part.topic, part.partition): end_of(consumer, part) for part in parts}
    consumer.assign(parts)
    log: dict[Place, dict[int, tuple[bytes, int]]] = {place: {} for place in ends}
    unfinished = {place for place, end in ends.items() if end > 0}
    deadline = time.monotonic() + READ_DEADLINE_S
    while unfinished:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not read to their ends: {[(place, ends[place]) for place in sorted(unfinished)]}")
        for message in consumer.consume(1000, timeout=POLL_S):
            if message.error() is None:
                place, offset = place_of(message), message.offset() or 0
                # A client that validates its position after a change of leader may give a record again.
                log[place].setdefault(offset, (message.key() or b"", int(message.value() or b"")))
                if offset >= ends[place] - 1:
                    unfinished.discard(place)
    consumer.close()
    return log


def end_of(consumer: Consumer, part: Part) -> int:
    """Asked again when the client gives up by itself: it does so while it knows no leader, or has no answer for 4 s."""
    deadline = time.monotonic() + READ_DEADLINE_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(part, timeout=READ_DEADLINE_S)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def wait_until_steady(asked: Asked, written: Written, read: Read) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + READ_DEADLINE_S
    while len(written.acknowledged_at) < len(asked.places) or not read.read_at:
        if time.monotonic() > deadline:
            acknowledged = f"{len(written.acknowledged)} of {written.sent} records acknowledged"
            partitions = f"in {len(written.acknowledged_at)} of {len(asked.places)} partitions"
            raise TimeoutError(f"{acknowledged} {partitions}, {len(read.values)} read within {READ_DEADLINE_S} s")
        time.sleep(POLL_S)
    read.longest_stop_s = written.longest_stop_s = written.longest_wait_s = 0.0


def main() -> None:
    asked = Asked(**json.loads(sys.argv[1]))
    written, read = Written(), Read()
    writing_ended, reading_ended = threading.Event(), threading.Event()
    writer = threading.Thread(target=produce, args=[asked, written, writing_ended], daemon=True)
    readers = [threading.Thread(target=consume, args=[asked, read, reading_ended], daemon=True) for _ in range(MEMBERS)]
    for thread in (writer, *readers):
        thread.start()
    wait_until_steady(asked, written, read)
    print("steady", flush=True)
    sys.stdin.read()
    writing_ended.set()
    writer.join()
    log = read_back(asked)
    copies = copies_in(log).values()
    again = sent_again(copies, trio.run(epochs_of, asked.bootstrap, copies)) if copies else set()
    deadline = time.monotonic() + READ_DEADLINE_S
    while time.monotonic() < deadline and not written.acknowledged <= read.values:
        time.sleep(POLL_S)
    reading_ended.set()
    for thread in readers:
        thread.join()
    print(json.dumps(asdict(judge(written, without(log, again), read, len(again)))))


if __name__ == "__main__":
    main()
