"""Real producer processes, killed with -9: what their reports say is true, and of closed windows it is all.

The broker is a real one; counts of the log are made from its batch headers, as a broker makes them.
"""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.audit.counting.windows import WindowSums
from pipeline.audit.events.report import CountReport, LifeSign
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.model import TopicPartition
from pipeline.records.batch import iterate_headers
from pipeline.records.batch_hashes import header_table
from pipeline.records.producer_marks import is_marked
from tests.support.audit_reports import hours_of, last_signs, read_reports, reported_records, until_reported
from tests.support.brokers import serving_cluster
from tests.support.copies import read_logs
from tests.support.counted_producer import RECORDS, WINDOW_MS

pytestmark = pytest.mark.long

DEADLINE_S = 120
ROOT = Path(__file__).parents[2]
PARTITIONS = 3


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Any]:
    async with serving_cluster(tmp_path) as cluster:
        await cluster.refresh()
        yield cluster


@asynccontextmanager
async def producing(cluster: Cluster, topic: str, moment: str) -> AsyncIterator[trio.Process]:
    """A producer process that has said that it is at the moment."""
    bootstrap = ",".join(str(broker.address) for broker in cluster.view.brokers.values())
    command = [sys.executable, "-m", "tests.support.counted_producer", bootstrap, topic, moment]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        said = b""
        with trio.fail_after(DEADLINE_S):
            while not said.endswith(b"\n"):
                said += await process.stdout.receive_some()
        assert said == moment.encode() + b"\n"
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def kill(process: trio.Process) -> None:
    process.send_signal(signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL


def sign_of(reports: Sequence[CountReport]) -> LifeSign:
    ((_, last),) = last_signs(reports).items()
    assert last.life is not None
    return last.life


@pytest.mark.parametrize(
    ("moment", "in_log", "reported", "topics"),
    [
        ("registered", 0, 0, set()),
        ("accepted", 0, 0, set()),
        ("acknowledged", RECORDS, 0, {"clicks"}),
        ("reported", RECORDS, RECORDS, {"clicks"}),
        ("ended", RECORDS, RECORDS, {"clicks"}),
    ],
)
async def test_a_killed_producer_has_not_ended_and_is_known_for_what_it_may_have_written(
    cluster: Cluster, moment: str, in_log: int, reported: int, topics: set[str]
) -> None:
    """A topic to which records were only accepted has none: they died with their producer."""
    await create_topics(cluster, [NewTopic(name="clicks", partitions=1)])
    async with producing(cluster, "clicks", moment) as process:
        if moment == "reported":
            await until_reported(cluster, "clicks", RECORDS)
        await kill(process)
    clicks = TopicPartition("clicks", 0)
    log = (await read_logs(cluster, [clicks]))[clicks]
    reports = await read_reports(cluster)
    assert sum(header.record_count for _, header in iterate_headers(log)) == in_log
    assert reported_records(reports, "clicks") == reported
    assert {topic.name for report in reports for topic in report.topics} == topics
    assert sign_of(reports).is_ended is (moment == "ended")


async def test_closed_windows_of_a_killed_producer_are_reported_whole_and_none_is_reported_too_high(
    cluster: Cluster,
) -> None:
    """Killed at several moments while it publishes: its unreported counts are of windows that it had not closed."""
    random = Random(5)
    topics = [f"clicks-{number}" for number in range(6)]
    await create_topics(cluster, [NewTopic(name=topic, partitions=PARTITIONS) for topic in topics])
    async with trio.open_nursery() as nursery:
        for topic in topics:
            nursery.start_soon(kill_while_publishing, cluster, topic, random.uniform(WINDOW_MS, 4 * WINDOW_MS))
    reports = await read_reports(cluster)
    closed = 0
    for topic in topics:
        closed += await check_closed_windows(
            cluster, topic, [report for report in reports if any(name == topic for name, _ in report.topics)]
        )
    assert closed >= len(topics)


async def kill_while_publishing(cluster: Cluster, topic: str, after_ms: float) -> None:
    """Kill the producer once its newest life sign is so much later than its first, or a little after."""
    async with producing(cluster, topic, "always") as process:
        with trio.fail_after(DEADLINE_S):
            while True:
                mine = [each for each in await read_reports(cluster) if any(name == topic for name, _ in each.topics)]
                if mine and mine[-1].created_ms - mine[0].created_ms > after_ms:
                    break
                await trio.sleep(0.05)
        await kill(process)


async def check_closed_windows(cluster: Cluster, topic: str, reports: Sequence[CountReport]) -> int:
    """Compare the reported windows with those of the log; return how many of the latter were closed."""
    life = sign_of(reports)
    assert not life.is_ended
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    reported = {(place, start): row for (_, place, start), row in hours_of(reports, WINDOW_MS).items()}
    closed = 0
    for place, log in (await read_logs(cluster, partitions)).items():
        headers = [header for _, header in iterate_headers(log)]
        assert all(is_marked(header.producer_id) for header in headers)
        sums = WindowSums(WINDOW_MS, max_windows=1_000)
        sums.add(header_table(headers))
        for row in sums.rows()[sums.rows()["span_ms"] == WINDOW_MS]:
            start = int(row["start_ms"])
            found = reported.pop((place, start), None)
            if start + WINDOW_MS <= life.closed_ms:
                assert found is not None
                assert (found.records, found.content_sum, found.marked_records) == (
                    int(row["records"]),
                    int(row["content_sum"]),
                    int(row["records"]),
                )
                closed += 1
            else:
                assert found is None or found.records <= int(row["records"])
    assert reported == {}
    return closed
