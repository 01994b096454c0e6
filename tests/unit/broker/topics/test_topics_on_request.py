"""Topics that are created because a client asks for them by name."""

import uuid

import trio

from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.broker.requests.handlers.metadata import AUTO_CREATE_TIMEOUT_S
from pipeline.mirror.journals.epochs import EPOCHS_TOPIC
from pipeline.mirror.journals.gaps import GAPS_TOPIC
from pipeline.mirror.journals.table import TABLE_TOPIC
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.schema_registry.config import RegistryConfig
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import Start, batch
from tests.support.topics import ask_for, describe, names_of


async def test_topics_are_made_on_asking_only_if_both_sides_want_it(start: Start) -> None:
    async with start(auto_create_topics_enable=False) as broker:
        assert await ask_for(broker, "t") == [3]
        assert await names_of(broker) == []
    async with start(num_partitions=3) as broker:
        assert [found.error_code for found in await describe(broker, "t", "a b")] == [3, 17]
        topics = [MetadataRequestTopic(name=name) for name in ("t", "a b")]
        made = await broker.ask(MetadataRequest(topics=topics))
        assert [found.error_code for found in made.topics] == [0, 17]
        assert [partition.leader_id for partition in made.topics[0].partitions] == [1, 1, 1]
        assert await ask_for(broker, "t") == [0]
        assert await names_of(broker) == ["t"]


async def test_requests_without_names_create_no_topic(start: Start) -> None:
    async with start() as broker:
        everything = await broker.ask(MetadataRequest(topics=None))
        nothing = await broker.ask(MetadataRequest(topics=[]))
        by_id = await broker.ask(MetadataRequest(topics=[MetadataRequestTopic(topic_id=uuid.UUID(int=5), name=None)]))
        assert (everything.topics, nothing.topics) == ((), ())
        assert by_id.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert (await broker.produce("t", batch(b"a"))).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert (await broker.fetch("t", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert await names_of(broker) == []


async def test_names_that_cannot_be_topics_and_topics_of_services_are_not_made_on_asking(start: Start) -> None:
    async with start() as broker:
        services = (AUDIT_TOPIC, TABLE_TOPIC, GAPS_TOPIC, EPOCHS_TOPIC, RegistryConfig.model_fields["topic"].default)
        assert await ask_for(broker, *services) == [3] * len(services)
        assert await ask_for(broker, "__transaction_state", "__share_group_state") == [3, 3]
        assert await ask_for(broker, "", ".", "..", "a" * 250, "a/b") == [17] * 5
        assert await names_of(broker) == []
        await broker.create(AUDIT_TOPIC)
        assert await ask_for(broker, AUDIT_TOPIC) == [0]


async def test_a_topic_that_cannot_be_made_is_told_why(start: Start) -> None:
    async with start(default_replication_factor=3) as broker:
        assert await ask_for(broker, "t") == [ErrorCode.INVALID_REPLICATION_FACTOR]
        assert await names_of(broker) == []


async def test_many_requests_at_once_create_one_topic(start: Start) -> None:
    async with start() as broker, trio.open_nursery() as nursery:

        async def ask(lane: str) -> None:
            names = [MetadataRequestTopic(name=name) for name in ("t", "t", "u")]
            while True:
                made = await broker.ask(MetadataRequest(topics=names), lane=lane)
                codes = {found.error_code for found in made.topics}
                assert codes <= {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
                if codes == {ErrorCode.NONE}:
                    return

        for lane in "abcde":
            nursery.start_soon(ask, lane)


async def test_missing_topics_are_answered_in_time_while_zookeeper_is_away(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with start() as broker:
        zookeeper_twin.stop()
        asked_at = trio.current_time()
        names = [f"t{number}" for number in range(20)]
        assert await ask_for(broker, *names) == [ErrorCode.LEADER_NOT_AVAILABLE] * 20
        assert trio.current_time() - asked_at < 10 * AUTO_CREATE_TIMEOUT_S
