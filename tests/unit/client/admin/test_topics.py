"""Settings, records, log dirs and the cluster, through our client and our broker."""

from pathlib import Path

import pytest

from pipeline.client.admin.brokers import describe_cluster, describe_log_dirs, describe_versions
from pipeline.client.admin.elections import alter_reassignments, elect_leaders, list_reassignments
from pipeline.client.admin.offsets import ALL_RECORDS, delete_records, list_offsets
from pipeline.client.admin.reassignment_throttle import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    Move,
    remove_throttle,
    set_throttle,
)
from pipeline.client.admin.resource_configs import (
    ConfigResource,
    alter_configs,
    describe_configs,
    describe_topic_settings,
)
from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics, list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.errors import NetworkError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import ConfigSource, ResourceType
from pipeline.protocol.messages.elect_leaders import ElectionType
from pipeline.protocol.messages.list_offsets import EARLIEST
from tests.support.brokers import serving_cluster

ONE = BrokerId(1)
LIMIT_S = 60.0
TOPIC = ConfigResource(ResourceType.TOPIC, "t")
BROKER = ConfigResource(ResourceType.BROKER, "1")
ALL = ConfigResource(ResourceType.BROKER, "")


async def write(cluster: Cluster, count: int) -> None:
    from random import Random

    async with open_producer(cluster, ProducerConfig(), clock=lambda: 1_700_000_000_000, rng=Random(1)) as producer:
        for number in range(count):
            await producer.send("t", b"%d" % number, partition=0)
        await producer.flush()


async def test_settings_are_read_set_and_taken_back(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name="t", partitions=1, configs={"flush.ms": "9"})])
        await alter_configs(cluster, {TOPIC: {"segment.bytes": "4096", "flush.ms": None}}, timeout_s=LIMIT_S)
        await alter_configs(cluster, {ALL: {"log.roll.ms": "77"}, BROKER: {"log.roll.ms": "78"}}, timeout_s=LIMIT_S)
        found = await describe_configs(cluster, [TOPIC, BROKER, ALL], timeout_s=LIMIT_S)
        values = {name: (entry.value, entry.source) for name, entry in found[TOPIC].items()}
        assert values["segment.bytes"] == ("4096", ConfigSource.TOPIC)
        assert values["segment.ms"] == ("78", ConfigSource.BROKER)
        assert values["flush.ms"][1] is ConfigSource.DEFAULT
        assert found[BROKER]["broker.id"].is_read_only
        assert found[TOPIC]["flush.ms"].documentation
        assert {name: entry.value for name, entry in found[ALL].items()} == {"log.roll.ms": "77"}


async def test_refusals_are_raised(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name="t", partitions=1)])
        for resource, settings, code in (
            (TOPIC, {"no.such.setting": "1"}, ErrorCode.INVALID_CONFIG),
            (ConfigResource(ResourceType.TOPIC, "none"), {"flush.ms": "1"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (BROKER, {"broker.id": "3"}, ErrorCode.INVALID_REQUEST),
        ):
            with pytest.raises(KafkaError, match=str(resource)) as caught:
                await alter_configs(cluster, {resource: settings}, timeout_s=LIMIT_S)
            assert caught.value.code == code
        await alter_configs(cluster, {TOPIC: {"flush.ms": "1"}}, timeout_s=LIMIT_S, validate_only=True)
        found = await describe_configs(cluster, [TOPIC], timeout_s=LIMIT_S)
        assert found[TOPIC]["flush.ms"].source is ConfigSource.DEFAULT
        with pytest.raises(NetworkError):
            await describe_configs(cluster, [ConfigResource(ResourceType.BROKER, "7")], timeout_s=0.3)


async def test_records_are_deleted_and_sizes_told(tmp_path: Path) -> None:
    t0 = TopicPartition("t", 0)
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name="t", partitions=1)])
        await write(cluster, 10)
        (log_dir,) = await describe_log_dirs(cluster, ONE, timeout_s=LIMIT_S)
        assert (log_dir.path, log_dir.error) == (str(tmp_path), None)
        assert log_dir.partitions[t0] > 61
        assert log_dir.usable_bytes is not None
        assert await delete_records(cluster, {t0: 4}, timeout_s=LIMIT_S) == {t0: 4}
        assert await delete_records(cluster, {t0: ALL_RECORDS}, timeout_s=LIMIT_S) == {t0: 10}
        assert (await list_offsets(cluster, {t0: EARLIEST}, timeout_s=LIMIT_S))[t0].offset == 10
        with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
            await delete_records(cluster, {t0: 11}, timeout_s=LIMIT_S)


async def test_moves_are_throttled_besides_what_is_throttled_already(tmp_path: Path) -> None:
    two, three = BrokerId(2), BrokerId(3)
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name="t", partitions=2), NewTopic(name="all", partitions=1)])
        everything = {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "*"}
        await alter_configs(cluster, {ConfigResource(ResourceType.TOPIC, "all"): everything}, timeout_s=LIMIT_S)
        for name, now, target in (
            (TopicPartition("t", 1), [ONE], [ONE, two]),
            (TopicPartition("t", 0), [ONE], [three]),
            (TopicPartition("all", 0), [ONE], [two]),
        ):
            await set_throttle(cluster, {name: Move(now=now, target=target)}, 1000, timeout_s=LIMIT_S)
        await set_throttle(cluster, {TopicPartition("t", 0): Move(now=[ONE, two], target=[ONE])}, 9, timeout_s=LIMIT_S)
        names = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        found = await describe_topic_settings(cluster, ["t", "all", "none"], names, timeout_s=LIMIT_S)
        assert found == {"t": {LEADER_REPLICAS: "0:1,1:1", FOLLOWER_REPLICAS: "0:3,1:2"}, "all": everything}
        of_broker = (await describe_configs(cluster, [BROKER], timeout_s=LIMIT_S))[BROKER]
        assert {of_broker[name].value for name in (LEADER_RATE, FOLLOWER_RATE)} == {"1000"}
        await remove_throttle(cluster, ["t", "all"], timeout_s=LIMIT_S)
        found = await describe_topic_settings(cluster, ["t", "all"], names, timeout_s=LIMIT_S)
        assert {value for settings in found.values() for value in settings.values()} == {""}
        of_broker = (await describe_configs(cluster, [BROKER], timeout_s=LIMIT_S))[BROKER]
        assert of_broker[LEADER_RATE].source is of_broker[FOLLOWER_RATE].source is ConfigSource.DEFAULT


async def test_elections_and_moves_of_one_broker(tmp_path: Path) -> None:
    t0 = TopicPartition("t", 0)
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name="t", partitions=1)])
        elected = await elect_leaders(cluster, [t0], ElectionType.PREFERRED, timeout_s=LIMIT_S)
        refusal = elected[t0]
        assert refusal is not None
        assert refusal.code is ErrorCode.ELECTION_NOT_NEEDED
        assert await elect_leaders(cluster, None, ElectionType.UNCLEAN, timeout_s=LIMIT_S) == {}
        assert await alter_reassignments(cluster, {t0: [ONE]}, timeout_s=LIMIT_S) == {}
        refused = await alter_reassignments(cluster, {t0: None}, timeout_s=LIMIT_S)
        assert refused[t0].code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert await list_reassignments(cluster, timeout_s=LIMIT_S) == {}


async def test_the_cluster_and_what_its_brokers_serve(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path) as cluster:
        found = await describe_cluster(cluster, timeout_s=LIMIT_S)
        assert (len(found.cluster_id), found.controller, [broker.id for broker in found.brokers]) == (22, ONE, [ONE])
        await cluster.refresh()
        assert (await describe_versions(cluster, ONE, timeout_s=LIMIT_S))[32] == (1, 4)


async def test_a_name_where_a_sequence_of_names_belongs_deletes_no_topics_of_one_letter(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name="a", partitions=1)])
        with pytest.raises(TypeError, match="a sequence of names"):
            await delete_topics(cluster, "ab", missing_ok=True)
        assert "a" in await list_topics(cluster)
