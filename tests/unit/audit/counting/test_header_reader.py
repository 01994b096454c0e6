"""Reader of headers before brokers whose logs are damaged, old or truncated."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from pipeline.audit.counting.header_counter import HeaderCounter
from pipeline.audit.counting.header_reader import HeaderReader
from pipeline.audit.counting.read_back import FoundReports
from pipeline.audit.counting.reader_config import ReaderConfig
from pipeline.audit.events.report import CountReport
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.errors import ConfigurationError
from pipeline.model import TopicPartition
from pipeline.records.tally import DEFAULT_WINDOW_MS, HOUR_MS
from tests.support.brokers import clock
from tests.support.scripted_broker import ScriptedCluster

CLICKS = [TopicPartition("clicks", number) for number in range(2)]
DEADLINE_S = 30
SETTINGS = {
    "datacenter": "east",
    "bootstrap.servers": "given:1",
    "http.listen": "127.0.0.1:0",
    "refresh.interval.ms": 100,
    "retry.backoff.ms": 10,
}


class Reading:
    """A reader, and what it would have reported so far."""

    def __init__(self, scripted: ScriptedCluster, reader: HeaderReader, counter: HeaderCounter) -> None:
        self.scripted = scripted
        self.reader = reader
        self.reports: list[CountReport] = []
        self._counter = counter

    def counted(self, number: int) -> int:
        """Records of a partition, by the rows of hours that hold; void rows are left out."""
        self.reports += self._counter.take_reports()
        found = FoundReports("east", DEFAULT_WINDOW_MS)
        for report in self.reports:
            found.apply(report)
        known = found.take_counts(CLICKS[number], str(self.scripted.topic_ids["clicks"]))
        if known is None:
            return 0
        return int(known.rows["records"][known.rows["span_ms"] == HOUR_MS].sum())

    async def until(self, is_so: Callable[[], bool]) -> None:
        with trio.fail_after(DEADLINE_S):
            while not is_so():
                await trio.sleep(0.01)


@asynccontextmanager
async def reading() -> AsyncIterator[Reading]:
    """A broker with a topic of two partitions, and a reader of it."""
    scripted = ScriptedCluster()
    scripted.add_topic("clicks", [1, 1])
    async with scripted.broker(1):
        config = ClientConfig(bootstrap=scripted.bootstrap, retry_backoff_ms=10, retry_backoff_max_ms=50)
        async with open_cluster(config) as cluster, trio.open_nursery() as nursery:
            counter = HeaderCounter("east", "reader", DEFAULT_WINDOW_MS)
            found = FoundReports("east", DEFAULT_WINDOW_MS)
            reader = HeaderReader(ReaderConfig.from_settings(SETTINGS), cluster, counter, found, clock)
            nursery.start_soon(reader.run)
            yield Reading(scripted, reader, counter)
            nursery.cancel_scope.cancel()


def put(scripted: ScriptedCluster, number: int, *values: bytes) -> None:
    scripted.partition(CLICKS[number]).append_values(list(values))
    scripted.notify()


async def test_a_message_format_of_before_version_2_halts_its_partition_and_is_named() -> None:
    async with reading() as found:
        for number in range(2):
            put(found.scripted, number, b"a", b"b")
        partition = found.scripted.partition(CLICKS[0])
        header, data = partition.batches[0]
        partition.batches[0] = header, data[:16] + b"\x01" + data[17:]
        await found.until(lambda: CLICKS[0] in found.reader.halted and found.counted(1) == 2)
        status = found.reader.status()
        assert "message format 1, only 2 is known" in status["halted"][0]["reason"]
        assert (status["halted_partitions"], found.counted(0)) == (1, 0)
        assert all(report.created_ms == 0 for report in found.reports if 0 in report.positions["partition"])
        partition.batches[0] = header, data
        await found.until(lambda: found.counted(0) == 2 and not found.reader.halted)


async def test_a_damaged_batch_halts_its_partition_behind_those_before_it() -> None:
    async with reading() as found:
        put(found.scripted, 0, b"a")
        put(found.scripted, 0, b"b")
        partition = found.scripted.partition(CLICKS[0])
        header, data = partition.batches[1]
        partition.batches[1] = header, data[:-1] + bytes([data[-1] ^ 1])
        await found.until(lambda: CLICKS[0] in found.reader.halted and found.counted(0) == 1)
        assert "checksum" in found.reader.halted[CLICKS[0]]


@pytest.mark.parametrize("is_written_since", [False, True])
async def test_a_log_that_lost_its_end_is_counted_anew(*, is_written_since: bool) -> None:
    async with reading() as found:
        for value in (b"a", b"b", b"c"):
            put(found.scripted, 0, value)
        await found.until(lambda: found.counted(0) == 3)
        found.scripted.partition(CLICKS[0]).truncate(1)
        if is_written_since:
            put(found.scripted, 0, b"d", b"e", b"f", b"g")
        await found.until(lambda: found.counted(0) == (5 if is_written_since else 1))


async def test_a_topic_that_vanishes_and_comes_back_is_another() -> None:
    async with reading() as found:
        put(found.scripted, 0, b"a", b"b")
        await found.until(lambda: found.counted(0) == 2)
        found.scripted.add_topic("clicks", [1, 1])
        put(found.scripted, 0, b"c")
        await found.until(lambda: found.counted(0) == 1)
        assert {topic.topic_id for report in found.reports for topic in report.topics} >= {
            str(found.scripted.topic_ids["clicks"])
        }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topics", ["("]),
        ("topics", []),
        ("audit.window.ms", 7 * 60_000),
        ("audit.interval.ms", 60_000),
        ("throttle.bytes.per.second", 0),
        ("datacenter", ""),
    ],
)
def test_settings_that_cannot_be_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        ReaderConfig.from_settings({**SETTINGS, name: value})


def test_topics_are_chosen_by_whole_names() -> None:
    config = ReaderConfig.from_settings({**SETTINGS, "topics": ["clicks.*"], "topics.exclude": ["clicks-test"]})
    assert [config.selects(name) for name in ("clicks", "clicks-1", "clicks-test", "my-clicks")] == [
        True,
        True,
        False,
        False,
    ]
