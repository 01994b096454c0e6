"""500 groups with 2,000 members, each on a connection of its own, hold on one broker and cost it little."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.model import HostPort
from pipeline.net.transport import SocketTransport, connect
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.describe_groups import DescribeGroupsRequest
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.heartbeat import HeartbeatRequest
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pipeline.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pipeline.protocol.schema import Message
from pipeline.settings import parse_address
from pipeline.testing.local_cluster import LocalCluster

GROUPS, MEMBERS_OF_A_GROUP = 500, 4
SESSION_MS = 300_000
HEARTBEAT_INTERVAL_S = 3
MAX_SHARE_OF_A_CORE = 0.25
DEADLINE_S = 500
CLOCK_TICKS_PER_S = 100
RETRIED = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS,
}


class Member:
    """A member of a group, as a client is one."""

    def __init__(self, transport: SocketTransport, group: str) -> None:
        self._machine, self._transport = ClientConnection("member"), transport
        self._group = group
        self._id, self._generation = "", -1

    async def ask(self, message: Message) -> Any:
        _, pieces = self._machine.encode_request(message, message.VERSIONS[1])
        await self._transport.send(pieces)
        while (answer := self._machine.next_response()) is None:
            received = await self._transport.receive_into(self._machine.get_buffer())
            assert received
            self._machine.bytes_received(received)
        return answer[1]

    async def enter(self) -> None:
        """Until its group has all its members and has given each its part."""
        while True:
            joined = await self.ask(
                JoinGroupRequest(
                    group_id=self._group,
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=SESSION_MS,
                    member_id=self._id,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0")],
                )
            )
            self._id = joined.member_id or self._id
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            if joined.error_code == ErrorCode.NONE:
                self._generation = joined.generation_id
                assignments = [
                    SyncGroupRequestAssignment(member_id=member.member_id, assignment=member.member_id.encode())
                    for member in joined.members
                ]
                synced = await self.ask(
                    SyncGroupRequest(
                        group_id=self._group,
                        generation_id=self._generation,
                        member_id=self._id,
                        assignments=assignments,
                    )
                )
                if synced.error_code == ErrorCode.NONE:
                    assert synced.assignment == self._id.encode()
                    return
                joined = synced
            assert joined.error_code in RETRIED, ErrorCode.of(joined.error_code)
            await trio.sleep(0.1)

    async def beat(self) -> ErrorCode:
        request = HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._id)
        return ErrorCode.of((await self.ask(request)).error_code)


@asynccontextmanager
async def member_of(address: HostPort, group: str) -> AsyncIterator[Member]:
    transport = await connect(address)
    try:
        yield Member(transport, group)
    finally:
        transport.close()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S


async def beat_all(members: list[Member]) -> dict[Member, ErrorCode]:
    """One heartbeat of each, all at once."""
    codes: dict[Member, ErrorCode] = {}

    async def beat(member: Member) -> None:
        codes[member] = await member.beat()

    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(beat, member)
    return codes


async def enter_all(members: list[Member]) -> None:
    """Until all are in their groups. Those that are in send heartbeats, and enter again when another one comes late."""
    entering, settled = len(members), trio.Event()

    async def stay(member: Member) -> None:
        nonlocal entering
        while not settled.is_set():
            await member.enter()
            entering -= 1
            if not entering:
                settled.set()
            code = ErrorCode.NONE
            while code is ErrorCode.NONE and not settled.is_set():
                with trio.move_on_after(HEARTBEAT_INTERVAL_S):
                    await settled.wait()
                code = await member.beat()
            assert code in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}
            entering += 1

    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(stay, member)


@pytest.mark.long
async def test_many_groups_stay_stable(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, settings={"group.initial.rebalance.delay.ms": 1000}) as cluster:
        address, groups = parse_address(cluster.bootstrap), [f"group-{number}" for number in range(GROUPS)]
        members: list[Member] = []
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery, member_of(address, "") as asker:
                await asker.ask(FindCoordinatorRequest(coordinator_keys=groups))

                async def live(group: str, *, task_status: trio.TaskStatus[None]) -> None:
                    async with member_of(address, group) as member:
                        members.append(member)
                        task_status.started()
                        await trio.sleep_forever()

                for group in groups * MEMBERS_OF_A_GROUP:
                    await nursery.start(live, group)
                late = members
                while late:
                    await enter_all(late)
                    before_s = cpu_s(cluster.pids["broker-1"])
                    codes = await beat_all(members)
                    share = (cpu_s(cluster.pids["broker-1"]) - before_s) / HEARTBEAT_INTERVAL_S
                    assert set(codes.values()) <= {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}
                    late = [member for member, code in codes.items() if code is not ErrorCode.NONE]
                described = (await asker.ask(DescribeGroupsRequest(groups=groups))).groups
                nursery.cancel_scope.cancel()
        standing = [(ErrorCode.of(group.error_code), group.group_state, len(group.members)) for group in described]
        assert set(standing) == {(ErrorCode.NONE, "Stable", MEMBERS_OF_A_GROUP)}
        print(f"{len(members)} heartbeats in {HEARTBEAT_INTERVAL_S} s take {share:.3f} of a core")
        assert share < MAX_SHARE_OF_A_CORE
