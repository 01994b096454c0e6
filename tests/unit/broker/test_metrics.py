import httpx
import trio

from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.unit.broker.conftest import NOW_MS, TIMEOUT_S, Broker, Start, batch

GROUP = "readers"


async def commit(broker: Broker, topic: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    known = await broker.named(OffsetCommitRequestTopic, topic, partitions=[partition])
    request = OffsetCommitRequest(group_id=GROUP, topics=[known])
    with trio.fail_after(TIMEOUT_S):
        while (await broker.ask(request)).topics[0].partitions[0].error_code:
            await trio.sleep(0.01)


async def test_lag_of_a_group_in_records_and_seconds(start: Start) -> None:
    async with start(offsets_topic_num_partitions=1) as broker:
        await broker.create("clicks")
        await broker.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]))  # makes the topic that keeps offsets
        await broker.produce("clicks", batch(b"a", b"b", b"c", timestamp_ms=NOW_MS - 60_000))
        await broker.produce("clicks", batch(b"d", b"e", timestamp_ms=NOW_MS - 20_000))

        def told(name: str) -> float | None:
            labels = {"consumergroup": GROUP, "topic": "clicks", "partition": "0"}
            return broker.metrics.get_sample_value(f"kafka_consumergroup_{name}", labels)

        for offset, lag, seconds in ((0, 5, 60), (2, 3, 60), (3, 2, 20), (5, 0, 0)):
            await commit(broker, "clicks", offset)
            assert (told("current_offset"), told("lag"), told("lag_seconds")) == (offset, lag, seconds)


async def test_ready_once_clients_are_served(start: Start) -> None:
    async with start() as broker, httpx.AsyncClient(base_url=f"http://{broker.handle.http_address}") as http:
        assert (await http.get("/readyz")).json() == {"status": "ok"}
