"""Answers that wait for others, while what comes behind them on the connection is handled."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from pipeline.errors import NetworkError, ProtocolError
from pipeline.model import HostPort
from pipeline.net.answers import Answer, Peer
from pipeline.net.owed import MAX_OWED, Owed
from pipeline.net.signals import Outcome
from pipeline.net.transport import SocketTransport, connect
from pipeline.protocol.connection import ClientConnection, Request
from pipeline.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pipeline.protocol.schema import Message

DEADLINE_S = 60


def same_socket(transport: SocketTransport) -> socket.socket:
    """Return the socket of a transport, by a descriptor of its own."""
    return socket.socket(fileno=os.dup(transport.descriptor))


class Debt(Owed):
    """Over when the test says so."""

    def __init__(self, name: str, deadline: float) -> None:
        super().__init__([Outcome()], deadline, self._say)
        self.name = name
        self.is_given_up = False

    def _say(self) -> Answer:
        return MetadataResponse(cluster_id=self.name if self.is_over else f"{self.name} is late")

    def leave(self) -> None:
        super().leave()
        self.is_given_up = True


class Handler:
    """Owes what it is asked for; topics named `now` are answered at once, `later` after a while, `bad` not at all."""

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.debts: list[Debt] = []
        self.timeout_s = 60.0

    def __call__(self, request: Request[Message], peer: Peer) -> Any:
        if not isinstance(request.body, MetadataRequest):
            self.handled.append("groups")
            return ListGroupsResponse()
        assert request.body.topics
        name = request.body.topics[0].name
        assert name is not None
        self.handled.append(name)
        if name.startswith("now"):
            return MetadataResponse(cluster_id=name)
        if name.startswith("later"):
            return self._later(name)
        if name.startswith("bad"):
            raise ProtocolError(name)
        self.debts.append(Debt(name, trio.current_time() + self.timeout_s))
        return self.debts[-1]

    async def _later(self, name: str) -> MetadataResponse:
        await trio.lowlevel.checkpoint()
        return MetadataResponse(cluster_id=name)

    async def wait_until_handled(self, count: int) -> None:
        with trio.fail_after(DEADLINE_S):
            while len(self.handled) < count:
                await trio.sleep(0.001)


class Client:
    def __init__(self, transport: SocketTransport) -> None:
        self.machine = ClientConnection("test")
        self.transport = transport

    async def ask(self, *names: str) -> None:
        pieces = []
        for name in names:
            message: Message = MetadataRequest(topics=(MetadataRequestTopic(name=name),))
            if name == "groups":
                message = ListGroupsRequest()
            pieces += self.machine.encode_request(message, 4)[1]
        await self.transport.send(pieces)

    async def hear(self) -> str:
        with trio.fail_after(DEADLINE_S):
            while (answer := self.machine.next_response()) is None:
                received = await self.transport.receive_into(self.machine.get_buffer())
                if received == 0:
                    raise NetworkError("closed")
                self.machine.bytes_received(received)
        response = answer[1]
        return str(response.cluster_id) if isinstance(response, MetadataResponse) else "groups"


@asynccontextmanager
async def open_client(address: HostPort) -> AsyncIterator[Client]:
    transport = await connect(address)
    try:
        yield Client(transport)
    finally:
        transport.close()


@pytest.fixture
def handler() -> Handler:
    return Handler()


async def test_requests_behind_an_owed_answer_are_handled_and_answered_in_order(serve: Any, handler: Handler) -> None:
    async with serve(handler) as (address, _), open_client(address) as client:
        await client.ask("a", "b")
        await handler.wait_until_handled(2)
        await client.ask("c")
        await handler.wait_until_handled(3)
        handler.debts[1].end()
        handler.debts[2].end()
        handler.debts[0].end()
        assert [await client.hear() for _ in "abc"] == ["a", "b", "c"]


@pytest.mark.parametrize("behind", ["now", "later", "groups"])
async def test_other_answers_wait_for_those_that_are_owed(serve: Any, handler: Handler, behind: str) -> None:
    async with serve(handler) as (address, _), open_client(address) as client:
        await client.ask("a", "b", behind, "c")
        await handler.wait_until_handled(2)
        await wait_all_tasks_blocked()
        assert ("groups" in handler.handled, "c" in handler.handled) == (False, False)
        handler.debts[1].end()
        handler.debts[0].end()
        assert [await client.hear() for _ in range(3)] == ["a", "b", behind]
        await handler.wait_until_handled(4)
        handler.debts[2].end()
        assert await client.hear() == "c"


async def test_an_owed_answer_is_given_at_its_deadline_as_things_stand(serve: Any, handler: Handler) -> None:
    handler.timeout_s = 0.02
    async with serve(handler) as (address, _), open_client(address) as client:
        await client.ask("a", "b")
        assert [await client.hear() for _ in "ab"] == ["a is late", "b is late"]


async def test_no_more_than_so_many_answers_are_owed(serve: Any, handler: Handler) -> None:
    async with serve(handler) as (address, _), open_client(address) as client:
        await client.ask(*(str(number) for number in range(MAX_OWED + 5)))
        await handler.wait_until_handled(MAX_OWED)
        await wait_all_tasks_blocked()
        assert len(handler.handled) == MAX_OWED
        for number in range(MAX_OWED + 5):
            await handler.wait_until_handled(number + 1)
            handler.debts[number].end()
            assert await client.hear() == str(number)


async def test_owed_answers_are_sent_before_garbage_ends_the_connection(serve: Any, handler: Handler) -> None:
    async with serve(handler) as (address, _), open_client(address) as client:
        await client.ask("a", "bad")
        await handler.wait_until_handled(2)
        handler.debts[0].end()
        assert await client.hear() == "a"
        with pytest.raises(NetworkError):
            await client.hear()


async def test_a_client_that_ends_its_side_still_gets_what_is_owed(serve: Any, handler: Handler) -> None:
    async with serve(handler) as (address, _), open_client(address) as client:
        await client.ask("a")
        with same_socket(client.transport) as connected:
            connected.shutdown(socket.SHUT_WR)
        await handler.wait_until_handled(1)
        await wait_all_tasks_blocked()
        handler.debts[0].end()
        assert await client.hear() == "a"


async def test_owed_answers_of_a_broken_connection_are_given_up(serve: Any, handler: Handler) -> None:
    async with serve(handler) as (address, server), open_client(address) as client:
        await client.ask("a")
        await handler.wait_until_handled(1)
        linger_no_time = b"\1\0\0\0\0\0\0\0"
        with same_socket(client.transport) as connected:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_no_time)
        client.transport.close()
        with trio.fail_after(DEADLINE_S):
            while server.statistics.open_connections:
                await trio.sleep(0.001)
        assert handler.debts[0].is_given_up


async def test_a_client_that_is_owed_an_answer_is_not_silent(
    serve: Any, handler: Handler, jumping_clock: trio.testing.MockClock
) -> None:
    async with serve(handler, max_idle_s=10) as (address, _), open_client(address) as client:
        await client.ask("a")
        await handler.wait_until_handled(1)
        await trio.sleep(30)
        handler.debts[0].end()
        assert await client.hear() == "a"


@pytest.mark.parametrize("ends", [True, False])
async def test_a_task_awaits_an_owed_answer_until_it_ends_or_is_late(ends: bool) -> None:
    debt = Debt("a", trio.current_time() + (60 if ends else 0.01))

    async def wait(answers: list[Answer]) -> None:
        answers.append(await debt)

    answers: list[Answer] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, answers)
            await wait_all_tasks_blocked()
            if ends:
                debt.end()
    assert answers == [MetadataResponse(cluster_id="a" if ends else "a is late")]


async def test_a_cancelled_wait_gives_up_the_owed_answer() -> None:
    debt = Debt("a", trio.current_time() + 60)
    with trio.move_on_after(0.01):
        await debt
    assert debt.is_given_up


def test_an_owed_answer_is_over_with_the_last_of_its_outcomes() -> None:
    first, second, told = Outcome(), Outcome(), list[str]()
    second.end()
    owed = Owed([first, second], 60, lambda: None)
    owed.when_over(lambda: told.append("over"))
    assert not owed.is_over
    first.end()
    assert (owed.is_over, told) == (True, ["over"])
    assert Owed([], 60, lambda: None).is_over


def test_an_owed_answer_that_was_left_is_never_over() -> None:
    outcome = Outcome()
    owed = Owed([outcome], 60, lambda: None)
    owed.leave()
    outcome.end()
    assert not owed.is_over
