"""READ_COMMITTED: what a consumer asks for, and how it names the aborted transactions."""

from pipeline.client.cluster.config import ConsumerConfig, IsolationLevel
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.client.consumer.fetch_plan import FetchBounds, begin_at, fetch_request, judge_answer
from pipeline.model import TopicPartition
from pipeline.protocol.messages.fetch import AbortedTransaction, PartitionData
from tests.support.mirrors import batch_at

CLICKS = TopicPartition("clicks", 0)
BOUNDS = FetchBounds(max_bytes=1000, max_partition_bytes=1000, max_wait_ms=0)


def test_a_request_has_the_isolation_level_of_the_settings() -> None:
    for level in IsolationLevel:
        request = fetch_request([begin_at(CLICKS, 0)], ClusterMetadata(), ConsumerConfig(isolation_level=level), BOUNDS)
        assert request.isolation_level == level


def test_fetched_batches_name_the_aborted_transactions() -> None:
    data = PartitionData(
        high_watermark=9,
        aborted_transactions=(AbortedTransaction(producer_id=7, first_offset=3),),
        records=memoryview(batch_at(4, b"a")),
    )
    batches = judge_answer(CLICKS, 4, data).batches
    assert batches is not None
    assert batches.aborted == ((7, 3),)
