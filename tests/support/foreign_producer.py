"""An idempotent acks=all producer of confluent-kafka in a thread: a steady rate, and what was acknowledged when."""

import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict

from confluent_kafka import KafkaError, Message, Producer

from tests.support.cluster.client import COMMON, PRODUCER

FLUSH_DEADLINE_S = 180
PADDING = b"/" + b"x" * 200
BURST_S = 0.02


class ForeignProducer:
    """Publishes to the partitions of a topic in turn, from `start` to `stop`. A value begins with its number."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, records_per_s: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, **COMMON, **PRODUCER})
        self._topic = topic
        self._partitions = partitions
        self._records_per_s = records_per_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0
        self.failed: Counter[str] = Counter()
        self.acknowledged: defaultdict[int, dict[int, int]] = defaultdict(dict)
        """Number of the record by partition and offset."""
        self.unplaced: set[int] = set()
        """Numbers of records that were acknowledged without an offset: a retry whose first attempt was appended."""
        self._times: defaultdict[int, list[float]] = defaultdict(list)
        self._ends: defaultdict[int, list[int]] = defaultdict(list)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait until all records are acknowledged or have failed."""
        self._ended.set()
        self._thread.join()

    def acknowledged_end(self, partition: int, at: float) -> int:
        """Return the offset after the last record that was acknowledged by a time of `time.monotonic()`."""
        index = bisect_right(self._times[partition], at)
        return self._ends[partition][index - 1] if index else 0

    def _run(self) -> None:
        began = time.monotonic()
        while not self._ended.is_set():
            due = int((time.monotonic() - began) * self._records_per_s)
            while self.sent < due and len(self._producer) < self._records_per_s:
                value = b"%d" % self.sent + PADDING
                partition = self.sent % self._partitions
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._note)
                self.sent += 1
            self._producer.poll(BURST_S)
            self._ended.wait(BURST_S)
        left = self._producer.flush(FLUSH_DEADLINE_S)
        if left:
            self.failed[f"not delivered within {FLUSH_DEADLINE_S} s"] += left

    def _note(self, error: KafkaError | None, message: Message) -> None:
        """The delivery callback."""
        if error is not None:
            self.failed[str(error)] += 1
            return
        partition, offset, number = message.partition() or 0, message.offset(), number_of(message.value() or b"")
        if offset is None or offset < 0:
            self.unplaced.add(number)
            return
        self.acknowledged[partition][offset] = number
        ends = self._ends[partition]
        if not ends or offset >= ends[-1]:
            ends.append(offset + 1)
            # After the end, so that a reader in another thread never finds a time without an end.
            self._times[partition].append(time.monotonic())


def number_of(value: bytes) -> int:
    """Return the number of a record."""
    return int(value[: -len(PADDING)])
