"""Produce to topics with `mirror.partitions`: a replica partition takes batches of its own source partition alone."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from pipeline.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.protocol.messages.incremental_alter_configs import AlterableConfig as IncrementalConfig
from pipeline.protocol.messages.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from pipeline.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from pipeline.provenance import Origin, Provenance
from tests.support.broker_in_process import Broker, Start, batch
from tests.unit.broker.requests.handlers.conftest import headers_of
from tests.unit.broker.requests.test_large_requests import small_batches

ID, RECREATED = UUID(int=1), UUID(int=2)


def origin(source: str = "east", partition: int = 0, topic_id: UUID = ID) -> Origin:
    return Origin(source=source, path=(f"{source}-id",), topic="clicks", topic_id=topic_id, partition=partition)


def text(origins: Mapping[int, Origin]) -> str:
    provenance = Provenance()
    for partition, copied in origins.items():
        provenance = provenance.with_partition(partition, copied)
    return provenance.encode()


EAST = {number: origin(partition=number) for number in range(4)}
BOTH = EAST | {4: origin("west")}


async def make(broker: Broker, **settings: str) -> None:
    await broker.create("clicks", 6, mirror_source="east,west", **{"mirror_partitions": text(BOTH)} | settings)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (origin("west").token(), "clicks-3 is a copy of east/clicks-3, not of west/clicks-0. Compare the"),
        (origin("north").token(), "not of north-id/clicks-0."),
        (origin(partition=2).token(), "not of east/clicks-2."),
        (origin(partition=3, topic_id=RECREATED).token(), f"another topic of this name: its topic id is {RECREATED}"),
        ("", "the mirror that writes here is older than the broker. Upgrade the mirror."),
        ("nonsense", "clicks-3 is a copy of east/clicks-3, not of 'nonsense'"),
        ("/" * 30_000, "clicks-3 is a copy of east/clicks-3, not of ////"),
    ],
)  # fmt: skip
async def test_batches_of_another_source_partition_are_refused_in_words(start: Start, token: str, reason: str) -> None:
    async with start() as broker:
        await make(broker)
        copied = batch(b"a", base_offset=7)
        for expected_end in (-1, 0, 5):  # the source is checked first: an overlap would send the mirror on
            refused = await broker.produce(
                "clicks", copied, partition=3, keep_offsets=True, source=token, expected_end=expected_end
            )
            assert (refused.error_code, refused.log_end_offset) == (ErrorCode.POLICY_VIOLATION, -1)
            assert reason in (refused.error_message or "")
        own = await broker.produce("clicks", copied, partition=3, keep_offsets=True, source=EAST[3].token())
        assert (own.error_code, own.base_offset, own.log_end_offset) == (ErrorCode.NONE, 7, 8)


async def test_a_partition_without_an_entry_takes_nothing(start: Start) -> None:
    async with start() as broker:
        await make(broker)
        for token in ("", origin("west", 1).token()):
            refused = await broker.produce("clicks", batch(b"a"), partition=5, keep_offsets=True, source=token)
            assert refused.error_code == ErrorCode.POLICY_VIOLATION
            assert "mirror.partitions of clicks has no entry for partition 5: its entry is missing" in (
                refused.error_message or ""
            )
        ordinary = await broker.produce("clicks", batch(b"a"), partition=3, source=EAST[3].token())
        assert ordinary.error_message == "clicks is a read-only mirror of east,west; produce to its source."


async def test_a_topic_without_the_setting_takes_batches_of_older_and_newer_mirrors(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east")
        for offset, token in enumerate(("", EAST[0].token())):
            made = batch(b"a", base_offset=offset)
            assert (await broker.produce("clicks", made, keep_offsets=True, source=token)).error_code == ErrorCode.NONE


async def test_each_slice_of_a_large_request_has_its_source(start: Start) -> None:
    async with start() as broker:
        await make(broker, segment_bytes="100000")
        made, token = small_batches(5000, 10), EAST[1].token()
        refused = await broker.produce("clicks", made, partition=1, keep_offsets=True, source=EAST[2].token())
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        copied = await broker.produce(
            "clicks", made, partition=1, keep_offsets=True, source=token, expected_end=0, acks=-1
        )
        assert (copied.error_code, copied.base_offset, copied.log_end_offset) == (0, 10, 5010)


async def test_a_restart_keeps_the_refusal(start: Start) -> None:
    async with start() as broker:
        await make(broker)
        made = batch(b"a")
        copied = await broker.produce("clicks", made, partition=3, keep_offsets=True, source=EAST[3].token())
        assert copied.error_code == ErrorCode.NONE
    async with start() as broker:
        made = batch(b"b", base_offset=1)
        west = await broker.produce("clicks", made, partition=3, keep_offsets=True, source=origin("west").token())
        assert west.error_code == ErrorCode.POLICY_VIOLATION
        east = await broker.produce("clicks", made, partition=3, keep_offsets=True, source=EAST[3].token())
        assert east.error_code == ErrorCode.NONE
        assert headers_of(await broker.fetch("clicks", 0, partition=3)) == [(0, 0), (1, 1)]


async def test_changes_of_the_setting_apply_at_once_and_are_checked(start: Start) -> None:
    async def alter(value: str) -> tuple[int, str | None]:
        configs = [IncrementalConfig(name="mirror.partitions", value=value)]
        resource = IncrementalResource(resource_type=ResourceType.TOPIC, resource_name="clicks", configs=configs)
        (result,) = (await broker.ask(IncrementalAlterConfigsRequest(resources=[resource]))).responses
        return result.error_code, result.error_message

    async with start() as broker:
        await make(broker)
        token = origin("west", 1).token()
        assert await alter(text(BOTH | {5: origin("west", 1)})) == (ErrorCode.NONE, None)
        added = await broker.produce("clicks", batch(b"a"), partition=5, keep_offsets=True, source=token)
        assert added.error_code == ErrorCode.NONE
        assert (await alter('[{"source":"east"}]'))[0] == ErrorCode.INVALID_CONFIG
        for lost in (BOTH, {0: origin("west")}, EAST | {4: origin("east", 4), 5: origin("west", 1)}):
            code, reason = await alter(text(lost))  # of a mirror without the table
            assert code == ErrorCode.INVALID_CONFIG
            assert "and stays one. Read the setting again and add entries to it." in (reason or "")
        configs = [AlterableConfig(name="mirror.partitions", value="[")]
        resource = AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name="clicks", configs=configs)
        replaced = await broker.ask(AlterConfigsRequest(resources=[resource]))
        assert replaced.responses[0].error_code == ErrorCode.INVALID_CONFIG
        again = await broker.produce("clicks", batch(b"b", base_offset=1), partition=5, keep_offsets=True, source=token)
        assert again.error_code == ErrorCode.NONE
        wrong = [CreatableTopicConfig(name="mirror.partitions", value="[1]")]
        topic = CreatableTopic(name="other", num_partitions=1, replication_factor=1, configs=wrong)
        created = (await broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000))).topics[0]
        assert created.error_code == ErrorCode.INVALID_CONFIG
        assert created.error_message.endswith("mirror.partitions: entry 0 is not an object")
