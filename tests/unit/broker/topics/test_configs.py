"""The settings of topics and brokers described and changed: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.lowlevel

from pipeline.broker.settings.broker import FIELDS
from pipeline.broker.settings.dynamic import CHANGEABLE
from pipeline.broker.settings.entries import BROKER_TEXTS, TOPIC_TEXTS
from pipeline.broker.settings.listeners import ListenersConfig
from pipeline.broker.settings.topic import KEEPING_ALL, TopicSettings
from pipeline.coordination.znodes import ALL_BROKERS, broker_config_path, decode_config, topic_config_path
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
from pipeline.model import TopicPartition
from pipeline.net.connection_pool import open_connection_pool
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages import alter_configs, incremental_alter_configs
from pipeline.protocol.messages.api_versions import ApiVersionsRequest
from pipeline.protocol.messages.describe_configs import (
    ConfigSource,
    ConfigType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ResourceType,
)
from pipeline.protocol.messages.incremental_alter_configs import OperationType
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import TIMEOUT_S, Broker, Start

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
SET, DELETE, APPEND, SUBTRACT = OperationType


async def describe(broker: Broker, kind: int, name: str, *keys: str, details: bool = True) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=details, include_documentation=details)
    (result,) = (await broker.ask(request)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def entry(broker: Broker, kind: int, name: str, key: str) -> Any:
    (found,) = (await describe(broker, kind, name, key)).configs
    return found


async def value(broker: Broker, kind: int, name: str, key: str) -> tuple[str | None, ConfigSource]:
    found = await entry(broker, kind, name, key)
    return found.value, ConfigSource(found.config_source)


async def alter(
    broker: Broker, kind: int, name: str, *operations: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str | None]:
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=text)
        for key, operation, text in operations
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[resource], validate_only=validate_only
    )
    (result,) = (await broker.ask(request)).responses
    return result.error_code, result.error_message


async def replace_all(broker: Broker, kind: int, name: str, settings: Mapping[str, str | None]) -> int:
    configs = [alter_configs.AlterableConfig(name=key, value=text) for key, text in settings.items()]
    resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (result,) = (await broker.ask(alter_configs.AlterConfigsRequest(resources=[resource]))).responses
    code: int = result.error_code
    return code


async def test_topic_settings_are_described_with_type_source_and_documentation(start: Start) -> None:
    async with start(log_segment_bytes=5000) as broker:
        await broker.create("t", flush_messages="7")
        result = await describe(broker, TOPIC, "t")
        found = {config.name: config for config in result.configs}
        assert list(found) == [field.alias for field in TopicSettings.model_fields.values()]
        assert not any(config.read_only for config in result.configs)
        assert found["segment.bytes"].documentation
        own, of_file, default = found["flush.messages"], found["segment.bytes"], found["cleanup.policy"]
        assert (own.value, own.config_source, own.config_type) == ("7", ConfigSource.TOPIC, ConfigType.LONG)
        assert [(item.name, item.value, item.source) for item in own.synonyms] == [
            ("flush.messages", "7", ConfigSource.TOPIC),
            ("log.flush.interval.messages", str(2**63 - 1), ConfigSource.DEFAULT),
        ]
        assert (of_file.value, of_file.config_source, of_file.config_type) == (
            "5000",
            ConfigSource.STATIC,
            ConfigType.INT,
        )
        assert (default.value, default.config_source, default.config_type) == (
            "delete",
            ConfigSource.DEFAULT,
            ConfigType.LIST,
        )
        (plain,) = (await describe(broker, TOPIC, "t", "flush.messages", details=False)).configs
        assert (plain.synonyms, plain.documentation) == ((), None)


async def test_broker_settings_are_described_and_marked_as_read_only_or_not(start: Start) -> None:
    async with start(broker_rack="r") as broker:
        found = {config.name: config for config in (await describe(broker, BROKER, "1")).configs}
        tables = (ListenersConfig, ZooKeeperSecurity)
        of_tables = [field.alias for table in tables for field in table.model_fields.values()]
        assert list(found) == [*FIELDS, *of_tables]
        assert found["broker.id"].documentation
        assert {name for name, config in found.items() if not config.read_only} == CHANGEABLE
        assert (found["broker.rack"].value, found["broker.rack"].config_source) == ("r", ConfigSource.STATIC)
        assert (found["datacenter"].value, found["datacenter"].synonyms) == (None, ())
        assert found["auto.create.topics.enable"].value == "true"
        assert found["auto.create.topics.enable"].config_type == ConfigType.BOOLEAN
        assert found["listeners"].value == "PLAINTEXT://127.0.0.1:0"
        assert (await describe(broker, BROKER, "")).configs == ()


def test_there_is_a_sentence_for_each_setting() -> None:
    assert all(text.endswith(".") for text in (*BROKER_TEXTS.values(), *TOPIC_TEXTS.values()))
    assert BROKER_TEXTS["log.segment.bytes"] == (
        f"{TOPIC_TEXTS['segment.bytes']} Default for topics that do not set `segment.bytes`."
    )


async def test_descriptions_of_unknown_resources_are_refused(start: Start) -> None:
    async with start() as broker:
        refused = [
            (await describe(broker, kind, name)).error_code
            for kind, name in ((TOPIC, "none"), (TOPIC, "a b"), (BROKER, "2"), (BROKER, "one"), (99, "t"))
        ]
        assert refused == [3, 17, 42, 42, 42]


async def test_a_broker_has_one_name(start: Start) -> None:
    async with start() as broker:
        for name in ("01", "+1", " 1", "1_", "\u0661", "\uff11"):
            assert (await describe(broker, BROKER, name)).error_code == 42
            assert (await alter(broker, BROKER, name, ("log.retention.ms", SET, "1")))[0] == 42


async def test_a_resource_that_is_asked_for_again_is_told_once_with_all_its_keys(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.create("u")
        asked = [("t", ["retention.ms"]), ("u", ["retention.ms"]), ("t", ["cleanup.policy"]), ("u", None)]
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=keys)
                for name, keys in asked
            ]
        )
        first, second = (await broker.ask(request)).results
        assert (first.resource_name, {found.name for found in first.configs}) == (
            "t",
            {"retention.ms", "cleanup.policy"},
        )
        assert second.resource_name == "u"
        assert len(second.configs) > 10


async def test_a_topic_is_changed_and_what_it_says_counts_at_once(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", flush_messages="7")
        assert await alter(broker, TOPIC, "t", ("segment.bytes", SET, "4096"), ("flush.messages", DELETE, None)) == (
            0,
            None,
        )
        assert broker.handle.replicas.partitions[TopicPartition("t", 0)].log.config.segment_bytes == 4096
        assert await value(broker, TOPIC, "t", "segment.bytes") == ("4096", ConfigSource.TOPIC)
        assert await value(broker, TOPIC, "t", "flush.messages") == (str(2**63 - 1), ConfigSource.DEFAULT)
        stored = json.loads((await broker.zookeeper.get(topic_config_path("t"))).data)
        assert stored == {"version": 1, "config": {"segment.bytes": "4096"}}
        assert await replace_all(broker, TOPIC, "t", {"retention.ms": "5"}) == 0
        assert await value(broker, TOPIC, "t", "segment.bytes") == ("1073741824", ConfigSource.DEFAULT)
        assert await value(broker, TOPIC, "t", "retention.ms") == ("5", ConfigSource.TOPIC)


async def test_values_are_appended_to_lists_and_taken_from_them(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        for operation, text, expected in (
            (APPEND, "compact", "delete,compact"),
            (APPEND, "compact,delete", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
        ):
            assert (await alter(broker, TOPIC, "t", ("cleanup.policy", operation, text)))[0] == ErrorCode.NONE
            assert (await value(broker, TOPIC, "t", "cleanup.policy"))[0] == expected
        code, message = await alter(broker, TOPIC, "t", ("segment.bytes", APPEND, "1"))
        assert code == ErrorCode.INVALID_CONFIG
        assert "not LIST" in str(message)


async def test_refused_changes_change_nothing(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", segment_bytes="5000")
        for code, name, operations in (
            (ErrorCode.INVALID_CONFIG, "t", [("segment.byte", SET, "1")]),
            (ErrorCode.INVALID_CONFIG, "t", [("flush.ms", SET, "1"), ("segment.bytes", SET, "many")]),
            (ErrorCode.INVALID_REQUEST, "t", [("flush.ms", SET, None)]),
            (ErrorCode.INVALID_REQUEST, "t", [("flush.ms", SET, "1"), ("flush.ms", DELETE, None)]),
            (ErrorCode.INVALID_REQUEST, "t", [("flush.ms", 9, "1")]),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none", [("flush.ms", SET, "1")]),
            (ErrorCode.INVALID_TOPIC_EXCEPTION, "a/b", [("flush.ms", SET, "1")]),
        ):
            assert (await alter(broker, TOPIC, name, *operations))[0] == code, operations
        assert await alter(broker, TOPIC, "t", ("flush.ms", SET, "1"), validate_only=True) == (0, None)
        assert (await alter(broker, 99, "t", ("flush.ms", SET, "1")))[0] == ErrorCode.INVALID_REQUEST
        assert await replace_all(broker, TOPIC, "t", {"flush.ms": None}) == ErrorCode.INVALID_REQUEST
        stored = json.loads((await broker.zookeeper.get(topic_config_path("t"))).data)["config"]
        assert stored == {"segment.bytes": "5000"}
        resource = incremental_alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name="t")
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource, resource])
        assert [result.error_code for result in (await broker.ask(request)).responses] == [42, 42]


async def test_stored_settings_that_nobody_knows_are_kept_and_in_nobodys_way(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        foreign = b'{"version":1,"config":{"leader.replication.throttled.replicas":"*","segment.bytes":"many"}}'
        await broker.zookeeper.set(topic_config_path("t"), foreign)
        assert (await alter(broker, TOPIC, "t", ("flush.ms", SET, "9")))[0] == ErrorCode.NONE
        stored = json.loads((await broker.zookeeper.get(topic_config_path("t"))).data)["config"]
        assert sorted(stored) == ["flush.ms", "leader.replication.throttled.replicas", "segment.bytes"]
        assert await value(broker, TOPIC, "t", "segment.bytes") == ("1073741824", ConfigSource.DEFAULT)


async def test_a_setting_of_the_broker_counts_for_its_topics_the_nearest_first(start: Start) -> None:
    name = "log.segment.bytes"
    async with start(log_segment_bytes=5000) as broker:
        await broker.create("t")
        assert await alter(broker, BROKER, "", (name, SET, "6000")) == (0, None)
        assert await value(broker, TOPIC, "t", "segment.bytes") == ("6000", ConfigSource.ALL_BROKERS)
        assert await value(broker, BROKER, "", name) == ("6000", ConfigSource.ALL_BROKERS)
        assert await alter(broker, BROKER, "1", (name, SET, "7000")) == (0, None)
        assert [(item.value, item.source) for item in (await entry(broker, TOPIC, "t", "segment.bytes")).synonyms] == [
            ("7000", ConfigSource.BROKER),
            ("6000", ConfigSource.ALL_BROKERS),
            ("5000", ConfigSource.STATIC),
            ("1073741824", ConfigSource.DEFAULT),
        ]
        assert broker.handle.replicas.partitions[TopicPartition("t", 0)].log.config.segment_bytes == 7000
        assert json.loads((await broker.zookeeper.get(broker_config_path("1"))).data)["config"] == {name: "7000"}
    async with start(log_segment_bytes=5000) as broker:
        assert await value(broker, TOPIC, "t", "segment.bytes") == ("7000", ConfigSource.BROKER)
        assert await alter(broker, BROKER, "1", (name, DELETE, None)) == (0, None)
        assert await replace_all(broker, BROKER, "", {}) == ErrorCode.NONE
        assert await value(broker, TOPIC, "t", "segment.bytes") == ("5000", ConfigSource.STATIC)


async def test_connections_are_bounded_by_what_counts_now(start: Start) -> None:
    async with start() as broker:
        assert await alter(broker, BROKER, "1", ("max.connections", SET, "1")) == (0, None)
        with trio.fail_after(60):
            async with await trio.open_tcp_stream(broker.address.host, broker.address.port) as refused:
                assert await refused.receive_some() == b""
        assert await alter(broker, BROKER, "1", ("max.connections", DELETE, None)) == (0, None)
        async with open_connection_pool("another") as pool:
            assert (await pool.request(broker.address, ApiVersionsRequest(), timeout_s=TIMEOUT_S)).error_code == 0


async def test_settings_of_a_broker_that_are_refused(start: Start) -> None:
    async with start() as broker:
        for name, key, text in (
            ("1", "broker.id", "3"),
            ("1", "no.such.setting", "3"),
            ("1", "log.segment.bytes", "3"),
            ("", "num.partitions", "3"),
            ("2", "log.segment.bytes", "5000"),
            ("one", "log.segment.bytes", "5000"),
        ):
            code, message = await alter(broker, BROKER, name, (key, SET, text))
            assert code == ErrorCode.INVALID_REQUEST
            assert message
        assert await broker.zookeeper.get_or_none(broker_config_path("1")) is None


async def test_unusable_broker_settings_that_others_stored_are_skipped(start: Start) -> None:
    async with start() as broker:
        stored = b'{"version":1,"config":{"log.segment.bytes":"many","message.max.bytes":"77","broker.id":"9"}}'
        await broker.zookeeper.create(broker_config_path(ALL_BROKERS), stored)
        with trio.fail_after(60):
            while (await value(broker, BROKER, "1", "message.max.bytes"))[0] != "77":
                await trio.lowlevel.checkpoint()
        assert await value(broker, BROKER, "1", "log.segment.bytes") == ("1073741824", ConfigSource.DEFAULT)
        assert await value(broker, BROKER, "1", "broker.id") == ("1", ConfigSource.STATIC)


async def test_every_broker_applies_changes_and_concurrent_changes_are_kept(start: Start) -> None:
    async with start(1) as one, start(2) as two:
        await one.create("t")
        settings = {"segment.bytes": "5000", "flush.ms": "6", "retention.ms": "7", "retention.bytes": "8"}
        async with trio.open_nursery() as nursery:
            for broker, (key, text) in zip((one, two, one, two), settings.items(), strict=True):
                nursery.start_soon(alter, broker, TOPIC, "t", (key, SET, text))
        assert json.loads((await one.zookeeper.get(topic_config_path("t"))).data)["config"] == settings
        await alter(two, BROKER, "", ("message.max.bytes", SET, "999"))
        with trio.fail_after(60):
            while (await value(one, TOPIC, "t", "max.message.bytes"))[0] != "999":
                await trio.lowlevel.checkpoint()


async def test_a_lost_answer_is_read_back(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        for text in ("4096", "8192"):
            broker.zookeeper.lose_next_answer()
            assert await alter(broker, TOPIC, "t", ("segment.bytes", SET, text)) == (0, None)
            assert (await value(broker, TOPIC, "t", "segment.bytes"))[0] == text
        broker.zookeeper.lose_next_answer()
        assert await alter(broker, BROKER, "1", ("message.max.bytes", SET, "9")) == (0, None)
        assert (await value(broker, BROKER, "1", "message.max.bytes"))[0] == "9"


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_change_of_settings_that_zookeeper_lost_leaves_the_others(
    start: Start, zookeeper_twin: MemoryZooKeeper, is_known: bool
) -> None:
    path, changed = topic_config_path("t"), ("max.message.bytes", SET, "5000")

    async with zookeeper_twin.open() as other:
        async with start() as broker:
            await broker.create("t", retention_ms="-1", segment_bytes="4096")
            lost = decode_config(path, (await other.get(path)).data)
            for _ in range(2 * is_known):  # the second time the broker knows all of what shall be
                await other.delete(path)
                assert await alter(broker, TOPIC, "t", changed) == (0, None)
                stored = decode_config(path, (await other.get(path)).data)
                assert stored == {**lost, "max.message.bytes": "5000"}
            if not is_known:
                await other.delete(path)
        async with start() as broker:
            assert await alter(broker, TOPIC, "t", changed) == (0, None)
            stored = decode_config(path, (await other.get(path)).data)
            assert stored == {**(lost if is_known else KEEPING_ALL), "max.message.bytes": "5000"}
