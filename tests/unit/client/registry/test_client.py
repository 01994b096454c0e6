from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from pipeline.client.registry.client import SchemaRegistryError, open_schema_registry
from pipeline.client.registry.schemas import RegisteredSchema
from pipeline.errors import ConfigurationError, DeadlineExceededError
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def connect(journal: MemoryJournal) -> Callable[..., Any]:
    @asynccontextmanager
    async def connect(*other_urls: str, **settings: int) -> AsyncIterator[Any]:
        async with serving_registry(journal) as url, open_schema_registry([*other_urls, url], **settings) as registry:
            yield registry

    return connect


async def test_a_client_makes_every_call_of_the_registry(connect: Callable[..., Any]) -> None:
    async with connect() as registry:
        assert await registry.register("s", '"int"') == 1
        assert await registry.schema_id("s", '"int"') == 1
        assert await registry.schema_text(1) == '"int"'
        expected = RegisteredSchema(subject="s", version=1, id=1, text='"int"')
        assert await registry.version("s") == await registry.version("s", 1) == expected
        assert "s" in await registry.subjects()
        assert await registry.versions("s") == [1]
        assert await registry.why_incompatible("s", '"long"') == []
        assert "the reader has string" in (await registry.why_incompatible("s", '"string"'))[0]
        assert (await registry.level(), await registry.level("s")) == ("BACKWARD", "BACKWARD")
        await registry.set_level("FULL")
        await registry.set_level("NONE", "s")
        assert (await registry.level(), await registry.level("s")) == ("FULL", "NONE")


async def test_a_subject_may_have_any_name(connect: Callable[..., Any]) -> None:
    for name in ("a/b", "a?b", "a%2Fb", "a b", "\u00e9\u4e16"):
        async with connect() as registry:
            assert await registry.register(name, '"int"') == 1
            assert (await registry.version(name)).subject == name
            assert name in await registry.subjects()


async def test_refusals_carry_the_code(connect: Callable[..., Any]) -> None:
    async with connect() as registry:
        await registry.register("s", '"int"')
        refusals: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (40403, lambda: registry.schema_text(9)),
            (40401, lambda: registry.version("t")),
            (40402, lambda: registry.version("s", 9)),
            (409, lambda: registry.register("s", '"string"')),
            (42201, lambda: registry.register("s", "{")),
            (40403, lambda: registry.schema_id("s", '"long"')),
        ]
        for code, call in refusals:
            with pytest.raises(SchemaRegistryError) as caught:
                await call()
            assert caught.value.code == code


async def test_schemas_are_requested_once(journal: MemoryJournal) -> None:
    async with open_schema_registry([NOBODY], timeout_s=3) as gone:
        async with serving_registry(journal) as url, open_schema_registry([url]) as registry:
            assert await registry.register("s", '"int"') == 1
            assert await registry.schema_text(1) == '"int"'
        assert await registry.register("s", '"int"') == 1
        assert await registry.schema_text(1) == '"int"'
        with pytest.raises(DeadlineExceededError, match="ConnectError"):
            await gone.schema_text(1)


async def test_the_next_registry_is_asked_when_one_is_gone(connect: Callable[..., Any]) -> None:
    async with connect(NOBODY) as registry:
        assert await registry.register("s", '"int"') == 1


async def test_a_registry_without_its_log_is_tried_until_it_recovers(
    connect: Callable[..., Any], journal: MemoryJournal, nursery: trio.Nursery
) -> None:
    async with connect(timeout_s=60) as registry:
        journal.reachable = False

        async def recover() -> None:
            with trio.fail_after(60):
                while await registry.subjects():
                    await trio.lowlevel.checkpoint()
            journal.reachable = True

        nursery.start_soon(recover)
        assert await registry.register("s", '"int"') == 1


@pytest.mark.parametrize("urls", [[], ["localhost:8081"]])
async def test_urls_are_checked(urls: Any) -> None:
    with pytest.raises(ConfigurationError):
        async with open_schema_registry(urls):
            pass
