"""Several registries over one log, over HTTP: who writes, who forwards, who takes over."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.cli.secured.certificates import Authority
from pipeline.net.http.users import Role, certificate_entry
from pipeline.schema_registry.writing.journal import JournalPage, Record
from pipeline.schema_registry.writing.writers import decode_claim
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry
from tests.support.secured_http import http_files

DEADLINE_S = 60
PATH = "/subjects/s/versions"


def fixed(name: str) -> dict[str, str]:
    return {"schema": f'{{"type":"fixed","name":"{name}","size":1}}'}


class View:
    """One registry's way to a log that others share, which may be stopped."""

    def __init__(self, log: MemoryJournal) -> None:
        self.log = log
        self.goes_on = trio.Event()
        self.goes_on.set()
        self.start_offset = log.start_offset
        self.end_offset = log.end_offset
        self.replay = log.replay

    async def read(self, offset: int) -> JournalPage:
        page = await self.log.read(offset)
        await self.goes_on.wait()
        return page

    async def append(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        await self.goes_on.wait()
        return await self.log.append(records, stamp)


@asynccontextmanager
async def client_of(journal: Any, **given: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with serving_registry(journal, **given) as url, httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
        yield http


def claims(journal: MemoryJournal) -> list[str]:
    found = [decode_claim(record.key, record.value) for record in journal.records]
    return [claim.url for claim in found if claim is not None]


async def test_a_follower_forwards_and_has_applied_what_it_answers(journal: MemoryJournal) -> None:
    metrics = CollectorRegistry()
    async with client_of(journal) as writer, client_of(journal, metrics=metrics) as follower:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        for number in range(2, 6):
            assert (await follower.post(f"/subjects/s{number}/versions", json=fixed(f"B{number}"))).json()[
                "id"
            ] == number
            assert (await follower.get(f"/schemas/ids/{number}")).status_code == 200
        assert (await follower.put("/config/s", json={"compatibility": "NONE"})).status_code == 200
        assert (await follower.get("/config/s")).json() == {"compatibilityLevel": "NONE"}
        refused = await follower.post(PATH, content=b"not json")
        assert (refused.status_code, refused.headers["content-type"]) == (422, "application/vnd.schemaregistry.v1+json")
        assert (await follower.delete("/subjects/none")).json()["error_code"] == 40401
        assert (await follower.delete("/subjects/s")).json() == [1]
        assert claims(journal) == [str(writer.base_url).rstrip("/")]
    assert metrics.get_sample_value("registry_forwards_total", {"outcome": "answered"}) == 8


async def test_a_registered_schema_needs_no_writer(journal: MemoryJournal) -> None:
    async with client_of(journal) as writer, client_of(journal, is_copy=True) as replica:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        with trio.fail_after(DEADLINE_S):
            while (await replica.get("/schemas/ids/1")).status_code != 200:
                await trio.sleep(0.01)
        journal.reachable = False
        assert (await replica.post(PATH, json=fixed("A"))).json()["id"] == 1


async def test_a_follower_takes_over_from_a_writer_that_is_gone(journal: MemoryJournal) -> None:
    async with client_of(journal) as follower:
        async with client_of(journal) as writer:
            assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
            first = str(writer.base_url).rstrip("/")
        assert (await follower.post("/subjects/t/versions", json=fixed("B"))).json()["id"] == 2
        assert (await follower.delete("/subjects/t")).json() == [1]
        assert claims(journal) == [first, str(follower.base_url).rstrip("/")]


async def test_a_paused_writer_is_replaced_and_forwards_when_it_wakes(journal: MemoryJournal) -> None:
    view = View(journal)
    timeouts = {"leader.read.timeout.ms": 300}
    async with client_of(view) as writer, client_of(journal, **timeouts) as follower, trio.open_nursery() as nursery:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        view.goes_on = trio.Event()
        late: list[Any] = []

        async def post_to_paused() -> None:
            late.append((await writer.post("/subjects/late/versions", json=fixed("Late"))).json())

        nursery.start_soon(post_to_paused)
        assert (await follower.post("/subjects/t/versions", json=fixed("B"))).json()["id"] == 2
        view.goes_on.set()
        with trio.fail_after(DEADLINE_S):
            while not late:
                await trio.sleep(0.01)
        assert [answer["id"] for answer in late] == [3]
        for registry in (writer, follower):
            texts = [(await registry.get(f"/schemas/ids/{number}")).json()["schema"] for number in (1, 2, 3)]
            assert texts == [fixed(name)["schema"] for name in ("A", "B", "Late")]


async def test_a_deletion_of_unknown_outcome_is_not_repeated(journal: MemoryJournal) -> None:
    view = View(journal)
    timeouts = {"leader.read.timeout.ms": 300}
    async with client_of(view) as writer, client_of(journal, **timeouts) as follower:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        view.goes_on = trio.Event()
        answer = await follower.delete("/subjects/s")
        assert (answer.status_code, answer.json()["error_code"]) == (500, 50003)
        assert (await follower.delete("/subjects/s")).json() == [1]
        view.goes_on.set()


async def test_a_forwarded_request_is_not_forwarded_again(journal: MemoryJournal) -> None:
    async with client_of(journal) as writer, client_of(journal) as follower:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        with trio.fail_after(DEADLINE_S):
            while (await follower.get("/schemas/ids/1")).status_code != 200:
                await trio.sleep(0.01)
        marked = {"X-Forward": "true"}
        answer = await follower.post("/subjects/t/versions", json=fixed("B"), headers=marked)
        assert (answer.status_code, answer.json()["error_code"]) == (500, 50003)
        answer = await writer.post("/subjects/t/versions", json=fixed("B"), headers=marked)
        assert answer.json()["id"] == 2
        assert int(answer.headers["x-journal-offset"]) == len(journal.records)


async def test_registries_that_do_not_see_each_other_write_in_turn(journal: MemoryJournal) -> None:
    """Their names lead nowhere, so that each takes over from the other all the time."""
    hidden = {"host.name": "127.0.0.254"}
    ids: dict[str, int] = {}
    async with client_of(journal, **hidden) as one, client_of(journal, **hidden) as other:

        async def write(registry: httpx.AsyncClient, name: str) -> None:
            for number in range(10):
                text = fixed(f"{name}{number}")
                with trio.fail_after(DEADLINE_S):
                    while (answer := await registry.post(f"/subjects/{number}/versions", json=text)).status_code == 500:
                        pass
                if answer.status_code == 200:
                    ids[text["schema"]] = answer.json()["id"]

        assert (await one.put("/config", json={"compatibility": "NONE"})).status_code == 200
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, one, "A")
            nursery.start_soon(write, other, "B")
        assert len(set(ids.values())) == len(ids) == 20
        for registry in (one, other):
            for text, schema_id in ids.items():
                with trio.fail_after(DEADLINE_S):
                    while (await registry.get(f"/schemas/ids/{schema_id}")).json().get("schema") != text:
                        await trio.sleep(0.01)


async def test_a_replica_forwards_through_any_registry_of_the_hub(journal: MemoryJournal) -> None:
    async with client_of(journal) as writer, client_of(journal, **{"host.name": "127.0.0.254"}) as follower:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        urls = {"leader.urls": ["http://127.0.0.254:9", str(follower.base_url).rstrip("/")]}
        copy = MemoryJournal()  # nothing was copied yet, so that the replica knows no writer
        settings = {**urls, "kafkastore.timeout.ms": 100}
        async with client_of(copy, is_copy=True, **settings) as replica:
            assert (await replica.post("/subjects/t/versions", json=fixed("B"))).json()["id"] == 2
        async with client_of(journal, is_copy=True) as replica:  # the log names the writer
            assert (await replica.post("/subjects/u/versions", json=fixed("C"))).json()["id"] == 3
            assert (await replica.get("/schemas/ids/3")).json()["schema"] == fixed("C")["schema"]
    async with client_of(journal, is_copy=True) as replica:
        refused = await replica.post("/subjects/v/versions", json=fixed("D"))
        assert (refused.status_code, refused.json()["error_code"]) == (500, 50003)
        assert (await replica.get("/schemas/ids/3")).json()["schema"] == fixed("C")["schema"]


async def test_a_registry_that_restarts_takes_its_own_place(journal: MemoryJournal) -> None:
    async with client_of(journal) as writer:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        address = f"{writer.base_url.host}:{writer.base_url.port}"
    async with client_of(journal, **{"http.listen": address}) as writer:
        marked = {"X-Forward": "true"}
        answer = await writer.post("/subjects/t/versions", json=fixed("B"), headers=marked)
        assert answer.json()["id"] == 2
    assert claims(journal) == [f"http://{address}"] * 2


async def test_a_registration_that_never_arrived_does_not_keep_registries_from_starting(journal: MemoryJournal) -> None:
    """No id was given out, so that an empty log is no lost one."""
    guard, view = MemoryJournal(), View(journal)
    async with client_of(view, guard=guard, **{"kafkastore.timeout.ms": 200}) as registry:
        assert (await registry.put("/config", json={"compatibility": "NONE"})).status_code == 200
        view.goes_on = trio.Event()
        assert (await registry.post(PATH, json=fixed("A"))).status_code == 500
    async with client_of(journal, guard=guard) as registry:
        assert (await registry.post(PATH, json=fixed("A"))).json()["id"] == 1


async def test_a_log_that_was_emptied_is_refused_and_an_older_one_gives_no_id_twice(journal: MemoryJournal) -> None:
    guard = MemoryJournal()
    async with client_of(journal, guard=guard) as registry:
        assert (await registry.post(PATH, json=fixed("A"))).json()["id"] == 1
        backup = list(journal.records)
        assert (await registry.post("/subjects/t/versions", json=fixed("B"))).json()["id"] == 2
    with pytest.raises(Exception, match="is empty, but ids up to 2 were given out"):
        async with client_of(MemoryJournal(), guard=guard):
            pass
    restored = MemoryJournal()
    for record in backup:
        restored.put(record.key, record.value, record.stamp)
    async with client_of(restored, guard=guard) as registry:
        assert (await registry.post("/subjects/t/versions", json=fixed("C"))).json()["id"] == 3
        assert (await registry.get("/schemas/ids/2")).status_code == 404
    assert json.loads(guard.records[-1].value or b"") == {".": 3}


async def test_a_promoted_copy_gives_no_id_that_the_hub_may_have_given(journal: MemoryJournal) -> None:
    async def ids(registry: httpx.AsyncClient, name: str) -> list[int]:
        paths = [f"/subjects/{context}{name}/versions" for context in ("", ":.live:")]
        return [(await registry.post(path, json=fixed(name))).json()["id"] for path in paths]

    async with client_of(journal) as hub:
        assert await ids(hub, "A") == [1, 1]
    guard = MemoryJournal()
    for highest in (10_002, 10_003):  # once, and not at the next start
        async with client_of(journal, guard=guard, is_promoted=True) as registry:
            assert await ids(registry, f"B{highest}") == [highest, highest]
            assert await ids(registry, "A") == [1, 1]
    async with client_of(MemoryJournal(), guard=MemoryJournal(), is_promoted=True) as registry:
        assert await ids(registry, "A") == [1, 1]


async def test_no_record_of_the_guard_keeps_registries_from_writing(journal: MemoryJournal) -> None:
    guard = MemoryJournal()
    for value in (b"[" * 100_000, b'{".":%d}' % 10**30, b'{".":true}', b'{".":-1}', b'{".":"1"}', b"[]", b"\xff", None):
        guard.put(b"x", value)
    async with client_of(journal, guard=guard) as registry:
        assert (await registry.post(PATH, json=fixed("A"))).json()["id"] == 1
    assert json.loads(guard.records[-1].value or b"") == {".": 1}


async def test_a_guard_that_is_away_is_named(journal: MemoryJournal) -> None:
    guard = MemoryJournal()
    async with client_of(journal, guard=guard, **{"kafkastore.timeout.ms": 500}) as registry:
        assert (await registry.post(PATH, json=fixed("A"))).json()["id"] == 1
        guard.reachable = False
        answer = await registry.put("/config", json={"compatibility": "NONE"})
        assert answer.status_code == 200  # gives no id
        answer = await registry.delete("/subjects/s")
        assert answer.status_code == 200
        answer = await registry.post("/subjects/t/versions", json=fixed("B"))
        assert (answer.status_code, answer.json()["error_code"]) == (500, 50001)
        assert "_guard" in answer.json()["message"]
        guard.reachable = True
        with trio.fail_after(DEADLINE_S):
            while (await registry.post("/subjects/u/versions", json=fixed("C"))).status_code != 200:
                pass
        assert (await registry.get("/schemas/ids/3")).json()["schema"] == fixed("C")["schema"]
    assert json.loads(guard.records[-1].value or b"") == {".": 3}


async def test_a_write_by_a_certificate_is_not_passed_on_without_its_user(
    journal: MemoryJournal, tmp_path: Path
) -> None:
    files, authority = http_files(tmp_path), Authority()
    pair = authority.issue("alice")
    files.users.write_text(f"{certificate_entry('CN=alice', Role.ADMIN)}\n")
    (tmp_path / "alice.pem").write_text(pair.key + pair.certificate)
    (tmp_path / "clients.pem").write_text(authority.certificate)
    secured = {
        **files.settings,
        "http.ssl.client.auth": "requested",
        "http.ssl.truststore.location": str(tmp_path / "clients.pem"),
    }
    context = files.context
    context.load_cert_chain(tmp_path / "alice.pem")
    async with client_of(journal) as writer, serving_registry(journal, **secured) as url:
        assert (await writer.post(PATH, json=fixed("A"))).json()["id"] == 1
        async with httpx.AsyncClient(base_url=url, verify=context, timeout=DEADLINE_S) as follower:
            refused = await follower.post("/subjects/t/versions", json=fixed("B"))
            assert (refused.status_code, refused.json()["error_code"]) == (403, 403)
            assert "cannot pass your certificate on" in refused.json()["message"]
            assert (await follower.get("/subjects")).json() == ["s"]
        assert (await writer.get("/subjects")).json() == ["s"]
