"""Quotas of a running broker: set, told, held, changed while clients are at work."""

import functools
import json
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from pipeline.broker.quotas import entities
from pipeline.broker.quotas.entities import MAX_NAME_BYTES
from pipeline.coordination.quota_znodes import DEFAULT, QuotaEntity
from pipeline.net.connection_pool import open_connection_pool
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntryData, OpData
from pipeline.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest, EntityData
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.broker_in_process import TIMEOUT_S, Broker, Start, batch

QUOTA = 300_000
MEASURED_S = 5.0
BATCH_BYTES = 4_000


async def alter(broker: Broker, entity: dict[str, str | None], **quotas: Any) -> Any:
    entry = EntryData(
        entity=[EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in entity.items()],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
    )
    response = await broker.ask(AlterClientQuotasRequest(entries=[entry]))
    return response.entries[0]


async def described(broker: Broker, *components: ComponentData, strict: bool = False) -> dict[Any, dict[str, float]]:
    response = await broker.ask(DescribeClientQuotasRequest(components=components, strict=strict))
    assert response.error_code == 0
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries
    }


async def until_told(broker: Broker, count: int) -> dict[Any, dict[str, float]]:
    with trio.fail_after(TIMEOUT_S):
        while len(found := await described(broker)) != count:
            await trio.sleep(0.01)
    return found


async def test_set_told_and_removed(start: Start) -> None:
    async with start() as broker:
        assert (await alter(broker, {"user": "ann"}, producer_byte_rate=1000)).error_code == 0
        assert (await alter(broker, {"client_id": None}, consumer_byte_rate=2000)).error_code == 0
        assert (await alter(broker, {"user": "ann", "client_id": "a/b"}, producer_byte_rate=1)).error_code == 0
        assert await until_told(broker, 3) == {
            (("user", "ann"),): {"producer_byte_rate": 1000.0},
            (("client-id", None),): {"consumer_byte_rate": 2000.0},
            (("user", "ann"), ("client-id", "a/b")): {"producer_byte_rate": 1.0},
        }
        stored = await broker.zookeeper.get("/config/users/ann/clients/a%2Fb")
        assert json.loads(stored.data) == {"version": 1, "config": {"producer_byte_rate": "1"}}
        only = ComponentData(entity_type="user", match_type=0, match="ann")
        assert list(await described(broker, only, strict=True)) == [(("user", "ann"),)]
        assert (await alter(broker, {"user": "ann"}, producer_byte_rate=None)).error_code == 0
        assert (("user", "ann"),) not in await until_told(broker, 2)


async def test_refused_with_a_reason(start: Start) -> None:
    async with start() as broker:
        entry = await alter(broker, {"ip": "10.0.0.1"}, connection_creation_rate=1)
        assert (entry.error_code, entry.entity[0].entity_name) == (ErrorCode.UNSUPPORTED_VERSION, "10.0.0.1")
        entry = await alter(broker, {"user": "ann"}, request_percentage=1)
        assert entry.error_code == ErrorCode.INVALID_REQUEST
        assert "consumer_byte_rate and producer_byte_rate" in entry.error_message
        wrong = DescribeClientQuotasRequest(components=[ComponentData(entity_type="user", match_type=9)])
        response = await broker.ask(wrong)
        assert (response.error_code, response.entries) == (ErrorCode.INVALID_REQUEST, None)


async def test_names_and_number_of_quotas_are_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities, "MAX_ENTITIES", 2)
    long = "x" * (MAX_NAME_BYTES + 1)
    async with start() as broker:
        assert (
            await alter(broker, {"client_id": "ä" * 200}, producer_byte_rate=1)
        ).error_code == ErrorCode.INVALID_REQUEST
        entry = await alter(broker, {"user": "ann", "client_id": long}, producer_byte_rate=1)
        assert (entry.error_code, entry.entity[1].entity_name) == (ErrorCode.INVALID_REQUEST, long)
        await broker.zookeeper.create(
            QuotaEntity(client_id=long).path, b'{"version":1,"config":{"producer_byte_rate":"1"}}'
        )
        assert (await alter(broker, {"client_id": long}, producer_byte_rate=2)).error_code == 0
        await until_told(broker, 1)
        assert (await alter(broker, {"client_id": long}, producer_byte_rate=None)).error_code == 0
        await until_told(broker, 0)
        assert (await alter(broker, {"user": "ann"}, producer_byte_rate=1)).error_code == 0
        await until_told(broker, 1)
        assert (await alter(broker, {"user": "bob"}, producer_byte_rate=1)).error_code == ErrorCode.POLICY_VIOLATION
        assert (await alter(broker, {"user": "ann"}, producer_byte_rate=2)).error_code == 0


async def test_quotas_outlive_the_broker_and_broken_ones_are_passed_over(start: Start) -> None:
    async with start() as broker:
        await alter(broker, {"user": "ann"}, producer_byte_rate=1000)
        await broker.zookeeper.create("/config/users/bob", b"{")
        broken = b'{"version":1,"config":{"producer_byte_rate":"fast"}}'
        await broker.zookeeper.create(QuotaEntity(client_id=DEFAULT).path, broken)
    async with start() as broker:
        assert list(await described(broker)) == [(("user", "ann"),)]


@dataclass(eq=False)
class Group:
    """Connections that share a quota, and how long their bytes took."""

    client_id: str
    connections: int
    given_bytes: int = 0
    took_s: float = 0


async def work(group: Group, broker: Broker, act: Any) -> None:
    """Send or read as much as the quota allows in MEASURED_S."""
    started = trio.current_time()
    async with open_connection_pool(group.client_id) as pool, trio.open_nursery() as nursery:

        async def connection(lane: str) -> None:
            while True:
                size_bytes = await act(functools.partial(pool.request, broker.address, timeout_s=TIMEOUT_S, lane=lane))
                group.given_bytes += size_bytes
                if group.given_bytes >= QUOTA * MEASURED_S:
                    group.took_s = trio.current_time() - started
                    nursery.cancel_scope.cancel()

        for number in range(group.connections):
            nursery.start_soon(connection, str(number))


@pytest.mark.long
async def test_a_client_gets_no_more_than_its_quota_over_1_10_and_50_connections(start: Start) -> None:
    """Of a running broker; the unit tests of `keeper` demand the rate itself, on a clock of their own."""
    async with start(num_partitions=1) as broker:
        await broker.create("clicks")
        records = batch(b"x" * BATCH_BYTES)
        for _ in range(200):
            assert (await broker.produce("clicks", bytearray(records))).error_code == 0
        topic = await broker.named(TopicProduceData, "clicks")
        altered = await alter(broker, {"client_id": None}, producer_byte_rate=QUOTA, consumer_byte_rate=QUOTA)
        assert altered.error_code == 0
        await until_told(broker, 1)

        async def produce(ask: Any) -> int:
            data = PartitionProduceData(index=0, records=bytearray(records))
            topics = [TopicProduceData(name="clicks", topic_id=topic.topic_id, partition_data=[data])]
            await ask(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics))
            return len(records)

        async def fetch(ask: Any) -> int:
            asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=len(records))
            topics = [FetchTopic(topic="clicks", topic_id=topic.topic_id, partitions=[asked])]
            response = await ask(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics))
            return len(response.responses[0].partitions[0].records)

        groups = {
            Group(f"{act.__name__}-{connections}", connections): act
            for act in (produce, fetch)
            for connections in (1, 10, 50)
        }
        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for group, act in groups.items():
                    nursery.start_soon(work, group, broker, act)
        for group in groups:  # after a rest there is one second of the quota, and each may exceed it by one request
            ahead_s = 1 + group.connections * 1.1 * BATCH_BYTES / QUOTA
            assert group.took_s > MEASURED_S - ahead_s, group.client_id


async def test_a_change_holds_at_once_and_answers_say_that_they_were_throttled(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks")
        topic = await broker.named(TopicProduceData, "clicks")
        data = PartitionProduceData(index=0, records=batch(b"x" * 4_000))
        topics = [TopicProduceData(name="clicks", topic_id=topic.topic_id, partition_data=[data])]
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)
        assert (await broker.ask(request)).throttle_time_ms == 0
        await alter(broker, {"user": "ANONYMOUS"}, producer_byte_rate=2_000)
        await until_told(broker, 1)
        began_s = trio.current_time()
        throttled = (await broker.ask(request, lane="1")).throttle_time_ms
        assert 1_000 < throttled < 2_000
        throttled = (await broker.ask(request, lane="2")).throttle_time_ms
        assert 3_000 - (trio.current_time() - began_s) * 1000 < throttled < 4_200
        await alter(broker, {"user": "ANONYMOUS"}, producer_byte_rate=None)
        await until_told(broker, 0)
        assert (await broker.ask(request, lane="3")).throttle_time_ms == 0


@pytest.mark.parametrize("replica", [1, 7])
async def test_a_replica_id_of_no_other_live_broker_escapes_no_quota(start: Start, replica: int) -> None:
    async with start() as broker:
        await broker.create("clicks")
        await broker.produce("clicks", batch(b"x" * 200_000))
        await alter(broker, {"client-id": None}, consumer_byte_rate=50_000)
        await until_told(broker, 1)
        assert (await broker.fetch("clicks", 0)).error_code == 0
        asked = FetchPartition(partition=0, partition_max_bytes=1 << 20)
        topics = [await broker.named(FetchTopic, "clicks", partitions=[asked])]
        request = FetchRequest(max_wait_ms=0, topics=topics, replica_state=ReplicaState(replica_id=replica))
        response = await broker.ask(request, lane="feigned")
        assert response.responses[0].partitions[0].error_code != 0
        assert response.throttle_time_ms > 0


async def test_an_entity_is_changed_once_by_a_request_and_the_others_all_the_same(start: Start) -> None:
    """Each change asks ZooKeeper: thousands of the same would keep it busy for long."""

    def entry(*names: str) -> EntryData:
        parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in (names[:2], names[2:]) if kind]
        return EntryData(entity=parts, ops=[OpData(key="producer_byte_rate", value=1e6)])

    same = [entry("user", "a", "client-id", "b"), entry("client-id", "b", "user", "a")] * 1000
    async with start() as broker:
        response = await broker.ask(AlterClientQuotasRequest(entries=[*same, entry("client-id", "c", "", "")]))
        codes = [answered.error_code for answered in response.entries]
        assert codes == [ErrorCode.INVALID_REQUEST] * len(same) + [ErrorCode.NONE]
        assert set(await until_told(broker, 1)) == {(("client-id", "c"),)}


@pytest.mark.long
@pytest.mark.parametrize("parts", [["user", "user"], ["user", "client-id"] * 3, ["user"] * 90_000])
async def test_an_entity_of_more_parts_than_there_are_types_is_refused_with_few_of_them(
    start: Start, parts: list[str]
) -> None:
    """An answer with 90,000 parts holds up others for 0.2 s."""
    entity = [EntityData(entity_type=kind, entity_name=str(number)) for number, kind in enumerate(parts)]
    entry = EntryData(entity=entity, ops=[OpData(key="producer_byte_rate", value=1e6)])
    async with start() as broker:
        (answered,) = (await broker.ask(AlterClientQuotasRequest(entries=[entry]))).entries
        assert answered.error_code == ErrorCode.INVALID_REQUEST
        assert [part.entity_type for part in answered.entity] == parts[:4]
        assert not await described(broker)
