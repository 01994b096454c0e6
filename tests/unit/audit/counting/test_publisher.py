"""Publishing of reports: order, failures, an audit topic that is away, deleted or cannot be written."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import trio

from pipeline.audit.counting import publisher as publisher_module
from pipeline.audit.counting.audit_topic import SETTINGS, ensure_audit_topic
from pipeline.audit.counting.published_place import MAX_UNSEEN, PlaceFile, PublishedPlace, is_still_there
from pipeline.audit.counting.publisher import REPORTER, ROUNDS_UNSEEN, CountPublisher, open_publisher, publish_reports
from pipeline.audit.events.encoding import MAX_ROWS, decode_count_report
from pipeline.audit.events.report import ROW, CountReport, LifeSign, ReportedTopic
from pipeline.audit.events.tiers import AUDIT_TOPIC, Counter, Tier
from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.producer.batches import RecordMetadata
from pipeline.errors import DeadlineExceededError, NetworkError, PipelineError
from pipeline.log.files import DiskFiles
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.audit_reports import read_reports
from tests.support.brokers import clock, replicated_cluster, serving_cluster
from tests.support.scripted_broker import ScriptedCluster

DEADLINE_S = 60


class Rows:
    """A counter of so many changed rows of a partition."""

    def __init__(self, rows: int = 1, instance: str = "one") -> None:
        self.instance = instance
        self.changed = self.rows = rows
        self.revision = 0

    def take_reports(self) -> list[CountReport]:
        self.revision += 1
        rows = np.zeros(self.changed, ROW)
        rows["partition"] = np.arange(self.changed)
        rows["records"] = rows["revision"] = self.revision
        self.changed = 0
        life = LifeSign(host="h", started_ms=1, interval_ms=1, closed_ms=self.revision)
        return [
            CountReport(
                counter=Counter(tier=Tier.PRODUCER, cluster="east", instance=self.instance),
                process=self.instance,
                created_ms=self.revision,
                window_ms=1,
                topics=[ReportedTopic("clicks")],
                rows=rows,
                life=life,
            )
        ]

    def published(self, reports: Sequence[CountReport]) -> None:
        pass

    def put_back(self, reports: Sequence[CountReport]) -> None:
        self.changed = sum(len(report.rows) for report in reports)

    def report_again(self) -> None:
        self.changed = self.rows


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Any]:
    async with serving_cluster(tmp_path) as cluster:
        yield cluster


def opened(cluster: Cluster, counter: Rows) -> Any:
    return open_publisher(cluster, counter, clock=clock, rng=Random(1))


def opened_with(cluster: Cluster, counter: Rows, directory: Path) -> Any:
    return open_publisher(cluster, counter, clock=clock, rng=Random(1), place_file=kept(directory))


def sizes(reports: Sequence[CountReport]) -> list[tuple[int, bool]]:
    """Rows and life sign of each record."""
    return [(len(report.rows), report.life is not None) for report in reports]


async def test_large_reports_are_portions_of_which_the_last_bears_the_life_sign(cluster: Cluster) -> None:
    async with opened(cluster, Rows(2 * MAX_ROWS + 7)) as publisher:
        assert await publisher.publish()
        assert await publisher.publish()
    assert sizes(await read_reports(cluster)) == [(MAX_ROWS, False), (MAX_ROWS, False), (7, True), (0, True)]


class FailingProducer:
    """Fails the n-th send; holds what was sent."""

    def __init__(self, fails_at: int) -> None:
        self.fails_at = fails_at
        self.sent: list[CountReport] = []

    async def send(self, _topic: str, value: bytes, key: bytes, partition: int) -> Any:
        self.fails_at -= 1
        if self.fails_at == 0:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "")
        self.sent.append(decode_count_report(value))
        return self

    async def flush(self) -> None:
        pass

    async def wait(self) -> RecordMetadata:
        return RecordMetadata(topic_partition=TopicPartition(AUDIT_TOPIC, 0), offset=len(self.sent) - 1, timestamp_ms=0)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
async def test_no_life_sign_is_sent_if_a_portion_before_it_failed_and_all_rows_are_taken_again(
    cluster: Cluster, fails_at: int
) -> None:
    counter, producer = Rows(2 * MAX_ROWS + 7), FailingProducer(fails_at)
    publisher = CountPublisher(counter, cluster, producer)  # type: ignore[arg-type]
    assert not await publisher.publish()
    assert not any(report.life for report in producer.sent)
    producer.sent.clear()
    assert await publisher.publish()
    assert sizes(producer.sent) == [(MAX_ROWS, False), (MAX_ROWS, False), (7, True)]


async def test_a_recreated_audit_topic_gets_all_counts_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = replace(REPORTER, delivery_timeout_ms=1_000, request_timeout_ms=500)
    monkeypatch.setattr(publisher_module, "REPORTER", impatient)
    counter = Rows(3)
    async with opened(cluster, counter) as publisher:
        assert await publisher.publish()
        await delete_topics(cluster, [AUDIT_TOPIC])
        with trio.fail_after(DEADLINE_S):
            while not await publisher.publish():
                await trio.sleep(0.01)
        assert max(size for size, _ in sizes(await read_reports(cluster))) == 3
        before = len(await read_reports(cluster))
        assert await publisher.publish()
        assert sizes(await read_reports(cluster))[before:] == [(0, True)]


def kept(directory: Path) -> PlaceFile:
    return PlaceFile(directory, DiskFiles())


async def publish_in_a_life_of_its_own(cluster: Cluster, directory: Path) -> list[tuple[int, bool]]:
    """Publish one changed row of three; return rows of each new record, and whether it tells of a loss."""
    counter = Rows(3)
    counter.changed = 1
    await ensure_audit_topic(cluster)
    before = len(await read_reports(cluster))
    async with opened_with(cluster, counter, directory) as publisher:
        assert await publisher.publish()
        assert await publisher.publish()
    return [(len(report.rows), report.is_after_loss) for report in (await read_reports(cluster))[before:]]


async def test_a_process_that_starts_again_reports_what_changed_alone(cluster: Cluster, tmp_path: Path) -> None:
    for _ in range(3):
        assert await publish_in_a_life_of_its_own(cluster, tmp_path) == [(1, False), (0, False)]


@pytest.mark.parametrize("fault", ["recreated", "overwritten", "truncated"])
async def test_a_process_that_starts_again_tells_of_reports_that_were_lost_meanwhile(
    cluster: Cluster, tmp_path: Path, fault: str
) -> None:
    await publish_in_a_life_of_its_own(cluster, tmp_path)
    place = kept(tmp_path).read()
    assert place is not None and place.offset == 1
    if fault == "recreated":
        await delete_topics(cluster, [AUDIT_TOPIC])
        await ensure_audit_topic(cluster)
        await cluster.refresh()
    elif fault == "overwritten":
        kept(tmp_path).write(replace(place, digest="another"))
    else:
        kept(tmp_path).write(replace(place, offset=100))
    assert await publish_in_a_life_of_its_own(cluster, tmp_path) == [(1, False), (3, True), (0, False)]
    assert await publish_in_a_life_of_its_own(cluster, tmp_path) == [(1, False), (0, False)]


async def test_what_retention_removed_is_no_loss_that_a_process_tells_of(cluster: Cluster, tmp_path: Path) -> None:
    """Audits see it themselves: their topic begins later."""
    await publish_in_a_life_of_its_own(cluster, tmp_path)
    await delete_records(cluster, {TopicPartition(AUDIT_TOPIC, 0): 2}, timeout_s=DEADLINE_S)
    counter = Rows(3)
    async with opened_with(cluster, counter, tmp_path) as publisher:
        counter.changed = 1
        assert await publisher.publish()
        assert counter.changed == 0  # nothing was marked to be reported again
        assert counter.revision == 1


async def test_a_loss_is_told_also_if_the_process_dies_before_it_could(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_in_a_life_of_its_own(cluster, tmp_path)
    await delete_topics(cluster, [AUDIT_TOPIC])
    await ensure_audit_topic(cluster)
    await cluster.refresh()

    def die(self: Rows) -> None:
        raise NetworkError("killed")

    with monkeypatch.context() as patched, pytest.raises(NetworkError):
        patched.setattr(Rows, "report_again", die)
        async with opened_with(cluster, Rows(3), tmp_path) as publisher:
            await publisher.publish_or_raise()
    assert await publish_in_a_life_of_its_own(cluster, tmp_path) == [(1, False), (3, True), (0, False)]


class Sight:
    """Reading back of reports, which fails until it is allowed."""

    def __init__(self, error: PipelineError, *, is_there: bool = True) -> None:
        self.error: PipelineError | None = error
        self.is_there = is_there

    async def __call__(self, _cluster: Cluster, _place: PublishedPlace) -> bool:
        if self.error is not None:
            raise self.error
        return self.is_there


REFUSED = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "")


async def told_in(
    cluster: Cluster, directory: Path, rounds: int, before_round: Callable[[int], None] = lambda _: None
) -> list[tuple[int, bool, int]]:
    """Publish some rounds in a life of its own; return rows, loss and unseen reports of each new record."""
    counter = Rows(3)
    counter.changed = 1
    before = len(await read_reports(cluster))
    async with opened_with(cluster, counter, directory) as publisher:
        for number in range(rounds):
            before_round(number)
            assert await publisher.publish()
    found = (await read_reports(cluster))[before:]
    return [(len(report.rows), report.is_after_loss, report.unseen) for report in found]


@pytest.mark.long
@pytest.mark.parametrize("error", [REFUSED, NetworkError("away"), DeadlineExceededError("late")])
async def test_a_process_that_cannot_read_back_its_reports_says_so_until_it_can(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: PipelineError
) -> None:
    await publish_in_a_life_of_its_own(cluster, tmp_path)
    sight = Sight(error)
    monkeypatch.setattr(publisher_module, "is_still_there", sight)
    assert await told_in(cluster, tmp_path, 2) == [(1, False, 0), (0, False, 1), (0, False, 1)]
    place = kept(tmp_path).read()
    assert place is not None and len(place.unseen) == 1
    assert (await told_in(cluster, tmp_path, 1))[-1] == (0, False, 2)  # a restart forgets neither

    def allow(number: int) -> None:
        sight.error = None if number else sight.error

    assert (await told_in(cluster, tmp_path, ROUNDS_UNSEEN + 1, allow))[-1] == (0, False, 0)
    place = kept(tmp_path).read()
    assert place is not None and place.unseen == ()


async def test_a_process_that_is_cancelled_while_it_reads_back_forgets_no_doubt(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_in_a_life_of_its_own(cluster, tmp_path)
    sight = Sight(REFUSED)
    monkeypatch.setattr(publisher_module, "is_still_there", sight)
    counter = Rows(3)
    looks = trio.Event()

    async def look_for_ever(_cluster: Cluster, _place: PublishedPlace) -> bool:
        looks.set()
        await trio.sleep_forever()
        raise AssertionError("cancelled")

    async with opened_with(cluster, counter, tmp_path) as publisher:
        assert await publisher.publish()
        monkeypatch.setattr(publisher_module, "is_still_there", look_for_ever)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.run, 0.01)
            with trio.fail_after(DEADLINE_S):
                await looks.wait()
            nursery.cancel_scope.cancel()
        monkeypatch.setattr(publisher_module, "is_still_there", sight)
        assert await publisher.publish()
    assert (await read_reports(cluster))[-1].unseen == 1


async def test_reports_that_turn_out_to_be_lost_once_they_can_be_read_back_are_told_and_reported_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_in_a_life_of_its_own(cluster, tmp_path)
    sight = Sight(REFUSED, is_there=False)
    monkeypatch.setattr(publisher_module, "is_still_there", sight)

    def allow(number: int) -> None:
        sight.error = None if number else sight.error

    told = await told_in(cluster, tmp_path, ROUNDS_UNSEEN + 1, allow)
    assert told[:2] == [(1, False, 0), (0, False, 1)]
    assert [each for each in told if each[0] == 3] == [(3, True, 0)]


async def test_places_that_cannot_be_read_back_are_bounded_and_count_as_lost_beyond(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_in_a_life_of_its_own(cluster, tmp_path)
    monkeypatch.setattr(publisher_module, "is_still_there", Sight(REFUSED))
    for number in range(MAX_UNSEEN):
        assert (await told_in(cluster, tmp_path, 1))[-1] == (0, False, number + 1)
    assert (await told_in(cluster, tmp_path, 1))[-1] == (3, True, 0)


async def test_a_refusal_to_read_the_audit_topic_is_an_error_and_no_presence() -> None:
    scripted = ScriptedCluster()
    scripted.add_topic(AUDIT_TOPIC, [0])
    scripted.fetch_script.extend([ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 100)
    async with scripted.broker(0):
        config = ClientConfig(bootstrap=scripted.bootstrap, retry_backoff_ms=10, retry_backoff_max_ms=100)
        async with open_cluster(config) as cluster:
            await cluster.refresh()
            there = PublishedPlace(topic_id=scripted.topic_ids[AUDIT_TOPIC], leader_epoch=0, offset=0, digest="")
            with trio.fail_after(60), pytest.raises(PipelineError, match="TOPIC_AUTHORIZATION_FAILED"):
                await is_still_there(cluster, there)


@pytest.mark.parametrize("content", [b"", b"garbage", b"00000000 {}\n", b"\xff" * 100])
def test_a_damaged_file_of_the_place_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "audit-published").write_bytes(content)
    assert kept(tmp_path).read() is None


async def test_a_cluster_that_is_away_only_delays_reports(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, 1) as brokers, opened(brokers.cluster, Rows(3)) as publisher:
        assert await publisher.publish()
        publisher._counter.report_again()
        await brokers.stop(1)
        with trio.move_on_after(0.5):
            await publisher.publish()
        await brokers.start(1)
        with trio.fail_after(DEADLINE_S):
            while not await publisher.publish():
                await trio.sleep(0.01)
        assert sum(size for size, _ in sizes(await read_reports(brokers.cluster))) >= 6


async def test_a_topic_that_refuses_reports_keeps_no_more_than_the_memory_of_the_reporter(cluster: Cluster) -> None:
    read_only = {**SETTINGS, "mirror.source": "east"}
    await create_topics(cluster, [NewTopic(name=AUDIT_TOPIC, partitions=1, configs=read_only)])
    counter = Rows(20 * MAX_ROWS)
    async with opened(cluster, counter) as publisher:
        for _ in range(3):
            assert not await publisher.publish()
        assert counter.changed == 20 * MAX_ROWS
        assert publisher._producer._sender.undelivered._kept_bytes <= REPORTER.buffer_memory
        with pytest.raises(PipelineError):
            await publisher.publish_or_raise()


async def test_a_publisher_goes_on_in_a_shielded_scope_while_its_block_is_cancelled(cluster: Cluster) -> None:
    with trio.CancelScope() as scope:
        async with opened(cluster, Rows(3)) as publisher:
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with trio.move_on_after(DEADLINE_S, shield=True):
                    assert await publisher.publish()
    assert sizes(await read_reports(cluster)) == [(3, True)]


async def test_tasks_that_publish_at_once_wait_for_each_other_and_skip_what_is_done(cluster: Cluster) -> None:
    counter = Rows(1)

    async def publish(publisher: CountPublisher, unless: Callable[[], bool]) -> None:
        assert await publisher.publish(unless)

    async with opened(cluster, counter) as publisher, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(publish, publisher, lambda: counter.revision > 0)
    assert counter.revision == 1


async def test_a_publisher_that_rests_publishes_at_once_when_woken(cluster: Cluster) -> None:
    counter = Rows(1)
    async with opened(cluster, counter) as publisher, trio.open_nursery() as nursery:
        nursery.start_soon(publisher.run, 3_600.0, lambda: counter.revision > 1)
        for revision in (1, 2):
            publisher.wake()
            with trio.fail_after(DEADLINE_S):
                while counter.revision < revision:
                    await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    async with opened(cluster, counter) as publisher, trio.open_nursery() as nursery:
        asked = 0

        def rests() -> bool:
            nonlocal asked
            asked += 1
            return True

        nursery.start_soon(publisher.run, 0.01, rests)
        with trio.fail_after(DEADLINE_S):
            while asked < 5:
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    assert counter.revision == 2


async def test_reports_are_published_once_by_themselves(cluster: Cluster) -> None:
    reports = Rows(5).take_reports()
    await publish_reports(cluster, reports, clock=clock, rng=Random(1))
    assert sizes(await read_reports(cluster)) == [(5, True)]


async def test_all_reports_go_to_the_partition_that_audits_read(cluster: Cluster) -> None:
    """Whoever created the topic, with however many partitions."""
    await create_topics(cluster, [NewTopic(name=AUDIT_TOPIC, partitions=5)])
    for number in range(5):
        async with opened(cluster, Rows(1, f"life-{number}")) as publisher:
            assert await publisher.publish()
    assert len(await read_reports(cluster)) == 5
