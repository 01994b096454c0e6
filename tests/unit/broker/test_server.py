import json
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
import structlog
import trio

from pipeline.broker.replicas import disk_room
from pipeline.coordination.znodes import BrokerRegistration, PartitionState, broker_path, partition_state_path
from pipeline.errors import ConfigurationError
from pipeline.log.files import DiskFiles
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.testing.faulty_files import FaultyFiles
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import TIMEOUT_S, Broker, Start, batch


async def until_ready(broker: Broker, condition: Callable[[Any], bool]) -> Any:
    with trio.fail_after(60):
        while not condition(response := await broker.ask(MetadataRequest(topics=None))):
            await trio.lowlevel.checkpoint()
        return response


async def test_a_broker_registers_with_the_address_that_clients_reach(start: Start) -> None:
    async with start(7, broker_rack="r") as broker:
        found = await broker.zookeeper.get(broker_path(BrokerId(7)))
        endpoint = BrokerRegistration.decode(BrokerId(7), found.data).endpoint()
        assert endpoint is not None
        assert (endpoint.address, endpoint.rack) == (broker.address, "r")


async def test_a_broker_id_that_is_taken_is_refused_and_its_owner_named(start: Start, tmp_path: Any) -> None:
    async with start(1) as broker:
        with pytest.raises(ConfigurationError) as raised:
            async with start(1, log_dirs=str(tmp_path / "other")):
                pass
        assert raised.value.key == "broker.id"
        assert f"registered already by the broker at {broker.address}" in raised.value.reason
        assert not (tmp_path / "other").exists()


async def test_a_former_life_is_known_by_its_log_dir_whatever_its_address(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    path = broker_path(BrokerId(1))
    async with start() as broker:
        former = await broker.zookeeper.get(path)
    async with zookeeper_twin.open() as dead:
        await dead.create(path, former.data, ephemeral=True)
        async with start() as broker:
            assert broker.address != BrokerRegistration.decode(BrokerId(1), former.data).listeners[0].address
            stat = await dead.exists(path)
            assert stat is not None
            assert stat.ephemeral_owner == broker.zookeeper.session_id


@pytest.mark.parametrize("directories", [(), (uuid.uuid4(),)])
async def test_the_same_address_alone_is_no_former_life(
    start: Start, zookeeper_twin: MemoryZooKeeper, directories: tuple[uuid.UUID, ...]
) -> None:
    path = broker_path(BrokerId(1))
    async with start() as broker:
        data = (await broker.zookeeper.get(path)).data
        address = str(broker.address)
    other = replace(BrokerRegistration.decode(BrokerId(1), data), directories=directories)
    async with zookeeper_twin.open() as alive:
        await alive.create(path, other.encode(), ephemeral=True)
        with pytest.raises(ConfigurationError, match=f"registered already by the broker at {address}"):
            async with start(listeners=f"PLAINTEXT://{address}"):
                pass
        assert (await alive.get(path)).data == other.encode()


@pytest.mark.parametrize("setting", ["listeners", "http_listen", "log_dirs"])
async def test_addresses_and_log_dirs_in_use_are_named(start: Start, setting: str, tmp_path: Any) -> None:
    async with start(1) as broker:
        taken = {
            "listeners": f"PLAINTEXT://{broker.address}",
            "http_listen": str(broker.handle.http_address),
            "log_dirs": str(tmp_path / "broker-1"),
        }
        with pytest.raises(ConfigurationError) as raised:
            async with start(2, **{setting: taken[setting]}):
                pass
        assert raised.value.key == setting.replace("_", ".")


async def test_a_restart_keeps_data_and_raises_the_epoch(start: Start, tmp_path: Any) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a", b"b"))
    assert (tmp_path / "broker-1" / ".kafka_cleanshutdown").exists()
    async with start() as broker:
        assert ("loaded", TopicPartition("t", 0), (0, 2, 2)) in broker.observed.events
        data = await broker.fetch("t", 0)
        assert data.high_watermark == 2
        stored = await broker.zookeeper.get(partition_state_path("t", 0))
        state = PartitionState.decode("t", 0, stored.data)
        assert (state.leader, state.leader_epoch, state.isr) == (1, 1, (1,))
        assert (await broker.produce("t", batch(b"c"))).base_offset == 2


async def until_led(broker: Broker, name: TopicPartition) -> None:
    with trio.fail_after(60):
        while name not in broker.handle.replicas.partitions or not broker.handle.replicas.partitions[name].is_leader:
            await trio.sleep(0.01)


async def test_brokers_share_a_cluster(start: Start) -> None:
    async with start(1) as first, start(2) as second:
        await until_ready(first, lambda response: len(response.brokers) == 2)
        await first.create("t", 4)
        response = await until_ready(
            second, lambda found: found.topics and all(p.leader_id > 0 for p in found.topics[0].partitions)
        )
        leaders = [partition.leader_id for partition in response.topics[0].partitions]
        assert sorted(leaders) == [1, 1, 2, 2]
        here, there = leaders.index(1), leaders.index(2)
        assert (await first.produce("t", batch(b"a"), partition=here)).error_code == ErrorCode.NONE
        wrong = await first.produce("t", batch(b"a"), partition=there)
        assert wrong.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until_led(second, TopicPartition("t", there))
        assert (await second.produce("t", batch(b"a"), partition=there)).error_code == ErrorCode.NONE
        ids = [
            (await broker.ask(InitProducerIdRequest(transactional_id=None))).producer_id for broker in (first, second)
        ]
        assert ids[0] // 1000 != ids[1] // 1000


async def test_the_partitions_of_a_broker_that_left_have_no_leader(start: Start) -> None:
    async with start(1) as first:
        async with start(2) as second:
            await until_ready(second, lambda response: len(response.brokers) == 2)
            await second.create("t", 2)
            await until_ready(first, lambda response: bool(response.topics))
        response = await until_ready(first, lambda response: len(response.brokers) == 1)
        assert sorted(partition.leader_id for partition in response.topics[0].partitions) == [-1, 1]
        gone = next(partition for partition in response.topics[0].partitions if partition.leader_id == -1)
        assert (gone.error_code, gone.offline_replicas) == (ErrorCode.LEADER_NOT_AVAILABLE, (2,))


async def test_a_broker_serves_on_without_zookeeper_and_registers_again_after_expiry(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with start() as broker, zookeeper_twin.open() as other:
        await broker.create("t")
        zookeeper_twin.stop()
        assert (await broker.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
        assert (await broker.fetch("t", 0)).high_watermark == 1
        wanted = CreatableTopic(name="later", num_partitions=1, replication_factor=1)
        refused = (await broker.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=50))).topics[0]
        assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
        zookeeper_twin.start()
        await broker.create("later")
        zookeeper_twin.expire(broker.zookeeper)
        with trio.fail_after(60):
            while await other.exists(broker_path(BrokerId(1))) is None:
                await trio.lowlevel.checkpoint()
        await until_ready(broker, lambda response: len(response.brokers) == 1)
        await until_led(broker, TopicPartition("t", 0))
        assert broker.handle.replicas.partitions[TopicPartition("t", 0)].leader_epoch == 1
        assert (await broker.produce("t", batch(b"b"))).error_code == ErrorCode.NONE


async def test_a_full_disk_refuses_appends_and_recovers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_room, "ROOM_CHECK_S", 0.01)
    monkeypatch.setattr(disk_room, "REFUSAL_COUNTS_S", 0.5)
    files = FaultyFiles(DiskFiles(), random.Random(1))
    async with start(files=files) as broker:
        await broker.create("t")
        assert (await broker.produce("t", batch(b"a"))).error_code == ErrorCode.NONE
        files.capacity_bytes = files.used_bytes + 10
        assert (await broker.produce("t", batch(b"b"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        with trio.fail_after(TIMEOUT_S):
            while "is full" not in (broker.handle.readiness() or ""):
                await trio.sleep(0.01)
        assert broker.handle.health() is None  # a restart makes no room
        assert (await broker.fetch("t", 0)).high_watermark == 1
        files.capacity_bytes = None
        assert (await broker.produce("t", batch(b"b"))).base_offset == 1
        with trio.fail_after(TIMEOUT_S):
            while broker.handle.readiness() is not None:
                await trio.sleep(0.01)


async def test_many_producers_share_a_flush(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", flush_messages="1")

        async def produce(number: int) -> None:
            result = await broker.produce("t", batch(b"x"))
            assert result.error_code == ErrorCode.NONE
            partition = broker.handle.replicas.partitions[TopicPartition("t", 0)]
            assert partition.log.recovery_point > result.base_offset

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(produce, number)
        assert (await broker.fetch("t", 0)).high_watermark == 20


async def test_metrics_and_health_over_http(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a", b"b"))
        await broker.fetch("t", 0)
        await broker.fetch("t", 99)
        async with httpx.AsyncClient(base_url=f"http://{broker.handle.http_address}", timeout=60) as http:
            assert (await http.get("/healthz")).json() == {"status": "ok"}
            text = (await http.get("/metrics")).text
        for line in (
            'kafka_server_brokertopicmetrics_messagesin_total{topic="t"} 2.0',
            'kafka_network_requestmetrics_requests_total{request="Produce"} 1.0',
            'kafka_network_requestmetrics_requestbytes_count{request="Produce"} 1.0',
            'kafka_network_requestmetrics_remotetimems_sum{request="Produce"} 0.0',
            'kafka_network_requestmetrics_totaltimems_bucket{le="+Inf",request="Produce"} 1.0',
            'kafka_network_requestmetrics_errors_total{error="OFFSET_OUT_OF_RANGE",request="Fetch"} 1.0',
            "kafka_server_socket_server_metrics_memory_pool_used 0.0",
            'kafka_log_log_logendoffset{partition="0",topic="t"} 2.0',
            "kafka_server_replicamanager_leadercount 1.0",
        ):
            assert line in text


async def test_logs_of_unknown_topics_are_left_alone(start: Start, zookeeper_twin: MemoryZooKeeper) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a"))
        directory = broker.handle.replicas.partitions[TopicPartition("t", 0)].log.directory
    async with zookeeper_twin.open() as client:
        for path in ("/brokers/topics/t/partitions/0/state", "/brokers/topics/t/partitions/0"):
            await client.delete(path)
        await client.delete("/brokers/topics/t/partitions")
        await client.delete("/brokers/topics/t")
    async with start() as broker:
        assert directory.exists()
        assert not (await broker.ask(MetadataRequest(topics=None))).topics


async def test_a_znode_that_cannot_be_read_harms_no_other(start: Start) -> None:
    async with start() as broker:
        await broker.zookeeper.create("/brokers/topics/bad", b"{")
        await broker.zookeeper.create("/brokers/ids/99", json.dumps({"version": 1}).encode())
        await broker.create("good")
        assert (await broker.produce("good", batch(b"a"))).error_code == ErrorCode.NONE


async def test_a_topic_that_is_created_is_logged_by_its_name(start: Start) -> None:
    with structlog.testing.capture_logs() as log:
        async with start() as broker:
            await broker.create("clicks")
    (created,) = [each for each in log if each["event"] == "topic_created"]
    assert (created["topic"], created["partitions"], created["replicas"]) == ("clicks", 1, 1)


async def test_a_port_scanner_does_not_fill_the_log(start: Start) -> None:
    with structlog.testing.capture_logs() as log:
        async with start() as broker:
            for _ in range(20):
                stream = await trio.open_tcp_stream(broker.address.host, broker.address.port)
                await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
                assert await stream.receive_some() == b""
                await stream.aclose()
            broken = "kafka_server_socket_server_metrics_connection_broken_total"
            assert broker.metrics.get_sample_value(broken) == 20
    (told,) = [each for each in log if each["event"] == "connection_broken"]
    assert "the client speaks HTTP" in told["error"]
