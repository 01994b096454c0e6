"""Records of `_mirror_partitions` that no mirror wrote: mirrors and audits skip them alike, and say so once."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import structlog.testing
import trio
from prometheus_client import CollectorRegistry

from pipeline.cli.audit.expectations_reader import MirrorJournals
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.resource_configs import describe_topic_settings
from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.consumer.errors import PartitionFetchError
from pipeline.client.producer.producer import open_producer
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.errors import CorruptBatchError, NetworkError, PipelineError
from pipeline.log.known_producers import KNOWN_PRODUCERS
from pipeline.mirror.groups.offset_journal import GroupOffsetJournal
from pipeline.mirror.groups.offset_plan import GROUP_OFFSETS_TOPIC, MarksKey, encode_marks
from pipeline.mirror.journals.journal_topic import JournalLostRecordsError
from pipeline.mirror.journals.table import TABLE_TOPIC
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.model import TopicPartition
from pipeline.records.batch import HEADER_SIZE, write_crc
from tests.support.brokers import clock
from tests.support.mirrors import CLICKS, DEADLINE_S, Site, batch_at, make, publish, until, until_copied
from tests.support.partition_tables import JOURNAL, STRAY, proposal, record

SKIPPED = "mirror_table_records_skipped_total"


async def write_records(hub: Cluster, *values: bytes | None) -> None:
    async with open_producer(hub, ProducerConfig(linger_ms=0), clock=clock, rng=Random(1)) as producer:
        for value in values:
            await producer.send(TABLE_TOPIC, value, partition=0)


async def write_unopenable_batch(hub: Cluster) -> None:
    """A batch whose checksum is right, and whose first record is longer than the batch."""
    batch = bytearray(batch_at(0, record(partition=5)))
    batch[HEADER_SIZE : HEADER_SIZE + 2] = b"\xff\x7f"
    write_crc(batch, 0, len(batch))
    result = (await raw_produce(hub, {JOURNAL: bytes(batch)}, keep_offsets=False, timeout_s=DEADLINE_S))[JOURNAL]
    assert result.error is None


async def opened_journal(hub: Cluster, skipped: list[int]) -> TableJournal:
    journal = TableJournal(hub, skipped.append)
    await journal.open()
    return journal


async def test_stray_records_stop_neither_mirror_nor_audit_and_are_counted_once(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    skipped: list[int] = []
    journal = await opened_journal(site.hub, skipped)
    await write_records(site.hub, *STRAY)
    await write_unopenable_batch(site.hub)
    with structlog.testing.capture_logs() as logs:
        async with site.mirroring():
            await until_copied(site.hub, CLICKS, b"a")
            await write_records(site.hub, b"stray while the mirror runs")
            await create_partitions(site.east, {"clicks": 2})
            await publish(site.east, b"b", partition=1)
            await until_copied(site.hub, TopicPartition("clicks", 1), b"b")
            await until(lambda: site.metrics.get_sample_value(SKIPPED) == len(STRAY) + 2)
    lines = [line["offset"] for line in logs if line["event"] == "journal_record_skipped"]
    assert lines == [*range(len(STRAY) + 1), len(STRAY) + 2]

    metrics = CollectorRegistry()
    routes = (await MirrorJournals(site.hub, clock=clock, metrics=metrics).read()).routes
    await journal.read_on()
    assert [(route.cluster, route.source, route.replica) for route in routes] == [
        (line.source.cluster, line.source.partition, line.replica) for line in journal.table.assignments()
    ]
    assert [route.source.partition for route in routes] == [0, 1]
    assert metrics.get_sample_value(SKIPPED) == sum(skipped) == len(STRAY) + 2


async def test_records_for_partitions_that_no_source_has_make_no_topic_grow(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
    await write_records(site.hub, *(proposal("nowhere", "clicks", number).encode()[1] for number in range(500)))
    async with site.mirroring() as service:
        await publish(site.east, b"b")
        await until_copied(site.hub, CLICKS, b"a", b"b")
        await until(lambda: service.status()["sources"][0]["error"] is None)
    assert len((await site.hub.fetch_all_topics()).topics["clicks"].partitions) == 1


async def test_a_damaged_journal_is_not_skipped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = await opened_journal(site.hub, [])
    await write_records(site.hub, record())

    def fail(*_: Any) -> None:
        raise CorruptBatchError("wrong checksum", 0)

    with monkeypatch.context() as patched:
        patched.setattr("pipeline.client.consumer.fetch_plan.verify_crc", fail)
        with pytest.raises(PartitionFetchError, match="wrong checksum"):
            await journal.read_on()
    assert journal.table.assignments() == []
    await journal.read_on()
    assert len(journal.table.assignments()) == 1


async def test_a_journal_that_was_deleted_under_a_mirror_is_reported(site: Site) -> None:
    skipped: list[int] = []
    journal = await opened_journal(site.hub, skipped)
    await write_records(site.hub, record(), record(partition=1))
    await journal.read_on()
    await delete_topics(site.hub, [TABLE_TOPIC])
    with trio.fail_after(DEADLINE_S / 2), pytest.raises(JournalLostRecordsError, match="was deleted; restore it"):
        await journal.read_on()
    await opened_journal(site.hub, skipped)
    for partition in range(3):  # whatever the new topic holds
        with pytest.raises(JournalLostRecordsError, match="was deleted and created again"):
            await journal.read_on()
        await write_records(site.hub, record(partition=partition))


async def test_a_journal_that_a_broker_does_not_name_for_a_moment_is_read_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await opened_journal(site.hub, [])
    await write_records(site.hub, record())

    async def list_and_forget(cluster: Cluster, *args: Any, **options: Any) -> Any:
        listed = await list_offsets(cluster, *args, **options)
        others = {name: topic for name, topic in cluster.view.topics.items() if name != TABLE_TOPIC}
        cluster.view = replace(cluster.view, topics=others)  # the answer of a broker that has just started
        return listed

    monkeypatch.setattr("pipeline.mirror.journals.journal_topic.list_offsets", list_and_forget)
    await journal.read_on()
    assert len(journal.table.assignments()) == 1


async def test_a_journal_gets_the_settings_back_without_which_it_would_lose_records(site: Site) -> None:
    wrong = {"cleanup.policy": "compact", "retention.ms": "60000"}
    await create_topics(site.hub, [NewTopic(name=TABLE_TOPIC, partitions=1, configs=wrong)])
    with structlog.testing.capture_logs() as logs:
        await opened_journal(site.hub, [])
        await opened_journal(site.hub, [])
    found = await describe_topic_settings(site.hub, [TABLE_TOPIC], list(wrong), timeout_s=DEADLINE_S)
    assert found[TABLE_TOPIC] == {"cleanup.policy": "delete", "retention.ms": "-1"}
    assert [line["settings"] for line in logs if line["event"] == "journal_settings_mended"] == [found[TABLE_TOPIC]]


async def test_stray_marks_of_group_offsets_are_skipped(site: Site) -> None:
    journal = GroupOffsetJournal(site.hub, clock=clock, rng=Random(1))
    await journal.read_on()
    key = MarksKey(source="east", group="g", topic="clicks")
    deep = b"[" * 10_000
    async with open_producer(site.hub, ProducerConfig(linger_ms=0), clock=clock, rng=Random(1)) as producer:
        for stray_key, value in ((deep, None), (b"{}", b"{}"), (key.encode(), deep), (key.encode(), b"\xff")):
            await producer.send(GROUP_OFFSETS_TOPIC, value, key=stray_key, partition=0)
    await journal.append([(key, encode_marks({0: ["7"]}))])
    assert journal.groups_of("east") == ["g"]
    assert journal.marks_of("east", "g") == {"clicks": {0: ["7"]}}


async def test_brokers_remember_one_producer_for_all_records_of_a_journal(site: Site) -> None:
    journal = GroupOffsetJournal(site.hub, clock=clock, rng=Random(1))
    await journal.read_on()
    key, before = MarksKey(source="east", group="g", topic="clicks"), KNOWN_PRODUCERS.count
    for number in range(4):
        await journal.append([(key, encode_marks({0: [str(number)]}))])
    assert journal.marks_of("east", "g") == {"clicks": {0: ["0", "1", "2", "3"]}}
    assert KNOWN_PRODUCERS.count == before + 1


@pytest.mark.parametrize("function", ["fetch_all_topics", "refresh"])
async def test_errors_that_come_as_groups_do_not_end_the_service(
    site: Site, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """As from a nursery whose tasks fail together."""
    cluster = site.hub if function == "refresh" else site.east
    works, failures = getattr(cluster, function), 0

    async def fail_twice(**settings: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures <= 2:
            await trio.lowlevel.checkpoint()
            raise ExceptionGroup("two tasks", [NetworkError("away"), PipelineError("closed")])
        return await works(**settings)

    await make(site.east)
    await publish(site.east, b"a")
    with monkeypatch.context() as patched:
        patched.setattr(cluster, function, fail_twice)
        async with site.mirroring():
            await until(lambda: failures > 2)
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
