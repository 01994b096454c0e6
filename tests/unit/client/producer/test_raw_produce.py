import pytest
import trio

from pipeline.client.producer.raw_produce import can_check_sources, can_keep_offsets, raw_produce
from pipeline.errors import NetworkError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import set_base_offset
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster

T0 = TopicPartition("t", 0)
U0 = TopicPartition("u", 0)


def batch(base_offset: int, records: int = 2) -> bytearray:
    builder = BatchBuilder(Codec.NONE, 1000)
    for _ in range(records):
        assert builder.append(None, b"x", (), 0)
    built = builder.build()
    set_base_offset(built, 0, base_offset)
    return built


@pytest.fixture
def two_topics(scripted: ScriptedCluster) -> ScriptedCluster:
    scripted.add_topic("u", [2])
    return scripted


async def test_many_batches_of_many_partitions_keep_their_offsets(
    two_topics: ScriptedCluster, connect: OpenCluster
) -> None:
    async with two_topics.broker(1), two_topics.broker(2), connect() as cluster:
        await cluster.topic("t")
        await cluster.topic("u")
        assert await can_keep_offsets(cluster, BrokerId(1))
        results = await raw_produce(cluster, {T0: [batch(5), batch(9)], U0: batch(3)}, keep_offsets=True, timeout_s=60)
        assert {tp: (r.error, r.log_end_offset) for tp, r in results.items()} == {T0: (None, 11), U0: (None, 5)}
        assert [record.offset for record in two_topics.partition(T0).records()] == [5, 6, 9, 10]


async def test_an_overlap_says_where_to_go_on(two_topics: ScriptedCluster, connect: OpenCluster) -> None:
    async with two_topics.broker(1), two_topics.broker(2), connect() as cluster:
        await cluster.topic("t")
        await raw_produce(cluster, {T0: batch(5)}, keep_offsets=True, timeout_s=60)
        result = (await raw_produce(cluster, {T0: batch(6)}, keep_offsets=True, timeout_s=60))[T0]
        assert result.is_overlap
        assert result.log_end_offset == 7


async def test_a_log_that_ends_elsewhere_takes_nothing(two_topics: ScriptedCluster, connect: OpenCluster) -> None:
    async with two_topics.broker(1), two_topics.broker(2), connect() as cluster:
        await cluster.topic("t")
        for base_offset, end, taken in ((5, 3, False), (5, 0, True), (7, 0, False), (7, 7, True)):
            data = {T0: batch(base_offset)}
            result = (await raw_produce(cluster, data, keep_offsets=True, timeout_s=60, ends={T0: end}))[T0]
            assert (result.error is None, result.is_overlap) == (taken, not taken)
        assert [record.offset for record in two_topics.partition(T0).records()] == [5, 6, 7, 8]


async def test_requests_name_the_source_of_each_partition(two_topics: ScriptedCluster, connect: OpenCluster) -> None:
    async with two_topics.broker(1), two_topics.broker(2), connect() as cluster:
        await cluster.topic("t")
        await cluster.topic("u")
        sources = {T0: "E/t/0", U0: "W/u/0"}
        await raw_produce(
            cluster, {T0: batch(5), U0: batch(3)}, keep_offsets=True, timeout_s=60, ends={T0: 0, U0: 0}, sources=sources
        )
        named = [topic for request in two_topics.produced_requests for topic in request.topic_data]
        ids = {two_topics.topic_ids["t"]: "E/t/0", two_topics.topic_ids["u"]: "W/u/0"}
        assert {topic.topic_id: topic.partition_data[0].source for topic in named} == ids
        await raw_produce(cluster, {T0: batch(9)}, keep_offsets=True, timeout_s=60)
        assert two_topics.produced_requests[-1].topic_data[0].partition_data[0].source == ""


@pytest.mark.parametrize(("announced", "checks"), [(1, False), (2, True)])
async def test_a_broker_announces_that_it_checks_sources(
    scripted: ScriptedCluster, connect: OpenCluster, announced: int, checks: bool
) -> None:
    scripted.keep_offsets = announced
    async with scripted.broker(1), connect() as cluster:
        await cluster.topic("t")
        assert await can_keep_offsets(cluster, BrokerId(1))
        assert await can_check_sources(cluster, BrokerId(1)) == checks


@pytest.mark.parametrize(("keep", "batches"), [(True, 1), (False, 1)])
async def test_a_lost_answer_is_tried_again_only_where_that_cannot_double(
    scripted: ScriptedCluster, connect: OpenCluster, keep: bool, batches: int
) -> None:
    async with scripted.broker(1), connect() as cluster:
        await cluster.topic("t")
        scripted.produce_script.append("close after")
        result = (await raw_produce(cluster, {T0: batch(0)}, keep_offsets=keep, timeout_s=60))[T0]
        assert len(scripted.partition(T0).batches) == batches
        assert result.is_overlap == keep
        assert result.log_end_offset == 2 if keep else isinstance(result.error, NetworkError)


async def test_the_leader_moves(two_topics: ScriptedCluster, connect: OpenCluster) -> None:
    async with two_topics.broker(1), two_topics.broker(2), connect() as cluster:
        await cluster.topic("t")
        two_topics.partition(T0).leader = BrokerId(2)
        two_topics.partition(T0).epoch += 1
        result = (await raw_produce(cluster, {T0: batch(0)}, keep_offsets=False, timeout_s=60))[T0]
        assert (result.error, result.base_offset, result.log_end_offset) == (None, 0, 2)


async def test_partitions_have_their_own_results_when_time_is_over(
    two_topics: ScriptedCluster, connect: OpenCluster
) -> None:
    async with two_topics.broker(1), connect() as cluster:
        await cluster.topic("t")
        with trio.fail_after(60):
            results = await raw_produce(cluster, {T0: batch(0), U0: batch(0)}, keep_offsets=False, timeout_s=3)
        assert results[T0].error is None
        assert isinstance(results[U0].error, NetworkError | KafkaError)
        two_topics.produce_script.append(ErrorCode.MESSAGE_TOO_LARGE)
        refused = (await raw_produce(cluster, {T0: batch(0)}, keep_offsets=False, timeout_s=60))[T0].error
        assert isinstance(refused, KafkaError)
        assert refused.code is ErrorCode.MESSAGE_TOO_LARGE
