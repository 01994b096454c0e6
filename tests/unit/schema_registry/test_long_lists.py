"""Lists of many subjects: what is listed, and that other requests are answered meanwhile."""

import json
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response

from pipeline.schema_registry.api import long_lists
from pipeline.schema_registry.api.access import SubjectAccess
from pipeline.schema_registry.api.long_lists import LONG, MAX_WAIT_S, SHORT_LENGTH, LongLists, page_in_turns
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.state.events import SchemaWritten, encode_event
from pipeline.schema_registry.state.sorted_names import SortedNames
from pipeline.testing.memory_journal import MemoryJournal

SUBJECTS, AT_ONCE = 20_000, 10
MAX_WORK_S = 0.5
"""Ten times what this process works here at most between two turns of others; lists made in one go took 0.7 s."""
PATHS = {"/subjects": SUBJECTS, "/schemas?latestOnly=true&offset=19900": 100, "/schemas/ids/1/versions": SUBJECTS}
"""With the length of the answer."""


def request(query: str = "") -> Request:
    return Request({"type": "http", "path": "/", "headers": [], "query_string": query.encode()})


@pytest.mark.long
async def test_others_do_not_wait_for_long_lists(journal: MemoryJournal, open_registry: Callable[..., Any]) -> None:
    names = [f"s-{number}" for number in range(SUBJECTS)]
    events = [SchemaWritten(subject=name, version=1, id=1, text='"int"') for name in names]
    await journal.append([encode_event(event) for event in events])
    longest_s, lengths = 0.0, []

    async def others() -> None:
        nonlocal longest_s
        while True:
            began = process_time()
            await trio.lowlevel.checkpoint()
            longest_s = max(longest_s, process_time() - began)

    async with open_registry(journal) as http:
        assert (await http.get("/subjects?offset=1&limit=3")).json() == sorted(names)[1:4]
        for path in PATHS:

            async def ask(path: str) -> None:
                head = f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
                async with await trio.open_tcp_stream(http.base_url.host, http.base_url.port) as client:
                    await client.send_all(head.encode())
                    parts = [part async for part in client]
                lengths.append(len(json.loads(b"".join(parts).partition(b"\r\n\r\n")[2])))

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(others)
                    async with trio.open_nursery() as clients:
                        for _ in range(AT_ONCE):
                            clients.start_soon(ask, path)
                    nursery.cancel_scope.cancel()
    assert lengths == [length for length in PATHS.values() for _ in range(AT_ONCE)]
    assert longest_s < MAX_WORK_S


async def test_a_walk_gives_others_their_turn_also_while_it_finds_nothing(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_lists, "TURN_S", 0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    def items() -> Iterator[int | None]:
        yield from [None] * 100
        yield from range(10)
        raise AssertionError("the walk goes beyond the page")

    nursery.start_soon(others)
    assert await page_in_turns(request("offset=4&limit=3"), items()) == [4, 5, 6]
    assert turns >= 100
    assert await page_in_turns(request("limit=7"), iter(range(5)), most=2) == [0, 1]


async def test_long_lists_are_made_one_at_a_time_and_equal_requests_share_one(nursery: trio.Nursery) -> None:
    lists, made = LongLists(SubjectAccess()), list[str]()
    first_may_end = trio.Event()
    answers: dict[str, list[Response]] = {"a": [], "b": []}

    async def ask(query: str, length: int = LONG) -> None:
        async def make() -> Response:
            made.append(query)
            if length == LONG:
                await first_may_end.wait()
            return Response(query)

        answers[query].append(await lists.answer(request(query), length, make))

    for query in ("a", "a", "b", "a", "b"):
        nursery.start_soon(ask, query)
        await trio.testing.wait_all_tasks_blocked()
    assert made == ["a"]
    await ask("b", SHORT_LENGTH)
    assert made == ["a", "b"]
    first_may_end.set()
    await trio.testing.wait_all_tasks_blocked()
    assert made == ["a", "b", "a", "b"]  # the first list may lack what those who came later know to be there
    assert [bytes(each.body) for each in answers["a"]] == [b"a"] * 3
    assert [bytes(each.body) for each in answers["b"]] == [b"b"] * 3
    await ask("a")
    assert made[4:] == ["a"]


@given(st.lists(st.lists(st.sampled_from("abcdef"))))
def test_sorted_names_are_those_of_a_set(rounds: list[list[str]]) -> None:
    names, model, seen = SortedNames(), set[str](), list[tuple[Any, list[str]]]()
    for changed in rounds:
        for name in changed:
            (names.remove if name in model else names.add)(name)
            model ^= {name}
            assert len(names) == len(model)
        seen.append((names.in_order(), sorted(model)))
    assert all(list(found) == wanted for found, wanted in seen)


async def test_a_list_that_waits_too_long_for_others_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    lists = LongLists(SubjectAccess())

    async def make() -> Response:
        await trio.sleep(MAX_WAIT_S + 1)
        return Response()

    refused = 0

    async def ask(query: str) -> None:
        nonlocal refused
        try:
            await lists.answer(request(query), LONG, make)
        except RegistryError as error:
            assert error.code is Code.OVERLOADED
            refused += 1

    async with trio.open_nursery() as clients:
        for number in range(3):
            clients.start_soon(ask, f"offset={number}")
    assert refused == 2
    await ask("offset=9")
    assert refused == 2
