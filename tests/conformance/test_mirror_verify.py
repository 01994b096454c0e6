"""Verification of a mirror whose source is Apache Kafka: its batches are fetched, and summed as a broker sums them."""

from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.journals.gaps import GapLedger
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.mirror.verification.comparison import DifferenceKind
from pipeline.mirror.verification.verifier import CopyVerdict, ReplicaVerifier
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.settings import parse_addresses
from tests.support.brokers import clock, serving_cluster
from tests.support.copies import log_ends
from tests.support.mirrors import DEADLINE_S, batch_at, mirroring_of, put


@pytest.mark.parametrize("compression", ["producer", "zstd"])
async def test_a_mirror_of_apache_kafka_is_verified(apache_kafka: str, tmp_path: Path, compression: str) -> None:
    checked = TopicPartition(f"clicks.verified.{compression}", 0)
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(apache_kafka))) as source,
        serving_cluster(tmp_path) as hub,
    ):
        await create_topics(source, [NewTopic(name=checked.topic, partitions=1, replication_factor=1)])
        for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTD):
            config = ProducerConfig(compression=codec, linger_ms=1)
            async with open_producer(source, config, clock=clock, rng=Random(1)) as producer:
                for number in range(300):
                    await producer.send(checked.topic, b"value %d" % number, key=b"%d" % number)
        ends = await log_ends(source, [checked])
        settings = {"topics": [checked.topic], "compression.type": compression}
        async with mirroring_of(hub, None, settings, east=source):
            with trio.fail_after(DEADLINE_S):
                while checked.topic not in (await hub.fetch_all_topics()).topics:
                    await trio.sleep(0.05)
                while await log_ends(hub, [checked]) != ends:
                    await trio.sleep(0.05)
        journal = TableJournal(hub, lambda _: None)
        await journal.read_on()

        def verifier(*, may_fetch: bool) -> ReplicaVerifier:
            return ReplicaVerifier(journal.table, GapLedger(), {"east": source}, hub, may_fetch=may_fetch, is_deep=True)

        (report,) = await verifier(may_fetch=False).verify()
        assert report.verdict is CopyVerdict.NOT_COMPARED
        assert "--fetch" in str(report.reason)
        (report,) = await verifier(may_fetch=True).verify()
        assert (report.verdict, report.comparison.compared.records) == (CopyVerdict.EQUAL, 900)
        assert (report.comparison.by_contents > 0) == (compression == "zstd")

        await delete_records(source, {checked: 450}, timeout_s=DEADLINE_S)
        (report,) = await verifier(may_fetch=True).verify()
        assert (report.verdict, report.from_offset) == (CopyVerdict.EQUAL, 450)

        async with open_producer(source, ProducerConfig(linger_ms=0), clock=clock, rng=Random(1)) as producer:
            await producer.send(checked.topic, b"right")
        await put(hub, batch_at(900, b"wrong"), checked)
        (report,) = await verifier(may_fetch=True).verify()
        assert report.verdict is CopyVerdict.DIFFERENT
        (found,) = report.comparison.differences
        assert (found.kind, found.first_offset, found.last_offset) == (DifferenceKind.OTHER, 900, 900)
