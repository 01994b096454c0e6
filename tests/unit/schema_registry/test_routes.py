import json
from collections.abc import AsyncIterator, Callable
from hashlib import md5
from typing import Any
from uuid import UUID

import pytest
import trio

from pipeline.schema_registry.api import api_requests
from pipeline.testing.memory_journal import MemoryJournal

RECORD = '{"type":"record","name":"E",  "fields":[{"name":"a","type":"int"}]}'
WIDER = '{"type":"record","name":"E","fields":[{"name":"a","type":"int"},{"name":"b","type":"int"}]}'
V1 = "application/vnd.schemaregistry.v1+json"


@pytest.fixture
async def http(journal: MemoryJournal, open_registry: Callable[..., Any]) -> AsyncIterator[Any]:
    async with open_registry(journal) as http:
        yield http


async def register(http: Any, subject: str, text: str, **more: Any) -> Any:
    return await http.post(f"/subjects/{subject}/versions", json={"schema": text, **more})


def is_error(response: Any, status: int, code: int) -> str:
    assert (response.status_code, response.json()["error_code"]) == (status, code)
    assert set(response.json()) == {"error_code", "message"}
    assert response.headers["content-type"] == V1
    return str(response.json()["message"])


async def test_register_and_get_in_every_way(http: Any) -> None:
    guid = str(UUID(bytes=md5(RECORD.encode()).digest()))
    registered = {"id": 1, "version": 1, "guid": guid}
    assert (await register(http, "s-value", RECORD)).json() == registered
    assert (await register(http, "s-value", json.dumps(json.loads(RECORD)))).json() == registered
    version = {"subject": "s-value", "version": 1, "id": 1, "guid": guid, "schema": RECORD}
    answers = {
        "/schemas": [version],
        "/schemas/ids/1": {"guid": guid, "schema": RECORD},
        "/schemas/ids/1?fetchMaxId=true": {"guid": guid, "schema": RECORD, "maxId": 1},
        f"/schemas/guids/{guid}": {"guid": guid, "schema": RECORD},
        f"/schemas/guids/{guid}/ids": [{"context": ".", "id": 1}],
        "/schemas/ids/1/subjects": ["s-value"],
        "/schemas/ids/1/versions": [{"subject": "s-value", "version": 1}],
        "/schemas/types": ["AVRO"],
        "/subjects": ["s-value"],
        "/subjects?subjectPrefix=x": [],
        "/subjects/s-value/versions": [1],
        "/subjects/s-value/versions/1": version,
        "/subjects/s-value/versions/latest": version,
        "/subjects/s-value/versions/-1": version,
        "/subjects/s-value/versions/LATEST": version,
        "/subjects/s-value/versions/1/referencedby": [],
        "/contexts": ["."],
        "/": {},
    }
    for path, answer in answers.items():
        assert (await http.get(path)).json() == answer, path
    for path in ("/schemas/ids/1/schema", "/subjects/s-value/versions/latest/schema"):
        assert (await http.get(path)).text == RECORD
    assert (await http.post("/subjects/s-value", json={"schema": RECORD})).json() == version


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/schemas/ids/2", 404, 40403),
        ("GET", "/schemas/ids/x", 404, 40403),
        ("GET", f"/schemas/ids/{'9' * 5000}", 404, 40403),
        ("GET", "/subjects/s/versions", 404, 40401),
        ("GET", "/subjects/s/versions/1", 404, 40401),
        ("GET", "/subjects/s/versions/x", 422, 42202),
        ("GET", "/subjects/there/versions/9", 404, 40402),
        ("DELETE", "/subjects/s", 404, 40401),
        ("DELETE", "/subjects/there?permanent=true", 404, 40405),
        ("GET", "/config/s", 404, 40408),
        ("GET", "/nowhere", 404, 404),
        ("PATCH", "/subjects", 405, 405),
    ],
)
async def test_invalid_requests_are_refused_with_their_code(
    http: Any, method: str, path: str, status: int, code: int
) -> None:
    await register(http, "there", RECORD)
    answer = await http.request(method, path)
    is_error(answer, status, code)
    assert ("allow" in answer.headers) is (status == 405)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 422, 422),
        (b"{", 422, 422),
        (b"[]", 422, 422),
        (b"[" * 100_000, 422, 422),
        (b"{}", 422, 42201),
        (b'{"schema":7}', 422, 42201),
        (b'{"schema":"strin"}', 422, 42201),
        (b'{"schema":"\\"int\\"","schemaType":"PROTOBUF"}', 422, 42201),
        (b'{"schema":"\\"int\\"","references":[{"name":"x","subject":"y","version":1}]}', 422, 42201),
        (b'{"schema":"\\"int\\"","id":7}', 422, 42205),
        (b'{"schema":"' + b"x" * 1_000_001 + b'"}', 413, 413),
    ],
    ids=range(11),
)
async def test_bodies_that_are_refused(http: Any, body: bytes, status: int, code: int) -> None:
    is_error(await http.post("/subjects/s/versions", content=body), status, code)


async def test_attributes_and_parameters_we_do_not_know_are_ignored(http: Any) -> None:
    more: dict[str, object] = {
        "schemaType": "AVRO",
        "references": [],
        "metadata": None,
        "ruleSet": None,
        "id": -1,
        "version": 0,
    }
    response = await http.post("/subjects/s/versions?normalize=true&x=y", json={"schema": '"int"', **more, "z": 1})
    assert response.json()["id"] == 1


@pytest.mark.parametrize("content_type", [V1, "application/vnd.schemaregistry+json", "application/json"])
async def test_responses_bear_the_content_type_of_the_registry(http: Any, content_type: str) -> None:
    headers = {"content-type": content_type, "accept": f"{content_type}; q=0.9, text/html"}
    response = await http.post("/subjects/s/versions", content=b'{"schema":"\\"int\\""}', headers=headers)
    assert response.json()["id"] == 1
    assert response.headers["content-type"] == content_type


async def test_an_incompatible_schema_is_refused_and_the_check_says_why(http: Any) -> None:
    await register(http, "s", RECORD)
    message = is_error(await register(http, "s", WIDER), 409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE at E.b" in message
    for version in ("", "/1", "/latest"):
        path = f"/compatibility/subjects/s/versions{version}"
        assert (await http.post(path, json={"schema": WIDER})).json() == {"is_compatible": False}
        verbose = (await http.post(f"{path}?verbose=true", json={"schema": WIDER})).json()
        assert verbose["is_compatible"] is False
        assert "E.b: the reader's field has no default" in verbose["messages"][0]
        again = (await http.post(f"{path}?verbose=true", json={"schema": RECORD})).json()
        assert again == {"is_compatible": True, "messages": []}
    is_error(await http.post("/compatibility/subjects/s/versions/7", json={"schema": RECORD}), 404, 40402)
    is_error(await http.post("/compatibility/subjects/t/versions/7", json={"schema": RECORD}), 404, 40401)
    for path in ("/compatibility/subjects/t/versions", "/compatibility/subjects/t/versions/latest"):
        assert (await http.post(path, json={"schema": RECORD})).json() == {"is_compatible": True}


async def test_routes_set_and_reset_compatibility_levels(http: Any) -> None:
    assert (await http.get("/config")).json() == {"compatibilityLevel": "BACKWARD"}
    assert (await http.put("/config", json={"compatibility": "full"})).json() == {"compatibility": "FULL"}
    assert (await http.get("/config")).json() == {"compatibilityLevel": "FULL"}
    assert (await http.get("/config/s?defaultToGlobal=true")).json() == {"compatibilityLevel": "FULL"}
    assert (await http.put("/config/s", json={"compatibility": "NONE"})).json() == {"compatibility": "NONE"}
    assert (await http.get("/config/s")).json() == {"compatibilityLevel": "NONE"}
    assert (await http.delete("/config/s")).json() == {"compatibilityLevel": "NONE"}
    is_error(await http.put("/config", json={"compatibility": "MAYBE"}), 422, 42203)
    is_error(await http.put("/config", json={}), 422, 42203)


async def test_routes_delete_versions_and_subjects(http: Any) -> None:
    await register(http, "s", '"int"')
    await register(http, "s", '"long"')
    assert (await http.delete("/subjects/s/versions/latest")).json() == 2
    assert (await http.get("/subjects/s/versions?deleted=true")).json() == [1, 2]
    assert (await http.get("/schemas/ids/2")).json()["schema"] == '"long"'
    assert (await http.delete("/subjects/s")).json() == [1]
    assert (await http.get("/subjects")).json() == []
    assert (await http.get("/subjects?deleted=true")).json() == ["s"]
    assert (await http.delete("/subjects/s?permanent=true")).json() == [1, 2]
    is_error(await http.get("/schemas/ids/2"), 404, 40403)
    assert (await register(http, "s", '"int"')).json()["id"] == 3


async def test_many_registrations_at_once_get_one_id(http: Any) -> None:
    ids = []

    async def one() -> None:
        ids.append((await register(http, "s", RECORD)).json()["id"])

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(one)
    assert ids == [1] * 20


async def test_reads_work_and_writes_fail_without_the_log(
    journal: MemoryJournal, open_registry: Callable[..., Any]
) -> None:
    async with open_registry(journal, **{"kafkastore.timeout.ms": 500}) as http:
        await register(http, "s", RECORD)
        journal.reachable = False
        is_error(await register(http, "t", '"string"'), 500, 50001)
        assert (await http.get("/schemas/ids/1")).status_code == 200
        assert (await http.get("/healthz")).status_code == 200
        journal.reachable = True
        with trio.fail_after(60):
            while (await register(http, "t", '"string"')).status_code != 200:
                await trio.lowlevel.checkpoint()


async def test_metrics_are_served(http: Any) -> None:
    await register(http, "s", RECORD)
    text = (await http.get("/metrics")).text
    assert "registry_schemas 1.0" in text
    assert "registry_records_replayed_total 2.0" in text  # the claim of the writer, and the schema


async def test_half_of_a_surrogate_pair_is_refused_and_answered(http: Any) -> None:
    text = '{"type":"record","name":"E","fields":[],"doc":"\ud800"}'
    body = json.dumps({"schema": text}).encode()
    assert "surrogate" in is_error(await http.post("/subjects/s/versions", content=body), 422, 42201)


async def test_half_of_a_surrogate_pair_that_was_stored_is_served_as_its_escape(
    journal: MemoryJournal, open_registry: Callable[..., Any]
) -> None:
    value = {"subject": "s", "version": 1, "id": 1, "schema": '{"type":"string","doc":"\ud800"}', "deleted": False}
    journal.put(b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', json.dumps(value).encode())
    async with open_registry(journal) as http:
        answer = await http.get("/schemas/ids/1")
        assert answer.status_code == 200
        assert json.loads(answer.content)["schema"] == value["schema"]
        assert (await http.get("/schemas/ids/1/schema")).status_code == 200


@pytest.mark.long
async def test_other_requests_are_answered_while_a_hostile_schema_is_judged(http: Any) -> None:
    types = [{"type": "record", "name": f"R{n}", "fields": [{"name": "a", "type": "int"}]} for n in range(3_000)]
    types.append({"type": "record", "name": "R3000", "fields": [{"name": "a", "type": "string"}]})
    names = [f"R{number}" for number in range(3_001)]
    fields = [
        {"name": "types", "type": types},
        {"name": "f", "type": {"type": "array", "items": names}, "default": [{"a": "of the last"}] * 3_000},
    ]
    hostile = json.dumps({"type": "record", "name": "R", "fields": fields})
    answers: list[Any] = []
    ended = trio.Event()

    async def attack() -> None:
        answers.extend([await register(http, "s", hostile) for _ in range(2)])
        ended.set()

    healthy = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(attack)
        while not ended.is_set():
            assert (await http.get("/healthz")).status_code == 200
            healthy += 1
    assert healthy > 2
    for answer in answers:
        assert "takes too many steps" in is_error(answer, 422, 42201)


async def test_a_body_that_does_not_arrive_is_given_up(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_requests, "MAX_BODY_S", 0.2)
    request = b'POST /subjects/s/versions HTTP/1.1\r\nHost: registry\r\nContent-Length: 100\r\n\r\n{"schema":'
    with trio.fail_after(60):
        async with await trio.open_tcp_stream(http.base_url.host, http.base_url.port) as stream:
            await stream.send_all(request)
            answer = b""
            while b"did not arrive" not in answer:
                part = await stream.receive_some()
                assert part, answer
                answer += part
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert (await http.get("/subjects")).json() == []


async def test_large_bodies_that_arrive_are_bounded_together(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_requests, "MAX_ARRIVING_BYTES", 100_000)
    large = json.dumps({"type": "enum", "name": "E", "symbols": ["A"], "doc": "x" * 50_000})
    head = b"POST /subjects/s/versions HTTP/1.1\r\nHost: registry\r\nContent-Length: 900000\r\n\r\n"
    with trio.fail_after(60):
        async with await trio.open_tcp_stream(http.base_url.host, http.base_url.port) as stream:
            await stream.send_all(head + bytes(90_000))
            while (answer := await register(http, "large", large)).status_code != 503:
                await http.delete("/subjects/large")
            assert "Try again later" in is_error(answer, 503, 503)
            assert (await register(http, "small", RECORD)).status_code == 200
        while (answer := await register(http, "large", large)).status_code == 503:
            pass
    assert answer.status_code == 200
