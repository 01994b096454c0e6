"""Audited producers under attack: cancelled at every await, clocks that jump, an audit topic that goes away."""

import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from pipeline.audit.counting import lives as lives_module
from pipeline.audit.counting import publisher as publisher_module
from pipeline.audit.counting.lives import audited as audited_by
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.counting.publisher import REPORTER
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.client.admin.resource_configs import ConfigResource, alter_configs
from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import Producer
from pipeline.client.sync.sync_producer import SyncProducer
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.records.batch import iterate_headers
from pipeline.records.tally import DEFAULT_WINDOW_MS as WINDOW_MS
from pipeline.records.tally import HOUR_MS
from tests.support.audit_reports import (
    hours_of,
    last_signs,
    read_reports,
    reported_records,
    until_reported,
)
from tests.support.brokers import clock, serving_cluster
from tests.support.copies import read_logs

CLICKS = TopicPartition("clicks", 0)
DEADLINE_S = 60
DAY_MS = 86_400_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Any]:
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name="clicks", partitions=1), NewTopic(name="views", partitions=1)])
        yield cluster


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(REPORTER, delivery_timeout_ms=1_000, request_timeout_ms=500)
    monkeypatch.setattr(publisher_module, "REPORTER", config)


def audited(
    cluster: Cluster, *, interval_s: float = 600, now: Callable[[], int] = clock, rng: Random | None = None
) -> AbstractAsyncContextManager[Producer]:
    return open_audited_producer(
        cluster,
        ProducerConfig(),
        datacenter="east",
        host="h",
        clock=now,
        rng=rng or SystemRandom(),
        interval_s=interval_s,
    )


async def records_in_log(cluster: Cluster) -> int:
    log = (await read_logs(cluster, [CLICKS]))[CLICKS]
    return sum(header.record_count for _, header in iterate_headers(log))


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope at the n-th step of any task: of the producer, of its reporter, or of the broker."""

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self._scope = scope
        self.left = step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self._scope.cancel()


@pytest.mark.long
async def test_a_producer_that_is_cancelled_at_any_time_reports_its_end_and_what_was_acknowledged(
    cluster: Cluster,
) -> None:
    for step in itertools.count(1):
        with trio.CancelScope() as scope:
            canceller = CancelAtStep(scope, step)
            trio.lowlevel.add_instrument(canceller)
            try:
                async with audited(cluster) as producer:
                    await producer.send("clicks", b"a")
                    await producer.flush()
                    await producer.send_many("clicks", [b"b", b"c"])
            finally:
                trio.lowlevel.remove_instrument(canceller)
        if canceller.left > 0:
            break
    reports = await read_reports(cluster)
    lives = last_signs(reports).values()
    assert len(lives) >= 10
    assert all(last.life is not None and last.life.is_ended for last in lives)
    reported = reported_records(reports, "clicks")
    uncertain = sum(row.uncertain_records for row in hours_of(reports).values())
    assert 0 < reported <= await records_in_log(cluster) <= reported + uncertain


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
async def test_a_clock_that_jumps_by_a_day_leaves_life_signs_in_order_and_closes_no_day_to_come(
    cluster: Cluster, jump_ms: int
) -> None:
    ahead_ms = 0
    began_ms, began_s = clock(), time.monotonic()
    async with audited(cluster, interval_s=0.05, now=lambda: clock() + ahead_ms) as producer:
        await producer.send_and_wait("clicks", b"a")
        await until_reported(cluster, "clicks", 1)
        ahead_ms = jump_ms
        before = len(await read_reports(cluster))
        with trio.fail_after(DEADLINE_S):
            while len(await read_reports(cluster)) < before + 5:
                await trio.sleep(0.02)
    reports = await read_reports(cluster)
    passed_ms = (time.monotonic() - began_s) * 1000
    created = [report.created_ms for report in reports]
    assert created == sorted(set(created))
    assert began_ms - 1_000 < created[0] <= created[-1] < began_ms + 2 * passed_ms + 1_000
    assert all(report.life is not None and report.life.closed_ms <= report.created_ms for report in reports)


async def test_two_producers_with_the_same_random_numbers_are_two_lives(cluster: Cluster) -> None:
    for _ in range(2):
        async with audited(cluster, rng=Random(1)) as producer:
            await producer.send("clicks", b"a")
    reports = await read_reports(cluster)
    assert len(last_signs(reports)) == 2
    assert reported_records(reports, "clicks") == 2


async def test_an_audit_topic_that_is_deleted_gets_all_counts_of_living_producers_again(
    cluster: Cluster, impatient: None
) -> None:
    async with audited(cluster, interval_s=0.1) as producer:
        await producer.send("clicks", b"a")
        await until_reported(cluster, "clicks", 1)
        await delete_topics(cluster, [AUDIT_TOPIC])
        await producer.send_and_wait("clicks", b"b")
        await until_reported(cluster, "clicks", 2)
    reports = await read_reports(cluster)
    assert [last.life is not None and last.life.is_ended for last in last_signs(reports).values()] == [True]


async def test_the_audit_knows_that_an_hour_is_open_again_before_a_late_record_is_written(cluster: Cluster) -> None:
    signs: list[tuple[int, int]] = []

    async def note_at_delivery(producer: Producer, value: bytes, timestamp_ms: int) -> None:
        await producer.send_and_wait("clicks", value, timestamp_ms=timestamp_ms)
        newest = last_signs(await read_reports(cluster))
        (life,) = [report.life for report in newest.values() if report.life is not None]
        signs.append((life.closed_ms, len(await read_reports(cluster))))

    async with audited(cluster) as producer:  # no report but those that something waits for
        await note_at_delivery(producer, b"now", clock())
        late_ms = clock() - DAY_MS
        await note_at_delivery(producer, b"late", late_ms)
        await note_at_delivery(producer, b"later", late_ms + HOUR_MS)
        await note_at_delivery(producer, b"older", late_ms - HOUR_MS)
    (now_closed_ms, first), (late_closed_ms, second), (later_closed_ms, third), (older_closed_ms, fourth) = signs
    assert now_closed_ms > late_ms
    assert late_closed_ms <= late_ms < late_closed_ms + WINDOW_MS
    assert older_closed_ms <= late_ms - HOUR_MS
    assert later_closed_ms == late_closed_ms
    assert (second, third, fourth) == (first + 1, first + 1, first + 2)  # what is open needs no other report
    assert reported_records(await read_reports(cluster), "clicks") == 4


async def test_late_records_wait_for_the_audit_once_and_not_for_ever(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives_module, "ANNOUNCE_TIMEOUT_S", 0.5)
    topic = ConfigResource(ResourceType.TOPIC, AUDIT_TOPIC)
    late_ms = clock() - DAY_MS
    async with audited(cluster, interval_s=0.1) as producer:
        await producer.send_and_wait("clicks", b"a")
        await until_reported(cluster, "clicks", 1)
        await alter_configs(cluster, {topic: {"mirror.source": "west"}}, timeout_s=DEADLINE_S)
        with trio.fail_after(DEADLINE_S), capture_logs() as logs:
            for number in range(20):
                await producer.send_and_wait("clicks", b"late", timestamp_ms=late_ms - number * HOUR_MS)
        assert [log["event"] for log in logs if log["log_level"] == "error"].count("audit_window_not_reopened") == 1
        await alter_configs(cluster, {topic: {"mirror.source": None}}, timeout_s=DEADLINE_S)
        await until_reported(cluster, "clicks", 21)


async def test_an_audit_topic_that_becomes_read_only_delays_no_record_and_loses_no_count(cluster: Cluster) -> None:
    topic = ConfigResource(ResourceType.TOPIC, AUDIT_TOPIC)
    async with audited(cluster, interval_s=0.1) as producer:
        await producer.send_and_wait("clicks", b"a")
        await until_reported(cluster, "clicks", 1)
        await alter_configs(cluster, {topic: {"mirror.source": "west"}}, timeout_s=DEADLINE_S)
        with trio.fail_after(DEADLINE_S), capture_logs() as logs:
            await producer.send_and_wait("clicks", b"b")
            await producer.send_and_wait("views", b"c")
        assert "audit_topic_not_announced" in {log["event"] for log in logs if log["log_level"] == "error"}
        assert reported_records(await read_reports(cluster), "clicks") == 1
        await alter_configs(cluster, {topic: {"mirror.source": None}}, timeout_s=DEADLINE_S)
        await until_reported(cluster, "clicks", 2)
        await until_reported(cluster, "views", 1)


async def test_no_producer_opens_if_its_life_cannot_be_registered(cluster: Cluster) -> None:
    await create_topics(cluster, [NewTopic(name=AUDIT_TOPIC, partitions=1, configs={"mirror.source": "west"})])
    with pytest.raises(PipelineError):
        async with audited(cluster):
            pytest.fail("the block must not begin")
    bootstrap = [broker.address for broker in cluster.view.brokers.values()]
    with pytest.raises(PipelineError):
        await trio.to_thread.run_sync(lambda: SyncProducer(bootstrap, open_with=audited_by(datacenter="east")))


async def test_a_producer_ends_although_the_audit_topic_became_read_only(cluster: Cluster) -> None:
    bootstrap = [broker.address for broker in cluster.view.brokers.values()]
    topic = ConfigResource(ResourceType.TOPIC, AUDIT_TOPIC)

    def publish() -> None:
        with SyncProducer(bootstrap, open_with=audited_by(datacenter="east", host="h")) as producer:
            producer.send("clicks", b"a").result(DEADLINE_S)
            change = {topic: {"mirror.source": "west"}}
            trio.from_thread.run(partial(alter_configs, cluster, change, timeout_s=DEADLINE_S))
            producer.send("clicks", b"b").result(DEADLINE_S)

    with trio.fail_after(DEADLINE_S):
        await trio.to_thread.run_sync(publish)
    assert await records_in_log(cluster) == 2
    assert not any(report.life is not None and report.life.is_ended for report in await read_reports(cluster))


async def test_an_event_loop_that_stalls_delays_life_signs_and_loses_nothing(cluster: Cluster) -> None:
    async with audited(cluster, interval_s=0.05) as producer:
        for _ in range(3):
            delivery = await producer.send("clicks", b"a")
            time.sleep(0.5)  # noqa: ASYNC251 (the program's fault that is tested)
            await delivery.wait()
        await until_reported(cluster, "clicks", 3)
    reports = await read_reports(cluster)
    assert all(report.life is not None and report.life.closed_ms <= clock() for report in reports)
