"""The registry's log in a topic whose leader loses records."""

import pytest
import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.consumer.errors import PartitionFetchError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.schema_registry.writing.journal import JournalLostError
from pipeline.schema_registry.writing.kafka_journal import open_kafka_journal
from tests.support.scripted_broker import ScriptedCluster

DEADLINE_S = 60


async def test_a_log_that_was_truncated_and_grew_again_is_lost() -> None:
    scripted = ScriptedCluster()
    scripted.add_topic("schemas", [1])
    partition = scripted.partition(TopicPartition("schemas", 0))
    partition.append_values([b"first"])
    partition.append_values([b"lost"])
    async with (
        scripted.broker(1),
        open_cluster(ClientConfig(bootstrap=scripted.bootstrap)) as cluster,
        open_kafka_journal(cluster, "schemas", timeout_ms=1000 * DEADLINE_S, clock=lambda: 0) as journal,
    ):
        offset = 0
        with trio.fail_after(DEADLINE_S):
            while offset < 2:
                offset = (await journal.read(offset)).next_offset
            partition.truncate(1)
            partition.append_values([b"other"] * 5)
            scripted.notify()
            with pytest.raises(JournalLostError, match="truncated to 1"):
                while True:
                    assert (await journal.read(offset)).records == ()


async def test_a_truncation_is_noticed_also_while_the_log_cannot_be_read() -> None:
    scripted = ScriptedCluster()
    scripted.add_topic("schemas", [1])
    partition = scripted.partition(TopicPartition("schemas", 0))
    partition.append_values([b"first"])
    partition.append_values([b"lost"])
    async with (
        scripted.broker(1),
        open_cluster(ClientConfig(bootstrap=scripted.bootstrap)) as cluster,
        open_kafka_journal(cluster, "schemas", timeout_ms=1000 * DEADLINE_S, clock=lambda: 0) as journal,
    ):
        offset = 0
        with trio.fail_after(DEADLINE_S):
            while offset < 2:
                offset = (await journal.read(offset)).next_offset
            scripted.fetch_script.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            with pytest.raises(PartitionFetchError, match="TOPIC_AUTHORIZATION_FAILED"):
                while True:
                    await journal.read(offset)
            partition.truncate(1)
            partition.append_values([b"other"] * 5)
            with pytest.raises(JournalLostError, match="truncated to 1"):
                while True:
                    assert (await journal.read(offset)).records == ()
