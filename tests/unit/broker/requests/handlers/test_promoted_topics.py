"""Produce to topics with `mirror.promoted`: no copies any more, producers once `mirror.source` is gone."""

from pipeline.model import MAX_INT64
from pipeline.promotion import Promotion
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    OperationType,
)
from tests.support.broker_in_process import Broker, Start, batch

BEGUN = Promotion(at_ms=1_700_000_000_000)
DONE = Promotion(at_ms=BEGUN.at_ms, ends=(2,))


async def alter(broker: Broker, **settings: str | None) -> tuple[int, str | None]:
    configs = [
        AlterableConfig(
            name=name.replace("_", "."),
            value=value,
            config_operation=OperationType.DELETE if value is None else OperationType.SET,
        )
        for name, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name="clicks", configs=configs)
    (result,) = (await broker.ask(IncrementalAlterConfigsRequest(resources=[resource]))).responses
    return result.error_code, result.error_message


async def test_a_promotion_under_way_refuses_copies_and_producers(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east")
        copied = await broker.produce("clicks", batch(b"a", b"b"), keep_offsets=True)
        assert copied.error_code == ErrorCode.NONE
        assert await alter(broker, mirror_promoted=BEGUN.encode()) == (ErrorCode.NONE, None)
        for expected_end in (-1, 2, MAX_INT64):
            late = await broker.produce(
                "clicks", batch(b"c", base_offset=2), keep_offsets=True, expected_end=expected_end
            )
            assert (late.error_code, late.log_end_offset) == (ErrorCode.PRODUCER_FENCED, 2)
            assert late.error_message == "clicks was promoted at 2023-11-14T22:13:20Z: it is no longer a replica"
        early = await broker.produce("clicks", batch(b"x"))
        assert early.error_code == ErrorCode.POLICY_VIOLATION


async def test_a_promoted_topic_takes_producers_and_never_copies(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east", mirror_promoted=BEGUN.encode())
        assert await alter(broker, mirror_promoted=DONE.encode(), mirror_source=None) == (ErrorCode.NONE, None)
        assert (await broker.produce("clicks", batch(b"x"))).error_code == ErrorCode.NONE
        for source in (None, "east"):  # not even if a mirror sets its source again
            await alter(broker, mirror_source=source)
            late = await broker.produce("clicks", batch(b"c", base_offset=1), keep_offsets=True)
            assert (late.error_code, late.log_end_offset) == (ErrorCode.PRODUCER_FENCED, 1)
    async with start() as broker:  # the settings outlive the broker
        late = await broker.produce("clicks", batch(b"c", base_offset=1), keep_offsets=True)
        assert late.error_code == ErrorCode.PRODUCER_FENCED


async def test_an_impossible_log_end_offset_appends_nothing_for_a_producer_either(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks")
        for data in (b"\0", batch(b"x")):
            probed = await broker.produce("clicks", data, expected_end=MAX_INT64)
            assert (probed.error_code, probed.log_end_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)


async def test_the_record_of_a_promotion_does_not_change(start: Start) -> None:
    async with start() as broker:
        await broker.create("clicks", mirror_source="east", mirror_promoted=BEGUN.encode())
        code, reason = await alter(broker, mirror_promoted=Promotion(at_ms=5).encode())
        assert code == ErrorCode.INVALID_CONFIG
        assert "was promoted at 2023-11-14T22:13:20Z, and the record of it does not change" in (reason or "")
        assert await alter(broker, mirror_promoted=DONE.encode()) == (ErrorCode.NONE, None)
        for changed in (BEGUN, Promotion(at_ms=DONE.at_ms, ends=(3,))):
            assert (await alter(broker, mirror_promoted=changed.encode()))[0] == ErrorCode.INVALID_CONFIG
        assert await alter(broker, mirror_promoted=DONE.encode()) == (ErrorCode.NONE, None)
        assert await alter(broker, mirror_promoted=None) == (ErrorCode.NONE, None)
        copied = await broker.produce("clicks", batch(b"c"), keep_offsets=True)
        assert copied.error_code == ErrorCode.NONE
