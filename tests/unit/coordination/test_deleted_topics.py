"""Deletions of topics, cut off at each step, finished by others, and forgotten after long."""

import json
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.coordination import deleted_topics
from pipeline.coordination.deleted_topics import (
    RECORD_AGE_MS,
    VIEW_AGE_MS,
    DeletedTopic,
    find_deleted,
    mark_deleted,
    prune_records,
    record_path,
    remove_znodes,
    write_record,
)
from pipeline.coordination.interface import CoordinationClient, Operation
from pipeline.coordination.partition_states import StateChange, write_states
from pipeline.coordination.znodes import (
    PartitionState,
    TopicAssignment,
    encode_config,
    partition_state_path,
    topic_config_path,
    topic_path,
)
from pipeline.errors import CoordinationError, CoordinationLostError
from pipeline.model import BrokerId, LeaderEpoch
from pipeline.testing.memory_zookeeper import MemoryZooKeeper

NOW_MS = 1_700_000_000_000
TOPIC_ID = uuid.UUID(int=7)
OTHER_ID = uuid.UUID(int=8)
PARTITIONS = 3


async def make(client: CoordinationClient, name: str = "t", topic_id: uuid.UUID | None = TOPIC_ID) -> None:
    replicas = {index: (BrokerId(1),) for index in range(PARTITIONS)}
    assignment = TopicAssignment(topic=name, topic_id=topic_id, partitions=replicas)
    await client.create(assignment.path, assignment.encode())
    await client.create(topic_config_path(name), encode_config({}))
    states = [
        PartitionState(
            topic=name,
            partition=index,
            leader=BrokerId(1),
            leader_epoch=LeaderEpoch(0),
            isr=(BrokerId(1),),
            controller_epoch=1,
        )
        for index in range(PARTITIONS)
    ]
    changes = [StateChange(topic_id=assignment.id, state=state, version=None) for state in states]
    await write_states(client, changes)


class CutOff:
    """A client of a process that ends as it sends its n-th transaction, or right after that."""

    def __init__(self, client: Any, transactions: int, *, is_done: bool) -> None:
        self._client = client
        self._left = transactions
        self._is_done = is_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        if self._left == 0:
            if self._is_done:
                await self._client.transaction(operations)
            raise KeyboardInterrupt
        self._left -= 1
        await self._client.transaction(operations)


async def is_gone(client: CoordinationClient, name: str = "t") -> bool:
    return await client.exists(topic_path(name)) is None and await client.exists(topic_config_path(name)) is None


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("step", range(6))
async def test_a_deletion_that_is_cut_off_at_any_step_is_finished_by_another(
    monkeypatch: pytest.MonkeyPatch, step: int, *, is_done: bool
) -> None:
    monkeypatch.setattr(deleted_topics, "REMOVED_AT_ONCE", 2)
    async with MemoryZooKeeper().open() as client:
        await make(client)
        cut_off: Any = CutOff(client, step, is_done=is_done)
        try:
            await mark_deleted(cut_off, "t", TOPIC_ID, NOW_MS)
            await remove_znodes(cut_off, "t", NOW_MS)
        except KeyboardInterrupt:
            pass
        else:
            assert step == 5
        is_marked = step > 0 or is_done
        assert await find_deleted(client, {TOPIC_ID, OTHER_ID}) == ({TOPIC_ID} if is_marked else set())
        await remove_znodes(client, "t", NOW_MS)
        assert await is_gone(client) == is_marked
        if not is_marked:
            assert await client.exists(partition_state_path("t", 2)) is not None


async def test_a_marked_topic_has_no_partitions_for_brokers_of_any_version() -> None:
    async with MemoryZooKeeper().open() as client:
        await make(client)
        await mark_deleted(client, "t", TOPIC_ID, NOW_MS)
        found = (await client.get(topic_path("t"))).data
        assert json.loads(found)["partitions"] == {}
        marked = TopicAssignment.decode("t", found)
        assert (marked.is_deleted, marked.id, marked.partitions) == (True, TOPIC_ID, {})


async def test_a_lost_answer_changes_nothing() -> None:
    async with MemoryZooKeeper().open() as client:
        await make(client)
        client.lose_next_answer()
        await mark_deleted(client, "t", TOPIC_ID, NOW_MS)
        plain, count = client.transaction, 0

        async def lose_all(operations: Sequence[Operation]) -> None:
            nonlocal count
            count += 1
            await plain(operations)
            if count % 2:
                raise CoordinationLostError("/", "lost")

        client.transaction = lose_all  # type: ignore[method-assign]
        await remove_znodes(client, "t", NOW_MS)
        assert await is_gone(client)
        assert await find_deleted(client, {TOPIC_ID}) == {TOPIC_ID}


async def test_another_topic_of_the_name_is_not_deleted() -> None:
    async with MemoryZooKeeper().open() as client:
        await make(client, topic_id=OTHER_ID)
        await mark_deleted(client, "t", TOPIC_ID, NOW_MS)
        await remove_znodes(client, "t", NOW_MS)
        assert await client.exists(partition_state_path("t", 0)) is not None
        assert await find_deleted(client, {TOPIC_ID, OTHER_ID}) == set()


async def test_a_broker_that_was_stopped_in_a_deletion_removes_nothing_of_a_topic_made_since() -> None:
    async with MemoryZooKeeper().open() as client:
        await make(client)
        await mark_deleted(client, "t", TOPIC_ID, NOW_MS)
        plain = client.transaction

        async def wake_late(operations: Sequence[Operation]) -> None:
            client.transaction = plain  # type: ignore[method-assign]
            await remove_znodes(client, "t", NOW_MS)
            await make(client, topic_id=OTHER_ID)
            again = TopicAssignment(topic="t", topic_id=OTHER_ID, partitions={0: (BrokerId(2),)})
            await client.set(again.path, again.encode())  # so that its znode has the version of the former one
            await plain(operations)

        client.transaction = wake_late  # type: ignore[method-assign]
        await remove_znodes(client, "t", NOW_MS)
        for index in range(PARTITIONS):
            assert await client.exists(partition_state_path("t", index)) is not None


async def test_znodes_that_somebody_else_put_below_a_topic_go_with_it() -> None:
    async with MemoryZooKeeper().open() as client:
        await make(client)
        for path in ("partitions/0/note", "partitions/x/y/z", "other/deep/er"):
            await client.create(f"{topic_path('t')}/{path}")
        await mark_deleted(client, "t", TOPIC_ID, NOW_MS)
        await remove_znodes(client, "t", NOW_MS)
        assert await is_gone(client)


async def test_a_topic_without_an_id_is_deleted_by_the_id_that_is_derived_from_its_name() -> None:
    async with MemoryZooKeeper().open() as client:
        await make(client, topic_id=None)
        topic_id = TopicAssignment.decode("t", (await client.get(topic_path("t"))).data).id
        await mark_deleted(client, "t", topic_id, NOW_MS)
        await remove_znodes(client, "t", NOW_MS)
        assert await find_deleted(client, {topic_id}) == {topic_id}
        await make(client, topic_id=None)  # by an old tool: the record must not tell of this one
        assert await prune_records(client, {topic_id}, NOW_MS + VIEW_AGE_MS + 1) == 1
        await mark_deleted(client, "t", topic_id, NOW_MS)
        await mark_deleted(client, "t", topic_id, NOW_MS)
        await remove_znodes(client, "t", NOW_MS)
        assert await is_gone(client)
        assert await find_deleted(client, {topic_id}) == {topic_id}


async def test_a_record_that_somebody_removed_is_written_again_before_the_znodes_go() -> None:
    async with MemoryZooKeeper().open() as client:
        await make(client)
        await mark_deleted(client, "t", TOPIC_ID, NOW_MS)
        await client.delete(record_path(TOPIC_ID))
        await remove_znodes(client, "t", NOW_MS)
        assert await is_gone(client)
        assert await find_deleted(client, {TOPIC_ID}) == {TOPIC_ID}


async def test_records_are_bounded_in_age_and_number_and_those_under_way_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deleted_topics, "MAX_RECORDS", 3)
    async with MemoryZooKeeper().open() as client:
        assert await prune_records(client, (), NOW_MS) == 0
        ids = [uuid.UUID(int=number) for number in range(10)]
        for number, topic_id in enumerate(ids):
            record = DeletedTopic(
                topic_id=topic_id, topic=f"t{number}", timestamp_ms=NOW_MS + number, is_complete=number != 1
            )
            await write_record(client, record)
        await client.create(f"{DeletedTopic.PARENT}/readme", b"\xff")
        assert await prune_records(client, (), NOW_MS + RECORD_AGE_MS + 5) == 6
        assert await find_deleted(client, ids) == {ids[1], *ids[7:]}


async def test_a_znode_that_is_no_record_is_no_deletion() -> None:
    async with MemoryZooKeeper().open() as client:
        for data in (b"", b"{", b"[]", b'{"version":1}', b"\xff" * 100):
            await client.create(record_path(TOPIC_ID), data)
            assert await find_deleted(client, {TOPIC_ID}) == set()
            await client.delete(record_path(TOPIC_ID))


async def test_a_topic_znode_that_cannot_be_read_is_not_deleted() -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(topic_path("t"), b"garbage")
        with pytest.raises(CoordinationError, match="cannot be read"):
            await mark_deleted(client, "t", TOPIC_ID, NOW_MS)
        assert await find_deleted(client, {TOPIC_ID}) == set()
