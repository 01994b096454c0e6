"""`ConsumerConnector`: streams, shares, commits, sessions, with a broker in this process and a ZooKeeper in memory."""

import json

import pytest
import trio

from pipeline.client.admin.topics import delete_topics
from pipeline.client.connector.connector import ConsumerConnector, MessageStreamsExistError
from pipeline.client.connector.ownership import OwnershipLostError
from pipeline.client.group.listener import RebalanceListener
from pipeline.client.streams.topic_filter import BlackList, WhiteList
from pipeline.errors import ConfigurationError, NodeOwnedError
from pipeline.model import TopicPartition
from pipeline.testing.memory_zookeeper import MemoryClient
from tests.unit.client.connector.conftest import DEADLINE_S, GROUP, Site, until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_one_member_reads_all_and_leaves_its_offsets_in_kafkas_registries(site: Site) -> None:
    await site.create("t", 4)
    await site.produce("t", 40, 4)
    async with site.member() as member:
        streams = (await member.connector.create_message_streams({"t": 2}))["t"]
        member.read(*streams)
        await until(lambda: len(member.handed) == 40)
        name = member.connector.consumer_id
        assert name.startswith(f"{GROUP}_")
        registration = json.loads(site.zookeeper.znodes.find(f"/consumers/{GROUP}/ids/{name}").data)
        assert registration["subscription"] == {"t": 2}
        assert site.owners("t") == {0: f"{name}-0", 1: f"{name}-0", 2: f"{name}-1", 3: f"{name}-1"}
        assert {len(stream.assignment) for stream in streams} == {2}
        assert member.connector.assignment == {TopicPartition("t", number) for number in range(4)}
    assert [site.stored("t", number) for number in range(4)] == [10] * 4
    assert site.owners("t") == {}
    assert site.zookeeper.znodes.children(f"/consumers/{GROUP}/ids") == []
    assert all(offsets == list(range(10)) for offsets in member.offsets.values())


async def test_members_share_and_a_member_that_leaves_leaves_no_duplicate(site: Site) -> None:
    await site.create("t", 4)
    await site.produce("t", 40, 4)
    async with site.member() as first:
        first.read(*(await first.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: len(first.handed) == 40)
        async with site.member() as second:
            second.read(*(await second.connector.create_message_streams({"t": 1}))["t"])
            await until(lambda: len(second.connector.assignment) == 2 == len(first.connector.assignment))
            assert not first.connector.assignment & second.connector.assignment
            await site.produce("t", 40, 4)
            await until(lambda: len(first.handed) + len(second.handed) == 80)
        await until(lambda: len(first.connector.assignment) == 4)
        await site.produce("t", 4, 4)
        await until(lambda: len(first.handed) + len(second.handed) == 84)
    handed = sorted((record.topic_partition, record.offset) for record in [*first.handed, *second.handed])
    assert handed == [(TopicPartition("t", number), offset) for number in range(4) for offset in range(21)]


async def test_a_partition_moves_once_its_item_in_hand_is_finished(site: Site) -> None:
    await site.create("t", 2)
    await site.produce("t", 10, 2)
    async with site.member() as first:
        first.gate = trio.Event()
        first.read(*(await first.connector.create_message_streams({"t": 2}))["t"])
        await until(lambda: len(first.handed) == 2)
        async with site.member() as second:
            second.read(*(await second.connector.create_message_streams({"t": 1}))["t"])
            await until(lambda: site.tries[second.client] > 4)
            assert (second.connector.assignment, second.handed, len(site.owners("t"))) == (frozenset(), [], 2)
            first.gate.set()
            await until(lambda: len(first.handed) + len(second.handed) == 10)
            (moved,) = second.connector.assignment
            assert first.offsets[moved] == [0]
            assert second.offsets == {moved: [1, 2, 3, 4]}


async def test_a_commit_while_a_partition_is_given_up_includes_the_item_in_hand(site: Site) -> None:
    await site.create("t", 2)
    await site.produce("t", 10, 2)
    async with site.member(auto_commit_enable=False) as first:
        first.gate = trio.Event()
        streams = (await first.connector.create_message_streams({"t": 2}))["t"]
        first.read(*streams)
        await until(lambda: len(first.handed) == 2)
        async with site.member() as second:
            second.read(*(await second.connector.create_message_streams({"t": 1}))["t"])
            await until(lambda: sum(len(stream.assignment) for stream in streams) == 1)
            await first.connector.commit_offsets()
            assert [site.stored("t", 0), site.stored("t", 1)] == [1, 1]
            first.gate.set()
            await until(lambda: len(second.handed) == 4)
            assert list(second.offsets.values()) == [[1, 2, 3, 4]]


async def test_an_item_that_is_never_finished_moves_with_its_partition(site: Site) -> None:
    await site.create("t", 2)
    await site.produce("t", 4, 2)
    async with site.member(max_poll_interval_ms=50) as first:
        first.gate = trio.Event()
        first.read(*(await first.connector.create_message_streams({"t": 2}))["t"])
        await until(lambda: len(first.handed) == 2)
        async with site.member() as second:
            second.read(*(await second.connector.create_message_streams({"t": 1}))["t"])
            await until(lambda: len(second.handed) == 2)
            assert list(second.offsets.values()) == [[0, 1]]
            first.gate.set()


async def test_topics_that_appear_are_taken_up_from_their_start(site: Site) -> None:
    await site.create("page_views", 1)
    await site.produce("page_views", 3)
    async with site.member(auto_offset_reset="largest") as member:
        member.read(*await member.connector.create_message_streams_by_filter(WhiteList("page_.*"), 2))
        await until(lambda: len(member.connector.assignment) == 1)
        await site.create("page_clicks", 2)
        await site.create("other", 1)
        await site.produce("other", 1)
        await site.produce("page_clicks", 4, 2)
        await until(lambda: len(member.handed) == 4)
        await site.grow("page_views", 2)
        await site.producer.send("page_views", b"new", partition=1)
        await until(lambda: len(member.handed) == 5)
        assert member.handed[-1].topic_partition == TopicPartition("page_views", 1)
        assert TopicPartition("page_views", 0) not in member.offsets
        assert site.stored("page_views") == 3  # where it began is stored at once
        assert {name[-2:] for name in site.owners("page_clicks").values()} <= {"-0", "-1"}


async def test_a_black_list_leaves_topics_out(site: Site) -> None:
    for topic in ("a", "b", "c"):
        await site.create(topic, 1)
        await site.produce(topic, 1)
    async with site.member() as member:
        member.read(*await member.connector.create_message_streams_by_filter(BlackList("b")))
        await until(lambda: len(member.handed) == 2)
        assert {found.topic for found in member.offsets} == {"a", "c"}
        path = f"/consumers/{GROUP}/ids/{member.connector.consumer_id}"
        assert json.loads(site.zookeeper.znodes.find(path).data)["pattern"] == "black_list"


async def test_a_topic_may_be_asked_for_before_it_exists(site: Site) -> None:
    async with site.member() as member:
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await site.create("t", 1)
        await site.produce("t", 2)
        await until(lambda: len(member.handed) == 2)


async def test_largest_begins_at_the_end_and_smallest_at_the_start(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 5)
    async with site.member(group_id="new", auto_offset_reset="largest") as late, site.member() as early:
        for member in (late, early):
            member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: late.connector.assignment and early.connector.assignment)
        await site.produce("t", 1)
        await until(lambda: (len(late.handed), len(early.handed)) == (1, 6))
        assert late.offsets == {T0: [5]}


async def test_streams_are_made_once_for_each_topic(site: Site) -> None:
    await site.create("t", 1)
    await site.create("u", 1)
    async with site.member() as member:
        connector = member.connector
        for wrong in ({}, {"t": 0}, {"t": True}, {"a/b": 1}):
            with pytest.raises(ConfigurationError):
                await connector.create_message_streams(wrong)
        member.read(*(await connector.create_message_streams({"t": 1}))["t"])
        with pytest.raises(MessageStreamsExistError):
            await connector.create_message_streams({"t": 1})
        with pytest.raises(MessageStreamsExistError):
            await connector.create_message_streams_by_filter(WhiteList("u"))
        member.read(*(await connector.create_message_streams({"u": 2}))["u"])
        await site.produce("t", 1)
        await site.produce("u", 1)
        await until(lambda: len(member.handed) == 2)
        await connector.shutdown()
        with pytest.raises(MessageStreamsExistError):
            await connector.create_message_streams({"v": 1})


async def test_commits_by_the_program_and_rewinding(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 5)
    async with site.member(auto_commit_enable=False) as member:
        (stream,) = (await member.connector.create_message_streams({"t": 1}))["t"]
        records = aiter(stream)
        assert [(await anext(records)).offset for _ in range(3)] == [0, 1, 2]
        assert site.stored("t") == 0
        await member.connector.commit_offsets()
        assert site.stored("t") == 3
        await member.connector.commit_offsets({T0: 1})
        assert site.stored("t") == 1
        member.connector.seek(T0, 0)
        assert [(await anext(records)).offset for _ in range(2)] == [0, 1]
        with pytest.raises(OwnershipLostError) as refused:
            await member.connector.commit_offsets({T0: 2, T1: 7})
        assert refused.value.partitions == {T1}
        assert site.stored("t") == 2
        with pytest.raises(OwnershipLostError):
            member.connector.seek(T1, 0)
    assert site.stored("t") == 2  # without automatic commit none is made at the end


@pytest.mark.parametrize("commits", [False, True])
async def test_the_last_record_of_a_reader_that_leaves_its_loop_counts_if_it_is_committed(
    site: Site, commits: bool
) -> None:
    await site.create("t", 1)
    await site.produce("t", 5)
    async with site.member() as member:
        (stream,) = (await member.connector.create_message_streams({"t": 1}))["t"]
        async for record in stream:
            if record.offset == 2:
                break
        if commits:
            await member.connector.commit_offsets()
    assert site.stored("t") == 2 + commits


async def test_a_record_whose_processing_failed_is_handed_out_again(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 5)
    with pytest.raises(ExceptionGroup) as raised:
        async with site.member() as member:
            (stream,) = (await member.connector.create_message_streams({"t": 1}))["t"]
            async for record in stream:
                if record.offset == 2:
                    raise ZeroDivisionError
    assert raised.group_contains(ZeroDivisionError)
    assert site.stored("t") == 2
    assert site.owners("t") == {}


async def test_automatic_commits_store_finished_records(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 5)
    async with site.member(auto_commit_interval_ms=10) as member:
        member.gate = trio.Event()
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: len(member.handed) == 1)
        await member.connector.commit_offsets({T0: 0})
        await until(lambda: site.stored("t") == 0)
        member.gate.set()
        await until(lambda: site.stored("t") == 5)


async def test_a_session_that_expires_is_followed_by_another(site: Site) -> None:
    await site.create("t", 2)
    await site.produce("t", 10, 2)
    async with site.member() as member:
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: len(member.handed) == 10)
        await member.connector.commit_offsets()
        before = site.owners("t")
        site.zookeeper.expire(member.client)
        assert site.owners("t") == {}
        await until(lambda: site.owners("t") == before and len(member.connector.assignment) == 2)
        await site.produce("t", 2, 2)
        await until(lambda: len(member.handed) == 12)


async def test_without_zookeeper_reading_goes_on_until_the_lease_ends(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 2)
    async with site.member(session_timeout_ms=2_000) as member:
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: len(member.handed) == 2)
        membership = member.connector._membership
        assert membership is not None
        site.zookeeper.stop()
        assert membership.lease.holds()
        await site.produce("t", 1)
        await until(lambda: len(member.handed) == 3)
        await until(lambda: not membership.lease.holds())
        await site.produce("t", 1)
        await until(lambda: membership.consumed(with_item_in_hand=False) == {T0: 3})
        assert len(member.handed) == 3
        site.zookeeper.start()
        await until(lambda: len(member.handed) == 4)
    assert site.stored("t") == 4


async def test_a_topic_that_is_made_anew_begins_at_its_start(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 5)
    async with site.member() as member:
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: len(member.handed) == 5)
        await member.connector.commit_offsets()
        await delete_topics(site.cluster, ["t"], timeout_s=DEADLINE_S)
        await until(lambda: not member.connector.assignment)
        assert site.stored("t") is None
        await site.create("t", 1)
        await site.produce("t", 3)
        await until(lambda: len(member.handed) == 8)
        assert member.offsets[T0] == [0, 1, 2, 3, 4, 0, 1, 2]


async def test_a_name_in_use_is_refused_once_the_session_of_a_dead_process_would_have_ended(site: Site) -> None:
    async with site.member(consumer_id="one") as first:
        await first.connector.create_message_streams({"t": 1})
        async with site.member(consumer_id="one", session_timeout_ms=20) as second:
            with pytest.raises(NodeOwnedError):
                await second.connector.create_message_streams({"t": 1})
            await first.connector.shutdown()
            await second.connector.create_message_streams({"t": 1})


async def test_without_zookeeper_a_member_leaves_by_the_end_of_its_session(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 1)
    async with site.member(session_timeout_ms=100) as member:
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: len(member.handed) == 1)
        site.zookeeper.stop()
        with trio.fail_after(DEADLINE_S):
            await member.connector.shutdown()
        site.zookeeper.start()


async def test_a_name_that_another_process_took_ends_the_streams(site: Site) -> None:
    async with site.member(consumer_id="one") as member:
        (stream,) = (await member.connector.create_message_streams({"t": 1}))["t"]
        path = f"/consumers/{GROUP}/ids/{member.connector.consumer_id}"
        async with site.zookeeper.open() as other:

            def come_first(client: MemoryClient, asked: str) -> None:
                znodes = site.zookeeper.znodes
                if client is member.client and asked == path and znodes.find_or_none(path) is None:
                    znodes.create(path, b"", other.session, sequential=False, make_parents=False)

            site.zookeeper.before_request = come_first
            site.zookeeper.expire(member.client)
            with trio.fail_after(DEADLINE_S), pytest.raises(NodeOwnedError):
                await anext(aiter(stream))


async def test_partitions_of_kafkas_consumers_are_respected(site: Site) -> None:
    await site.create("t", 4)
    await site.produce("t", 8, 4)
    async with site.zookeeper.open() as foreign, site.member() as member:
        registration = b'{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1"}'
        await foreign.create(f"/consumers/{GROUP}/ids/{GROUP}_a", registration, ephemeral=True)
        for number in range(4):
            await foreign.create(f"/consumers/{GROUP}/owners/t/{number}", b"g_a-0", ephemeral=True)
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: site.tries[member.client] > 4)
        assert member.connector.assignment == frozenset()
        for number in (2, 3):  # as Kafka's range gives threads a-0, a-1 and ours one partition more for the first
            await foreign.delete(f"/consumers/{GROUP}/owners/t/{number}")
        await until(lambda: member.connector.assignment == {TopicPartition("t", 3)})
        await until(lambda: member.offsets == {TopicPartition("t", 3): [0, 1]})


class Listener(RebalanceListener):
    """Notes what it is told, seeks offsets, and commits."""

    def __init__(self, sought: dict[TopicPartition, int]) -> None:
        self.connector: ConsumerConnector | None = None
        self.told: list[tuple[str, set[TopicPartition]]] = []
        self.sought = sought

    async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("assigned", set(partitions)))
        assert self.connector is not None
        for found in partitions & self.sought.keys():
            self.connector.seek(found, self.sought[found])

    async def partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("revoked", set(partitions)))
        assert self.connector is not None
        await self.connector.commit_offsets(dict.fromkeys(partitions, 9))

    async def partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("lost", set(partitions)))


async def test_a_program_may_keep_the_offsets_itself(site: Site) -> None:
    await site.create("t", 2)
    await site.produce("t", 20, 2)
    listener = Listener({T0: 7})
    async with site.member(listener=listener, auto_commit_enable=False) as member:
        listener.connector = member.connector
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: len(member.handed) == 13)
        assert member.offsets == {T0: [7, 8, 9], T1: list(range(10))}
        site.zookeeper.expire(member.client)
        await until(lambda: len(member.handed) == 26)
        async with site.member() as other:
            await other.connector.create_message_streams({"t": 1})
            await until(lambda: len(other.connector.assignment) == 1)
            (moved,) = other.connector.assignment
        await until(lambda: len(member.connector.assignment) == 2)
    assert listener.told[:4] == [
        ("assigned", {T0, T1}),
        ("lost", {T0, T1}),
        ("assigned", {T0, T1}),
        ("revoked", {moved}),
    ]
    assert listener.told[4:] == [("assigned", {moved}), ("revoked", {T0, T1})]
    assert [site.stored("t", number) for number in (0, 1)] == [9, 9]
