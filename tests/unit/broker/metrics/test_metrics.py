import httpx
import trio

from pipeline.coordination.partition_states import Written
from pipeline.coordination.znodes import PartitionState
from pipeline.log.known_producers import KNOWN_PRODUCERS
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Start, batch

GROUP = "readers"


async def commit(broker: Broker, topic: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    known = await broker.named(OffsetCommitRequestTopic, topic, partitions=[partition])
    request = OffsetCommitRequest(group_id=GROUP, topics=[known])
    with trio.fail_after(TIMEOUT_S):
        while (await broker.ask(request)).topics[0].partitions[0].error_code:
            await trio.sleep(0.01)


def lag_of(broker: Broker, kind: str) -> float | None:
    labels = {"consumergroup": GROUP, "topic": "clicks", "partition": "0"}
    return broker.metrics.get_sample_value(f"kafka_consumergroup_{kind}", labels)


async def test_lag_of_a_group_in_records_and_seconds(start: Start) -> None:
    async with start(offsets_topic_num_partitions=1) as broker:
        await broker.create("clicks")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]))  # makes the topic that keeps offsets
        await broker.produce("clicks", batch(b"a", b"b", b"c", timestamp_ms=NOW_MS - 60_000))
        await broker.produce("clicks", batch(b"d", b"e", timestamp_ms=NOW_MS - 20_000))

        for offset, lag, seconds in ((0, 5, 60), (2, 3, 60), (3, 2, 20), (5, 0, 0)):
            await commit(broker, "clicks", offset)
            told = [lag_of(broker, kind) for kind in ("current_offset", "lag", "lag_seconds")]
            assert told == [offset, lag, seconds]


async def test_records_out_are_those_that_were_fetched(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks")
        for count in (3, 1, 2):
            await broker.produce("clicks", batch(*[b"x" * 100] * count))

        async def told_after(offset: int, max_bytes: int) -> float | None:
            await broker.fetch("clicks", offset, max_bytes=max_bytes, partition_max_bytes=max_bytes)
            return broker.metrics.get_sample_value(
                "kafka_server_brokertopicmetrics_messagesout_total", {"topic": "clicks"}
            )

        assert await told_after(0, 1 << 20) == 6
        assert await told_after(4, 1 << 20) == 8
        assert await told_after(5, 1 << 20) == 10
        assert 12 <= (await told_after(0, 400) or 0) <= 14  # three of six records, as their bytes are


async def test_metrics_tell_how_full_the_bounds_of_kept_memory_are(start: Start) -> None:
    async with start(offsets_topic_num_partitions=1, client_state_max_bytes=4 << 20) as broker:
        get = broker.metrics.get_sample_value
        await broker.create("clicks")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]))
        producers = get("kafka_server_replicamanager_produceridcount") or 0
        await broker.produce("clicks", batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0))
        assert get("kafka_server_replicamanager_produceridcount") == producers + 1
        assert get("pipeline_known_producers_max") == KNOWN_PRODUCERS.capacity
        offsets = {"use": "offsets"}
        assert get("pipeline_client_state_held_bytes", offsets) == 0
        await commit(broker, "clicks", 1)
        assert get("pipeline_client_state_held_bytes", offsets) == get("pipeline_groups_offsets_held_bytes") != 0
        assert get("pipeline_client_state_max_bytes", offsets) == 2 << 20


async def test_ready_once_clients_are_served(start: Start) -> None:
    async with (
        start() as broker,
        httpx.AsyncClient(base_url=f"http://{broker.handle.http_address}", timeout=60) as http,
    ):
        assert (await http.get("/readyz")).json() == {"status": "ok"}
        assert (await http.get("/healthz?check=process")).json() == {"status": "ok"}
        refused = await http.get("/readyz?check=everything")
        assert (refused.status_code, refused.json()) == (400, {"error": "check must be one of replicas, stop"})


async def test_a_replica_out_of_sync_fails_the_check_of_replicas_and_no_other(start: Start) -> None:
    async with (
        start() as broker,
        httpx.AsyncClient(base_url=f"http://{broker.handle.http_address}", timeout=60) as http,
    ):
        await broker.create("clicks")

        async def codes() -> list[int]:
            return [
                (await http.get(path)).status_code
                for path in ("/readyz", "/readyz?check=replicas", "/readyz?check=stop")
            ]

        assert await codes() == [200, 200, 200]
        view, name = broker.handle.replicas.in_sync.view, TopicPartition("clicks", 0)
        state = PartitionState(
            topic="clicks",
            partition=0,
            leader=BrokerId(2),
            leader_epoch=LeaderEpoch(9),
            isr=(BrokerId(2),),
            controller_epoch=1,
        )
        view.accept_states(view.asking([name]), {name: Written(state, 9)})
        assert await codes() == [200, 503, 200]
        reason = (await http.get("/readyz?check=replicas")).json()["reason"]
        assert reason == "partitions out of sync here: 1 (clicks-0)"


async def test_a_committed_offset_beyond_the_end_is_no_lag_of_0(start: Start) -> None:
    async with start(offsets_topic_num_partitions=1) as broker:
        await broker.create("clicks")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]))
        await broker.produce("clicks", batch(b"a", b"b"))
        await commit(broker, "clicks", 500)
        assert (lag_of(broker, "lag"), lag_of(broker, "lag_seconds")) == (-498, None)


async def test_lag_is_not_measured_by_a_replica_that_is_not_in_sync(start: Start) -> None:
    async with start(offsets_topic_num_partitions=1) as broker:
        await broker.create("clicks")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]))
        await broker.produce("clicks", batch(b"a", b"b"))
        await commit(broker, "clicks", 1)
        replicas, name = broker.handle.replicas, TopicPartition("clicks", 0)
        replicas.partitions[name].resign()
        assert lag_of(broker, "lag") == 1, "a follower in sync knows the end as well"
        view = replicas.in_sync.view
        state = PartitionState(
            topic="clicks",
            partition=0,
            leader=BrokerId(2),
            leader_epoch=LeaderEpoch(9),
            isr=(BrokerId(2),),
            controller_epoch=1,
        )
        view.accept_states(view.asking([name]), {name: Written(state, 9)})
        told = [lag_of(broker, kind) for kind in ("current_offset", "lag", "lag_seconds")]
        assert told == [1, None, None]


async def test_a_partition_whose_leader_lost_it_to_a_disk_counts_as_offline(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", 2)

        def offline() -> float | None:
            return broker.metrics.get_sample_value("kafka_controller_kafkacontroller_offlinepartitionscount")

        assert offline() == 0
        view = broker.handle.replicas.in_sync.view
        view.set_offline_replicas(BrokerId(1), frozenset({TopicPartition("clicks", 1)}))
        assert offline() == 1
