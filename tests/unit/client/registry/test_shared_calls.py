"""Tasks that need the same of a registry: one asks, the others wait for it."""

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.registry.avro import AvroSerializer
from pipeline.client.registry.client import SchemaRegistryError, open_schema_registry
from pipeline.client.registry.config import SerializerConfig
from tests.support.http_answers import Answer, as_json, http_server

LATEST = "/subjects/log-value/versions/latest"
TASKS = 50
RENEWED = SerializerConfig(auto_register_schemas=False, use_latest_version=True, latest_cache_ttl_sec=1e-9)
DEADLINE_S = 60


def version(number: int) -> Answer:
    return as_json({"subject": "log-value", "version": number, "id": number, "schema": '"int"'})


class Answers(dict[str, Answer]):
    """Answers by path, given when `may_answer` is set; counts requests."""

    def __init__(self) -> None:
        super().__init__({LATEST: version(1)})
        self.requests = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def get(self, path: str, default: Any = None) -> Any:
        self.requests += 1
        self.may_answer.wait(DEADLINE_S)
        return super().get(path, default)


class Asking:
    """A serialiser whose entry for the topic `log` has expired, and tasks that ask for it."""

    def __init__(self, serializer: AvroSerializer, answers: Answers) -> None:
        self.serializer = serializer
        self.answers = answers
        self.found: list[int | None] = []
        self.codes: list[int] = []

    async def ask(self) -> None:
        try:
            self.found.append((await self.serializer.encoder("log")).schema_id)
        except SchemaRegistryError as error:
            self.codes.append(error.code)

    async def until_asked(self, requests: int) -> None:
        with trio.fail_after(DEADLINE_S):
            while self.answers.requests < requests:
                await trio.lowlevel.checkpoint()


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    answers = Answers()
    with http_server(answers) as url:
        try:
            async with open_schema_registry([url]) as registry:
                asking = Asking(AvroSerializer(registry, config=RENEWED), answers)
                await asking.ask()
                assert (asking.found, answers.requests) == ([1], 1)
                asking.found.clear()
                answers[LATEST] = version(2)
                answers.may_answer.clear()
                yield asking
        finally:
            answers.may_answer.set()


async def test_one_task_asks_for_an_expired_entry(asking: Asking) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(TASKS):
            nursery.start_soon(asking.ask)
        await asking.until_asked(2)
        asking.answers.may_answer.set()
    assert asking.found == [2] * TASKS
    assert asking.answers.requests == 2


async def test_all_that_wait_get_the_error_and_the_next_one_asks_again(asking: Asking) -> None:
    del asking.answers[LATEST]
    async with trio.open_nursery() as nursery:
        for _ in range(TASKS):
            nursery.start_soon(asking.ask)
        await asking.until_asked(2)
        asking.answers.may_answer.set()
    assert (asking.found, asking.codes) == ([], [40403] * TASKS)
    assert asking.answers.requests == 2
    asking.answers[LATEST] = version(3)
    await asking.ask()
    assert asking.found == [3]


async def test_another_task_asks_if_the_first_one_is_cancelled(asking: Asking) -> None:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as first:
            async with trio.open_nursery() as given_up:
                given_up.start_soon(asking.ask)
                await asking.until_asked(2)
                for _ in range(TASKS):
                    nursery.start_soon(asking.ask)
                await trio.testing.wait_all_tasks_blocked()
                first.cancel()
        await asking.until_asked(3)
        asking.answers.may_answer.set()
    assert asking.found == [2] * TASKS
    assert asking.answers.requests == 3
