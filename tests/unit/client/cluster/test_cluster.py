import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import NewTopic, create_topics, describe_topics, list_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.cluster.discovery import from_zookeeper
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.errors import ConfigurationError, CoordinationError, DeadlineExceededError, NetworkError, PipelineError
from pipeline.model import BrokerEndpoint, BrokerId, HostPort, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from tests.support.brokers import serving_cluster
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster

T0 = TopicPartition("t", 0)
BOUND_S = 25
"""Less than a client waits for an answer."""


class Znodes:
    """Registrations as ZooKeeper has them."""

    def __init__(self, registrations: Mapping[str, bytes]) -> None:
        self.registrations = registrations

    async def children(self, path: str) -> Any:
        assert path == "/brokers/ids"
        return tuple(self.registrations)

    async def get(self, path: str) -> Any:
        return self.registrations[path.rpartition("/")[2]], 0

    async def watch_children(self, _path: str) -> Any:
        yield tuple(self.registrations)

    async def watch_data(self, _path: str) -> Any:
        yield None


async def test_nowhere_to_begin_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        async with open_cluster(ClientConfig()):
            pass


async def test_brokers_are_found_through_zookeeper(scripted: ScriptedCluster) -> None:
    async with scripted.broker(1) as address:
        registration = {"endpoints": [f"PLAINTEXT://{address}"], "host": None, "port": -1, "version": 5}
        znodes = Znodes({"1": json.dumps(registration).encode()})
        async with open_cluster(ClientConfig(), discover=from_zookeeper(znodes)) as cluster:
            await cluster.topic("t")
            assert cluster.view.leader_of(T0) == BrokerId(1)


async def test_registrations_of_all_versions_are_read() -> None:
    old = {"jmx_port": -1, "timestamp": "0", "host": "h", "version": 1, "port": 9092}
    mapped = {
        "endpoints": ["SECRET://h:1", "INSIDE://[::1]:2"],
        "listener_security_protocol_map": {"SECRET": "SSL", "INSIDE": "PLAINTEXT"},
        "host": None,
        "port": -1,
        "version": 4,
    }
    znodes = Znodes({"1": json.dumps(old).encode(), "2": json.dumps(mapped).encode()})
    assert await from_zookeeper(znodes)() == [HostPort("h", 9092), HostPort("::1", 2)]
    with pytest.raises(CoordinationError, match="/brokers/ids: has no broker"):
        await from_zookeeper(Znodes({"1": b"[]"}))()


async def test_a_cluster_whose_brokers_do_not_answer_is_an_error(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    async with scripted.broker(1):
        pass
    async with connect(default_api_timeout_ms=1500) as cluster:
        with pytest.raises(NetworkError, match="no broker of the cluster answers"):
            await cluster.refresh()


async def test_refreshes_are_shared(scripted: ScriptedCluster, connect: OpenCluster) -> None:
    async with scripted.broker(1), connect() as cluster:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(cluster.refresh)
        assert scripted.requests["MetadataRequest"] <= 2


async def test_offsets_are_listed_by_time(scripted: ScriptedCluster, connect: OpenCluster) -> None:
    scripted.partition(T0).append_values([b"a", b"b"])
    async with scripted.broker(1), connect() as cluster:
        assert (await list_offsets(cluster, {T0: EARLIEST}, timeout_s=60))[T0].offset == 0
        assert (await list_offsets(cluster, {T0: LATEST}, timeout_s=60))[T0].offset == 2
        found = (await list_offsets(cluster, {T0: 0}, timeout_s=60))[T0]
        assert (found.offset, found.timestamp_ms) == (0, 0)
        assert (await list_offsets(cluster, {T0: 1}, timeout_s=60))[T0].offset == -1
        with pytest.raises(KafkaError, match="nowhere-0"):
            await list_offsets(cluster, {TopicPartition("nowhere", 0): LATEST}, timeout_s=2)


async def test_brokers_that_tell_no_metadata_are_not_taken_for_a_partition_without_leader(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    async with scripted.broker(1), connect() as cluster:
        await cluster.refresh()
        scripted.hold_metadata = trio.Event()
        with pytest.raises(NetworkError, match="t-0: no broker reported the metadata of topic t"):
            await list_offsets(cluster, {T0: LATEST}, timeout_s=0.1)


async def test_topics_are_created_and_described(scripted: ScriptedCluster, connect: OpenCluster) -> None:
    async with scripted.broker(1), connect() as cluster:
        await create_topics(cluster, [NewTopic(name="new", partitions=3)])
        assert set(await list_topics(cluster)) == {"t", "new"}
        assert list((await describe_topics(cluster, ["new"]))["new"].partitions) == [0, 1, 2]
        with pytest.raises(KafkaError) as caught:
            await describe_topics(cluster, ["nowhere"])
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_missing_topic_is_created_only_for_programs_that_allow_it(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path) as cluster:
        strict = replace(cluster.config, default_api_timeout_ms=3000)
        async with open_cluster(strict) as clients:
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await clients.topic("t")
        assert await list_topics(cluster) == {}
        async with open_cluster(replace(cluster.config, allow_auto_create_topics=True)) as clients:
            assert (await clients.topic("t", timeout_s=30)).led_partitions


@pytest.mark.parametrize("name", ["x" * 40_000, "\ud800"])
async def test_a_topic_that_no_request_can_name_is_refused_at_once_and_keeps_no_other_from_being_found(
    scripted: ScriptedCluster, connect: OpenCluster, name: str
) -> None:
    async with scripted.broker(1), connect() as cluster:
        with trio.fail_after(BOUND_S), pytest.raises(KafkaError, match="can be the name of no topic") as raised:
            await cluster.topic(name)
        assert raised.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        await cluster.topic("t")
        assert cluster.view.leader_of(T0) == BrokerId(1)


async def test_a_request_that_cannot_be_encoded_is_refused_at_once(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    async with scripted.broker(1), connect() as cluster:
        with trio.fail_after(BOUND_S), pytest.raises(KafkaError, match="longer than 32767 bytes") as raised:
            await create_topics(cluster, [NewTopic(name="x" * 40_000, partitions=1)], timeout_s=30)
        assert raised.value.code == ErrorCode.INVALID_REQUEST


async def test_a_refresh_waits_for_another_one_no_longer_than_it_may(
    connect: OpenCluster, scripted: ScriptedCluster
) -> None:
    async with trio.open_nursery() as nursery:
        scripted.addresses[BrokerId(1)] = await _hung_broker(nursery)
        async with connect() as cluster:
            nursery.start_soon(_refresh_in_vain, cluster)
            await trio.testing.wait_all_tasks_blocked(0.05)
            with trio.fail_after(50), pytest.raises(DeadlineExceededError):
                await cluster.topic("t", timeout_s=0.2)
            nursery.cancel_scope.cancel()


async def test_a_broker_that_takes_connections_and_never_answers_leaves_time_for_the_others(
    scripted: ScriptedCluster,
) -> None:
    async with trio.open_nursery() as nursery, scripted.broker(2) as address:
        hung = await _hung_broker(nursery)
        async with open_cluster(ClientConfig(bootstrap=(hung, address))) as cluster:
            await cluster.refresh(timeout_s=8)
            assert BrokerId(2) in cluster.view.brokers
        nursery.cancel_scope.cancel()


async def test_a_known_broker_that_hangs_leaves_time_for_the_others(scripted: ScriptedCluster) -> None:
    async with trio.open_nursery() as nursery:
        scripted.addresses[BrokerId(1)] = await _hung_broker(nursery)
        async with scripted.broker(2) as address, open_cluster(ClientConfig(bootstrap=(address,))) as cluster:
            await cluster.refresh(timeout_s=8)
            assert list(cluster.view.brokers) == [BrokerId(1), BrokerId(2)]
            assert (await cluster.fetch_all_topics(timeout_s=8)).topics
        nursery.cancel_scope.cancel()


async def _hung_broker(nursery: trio.Nursery) -> HostPort:
    return await _serve(nursery, _say_nothing)


async def _serve(nursery: trio.Nursery, handler: Callable[[trio.SocketStream], Awaitable[None]]) -> HostPort:
    listeners = await nursery.start(trio.serve_tcp, handler, 0)
    return HostPort("127.0.0.1", listeners[0].socket.getsockname()[1])


async def test_brokers_that_say_nothing_use_up_no_more_than_a_call_each(
    connect: OpenCluster, scripted: ScriptedCluster
) -> None:
    async with scripted.broker(1), connect() as cluster, trio.open_nursery() as nursery:
        silent = {BrokerId(number): await _hung_broker(nursery) for number in (7, 8)}
        brokers = {broker: BrokerEndpoint(id=broker, address=address, rack=None) for broker, address in silent.items()}
        cluster.view = ClusterMetadata(brokers=brokers)
        for _ in silent:
            with pytest.raises(NetworkError, match="no broker of the cluster answers"):
                await cluster.refresh(timeout_s=0.2)
        await cluster.refresh(timeout_s=BOUND_S)
        assert list(cluster.view.brokers) == [BrokerId(1)]
        nursery.cancel_scope.cancel()


async def test_the_reason_of_a_failure_is_told_although_the_last_attempt_had_too_little_time() -> None:
    taken = 0

    async def close_the_first(stream: trio.SocketStream) -> None:
        nonlocal taken
        taken += 1
        if taken > 1:
            await trio.sleep_forever()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        address = await _serve(nursery, close_the_first)
        async with open_cluster(ClientConfig(bootstrap=(address,))) as cluster:
            with pytest.raises(NetworkError) as failure:
                await cluster.refresh(timeout_s=0.9)
        nursery.cancel_scope.cancel()
    assert taken > 1
    assert "within" not in str(failure.value)


async def _say_nothing(_stream: Any) -> None:
    await trio.sleep_forever()


async def _refresh_in_vain(cluster: Cluster) -> None:
    with suppress(PipelineError):
        await cluster.refresh(timeout_s=1000)


async def test_a_deadline_that_is_no_number_ends_at_the_first_failure(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    async with scripted.broker(1), connect() as cluster:
        await cluster.topic("t")
        with trio.fail_after(BOUND_S), pytest.raises(NetworkError, match="leader is unknown"):
            await list_offsets(cluster, {TopicPartition("t", 7): LATEST}, timeout_s=float("nan"))


async def test_a_cluster_whose_block_has_ended_says_so_and_opens_no_connection(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    async with scripted.broker(1):
        async with connect() as cluster:
            await cluster.topic("t")
        for ask in (list_topics(cluster), cluster.refresh(), list_offsets(cluster, {T0: LATEST}, timeout_s=BOUND_S)):
            with pytest.raises(PipelineError, match="block of its cluster has ended"):
                await ask
