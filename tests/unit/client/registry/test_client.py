import gzip
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio

from pipeline.client.registry.client import SchemaRegistryError, open_schema_registry
from pipeline.client.registry.schemas import RegisteredSchema
from pipeline.errors import ConfigurationError, DeadlineExceededError
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.http_answers import Answer, as_json, http_server
from tests.support.registry import serving_registry

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def connect(journal: MemoryJournal) -> Callable[..., Any]:
    @asynccontextmanager
    async def connect(*other_urls: str, **settings: Any) -> AsyncIterator[Any]:
        async with serving_registry(journal) as url, open_schema_registry([*other_urls, url], **settings) as registry:
            yield registry

    return connect


async def test_a_client_makes_every_call_of_the_registry(connect: Callable[..., Any]) -> None:
    async with connect() as registry:
        assert await registry.register("s", '"int"') == 1
        assert await registry.schema_id("s", '"int"') == 1
        assert await registry.schema_text(1) == '"int"'
        guid = (await registry.schema(1)).guid
        assert (await registry.schema(guid)).schema.text == '"int"'
        expected = RegisteredSchema(subject="s", version=1, id=1, text='"int"', guid=guid)
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
        with pytest.raises(DeadlineExceededError, match="attempts to connect"):
            await gone.schema_text(1)


async def test_the_next_registry_is_asked_when_one_is_gone(connect: Callable[..., Any]) -> None:
    async with connect(NOBODY) as registry:
        assert await registry.register("s", '"int"') == 1


async def test_an_id_is_unknown_once_no_registry_knows_it(journal: MemoryJournal, connect: Callable[..., Any]) -> None:
    async with serving_registry(MemoryJournal()) as behind, connect(behind) as registry:
        async with connect() as writer:
            await writer.register("s", '"int"')
        assert await registry.schema_text(1) == '"int"'
        assert (await registry.referenced_version("s", 1)).text == '"int"'
        unknown: list[Callable[[], Awaitable[object]]] = [
            lambda: registry.schema(2),
            lambda: registry.referenced_version("s", 2),
        ]
        for ask in unknown:
            with pytest.raises(SchemaRegistryError, match="not found"):
                await ask()
        registry._urls.append(NOBODY)
        with pytest.raises(SchemaRegistryError, match="not found"):
            await registry.schema(2)


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


NONSENSE: list[Answer] = [
    (200, b""),
    (200, b"<html>welcome</html>"),
    (200, b"[" * 100_000),
    (200, b"\xff"),
    as_json(None),
    as_json([]),
    as_json({"schema": None}),
    as_json({"schema": {"type": "int"}}),
    as_json({"schema": '"int"', "references": [{"name": "a"}]}),
    as_json({"schema": '"int"', "references": 7}),
    as_json({"schema": '"int"', "guid": "no guid"}),
    as_json({"schema": '"int"', "guid": 7}),
    as_json({"schema": '"int"', "references": [{"name": "a", "subject": "a", "version": 1e999}]}),
    as_json({"error_code": 1e999, "message": "overflow"}, 500),
    as_json({"message": "not ready"}, 503),
    as_json({"error_code": 429, "message": "slow down"}, 429),
]


@pytest.mark.parametrize("answer", NONSENSE, ids=repr)
async def test_an_answer_that_is_none_of_a_registry_makes_the_next_one_be_asked(
    answer: Answer, connect: Callable[..., Any]
) -> None:
    with http_server({"/schemas/ids/1": answer}) as confused:
        async with connect() as registry:
            assert await registry.register("s", '"int"') == 1
        async with open_schema_registry([confused], timeout_s=0.3) as alone:
            with pytest.raises(DeadlineExceededError, match="GET /schemas/ids/1"):
                await alone.schema(1)
        async with connect(confused) as registry:
            await registry.register("s", '"int"')
            registry._urls.sort(key=lambda url: url != confused)
            assert await registry.schema_text(1) == '"int"'


async def test_an_id_that_no_payload_holds_is_no_answer() -> None:
    entry = {"subject": "s", "version": 1, "schema": '"int"'}
    for schema_id in (-1, 2**31, "x", None, True, 7.5, 1e999):
        with http_server({"/subjects/s/versions/latest": as_json({**entry, "id": schema_id})}) as url:
            async with open_schema_registry([url], timeout_s=1) as registry:
                with pytest.raises(DeadlineExceededError, match="gives no answer of a schema registry"):
                    await registry.version("s")


async def test_a_registry_that_sends_byte_by_byte_is_left_for_the_next(
    connect: Callable[..., Any], nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.client.registry.client.MAX_ATTEMPT_S", 0.2)

    async def drip(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while True:
                await stream.send_all(b" ")
                await trio.sleep(0.01)

    (listener,) = await nursery.start(partial(trio.serve_tcp, drip, 0, host="127.0.0.1"))
    slow = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    async with connect(slow) as registry:
        assert await registry.register("s", '"int"') == 1
    nursery.cancel_scope.cancel()


async def test_a_silent_registry_leaves_time_for_the_next(connect: Callable[..., Any], nursery: trio.Nursery) -> None:
    async def say_nothing(_: trio.SocketStream) -> None:
        await trio.sleep_forever()

    (listener,) = await nursery.start(partial(trio.serve_tcp, say_nothing, 0, host="127.0.0.1"))
    async with connect(f"http://127.0.0.1:{listener.socket.getsockname()[1]}", timeout_s=4) as registry:
        assert await registry.register("s", '"int"') == 1
    nursery.cancel_scope.cancel()


async def test_tasks_that_wait_for_one_request_share_its_error() -> None:
    async with open_schema_registry([NOBODY], timeout_s=0.5) as registry, trio.open_nursery() as nursery:

        async def fail() -> None:
            with pytest.raises(DeadlineExceededError):
                await registry.schema(1)

        with trio.fail_after(10):  # one after the other would take 50 s
            for _ in range(100):
                nursery.start_soon(fail)
            while nursery.child_tasks:
                await trio.sleep(0.01)
        assert not registry._fetches


async def test_a_request_that_is_cancelled_is_made_by_a_task_that_waits_for_it(
    connect: Callable[..., Any], journal: MemoryJournal
) -> None:
    async with connect() as registry, trio.open_nursery() as nursery:
        journal.reachable = False
        found: list[int] = []

        async def register() -> None:
            found.append(await registry.register("s", '"int"'))

        with trio.CancelScope() as first:
            nursery.start_soon(register)
            while not registry._fetches:
                await trio.lowlevel.checkpoint()
            nursery.start_soon(register)
            first.cancel()
        with trio.CancelScope() as given_up:
            given_up.cancel()
            await registry.register("s", '"int"')
        journal.reachable = True
        with trio.fail_after(30):
            while len(found) < 2:
                await trio.lowlevel.checkpoint()
        assert found == [1, 1]


async def test_a_redirect_that_loses_the_request_is_no_answer() -> None:
    with http_server({"/config": (302, b""), "/there/config": as_json({"compatibilityLevel": "BACKWARD"})}) as url:
        async with open_schema_registry([url], timeout_s=0.3) as registry:
            assert await registry.level() == "BACKWARD"
            with pytest.raises(DeadlineExceededError, match="redirects PUT"):
                await registry.set_level("FULL")


@pytest.mark.parametrize("answer", [(200, b"<html>"), (500, b"oops"), as_json({})])
async def test_errors_tell_no_password(answer: Answer) -> None:
    with http_server({"/config": answer}) as url:
        urls = [url.replace("//", "//user:secret@"), "http://user:secret@127.0.0.1:1/?at=http://x"]
        async with open_schema_registry(urls, timeout_s=0.3) as registry:
            with pytest.raises(DeadlineExceededError, match=url.removeprefix("http://")) as caught:
                await registry.level()
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigurationError) as refused:
        async with open_schema_registry(["user:secret@localhost"]):
            pass
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("verdict", ["false", 1, None, [True]])
async def test_only_a_clear_yes_means_compatible(verdict: object) -> None:
    path = "/compatibility/subjects/s/versions?verbose=true"
    with http_server({path: as_json({"is_compatible": verdict})}) as url:
        async with open_schema_registry([url], timeout_s=0.3) as registry:
            with pytest.raises(DeadlineExceededError, match="gives no answer of a schema registry"):
                await registry.why_incompatible("s", '"int"')


async def test_a_text_that_utf_8_cannot_write_is_refused_at_once(connect: Callable[..., Any]) -> None:
    async with connect() as registry:
        with pytest.raises(SchemaRegistryError, match="42201"):
            await registry.register("s", '{"type": "enum", "name": "\ud800", "symbols": []}')


async def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.client.registry.client.MAX_ANSWER_BYTES", 1000)
    with http_server({"/subjects": as_json(["x" * 2000])}) as url:
        async with open_schema_registry([url], timeout_s=0.3) as registry:
            with pytest.raises(DeadlineExceededError, match="more than 1000 bytes"):
                await registry.subjects()


@pytest.mark.parametrize("status", ["200 OK", "307 Temporary Redirect"])
async def test_compressed_answers_stay_compressed(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1_000_000
    monkeypatch.setattr("pipeline.client.registry.client.MAX_ANSWER_BYTES", most)
    bomb = gzip.compress(bytes(100 * most))
    headers = ["Location: /x", "Content-Encoding: gzip", f"Content-Length: {len(bomb)}", "Connection: close"]
    head = "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode()
    served = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal served
        with suppress(trio.BrokenResourceError):
            await stream.receive_some()
            await stream.send_all(head + bomb)
            await stream.aclose()
            served += 1

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with open_schema_registry([url], timeout_s=1) as registry:
            tracemalloc.start()
            try:
                with pytest.raises(DeadlineExceededError):
                    await registry.subjects()
                assert tracemalloc.get_traced_memory()[1] < 10 * most
            finally:
                tracemalloc.stop()
        nursery.cancel_scope.cancel()
    assert served


async def test_caches_are_bounded(journal: MemoryJournal) -> None:
    async with serving_registry(journal) as url, open_schema_registry([url], cache_capacity=3) as registry:
        for number in range(8):
            schema_id = await registry.register(f"s{number}", f'{{"type": "fixed", "name": "F", "size": {number + 1}}}')
            await registry.schema(schema_id)
            await registry.referenced_version(f"s{number}", 1)
        assert [len(cache) for cache in (registry._schemas, registry._identities, registry._referenced)] == [3, 3, 3]
        assert len(registry._fetches) == 0


async def test_the_port_of_a_broker_is_not_taken_for_a_registry(nursery: trio.Nursery) -> None:
    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.aclose()

    (listener,) = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
    host, port = listener.socket.getsockname()
    async with open_schema_registry([f"http://{host}:{port}"], timeout_s=1) as registry:
        with pytest.raises(DeadlineExceededError, match="Is this an HTTP server"):
            await registry.subjects()
