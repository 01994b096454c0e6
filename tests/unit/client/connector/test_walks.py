"""Seeded walks of a group: members join, leave, lose answers of ZooKeeper, and are cut off beyond their session.

At the moment at which a member is handed a record, ZooKeeper has it as the owner of the partition. In the end each
record was handed out.
"""

from dataclasses import dataclass, field
from random import Random

import pytest
import trio

from pipeline.client.streams.stream import MessageStream
from pipeline.model import TopicPartition
from tests.unit.client.connector.conftest import DEADLINE_S, Member, Site, until

PARTITIONS = 7
SESSION_TIMEOUT_MS = 400
MOST_MEMBERS = 4


@dataclass(eq=False)
class Walk:
    site: Site
    random: Random
    nursery: trio.Nursery
    members: dict[Member, trio.Event] = field(default_factory=dict)
    seen: set[tuple[TopicPartition, int]] = field(default_factory=set)
    published: int = 0

    async def join(self) -> None:
        await self.nursery.start(self._live)

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        leaving = trio.Event()
        settings = {"auto_commit_interval_ms": 50, "session_timeout_ms": SESSION_TIMEOUT_MS}
        async with self.site.member(**settings) as member, trio.open_nursery() as readers:
            self.members[member] = leaving
            streams = (await member.connector.create_message_streams({"t": self.random.randint(1, 3)}))["t"]
            for stream in streams:
                readers.start_soon(self._read, member, stream)
            task_status.started()
            await leaving.wait()
            await member.connector.shutdown()

    async def _read(self, member: Member, stream: MessageStream) -> None:
        async for record in stream:
            owner = self.site.owners("t").get(record.topic_partition.partition, "nobody")
            assert owner.startswith(member.connector.consumer_id), f"{owner} owns {record.topic_partition}"
            self.seen.add((record.topic_partition, record.offset))
            if self.random.random() < 0.1:
                await trio.sleep(0.002)

    async def leave(self) -> None:
        member = self.random.choice(list(self.members))
        self.members.pop(member).set()

    async def cut_off(self) -> None:
        """As for a process that is paused beyond its session: it hears nothing, and then that the session has ended."""
        member = self.random.choice(list(self.members))
        membership = member.connector._membership
        assert membership is not None
        member.client.history.suspended()
        await until(lambda: not membership.lease.holds())
        if self.random.random() < 0.5:  # others take over before the member is back
            self.site.zookeeper.znodes.remove_ephemerals(member.client.session)
            await trio.sleep(self.random.uniform(0, 0.1))
        self.site.zookeeper.expire(member.client)

    async def outage(self) -> None:
        self.site.zookeeper.stop()
        await trio.sleep(self.random.uniform(0, 0.5))
        self.site.zookeeper.start()

    async def publish(self) -> None:
        await self.site.produce("t", 30, PARTITIONS)
        self.published += 30

    async def lose_answers(self) -> None:
        await trio.lowlevel.checkpoint()
        for member in self.members:
            member.client.lose_next_answer()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 22))])
async def test_owners_alone_are_handed_records_and_none_is_lost(site: Site, seed: int) -> None:
    random = Random(seed)
    await site.create("t", PARTITIONS)
    async with trio.open_nursery() as nursery:
        walk = Walk(site, random, nursery)
        await walk.join()
        for _ in range(25):
            steps = [walk.publish, walk.lose_answers, walk.cut_off, walk.outage]
            if len(walk.members) < MOST_MEMBERS:
                steps += [walk.join] * 2
            if len(walk.members) > 1:
                steps += [walk.leave]
            with trio.fail_after(DEADLINE_S):
                await random.choice(steps)()
            await trio.sleep(random.choice([0, 0.01, 0.1]))
        await until(lambda: len(walk.seen) == walk.published)
        await until(lambda: stored(site) == walk.published)  # records that were handed out twice, too
        for leaving in walk.members.values():
            leaving.set()
    assert site.owners("t") == {}
    assert stored(site) == walk.published


def stored(site: Site) -> int:
    return sum(site.stored("t", number) or 0 for number in range(PARTITIONS))
