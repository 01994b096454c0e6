"""The registry's log in a topic whose leader loses records."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.consumer.errors import PartitionFetchError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.schema_registry.writing.journal import JournalLostError
from pipeline.schema_registry.writing.kafka_journal import KafkaJournal, open_kafka_journal
from tests.support.scripted_broker import Partition, ScriptedCluster

DEADLINE_S = 60
END = 2


@dataclass(frozen=True, slots=True)
class ReadLog:
    """A log of two records, and a journal that has read both."""

    cluster: ScriptedCluster
    journal: KafkaJournal

    @property
    def partition(self) -> Partition:
        return self.cluster.partition(TopicPartition("schemas", 0))


@asynccontextmanager
async def read_log() -> AsyncIterator[ReadLog]:
    scripted = ScriptedCluster()
    scripted.add_topic("schemas", [1])
    async with (
        scripted.broker(1),
        open_cluster(ClientConfig(bootstrap=scripted.bootstrap)) as cluster,
        open_kafka_journal(cluster, "schemas", timeout_ms=1000 * DEADLINE_S, clock=lambda: 0) as journal,
    ):
        log = ReadLog(scripted, journal)
        log.partition.append_values([b"first"])
        log.partition.append_values([b"lost"])
        offset = 0
        with trio.fail_after(DEADLINE_S):
            while offset < END:
                offset = (await journal.read(offset)).next_offset
            yield log


async def test_records_that_were_deleted_from_the_front_move_the_start() -> None:
    async with read_log() as log:
        assert await log.journal.start_offset() == 0
        log.partition.log_start_offset = 1
        assert await log.journal.start_offset() == 1


async def test_a_log_that_was_truncated_and_grew_again_is_lost() -> None:
    async with read_log() as log:
        log.partition.truncate(1)
        log.partition.append_values([b"other"] * 5)
        log.cluster.notify()
        with pytest.raises(JournalLostError, match="truncated to 1"):
            while True:
                assert (await log.journal.read(END)).records == ()


async def test_a_truncation_is_noticed_also_while_the_log_cannot_be_read() -> None:
    async with read_log() as log:
        log.cluster.fetch_script.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(PartitionFetchError, match="TOPIC_AUTHORIZATION_FAILED"):
            while True:
                await log.journal.read(END)
        log.partition.truncate(1)
        log.partition.append_values([b"other"] * 5)
        with pytest.raises(JournalLostError, match="truncated to 1"):
            while True:
                assert (await log.journal.read(END)).records == ()
