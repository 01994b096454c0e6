"""Eight clients that fill all the memory they can have a broker hold, each kind of it at the same time: a broker stays
small, and serves the next client. Single kinds are in `test_hostile_clients`.
"""

import struct
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.errors import NetworkError
from pipeline.model import HostPort
from pipeline.net.connection_pool import ConnectionPool, open_connection_pool
from pipeline.net.transport import connect
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.describe_groups import DescribeGroupsRequest
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pipeline.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pipeline.protocol.schema import Message
from pipeline.records.batch import read_header, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.settings import parse_address
from pipeline.testing.local_cluster import LocalCluster
from tests.support.hostile import memory_kb

CLIENTS = 8
MAX_LIFT_KB = 200 * 1024
DEADLINE_S = 120
POLL_S = 0.1
PARTITIONS = 100
LARGEST_BYTES = 100 << 20
PRODUCERS = 6000
"""Of each client: together they are more than a broker remembers."""
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}
CHUNK = bytes(1 << 20)


@dataclass(frozen=True, slots=True)
class Attackers:
    """The clients. `tasks` hold connections open that send or read nothing more; `ended` are those the broker ended."""

    pool: ConnectionPool
    broker: HostPort
    topic_id: uuid.UUID
    tasks: trio.Nursery
    ended: list[int] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    async def ask(self, message: Message, lane: str) -> Any:
        """Ask until there is an answer: on a busy machine some wait for memory for longer than they may."""
        with trio.fail_after(DEADLINE_S):
            while True:
                try:
                    return await self.pool.request(self.broker, message, timeout_s=DEADLINE_S, lane=lane)
                except NetworkError:
                    await trio.sleep(POLL_S)

    async def each(self, attack: "Callable[[Attackers, int], Awaitable[None]]") -> None:
        """Have all clients do this at the same time."""
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(attack, self, number)

    async def begin(self, data: Sequence[bytes]) -> None:
        """Send the beginning of a request on a connection of its own, and wait until the broker ends that."""
        transport = await connect(self.broker)
        try:
            for piece in data:
                await transport.send([piece])
            await transport.receive_into(memoryview(bytearray(1)))
        except NetworkError:
            pass
        finally:
            transport.close()
        self.ended.append(next(self._numbers))

    async def wait_ended(self, number: int) -> None:
        """Wait until the broker has ended so many connections, which others wait for."""
        with trio.fail_after(DEADLINE_S):
            while len(self.ended) < number:
                await trio.sleep(POLL_S)

    async def ask_deaf(self, message: Message) -> None:
        """Ask on a connection of its own, and never read the answer."""
        transport = await connect(self.broker)
        try:
            await transport.send(ClientConnection("hostile").encode_request(message, message.VERSIONS[1])[1])
            await trio.sleep_forever()
        except NetworkError:
            pass
        finally:
            transport.close()


async def keep_members(attackers: Attackers, number: int) -> None:
    """Join groups, one member each, with as much metadata as a record of the journal may hold."""
    for index in range(30):
        join = JoinGroupRequest(
            group_id=f"members-{number}-{index}",
            group_instance_id="static",
            session_timeout_ms=300_000,
            rebalance_timeout_ms=1000,
            protocol_type="x",
            protocols=[JoinGroupRequestProtocol(name="p", metadata=bytes(500_000))],
        )
        await attackers.ask(join, f"members {number}")


async def keep_offsets(attackers: Attackers, number: int) -> None:
    """Commit offsets with long notes, for groups without members."""
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=f"{index:04000}")
        for index in range(PARTITIONS)
    ]
    topics = [OffsetCommitRequestTopic(name="plain", topic_id=attackers.topic_id, partitions=partitions)]
    for index in range(40):
        await attackers.ask(OffsetCommitRequest(group_id=f"offsets-{number}-{index}", topics=topics), f"of {number}")


async def keep_sessions(attackers: Attackers, number: int) -> None:
    partitions = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(8)]
    ids = [uuid.UUID(int=(number << 32) + index + 1) for index in range(1200)]
    topics = [FetchTopic(topic_id=topic_id, partitions=partitions) for topic_id in ids]
    fetch = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1000, session_epoch=0, topics=topics)
    await attackers.ask(fetch, f"sessions {number}")


async def keep_producers(attackers: Attackers, number: int) -> None:
    """Invent producers, of five batches each."""
    builder = BatchBuilder(Codec.NONE, 1000)
    builder.append(None, b"", (), 0)
    template = bytes(builder.build())
    header = read_header(template)
    for start in range(number * PRODUCERS, (number + 1) * PRODUCERS, 1000):
        for sequence in range(5):
            batches = bytearray()
            for producer_id in range(start, start + 1000):
                batch = bytearray(template)
                told = header._replace(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
                write_header(batch, told)
                batches += batch
            data = [PartitionProduceData(index=number, records=bytes(batches))]
            topics = [TopicProduceData(name="plain", topic_id=attackers.topic_id, partition_data=data)]
            await attackers.ask(ProduceRequest(acks=1, timeout_ms=60_000, topic_data=topics), f"producers {number}")


async def send_halves(attackers: Attackers, number: int) -> None:
    """Begin a Produce request of the largest size, and one of ordinary size, and never end them."""
    for size in (LARGEST_BYTES, 1 << 20):
        head = struct.pack(">ihhih", size, ApiKey.PRODUCE, 9, 1, -1)
        left = size - len(head) - 1
        attackers.tasks.start_soon(attackers.begin, [head, *[CHUNK] * (left >> 20), bytes(left & (len(CHUNK) - 1))])


async def hear_no_names(attackers: Attackers, number: int) -> None:
    names = [f"{number}-{index:06}".ljust(100, "x") for index in range(99_000)]
    asked = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
    attackers.tasks.start_soon(attackers.ask_deaf, request)


async def hear_no_members(attackers: Attackers, number: int) -> None:
    request = DescribeGroupsRequest(groups=[f"members-{number}-{index}" for index in range(30)])
    attackers.tasks.start_soon(attackers.ask_deaf, request)


async def hear_no_offsets(attackers: Attackers, number: int) -> None:
    groups = [OffsetFetchRequestGroup(group_id=f"offsets-{number}-{index}", topics=None) for index in range(40)]
    attackers.tasks.start_soon(attackers.ask_deaf, OffsetFetchRequest(groups=groups))


KEEPING = (keep_members, keep_offsets, keep_sessions, keep_producers)
PASSING = (send_halves, hear_no_names, hear_no_members, hear_no_offsets)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_no_mix_of_hostile_clients_lifts_a_broker_by_much() -> None:
    with LocalCluster(settings=SETTINGS) as cluster:
        trio.run(_attack, cluster)


async def _attack(cluster: LocalCluster) -> None:
    broker, pid = parse_address(cluster.bootstrap), cluster.pids["broker-1"]
    async with open_connection_pool("hostile") as pool, trio.open_nursery() as tasks:
        attackers = Attackers(pool, broker, await _prepare(pool, broker), tasks)
        before_kb = memory_kb(pid, "VmRSS")

        def lift_kb(what: str) -> int:
            lift = memory_kb(pid, "VmHWM") - before_kb
            now = memory_kb(pid, "VmRSS") - before_kb
            print(f"{what}: lifted from {before_kb >> 10} MiB by {lift >> 10}, now {now >> 10} MiB", flush=True)
            return lift

        for keep in KEEPING:
            await attackers.each(keep)
            lift_kb(keep.__name__)
        for passing in (PASSING, PASSING[::-1]):
            del attackers.ended[:]
            for attack in passing:
                await attackers.each(attack)
                if attack is send_halves:
                    await attackers.wait_ended(1)  # others wait for memory by now
            await attackers.wait_ended(CLIENTS // 2)  # the last of them keeps what it holds
            lift_kb("all at once")
        tasks.cancel_scope.cancel()
    async with open_connection_pool("friendly") as pool:
        assert await _send_largest(pool, broker, attackers.topic_id) == {ErrorCode.NONE}
    assert lift_kb("afterwards") < MAX_LIFT_KB


async def _send_largest(pool: ConnectionPool, broker: HostPort, topic_id: uuid.UUID) -> set[int]:
    """Send as much as a request may have. Returns the error codes of its partitions."""
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    builder.append(None, bytes(LARGEST_BYTES // PARTITIONS - 1000), (), 0)
    batch = bytes(builder.build())
    data = [PartitionProduceData(index=index, records=batch) for index in range(PARTITIONS)]
    topics = [TopicProduceData(name="plain", topic_id=topic_id, partition_data=data)]
    request = ProduceRequest(acks=1, timeout_ms=60_000, topic_data=topics)
    answer = await pool.request(broker, request, timeout_s=DEADLINE_S)
    return {part.error_code for part in answer.responses[0].partition_responses}


async def _prepare(pool: ConnectionPool, broker: HostPort) -> uuid.UUID:
    """Make a topic, and wait until groups are coordinated here. Returns its id."""
    topics = [CreatableTopic(name="plain", num_partitions=PARTITIONS, replication_factor=1)]
    await pool.request(broker, CreateTopicsRequest(topics=topics, timeout_ms=60_000), timeout_s=DEADLINE_S)
    find = FindCoordinatorRequest(coordinator_keys=["g"])
    with trio.fail_after(DEADLINE_S):
        while (await pool.request(broker, find, timeout_s=DEADLINE_S)).coordinators[0].error_code:
            await trio.sleep(POLL_S)
    known = await pool.request(broker, MetadataRequest(topics=None), timeout_s=DEADLINE_S)
    topic_id: uuid.UUID = next(topic.topic_id for topic in known.topics if topic.name == "plain")
    return topic_id
