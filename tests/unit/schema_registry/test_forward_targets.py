"""Forwarded writes that reach the wrong place, or a writer that cannot write."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from pipeline.errors import NetworkError
from pipeline.model import HostPort
from pipeline.net.http.server import http_application, serve_http
from pipeline.schema_registry.writing.journal import JournalLostError, JournalPage, Record
from pipeline.schema_registry.writing.writers import Stamp, WriterClaim, encode_claim
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry
from tests.support.secured_http import basic, http_files, users_text
from tests.unit.schema_registry.test_forwarding import DEADLINE_S, PATH, claims, client_of, fixed


class CutOffView:
    """One registry's way to a log that others reach, which may be cut off or lost."""

    def __init__(self, log: MemoryJournal) -> None:
        self.log = log
        self.error: Exception | None = None
        self.start_offset = log.start_offset
        self.replay = log.replay

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    async def end_offset(self) -> int:
        self.check()
        return await self.log.end_offset()

    async def read(self, offset: int) -> JournalPage:
        self.check()
        return await self.log.read(offset)

    async def append(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        self.check()
        return await self.log.append(records, stamp)


def url_of(registry: httpx.AsyncClient) -> str:
    return str(registry.base_url).rstrip("/")


def put_claim(log: MemoryJournal, url: str, epoch: int = 1) -> None:
    stamp = Stamp(epoch, "gone")
    log.put(*encode_claim(WriterClaim(stamp, url)), stamp.encode())


@asynccontextmanager
async def answering(answer: Callable[[Request], Awaitable[Response]]) -> AsyncIterator[str]:
    """Another service, which gives this answer to every request."""
    route = Route("/{path:path}", answer, methods=["GET", "POST", "PUT", "DELETE"])
    async with trio.open_nursery() as nursery:
        address: HostPort = await nursery.start(serve_http, http_application([route]), HostPort("127.0.0.1", 0))
        yield f"http://{address}"
        nursery.cancel_scope.cancel()


async def test_a_registry_of_another_log_takes_no_forwarded_write(journal: MemoryJournal) -> None:
    foreign = MemoryJournal()
    async with client_of(foreign) as other:
        assert (await other.post("/subjects/theirs/versions", json=fixed("Theirs"))).json()["id"] == 1
        put_claim(journal, url_of(other))  # as if both had the same name and port
        async with client_of(journal) as registry:
            assert (await registry.post(PATH, json=fixed("A"))).json()["id"] == 1
            assert (await registry.get("/schemas/ids/1")).json()["schema"] == fixed("A")["schema"]
        urls = {"leader.urls": [url_of(other)]}
        async with client_of(journal, is_copy=True, **urls) as replica:
            refused = await replica.post("/subjects/t/versions", json=fixed("B"))
            assert (refused.status_code, refused.json()["error_code"]) == (500, 50003)
            assert "was not carried out" in refused.json()["message"]
        assert (await other.get("/subjects")).json() == ["theirs"]


async def test_a_password_that_came_by_tls_is_not_forwarded_in_clear_text(
    journal: MemoryJournal, tmp_path: Path
) -> None:
    shown: list[str | None] = []

    async def note(request: Request) -> Response:
        shown.append(request.headers.get("authorization"))
        return JSONResponse({"id": 77})

    files = http_files(tmp_path)
    async with (
        answering(note) as url,
        serving_registry(journal, **files.settings) as registry,
        httpx.AsyncClient(base_url=registry, verify=files.context, headers=basic("writer"), timeout=60) as http,
    ):
        put_claim(journal, url)
        with trio.fail_after(DEADLINE_S):
            while (await http.get("/journal")).json()["writer"] is None:
                await trio.sleep(0.01)
        await http.post(PATH, json=fixed("A"))
    assert shown == [None]


async def test_a_writer_that_does_not_know_the_user_stays_the_writer(journal: MemoryJournal, tmp_path: Path) -> None:
    files = http_files(tmp_path)
    others = tmp_path / "others"
    others.write_text("".join(line for line in users_text().splitlines(True) if not line.startswith("writer:")))
    trust: Any = {"leader.schema.registry.ssl.ca.location": str(files.ca)}
    async with (
        serving_registry(journal, **{**files.settings, "http.users.file": str(others)}) as writer,
        serving_registry(journal, **files.settings, **trust) as registry,
        httpx.AsyncClient(verify=files.context, timeout=60) as http,
    ):
        answer = await http.post(writer + PATH, json=fixed("A"), headers=basic("admin"))
        assert answer.json()["id"] == 1
        for name, status in (("writer", 401), ("admin", 200), ("writer", 401)):
            answer = await http.post(f"{registry}/subjects/{name}/versions", json=fixed(name), headers=basic(name))
            assert answer.status_code == status, answer.text
        assert claims(journal) == [writer]


async def say_id(_request: Request) -> Response:
    return JSONResponse({"id": 77})


async def redirect(request: Request) -> Response:
    return RedirectResponse(f"http://127.0.0.1:1{request.url.path}")


async def refuse(_request: Request) -> Response:
    return JSONResponse({"error_code": 404, "message": "no such page"}, 404)


@pytest.mark.parametrize("answer", [say_id, redirect, refuse])
async def test_the_answer_of_another_service_is_none(
    journal: MemoryJournal, answer: Callable[[Request], Awaitable[Response]]
) -> None:
    async with answering(answer) as url, client_of(journal) as registry:
        put_claim(journal, url)
        with trio.fail_after(DEADLINE_S):
            while (await registry.get("/journal")).json()["writer"] is None:
                await trio.sleep(0.01)
        assert (await registry.post(PATH, json=fixed("A"))).json()["id"] == 1
        put_claim(journal, url, epoch=3)
        with trio.fail_after(DEADLINE_S):
            while (await registry.get("/journal")).json()["writer"]["epoch"] != 3:
                await trio.sleep(0.01)
        assert (await registry.delete("/subjects/s")).json()["error_code"] == 50003
        assert (await registry.delete("/subjects/s")).json() == [1]


class Drops:
    def __aiter__(self) -> "Drops":
        return self

    async def __anext__(self) -> bytes:
        await trio.sleep(0.02)
        return b" "


async def drip(_request: Request) -> Response:
    return StreamingResponse(Drops())


async def test_an_answer_that_never_ends_holds_no_request(journal: MemoryJournal) -> None:
    """Each byte comes in time. A question for the log's end leaves such a service for the next one, too."""
    settings = {"leader.read.timeout.ms": 300, "leader.connect.timeout.ms": 300}
    async with answering(drip) as url:
        put_claim(journal, url)
        with trio.fail_after(DEADLINE_S):
            async with client_of(journal, **settings) as registry:
                assert (await registry.post(PATH, json=fixed("A"))).json()["id"] == 1
                urls = {"leader.urls": [url, url_of(registry)]}
                async with client_of(journal, is_copy=True, **urls, **settings) as replica:
                    while (await replica.get("/journal")).json()["staleness_s"] is None:
                        await trio.sleep(0.01)


@pytest.mark.parametrize("error", [NetworkError("no broker is reached"), JournalLostError("it was truncated")])
async def test_a_writer_that_cannot_write_is_replaced(journal: MemoryJournal, error: Exception) -> None:
    view = CutOffView(journal)
    settings = {"kafkastore.timeout.ms": 500}
    async with client_of(view, **settings) as writer, client_of(journal) as follower:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        view.error = error
        assert (await follower.post("/subjects/t/versions", json=fixed("B"))).json()["id"] == 2
        assert claims(journal) == [url_of(writer), url_of(follower)]
        assert (await follower.delete("/subjects/t")).json() == [1]


async def test_a_deletion_that_a_writer_could_not_confirm_is_not_repeated(journal: MemoryJournal) -> None:
    view = CutOffView(journal)
    async with client_of(view, **{"kafkastore.timeout.ms": 500}) as writer, client_of(journal) as follower:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        view.error = NetworkError("no broker is reached")
        answer = await follower.delete("/subjects/s")
        assert (answer.status_code, answer.json()["error_code"]) == (500, 50003)
        assert (await follower.delete("/subjects/s")).json() == [1]


async def test_a_follower_whose_log_is_lost_answers_what_the_writer_answered(journal: MemoryJournal) -> None:
    view = CutOffView(journal)
    async with client_of(journal) as writer, client_of(view) as follower:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        with trio.fail_after(DEADLINE_S):
            while (await follower.get("/schemas/ids/1")).status_code != 200:
                await trio.sleep(0.01)
        view.error = JournalLostError("it was truncated")
        assert (await follower.post("/subjects/t/versions", json=fixed("B"))).json()["id"] == 2
        assert (await writer.get("/schemas/ids/2")).json()["schema"] == fixed("B")["schema"]


async def test_a_replica_does_not_repeat_a_deletion_that_the_hub_could_not_confirm(journal: MemoryJournal) -> None:
    asked: list[str] = []

    async def lose(request: Request) -> Response:
        asked.append(request.method)
        return JSONResponse({"error_code": 50003, "message": "it may have been carried out"}, 500)

    async with answering(lose) as first, answering(lose) as second, client_of(journal) as writer:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        async with client_of(journal, is_copy=True, **{"leader.urls": [first, second]}) as replica:
            answer = await replica.delete("/subjects/s")
            assert (answer.status_code, answer.json()["error_code"]) == (500, 50003)
            assert "may have been carried out" in answer.json()["message"]
            assert asked.count("DELETE") == 1
        async with client_of(journal, is_copy=True, **{"leader.urls": ["http://[", url_of(writer)]}) as replica:
            assert (await replica.delete("/subjects/s")).json() == [1]


async def test_a_replica_waits_for_a_write_that_came_to_the_writer_through_another_registry(
    journal: MemoryJournal,
) -> None:
    async with client_of(journal) as writer, client_of(journal) as follower:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        with trio.fail_after(DEADLINE_S):
            while (await follower.get("/schemas/ids/1")).status_code != 200:
                await trio.sleep(0.01)
        marked: dict[str, Any] = {"X-Forward": "once"}
        answer = await follower.post("/subjects/t/versions", json=fixed("B"), headers=marked)
        assert answer.json()["id"] == 2
        assert int(answer.headers["x-journal-offset"]) == len(journal.records)


async def test_ids_that_the_log_and_the_guard_lost_are_kept_by_the_registries_that_know_them(
    journal: MemoryJournal,
) -> None:
    """An unclean election takes the end of both."""
    guard, view = MemoryJournal(), CutOffView(journal)
    async with client_of(view, guard=guard) as registry:
        assert (await registry.post(PATH, json=fixed("A"))).json()["id"] == 1
        kept, kept_ids = list(journal.records), list(guard.records)
        assert (await registry.post("/subjects/t/versions", json=fixed("B"))).json()["id"] == 2
        guard.records = list(kept_ids)
        guard.reachable = False  # the first try fails
        view.error = JournalLostError("it was truncated")
        with trio.fail_after(DEADLINE_S):
            while "lost" not in (await registry.get("/healthz")).text:
                await trio.sleep(0.01)
            guard.reachable = True
            while len(guard.records) == len(kept_ids):
                await trio.sleep(0.01)
        truncated = MemoryJournal()
        for record in kept:
            truncated.put(record.key, record.value, record.stamp)
        async with client_of(truncated, guard=guard) as restarted:
            assert (await restarted.post("/subjects/t/versions", json=fixed("C"))).json()["id"] == 3
            assert (await restarted.get("/schemas/ids/2")).status_code == 404
