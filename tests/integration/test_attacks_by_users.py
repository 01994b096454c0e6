"""A secured broker, attacked by users who know their password and have few rights, or none."""

import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.coordination.acl_znodes import AclPattern
from pipeline.coordination.znodes import TopicAssignment
from pipeline.errors import NetworkError
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntryData, OpData
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclResourceType
from pipeline.protocol.messages.describe_client_quotas import EntityData
from pipeline.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from pipeline.protocol.messages.fetch import FIRST_EPOCH, INITIAL_EPOCH, FetchPartition, FetchRequest, FetchTopic
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.list_offsets import (
    AskedRange,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.cleaning import batch_of
from tests.support.secured_broker import DEADLINE_S, Ask, allow, create, secured_broker

TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP

MANY = 3000


def names(count: int) -> list[str]:
    return [f"nothing-of-mine-{number}" for number in range(count)]


@pytest.mark.parametrize("count", [10, MANY])
async def test_a_thread_decides_about_many_names_so_that_others_need_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    async with secured_broker(tmp_path) as broker, broker.user("mallory") as mallory:
        assert broker.context.acls is not None
        deciding: set[int] = set()
        allows = broker.context.acls.allows

        def noting(*asked: Any) -> bool:
            deciding.add(threading.get_ident())
            return allows(*asked)

        monkeypatch.setattr(broker.context.acls, "allows", noting)
        found = await mallory(FindCoordinatorRequest(coordinator_keys=names(count)))
        assert [each.key for each in found.coordinators] == names(count)
        assert {each.error_code for each in found.coordinators} == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
        described = await mallory(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names(count)]))
        assert {each.error_code for each in described.topics} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert (threading.get_ident() in deciding) == (count < MANY)


@pytest.mark.parametrize("count", [10, MANY])
async def test_a_thread_finds_the_operations_of_many_topics_so_that_others_need_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    async with secured_broker(tmp_path) as broker, broker.user("admin") as admin, broker.user("alice") as alice:
        await allow(admin, TOPIC, "*", AclOperation.DESCRIBE)
        assert broker.context.acls is not None
        deciding: set[int] = set()
        allows = broker.context.acls.allows

        def noting(*asked: Any) -> bool:
            deciding.add(threading.get_ident())
            return allows(*asked)

        monkeypatch.setattr(broker.context.acls, "allows", noting)
        asked = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in names(count)])
        described = await alice(asked)
        assert {each.topic_authorized_operations for each in described.topics} == {1 << AclOperation.DESCRIBE}
        assert (threading.get_ident() in deciding) == (count < MANY)


def read_by_id(*topics: uuid.UUID, session_id: int = 0, epoch: int = INITIAL_EPOCH) -> FetchRequest:
    partitions = [FetchPartition(partition=0, partition_max_bytes=1000)]
    return FetchRequest(
        max_bytes=10_000,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic_id=each, partitions=partitions) for each in topics],
    )


async def id_of(ask: Ask, topic: str) -> uuid.UUID:
    described = await ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
    found: uuid.UUID = described.topics[0].topic_id
    return found


async def write(ask: Ask, topic: uuid.UUID) -> int:
    data = [
        PartitionProduceData(records=bytearray(batch_of([(b"key", b"secret")], 0, time_ms=int(time.time() * 1000))))
    ]
    wanted = [TopicProduceData(topic_id=topic, partition_data=data)]
    answer = await ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=wanted))
    return int(answer.responses[0].partition_responses[0].error_code)


async def test_a_session_does_not_read_a_topic_that_the_client_named_before_the_broker_knew_it(tmp_path: Path) -> None:
    unknown = uuid.uuid4()
    async with secured_broker(tmp_path) as broker, broker.user("admin") as admin, broker.user("alice") as alice:
        await create(admin, "mine")
        await allow(admin, TOPIC, "mine", AclOperation.READ)
        mine = await id_of(admin, "mine")
        first = await alice(read_by_id(mine, unknown))
        codes = {topic.topic_id: topic.partitions[0].error_code for topic in first.responses}
        assert codes == {mine: ErrorCode.NONE, unknown: ErrorCode.UNKNOWN_TOPIC_ID}
        session = (await alice(read_by_id(mine))).session_id
        later = await alice(read_by_id(unknown, session_id=session, epoch=FIRST_EPOCH))
        assert later.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        async with broker.zookeeper.open() as zookeeper:
            made = TopicAssignment(topic="secret", topic_id=unknown, partitions={0: (BrokerId(1),)})
            await zookeeper.create(made.path, made.encode())
        with trio.fail_after(DEADLINE_S):
            while await write(admin, unknown):
                await trio.sleep(0.02)
        for session_id in (first.session_id, session):
            answer = await alice(read_by_id(session_id=session_id, epoch=FIRST_EPOCH))
            read = [part.records for topic in answer.responses for part in topic.partitions if part.records]
            assert read == []
        answer = await alice(read_by_id(unknown))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_who_may_only_describe_a_topic_cannot_guess_its_records_by_their_sums(tmp_path: Path) -> None:
    asked = AskedRange(from_offset=0, up_to_offset=1, kind=2)
    sums = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name="secret", partitions=[ListOffsetsPartition(range_sums=asked)])]
    )
    async with secured_broker(tmp_path) as broker, broker.user("admin") as admin, broker.user("alice") as alice:
        await create(admin, "secret")
        assert await write(admin, await id_of(admin, "secret")) == ErrorCode.NONE
        await allow(admin, TOPIC, "secret", AclOperation.DESCRIBE)
        (part,) = (await alice(sums)).topics[0].partitions
        assert (part.error_code, part.range_sums.digest) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
        await allow(admin, TOPIC, "secret", AclOperation.READ)
        (part,) = (await alice(sums)).topics[0].partitions
        assert part.error_code == ErrorCode.NONE
        assert part.range_sums.digest


async def test_a_large_request_is_decided_by_the_rules_that_hold_when_it_is_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its session would go on to read what was denied while a thread decided."""
    async with secured_broker(tmp_path) as broker, broker.user("admin") as admin, broker.user("alice") as alice:
        await create(admin, "secret")
        await allow(admin, TOPIC, "secret", AclOperation.READ)
        acls, topic = broker.context.acls, await id_of(admin, "secret")
        assert acls is not None
        pattern, allows = AclPattern(TOPIC, AclPatternType.LITERAL, "secret"), acls.allows

        def changing(*asked: Any) -> bool:
            decided = allows(*asked)
            if threading.current_thread() is not threading.main_thread():
                trio.from_thread.run_sync(acls.set, pattern, [])
            return decided

        monkeypatch.setattr(acls, "allows", changing)
        parts = [FetchPartition(partition=0, partition_max_bytes=1000)] * MANY
        request = FetchRequest(session_epoch=INITIAL_EPOCH, topics=[FetchTopic(topic_id=topic, partitions=parts)])
        answer = await alice(request)
        codes = {part.error_code for each in answer.responses for part in each.partitions}
        assert codes == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


async def test_a_fetch_that_waits_for_its_quota_begins_no_session_by_old_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secured_broker(tmp_path) as broker, broker.user("admin") as admin, broker.user("alice") as alice:
        await create(admin, "secret")
        await allow(admin, TOPIC, "secret", AclOperation.READ)
        entity = [EntityData(entity_type="user", entity_name="alice")]
        limit = [OpData(key="consumer_byte_rate", value=1000.0)]
        await admin(AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=limit)]))
        acls, topic = broker.context.acls, await id_of(admin, "secret")
        assert acls is not None

        async def wait(*_: Any) -> tuple[float, int]:
            acls.set(AclPattern(TOPIC, AclPatternType.LITERAL, "secret"), [])
            return 0.0, 1000

        with trio.fail_after(DEADLINE_S):
            while broker.context.quotas.table.is_empty:
                await trio.sleep(0.01)
        monkeypatch.setattr(broker.context.quotas, "wait_for_turn", wait)
        with pytest.raises(NetworkError):
            await alice(read_by_id(topic))
        assert not broker.context.fetch.sessions.sessions
