"""How long the controller keeps the records of deletions."""

import trio
import trio.testing

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.controller.deletions import LOOK_S, PRUNE_S, tend_deletions
from pipeline.coordination.deleted_topics import RECORD_AGE_MS, find_deleted, mark_deleted, remove_znodes
from pipeline.coordination.znodes import TopicAssignment, topic_path
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.controllers import make_topic

START_MS = 1_700_000_000_000


async def test_records_are_kept_while_the_clock_is_wrong_for_a_short_while(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    ahead_ms = 0

    def clock() -> int:
        return START_MS + ahead_ms + int(trio.current_time() * 1000)

    async with MemoryZooKeeper().open() as client:
        await make_topic(client, "t", [(1,)])
        topic_id = TopicAssignment.decode("t", (await client.get(topic_path("t"))).data).id
        await mark_deleted(client, "t", topic_id, clock())
        await remove_znodes(client, "t", clock())

        async def is_kept() -> bool:
            return topic_id in await find_deleted(client, {topic_id})

        ahead_ms = 2 * RECORD_AGE_MS  # before the election
        nursery.start_soon(tend_deletions, client, ClusterView("c"), clock)
        await trio.sleep(PRUNE_S - LOOK_S)
        assert await is_kept()
        ahead_ms = 0
        await trio.sleep(PRUNE_S)
        ahead_ms = 2 * RECORD_AGE_MS  # after it
        await trio.sleep(PRUNE_S - LOOK_S)
        assert await is_kept()
        await trio.sleep(3 * LOOK_S)
        assert not await is_kept()
