"""A load of old records beside a live consumer: neither waits for the other (2011 paper, sections 1 and 4)."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from pipeline.hadoop.load import LoadConfig, run_load
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic

OLD_RECORDS = 60_000
EACH_S = 0.02
LONGEST_DELAY_S = 5.0
"""A consumer that waited for the load would wait until its end."""


class LiveFlow:
    """One record at a time from a producer to a consumer; the delay of each in s."""

    def __init__(self, topic: LoadedTopic) -> None:
        self._producer = Producer({"bootstrap.servers": topic.bootstrap, "linger.ms": 0})
        self._consumer = Consumer({"bootstrap.servers": topic.bootstrap, "group.id": "live"})
        self._place = TopicPartition(topic.name, 0)
        self._sending_ended, self._ended = threading.Event(), threading.Event()
        self.sent = 0
        self.delays_s: list[float] = []
        _, end = self._consumer.get_watermark_offsets(self._place, timeout=60)
        self._consumer.assign([TopicPartition(topic.name, 0, end)])

    def _send(self) -> None:
        while not self._sending_ended.wait(EACH_S):
            sent_at = b"%.6f" % time.monotonic()
            self._producer.produce(self._place.topic, sent_at, partition=0)
            self._producer.poll(0)
            self.sent += 1
        assert self._producer.flush(60) == 0
        self._ended.set()

    def _receive(self) -> None:
        while not self._ended.is_set() or len(self.delays_s) < self.sent:
            message = self._consumer.poll(0.1)
            if message is not None:
                self.delays_s.append(time.monotonic() - float(message.value() or b"nan"))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Produce and consume until the block ends; by then all records have come."""
        threads = [threading.Thread(target=each, daemon=True) for each in (self._receive, self._send)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._sending_ended.set()
            for thread in reversed(threads):
                thread.join(120)
            self._consumer.close()
        assert not any(thread.is_alive() for thread in threads)


@pytest.mark.long
def test_a_load_of_old_records_delays_no_live_consumer(spark: Any, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "local") as local:
        topic = LoadedTopic(local.bootstrap, (tmp_path / "root").as_uri())
        topic.produce(OLD_RECORDS)
        flow = LiveFlow(topic)
        with flow.running():
            settings = topic.settings(**{"max.records.per.task": 20_000})
            first = run_load(spark, LoadConfig.from_settings(settings), clock=now_ms)
        assert first.records >= OLD_RECORDS
        assert len(flow.delays_s) == flow.sent > 10
        assert max(flow.delays_s) < LONGEST_DELAY_S
        second = run_load(spark, LoadConfig.from_settings(settings), clock=now_ms)
        assert first.records + second.records == OLD_RECORDS + flow.sent


def now_ms() -> int:
    return time.time_ns() // 1_000_000
