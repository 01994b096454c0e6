"""`ConsumerConnector` at odd moments: cancelled tasks, failing listeners, topics that vanish, late leaves."""

import pytest
import trio

from pipeline.client.admin.topics import delete_topics
from pipeline.client.connector.connector import MessageStreamsExistError
from pipeline.client.connector.ownership import OwnershipLostError
from pipeline.client.group.listener import RebalanceListener
from pipeline.coordination.znodes import TopicAssignment
from pipeline.errors import CoordinationLostError, NodeOwnedError
from pipeline.model import TopicPartition
from pipeline.testing.memory_zookeeper import MemoryClient
from tests.unit.client.connector.conftest import DEADLINE_S, GROUP, Site, until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def ids(site: Site) -> list[str]:
    return site.zookeeper.znodes.children(f"/consumers/{GROUP}/ids")


async def test_a_record_whose_processing_was_cancelled_is_handed_out_again(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 3)
    async with site.member() as member:
        (stream,) = (await member.connector.create_message_streams({"t": 1}))["t"]
        with trio.CancelScope() as reading:
            async for record in stream:
                if record.offset == 1:
                    reading.cancel()
                    await trio.sleep_forever()
    assert site.stored("t") == 1


async def test_the_record_in_hand_of_a_task_that_was_cancelled_is_handed_out_again(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 3)
    async with site.member() as member:
        member.gate = trio.Event()
        streams = (await member.connector.create_message_streams({"t": 1}))["t"]
        async with trio.open_nursery() as readers:
            member.nursery = readers
            member.read(*streams)
            await until(lambda: member.handed)
            readers.cancel_scope.cancel()
    assert site.stored("t") == 0


async def test_a_commit_that_includes_the_record_in_hand_is_not_taken_back(site: Site) -> None:
    await site.create("t", 2)
    await site.produce("t", 4, 2)
    async with site.member(auto_commit_interval_ms=10) as member:
        streams = (await member.connector.create_message_streams({"t": 2}))["t"]
        await until(lambda: all(stream.assignment for stream in streams))
        records = aiter(next(stream for stream in streams if T0 in stream.assignment))
        assert (await anext(records)).offset == 0
        await member.connector.commit_offsets({T0: 1})
        member.read(next(stream for stream in streams if T1 in stream.assignment))
        await until(lambda: site.stored("t", 1) == 2)  # by the automatic commit
        assert site.stored("t") == 1
        assert (await anext(records)).offset == 1
        await member.connector.commit_offsets()
        await site.produce("t", 2, 2)
        await until(lambda: site.stored("t", 1) == 3)
        assert site.stored("t") == 2
    assert site.stored("t") == 2


class FailingListener(RebalanceListener):
    """Raises an error of the library's, as `commit_offsets` may do within it."""

    def __init__(self, *methods: str) -> None:
        self.methods = methods
        self.told: list[tuple[str, set[TopicPartition]]] = []

    async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("assigned", partitions)

    async def partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("revoked", partitions)

    async def partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("lost", partitions)

    def _note(self, method: str, partitions: frozenset[TopicPartition]) -> None:
        self.told.append((method, set(partitions)))
        if method in self.methods:
            raise OwnershipLostError(partitions)


@pytest.mark.parametrize("method", ["assigned", "revoked"])
async def test_an_error_of_the_listener_ends_the_block(site: Site, method: str) -> None:
    await site.create("t", 2)
    listener = FailingListener(method)
    with trio.fail_after(DEADLINE_S), pytest.RaisesGroup(OwnershipLostError, flatten_subgroups=True):
        async with site.member(listener=listener) as member, site.member() as other:
            member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
            await until(lambda: method == "assigned" or len(member.connector.assignment) == 2)
            await other.connector.create_message_streams({"t": 1})
            await trio.sleep_forever()
    assert [told for told, _ in listener.told] == ["assigned", "revoked"][: len(listener.told)]
    assert (ids(site), site.owners("t")) == ([], {})


async def test_partitions_that_were_lost_are_not_reported_as_given_up(site: Site) -> None:
    await site.create("t", 2)
    await site.produce("t", 2, 2)
    listener = FailingListener()
    async with site.member(listener=listener) as member:
        member.gate = trio.Event()
        member.read(*(await member.connector.create_message_streams({"t": 2}))["t"])
        await until(lambda: len(member.handed) == 2)
        async with site.member() as other:
            await other.connector.create_message_streams({"t": 1})
            await until(lambda: site.tries[other.client] > 4)
            site.zookeeper.expire(member.client)
            await until(lambda: ("lost", {T0, T1}) in listener.told)
            await until(lambda: len(other.connector.assignment) == 1 == len(member.connector.assignment))
            member.gate.set()
            await until(lambda: len(member.handed) == 3)
            assert [told for told, _ in listener.told] == ["assigned", "lost", "assigned"]


@pytest.mark.parametrize("reset", ["smallest", "largest"])
async def test_a_topic_that_is_made_anew_while_a_record_is_in_hand_begins_at_its_start(site: Site, reset: str) -> None:
    await site.create("t", 1)
    async with site.member(auto_offset_reset=reset) as member:
        member.gate = trio.Event()
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: member.connector.assignment)
        await site.produce("t", 5)
        await until(lambda: member.handed)
        await delete_topics(site.cluster, ["t"], timeout_s=DEADLINE_S)
        await site.create("t", 1)
        await site.produce("t", 3)
        made = TopicAssignment.decode("t", site.zookeeper.znodes.find("/brokers/topics/t").data).id
        membership = member.connector._membership
        assert membership is not None
        await until(lambda: membership._registries.topic_ids.get("t") == made)
        member.gate.set()
        await until(lambda: member.offsets[T0][-3:] == [0, 1, 2])
    assert site.stored("t") == 3


async def test_offsets_survive_a_topic_that_cannot_be_read_for_a_while(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 5)
    async with site.member() as member:
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: len(member.handed) == 5)
        znodes, path = site.zookeeper.znodes, "/brokers/topics/t"
        data = znodes.find(path).data
        znodes.set(path, b"\xff{", -1)
        await until(lambda: not member.connector.assignment)
        assert site.stored("t") == 5
        znodes.set(path, data, -1)
        await until(lambda: member.connector.assignment)
    assert member.offsets == {T0: list(range(5))}


@pytest.mark.parametrize(
    ("offset", "error"), [(-1, ValueError), (2**63, ValueError), (2.0, TypeError), ("2", TypeError), (None, TypeError)]
)
async def test_impossible_offsets_are_refused(site: Site, offset: int, error: type[Exception]) -> None:
    await site.create("t", 2)
    async with site.member() as member:
        await member.connector.create_message_streams({"t": 1})
        await until(lambda: len(member.connector.assignment) == 2)
        with pytest.raises(error):
            await member.connector.commit_offsets({T0: 7, T1: offset})
        with pytest.raises(error):
            member.connector.seek(T0, offset)
        assert [site.stored("t", number) for number in (0, 1)] == [0, 0]


async def test_a_member_that_leaves_gives_others_what_its_readers_do_not_have_in_hand(site: Site) -> None:
    await site.create("t", 4)
    await site.produce("t", 1)
    async with site.member() as first, site.member() as second:
        first.gate = trio.Event()
        first.read(*(await first.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: first.handed)
        await second.connector.create_message_streams({"t": 1})
        async with trio.open_nursery() as leaving:
            leaving.start_soon(first.connector.shutdown)
            await until(lambda: len(second.connector.assignment) == 3)
            assert site.owners("t")[0].startswith(first.connector.consumer_id)
            first.gate.set()
        await until(lambda: len(second.connector.assignment) == 4)
        assert site.stored("t") == 1


async def test_a_session_that_expires_while_a_member_leaves_is_not_followed_by_another(site: Site) -> None:
    await site.create("t", 2)
    await site.produce("t", 1)
    async with site.member() as first, site.member() as second:
        first.gate = trio.Event()
        first.read(*(await first.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: first.handed)
        await second.connector.create_message_streams({"t": 1})
        async with trio.open_nursery() as leaving:
            leaving.start_soon(first.connector.shutdown)
            await until(lambda: len(ids(site)) == 1)
            site.zookeeper.expire(first.client)
            await until(lambda: len(second.connector.assignment) == 2)
            await second.connector.commit_offsets({T0: 0})
            first.gate.set()
        assert len(ids(site)) == 1
        assert site.stored("t") == 0
        assert {owner[:-2] for owner in site.owners("t").values()} == {second.connector.consumer_id}


async def test_a_shutdown_that_is_cancelled_leaves_no_member_behind(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 1)
    async with trio.open_nursery() as readers:
        async with site.zookeeper.open() as shared:
            with trio.CancelScope() as block:
                async with site.member(client=shared) as member:
                    member.gate, member.nursery = trio.Event(), readers
                    member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
                    await until(lambda: member.handed)
                    block.deadline = trio.current_time() + 0.1
            assert block.cancelled_caught
            assert (ids(site), site.owners("t"), site.stored("t")) == ([], {}, 0)
        readers.cancel_scope.cancel()


async def test_a_shutdown_that_was_cancelled_may_be_repeated(site: Site) -> None:
    await site.create("t", 1)
    await site.produce("t", 1)
    async with site.member() as member:
        member.gate = trio.Event()
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: member.handed)
        with trio.move_on_after(0.05) as waiting:
            await member.connector.shutdown()
        assert waiting.cancelled_caught
        member.gate.set()
        await member.connector.shutdown()
        assert (ids(site), site.owners("t")) == ([], {})


async def test_a_call_for_the_first_streams_that_is_cancelled_leaves_no_member_behind(site: Site) -> None:
    async with site.member() as member:
        with trio.CancelScope() as asking:

            def cancel_once_registered(_client: MemoryClient, _path: str) -> None:
                if ids(site):
                    asking.cancel()

            site.zookeeper.before_request = cancel_once_registered
            member.client.lose_next_answer()
            await member.connector.create_message_streams({"t": 1})
        assert asking.cancelled_caught
        assert ids(site) == []
        site.zookeeper.before_request = None
        await member.connector.create_message_streams({"t": 1})
        assert len(ids(site)) == 1


async def test_further_streams_are_registered_once_zookeeper_is_back(site: Site) -> None:
    await site.create("t", 1)
    await site.create("u", 1)
    async with site.member() as member:
        member.read(*(await member.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: member.connector.assignment)
        site.zookeeper.stop()
        with trio.fail_after(DEADLINE_S):
            member.read(*(await member.connector.create_message_streams({"u": 1}))["u"])
        site.zookeeper.start()
        await site.produce("u", 1)
        await until(lambda: member.handed)


async def test_a_member_that_wakes_up_as_it_leaves_does_not_remove_its_successors_registration(site: Site) -> None:
    async with site.member(consumer_id="one") as first, site.member(consumer_id="one") as second:
        await first.connector.create_message_streams({"t": 1})
        first.client.history.suspended()
        site.zookeeper.znodes.remove_ephemerals(first.client.session)
        await second.connector.create_message_streams({"t": 1})
        created_at = site.zookeeper.znodes.find(f"/consumers/{GROUP}/ids/{GROUP}_one").changed_at
        site.zookeeper.expire(first.client)
        await first.connector.shutdown()
        assert site.zookeeper.znodes.find(f"/consumers/{GROUP}/ids/{GROUP}_one").changed_at == created_at


async def test_a_connector_whose_name_was_taken_has_no_further_streams(site: Site) -> None:
    async with site.member(consumer_id="one") as first, site.member(consumer_id="one") as second:
        (stream,) = (await first.connector.create_message_streams({"t": 1}))["t"]
        first.client.history.suspended()
        site.zookeeper.znodes.remove_ephemerals(first.client.session)
        await second.connector.create_message_streams({"t": 1})
        site.zookeeper.expire(first.client)
        with trio.fail_after(DEADLINE_S), pytest.raises(NodeOwnedError):
            await anext(aiter(stream))
        with pytest.raises(MessageStreamsExistError):
            await first.connector.create_message_streams({"u": 1})


async def test_a_name_of_another_connector_of_the_same_session_is_refused(site: Site) -> None:
    await site.create("t", 2)
    async with (
        site.zookeeper.open(session_timeout_ms=1_000) as shared,
        site.member(client=shared, consumer_id="one") as first,
        site.member(client=shared, consumer_id="one") as second,
    ):
        await first.connector.create_message_streams({"t": 1})
        await until(lambda: len(first.connector.assignment) == 2)
        with pytest.raises(NodeOwnedError):
            await second.connector.create_message_streams({"t": 1})
        assert first.connector.assignment == {T0, T1}


async def test_offsets_of_a_release_that_the_shutdown_interrupts_are_stored(site: Site) -> None:
    await site.create("t", 2)
    await site.produce("t", 10, 2)
    async with site.member(auto_commit_interval_ms=60_000) as first, site.member() as second:
        first.read(*(await first.connector.create_message_streams({"t": 1}))["t"])
        await until(lambda: len(first.handed) == 10)
        is_leaving, has_failed = trio.Event(), trio.Event()

        def fail(client: MemoryClient, path: str) -> None:
            if client is first.client and path.startswith(f"/consumers/{GROUP}/owners/") and not is_leaving.is_set():
                has_failed.set()
                raise CoordinationLostError(path, "connection lost")

        site.zookeeper.before_request = fail
        await second.connector.create_message_streams({"t": 1})
        await has_failed.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.connector.shutdown)
            await until(lambda: len(ids(site)) == 1)
            is_leaving.set()
        assert [site.stored("t", number) for number in (0, 1)] == [5, 5]
