"""Each line of the API and each error code, as tables of requests and answers."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
from starlette.requests import Request

from pipeline.schema_registry.api.api_routes import array_answer
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry_api import BASE, INT, LONG, NONE, REFERENCE, STRING, USER, Code, Step, ask, put, run, schema

TWO = [put("s", schema(INT), 1, 1), put("s", schema(LONG), 2, 2)]

SCRIPTS: dict[str, list[Step]] = {
    "subjects and versions": [
        *TWO,
        put("t", schema(INT), 1, 1),
        put("a", schema(STRING), 3, 1),
        ("GET", "/subjects", None, ["a", "s", "t"]),
        ("GET", "/subjects?offset=1", None, ["s", "t"]),
        ("GET", "/subjects?offset=1&limit=1", None, ["s"]),
        ("GET", "/subjects?limit=0", None, ["a", "s", "t"]),
        ("GET", "/subjects?limit=x", None, Code(422)),
        ("GET", "/subjects?offset=-1", None, Code(422)),
        ("GET", "/subjects?subjectPrefix=s", None, ["s"]),
        ("DELETE", "/subjects/a", None, [1]),
        ("DELETE", "/subjects/s/versions/1", None, 1),
        ("GET", "/subjects", None, ["s", "t"]),
        ("GET", "/subjects?deleted=true", None, ["a", "s", "t"]),
        ("GET", "/subjects?deletedOnly=true", None, ["a"]),
        ("GET", "/subjects?deletedOnly=true&deleted=true", None, ["a"]),
        ("GET", "/subjects/s/versions", None, [2]),
        ("GET", "/subjects/s/versions?deleted=true", None, [1, 2]),
        ("GET", "/subjects/s/versions?deletedOnly=true", None, [1]),
        ("GET", "/subjects/s/versions?deletedAsNegative=true", None, [-1, 2]),
        ("GET", "/subjects/s/versions?deleted=true&offset=1&limit=5", None, [2]),
        ("GET", "/subjects/a/versions", None, Code(40401)),
        ("GET", "/subjects/a/versions?deletedOnly=true", None, [1]),
        ("GET", "/subjects/s/versions/1", None, Code(40402)),
        ("GET", "/subjects/s/versions/1?deleted=true", None, {"subject": "s", "version": 1, "id": 1, "deleted": True}),
        ("GET", "/subjects/s/versions/latest", None, {"subject": "s", "version": 2, "id": 2}),
        ("GET", "/subjects/s/versions/0", None, Code(42202)),
        ("GET", "/subjects/s/versions/2147483648", None, Code(42202)),
        ("GET", "/subjects/a/versions/latest", None, Code(40401)),
        ("GET", "/subjects/a/versions/latest?deleted=true", None, Code(40402)),
        ("GET", "/subjects/none/versions/1", None, Code(40401)),
        ("GET", "/subjects/none/versions/1/schema", None, Code(40401)),
        ("GET", "/subjects/none/versions/1/referencedby", None, Code(40401)),
        ("GET", "/subjects/", None, ["s", "t"]),
    ],
    "look up": [
        *TWO,
        ("POST", "/subjects/s", schema('{"type": "int"}'), {"subject": "s", "version": 1, "id": 1}),
        ("POST", "/subjects/s?normalize=true", schema('{"type": "int"}'), {"subject": "s", "version": 1, "id": 1}),
        ("POST", "/subjects/s", schema(STRING), Code(40403)),
        ("POST", "/subjects/none", schema(INT), Code(40401)),
        ("POST", "/subjects/s", schema("{"), Code(42201)),
        ("POST", "/subjects/s", {}, Code(42201)),
        ("DELETE", "/subjects/s/versions/1", None, 1),
        ("POST", "/subjects/s", schema(INT), Code(40403)),
        ("POST", "/subjects/s?deleted=true", schema(INT), {"subject": "s", "version": 1, "id": 1, "deleted": True}),
    ],
    "ids": [
        *TWO,
        put("t", schema(INT), 1, 1),
        ("GET", "/schemas/ids/1/subjects", None, ["s", "t"]),
        ("GET", "/schemas/ids/1/subjects?limit=1", None, ["s"]),
        ("GET", "/schemas/ids/1/versions", None, [{"subject": "s", "version": 1}, {"subject": "t", "version": 1}]),
        ("GET", "/schemas/ids/1/versions?offset=1", None, [{"subject": "t", "version": 1}]),
        ("GET", "/schemas/ids/1?fetchMaxId=true", None, {"maxId": 2}),
        ("GET", "/schemas/ids/1?subject=t", None, {"subject": "t", "version": 1, "id": 1}),
        ("GET", "/schemas/ids/1?subject=nowhere", None, {"subject": "s", "version": 1, "id": 1}),
        ("GET", "/schemas/ids/1?subject=", None, {"subject": "s", "version": 1, "id": 1}),
        ("GET", "/schemas/ids/2?subject=s&fetchMaxId=true", None, {"subject": "s", "version": 2, "id": 2, "maxId": 2}),
        ("GET", "/schemas/ids/1", None, {}),
        ("DELETE", "/subjects/t", None, [1]),
        ("GET", "/schemas/ids/1/subjects", None, ["s"]),
        ("GET", "/schemas/ids/1/subjects?deleted=true", None, ["s", "t"]),
        (
            "GET",
            "/schemas/ids/1/versions?deleted=true",
            None,
            [{"subject": "s", "version": 1}, {"subject": "t", "version": 1}],
        ),
        ("GET", "/schemas/ids/9", None, Code(40403)),
        ("GET", "/schemas/ids/x", None, Code(40403)),
        ("GET", "/schemas/ids/9/schema", None, Code(40403)),
        ("GET", "/schemas/ids/9/subjects", None, Code(40403)),
        ("GET", "/schemas/ids/9/versions", None, Code(40403)),
        ("GET", "/schemas/guids/nothing", None, Code(40403)),
        ("GET", "/schemas/guids/nothing/ids", None, []),
        ("GET", "/schemas/types", None, ["AVRO"]),
    ],
    "all schemas": [
        *TWO,
        put("t", schema(INT), 1, 1),
        ("DELETE", "/subjects/s/versions/1", None, 1),
        ("GET", "/schemas", None, [{"subject": "s", "version": 2, "id": 2}, {"subject": "t", "version": 1, "id": 1}]),
        ("GET", "/schemas?subjectPrefix=t", None, [{"subject": "t", "version": 1, "id": 1}]),
        ("GET", "/schemas?limit=1&offset=1", None, [{"subject": "t", "version": 1, "id": 1}]),
        (
            "GET",
            "/schemas?deleted=true&limit=2",
            None,
            [{"subject": "s", "version": 1, "id": 1, "deleted": True}, {"subject": "s", "version": 2, "id": 2}],
        ),
        (
            "GET",
            "/schemas?deleted=true&latestOnly=true&subjectPrefix=s",
            None,
            [{"subject": "s", "version": 2, "id": 2}],
        ),
    ],
    "deletes": [
        *TWO,
        ("DELETE", "/subjects/none", None, Code(40401)),
        ("DELETE", "/subjects/none/versions/1", None, Code(40401)),
        ("DELETE", "/subjects/s/versions/7", None, Code(40402)),
        ("DELETE", "/subjects/s/versions/x", None, Code(42202)),
        ("DELETE", "/subjects/s/versions/1?permanent=true", None, Code(40407)),
        ("DELETE", "/subjects/s/versions/1", None, 1),
        ("DELETE", "/subjects/s/versions/1", None, Code(40406)),
        ("DELETE", "/subjects/s/versions/1?permanent=true", None, 1),
        ("DELETE", "/subjects/s/versions/1?permanent=true", None, Code(40402)),
        ("GET", "/schemas/ids/1", None, Code(40403)),
        ("DELETE", "/subjects/s?permanent=true", None, Code(40405)),
        ("DELETE", "/subjects/s", None, [2]),
        ("DELETE", "/subjects/s", None, Code(40404)),
        ("DELETE", "/subjects/s/versions/latest", None, Code(40402)),
        ("DELETE", "/subjects/s?permanent=true", None, [2]),
        ("DELETE", "/subjects/s?permanent=true", None, Code(40401)),
        put("s", schema(INT), 3, 1),
    ],
    "a soft-deleted schema again": [
        *TWO,
        ("DELETE", "/subjects/s/versions/1", None, 1),
        ("PUT", "/config/s", NONE, NONE),
        put("s", schema(INT), 1, 3),
        ("GET", "/subjects/s/versions?deleted=true", None, [2, 3]),
    ],
    "registering": [
        put("s", schema(INT, version=-1), 1, 1),
        put("s", schema(LONG, version=2), 2, 2),
        ("POST", "/subjects/s/versions", schema(LONG, version=2), Code(42201)),
        ("POST", "/subjects/s/versions", schema('"double"', version=9), Code(42201)),
        ("POST", "/subjects/s/versions", schema(STRING), Code(409)),
        ("POST", "/subjects/s/versions", schema("{"), Code(42201)),
        ("POST", "/subjects/s/versions", {}, Code(42201)),
        ("POST", "/subjects/s/versions", schema("{}", schemaType="JSON"), Code(42201)),
        ("POST", "/subjects/s/versions", schema("syntax", schemaType="PROTOBUF"), Code(42201)),
        ("POST", "/subjects/s/versions", schema(INT, metadata={"properties": {"a": "b"}}), Code(42201)),
        ("POST", "/subjects/s/versions", schema(INT, ruleSet={"domainRules": []}), Code(42201)),
        ("POST", "/subjects/s/versions", schema(INT, id=7), Code(42205)),
        ("POST", "/subjects/s/versions", schema(INT, id="7"), Code(42201)),
        ("POST", "/subjects/%20/versions", schema(INT), Code(42208)),
        ("POST", "/subjects/__GLOBAL/versions", schema(INT), Code(42208)),
        ("POST", "/subjects/%2E%2E/versions", schema(INT), Code(42208)),
        ("POST", "/subjects/:*:x/versions", schema(INT), Code(42208)),
        ("POST", "/subjects/a%2Fb%20c/versions", schema(INT), {"id": 1, "version": 1}),
        ("GET", "/subjects", None, ["a/b c", "s"]),
    ],
    "compatibility": [
        *TWO,
        ("POST", "/compatibility/subjects/s/versions", schema(INT), {"is_compatible": False}),
        ("POST", "/compatibility/subjects/s/versions/1", schema(INT), {"is_compatible": True}),
        ("POST", "/compatibility/subjects/s/versions/latest", schema(LONG), {"is_compatible": True}),
        ("POST", "/compatibility/subjects/s/versions/9", schema(LONG), Code(40402)),
        ("POST", "/compatibility/subjects/s/versions/x", schema(LONG), Code(42202)),
        ("POST", "/compatibility/subjects/none/versions/1", schema(LONG), Code(40401)),
        ("POST", "/compatibility/subjects/none/versions/latest", schema(LONG), {"is_compatible": True}),
        ("POST", "/compatibility/subjects/none/versions", schema(LONG), {"is_compatible": True}),
        ("POST", "/compatibility/subjects/s/versions", schema("{"), Code(42201)),
        (
            "POST",
            "/compatibility/subjects/s/versions?verbose=true",
            schema(LONG),
            {"is_compatible": True, "messages": []},
        ),
    ],
    "configs": [
        ("GET", "/config", None, {"compatibilityLevel": "BACKWARD"}),
        ("GET", "/config/s", None, Code(40408)),
        ("DELETE", "/config/s", None, Code(40401)),
        ("PUT", "/config", {"compatibility": "full_transitive"}, {"compatibility": "FULL_TRANSITIVE"}),
        ("GET", "/config/s?defaultToGlobal=true", None, {"compatibilityLevel": "FULL_TRANSITIVE"}),
        ("PUT", "/config/s", {"normalize": True}, {"normalize": True}),
        ("GET", "/config/s", None, {"normalize": True, "compatibilityLevel": "FULL_TRANSITIVE"}),
        ("PUT", "/config/s", NONE, {"normalize": True, **NONE}),
        ("PUT", "/config/s", {"normalize": None}, NONE),
        ("GET", "/config/s", None, {"compatibilityLevel": "NONE"}),
        ("DELETE", "/config/s", None, {"compatibilityLevel": "NONE"}),
        ("DELETE", "/config", None, {"compatibilityLevel": "FULL_TRANSITIVE"}),
        ("GET", "/config", None, {"compatibilityLevel": "BACKWARD"}),
        ("DELETE", "/config", None, {"compatibilityLevel": "BACKWARD"}),
        ("PUT", "/config", {"compatibility": "SOME"}, Code(42203)),
        ("PUT", "/config/s", {"compatibility": 7}, Code(42203)),
        ("PUT", "/config/s", {}, Code(42203)),
        ("PUT", "/config/s", {"normalize": 1}, Code(422)),
        ("PUT", "/config/s", {"compatibilityGroup": "g"}, Code(422)),
        ("PUT", "/config/s", {"defaultRuleSet": {"domainRules": []}}, Code(422)),
        ("PUT", "/config/s", {"validateFields": False, **NONE}, NONE),
        ("PUT", "/config/__EMPTY", NONE, Code(42208)),
        *TWO,
        ("PUT", "/config/s", NONE, NONE),
        ("DELETE", "/subjects/s", None, [1, 2]),
        ("GET", "/config/s", None, Code(40408)),
    ],
    "aliases": [
        *TWO,
        ("PUT", "/config/alias", {"alias": "s"}, {"alias": "s"}),
        ("GET", "/subjects/alias/versions", None, [1, 2]),
        ("GET", "/subjects/alias/versions/1", None, {"subject": "s", "version": 1, "id": 1}),
        ("POST", "/subjects/alias/versions", schema('"double"'), {"id": 3, "version": 3}),
        ("PUT", "/config/alias", {"alias": "a\n"}, Code(42208)),
        ("GET", "/schemas/ids/1/subjects?subject=alias", None, ["s"]),
        ("GET", "/schemas/ids/1?subject=alias", None, {"subject": "s", "version": 1, "id": 1}),
        ("GET", "/config/alias", None, {"alias": "s", "compatibilityLevel": "BACKWARD"}),
        ("GET", "/subjects", None, ["s"]),
    ],
    "modes": [
        *TWO,
        ("GET", "/mode", None, {"mode": "READWRITE"}),
        ("GET", "/mode/s", None, Code(40409)),
        ("GET", "/mode/s?defaultToGlobal=true", None, {"mode": "READWRITE"}),
        ("DELETE", "/mode/s", None, Code(40401)),
        ("PUT", "/mode/s", {"mode": "readonly"}, {"mode": "READONLY"}),
        ("GET", "/mode/s", None, {"mode": "READONLY"}),
        ("POST", "/subjects/s/versions", schema('"double"'), Code(42205)),
        put("s", schema(LONG), 2, 2),
        ("DELETE", "/subjects/s", None, Code(42205)),
        ("DELETE", "/subjects/s/versions/1", None, Code(42205)),
        ("PUT", "/config/s", NONE, Code(42205)),
        ("DELETE", "/mode/s", None, {"mode": "READONLY"}),
        ("PUT", "/mode/s", {"mode": None}, {"mode": None}),
        ("PUT", "/mode/s", {"mode": "READONLY"}, {"mode": "READONLY"}),
        ("PUT", "/mode/s", {"mode": None}, {"mode": None}),
        ("GET", "/mode/s", None, Code(40409)),
        ("PUT", "/mode", {"mode": "SOME"}, Code(42204)),
        ("PUT", "/mode", {}, Code(42204)),
        ("PUT", "/mode/s", {"mode": "READWRITE"}, {"mode": "READWRITE"}),
        ("PUT", "/mode", {"mode": "READONLY"}, {"mode": "READONLY"}),
        put("s", schema('"double"'), 3, 3),
        ("POST", "/subjects/t/versions", schema(INT), Code(42205)),
        ("PUT", "/mode", {"mode": "READONLY_OVERRIDE"}, {"mode": "READONLY_OVERRIDE"}),
        ("GET", "/mode/s", None, {"mode": "READONLY_OVERRIDE"}),
        ("POST", "/subjects/s/versions", schema(STRING), Code(42205)),
        ("DELETE", "/mode?recursive=true", None, {"mode": "READONLY_OVERRIDE"}),
        ("GET", "/mode/s", None, Code(40409)),
        ("GET", "/mode", None, {"mode": "READWRITE"}),
    ],
    "imports": [
        *TWO,
        ("PUT", "/mode/s", {"mode": "IMPORT"}, Code(42205)),
        ("PUT", "/mode", {"mode": "IMPORT"}, Code(42205)),
        ("PUT", "/mode/i", {"mode": "IMPORT"}, {"mode": "IMPORT"}),
        ("POST", "/subjects/i/versions", schema(INT), Code(42205)),
        put("i", schema(STRING, id=70, version=5), 70, 5),
        put("i", schema(STRING, id=70, version=5), 70, 5),
        put("i", schema(INT, id=71), 71, 6),
        ("POST", "/subjects/i/versions", schema('"bytes"', id=1, version=7), Code(42205)),
        ("POST", "/subjects/i/versions", schema('"bytes"', id=72, version=5), Code(42205)),
        put("i", schema(INT, id=1, version=7), 1, 7),
        ("POST", "/subjects/i/versions", schema("{", id=73), Code(42201)),
        ("POST", "/subjects/i/versions", schema("{}", id=73, schemaType="JSON"), Code(42201)),
        ("PUT", "/mode/i", {"mode": "READWRITE"}, {"mode": "READWRITE"}),
        put("new", schema('"bytes"'), 72, 1),
        ("PUT", "/mode/s?force=true", {"mode": "IMPORT"}, {"mode": "IMPORT"}),
        ("GET", "/subjects/s/versions", None, [1, 2]),
        ("DELETE", "/mode/s", None, {"mode": "IMPORT"}),
        ("DELETE", "/subjects/s", None, [1, 2]),
        ("PUT", "/mode/s", {"mode": "IMPORT"}, {"mode": "IMPORT"}),
        ("GET", "/subjects/s/versions?deleted=true", None, Code(40401)),
        ("GET", "/schemas/ids/2", None, Code(40403)),
        ("GET", "/schemas/ids/1", None, {}),
    ],
    "an import of what others refer to": [
        put("base", schema(BASE), 1, 1),
        put("user", schema(USER, REFERENCE), 2, 1),
        ("DELETE", "/subjects/user", None, [1]),
        ("DELETE", "/subjects/base", None, [1]),
        ("PUT", "/mode/base", {"mode": "IMPORT"}, Code(42206)),
        ("PUT", "/mode", {"mode": "IMPORT"}, {"mode": "IMPORT"}),
        ("GET", "/subjects?deleted=true", None, []),
    ],
    "the server": [
        ("GET", "/", None, {}),
        ("POST", "/", {}, {}),
        (
            "GET",
            "/v1/metadata/id",
            None,
            {
                "id": "",
                "scope": {"path": [], "clusters": {"kafka-cluster": "", "schema-registry-cluster": "schema-registry"}},
            },
        ),
        ("GET", "/v1/metadata/deployment", None, {"attributes": []}),
        ("GET", "/nowhere", None, Code(404)),
        ("PATCH", "/subjects", None, Code(405)),
    ],
}


@pytest.fixture
async def http(journal: MemoryJournal, open_registry: Callable[..., Any]) -> AsyncIterator[Any]:
    async with open_registry(journal) as http:
        yield http


@pytest.mark.parametrize("name", SCRIPTS)
async def test_answers_are_those_of_the_documented_api(http: Any, journal: MemoryJournal, name: str) -> None:
    await run(http, SCRIPTS[name])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"accept": "text/html"}, 406),
        ({"accept": "application/json;q=0"}, 406),
        ({"accept": "text/html, */*;q=0.1"}, 200),
        ({"accept": "application/json"}, 200),
        (
            {"accept": "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json"},
            200,
        ),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/octet-stream"}, 200),
        ({"content-encoding": "gzip"}, 415),
        ({"content-encoding": "identity, gzip"}, 415),
        ({"content-encoding": "Identity"}, 200),
        ({}, 200),
    ],
    ids=str,
)
async def test_content_types(http: Any, headers: Any, status: int) -> None:
    body = json.dumps(schema(INT)).encode()
    response = await http.request("POST", "/subjects/s/versions", content=body, headers=headers)
    assert response.status_code == status
    assert status == 200 or response.json()["error_code"] == status


async def test_the_accepted_content_type_of_the_greatest_quality_is_answered(http: Any) -> None:
    accept = "application/json;q=0.5, application/vnd.schemaregistry+json;q=0.7, text/html"
    response = await http.get("/subjects", headers={"accept": accept})
    assert response.headers["content-type"] == "application/vnd.schemaregistry+json"


async def test_a_large_array_is_written_in_turns_with_others(nursery: trio.Nursery) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(others)
    items = ["x" * 100_000] * 20
    response = await array_answer(Request({"type": "http", "headers": []}), items)
    assert json.loads(bytes(response.body)) == items
    assert turns >= len(items) - 1  # it may begin first


async def test_head_is_answered_without_a_body(http: Any) -> None:
    await run(http, TWO)
    response = await http.head("/schemas/ids/1")
    assert (response.status_code, response.content) == (200, b"")
    assert (await http.head("/schemas/ids/9")).status_code == 404


async def test_texts_stay_verbatim_unless_normalized(http: Any) -> None:
    text = '{"type": "record", "namespace": "n", "name": "R", "doc": "d",  "fields": []}'
    await run(http, [put("s", schema(text), 1, 1), ("PUT", "/config/t", {"normalize": True}, {"normalize": True})])
    assert (await http.get("/schemas/ids/1/schema")).text == text
    other = text.replace('"R"', '"Q"')
    await run(http, [put("t", schema(other), 2, 1)])
    stored = (await http.get("/schemas/ids/2")).json()["schema"]
    assert stored == '{"type":"record","name":"Q","namespace":"n","doc":"d","fields":[]}'
    await run(http, [put("u", schema(other), 2, 1), ("PUT", "/mode/t", {"mode": "IMPORT"}, Code(42205))])
    await run(http, [("PUT", "/mode/t?force=true", {"mode": "IMPORT"}, {"mode": "IMPORT"})])
    await run(http, [put("t", schema(text.replace('"R"', '"I"'), id=9), 9, 2)])
    assert (await http.get("/schemas/ids/9/schema")).text == text.replace('"R"', '"I"')


async def test_an_incompatibility_names_field_rule_old_and_new(http: Any) -> None:
    old, new = BASE, BASE.replace('"int"', '"string"')
    await run(http, [put("s", schema(old), 1, 1)])
    path = "/compatibility/subjects/s/versions/latest?verbose=true"
    answer = (await ask(http, "POST", path, schema(new))).json()
    assert answer["is_compatible"] is False
    assert all(part in answer["messages"][0] for part in ("Base.a", "TYPE_MISMATCH", "string", "int", "version 1"))
    answer = (await ask(http, "POST", path, schema("{"))).json()
    assert answer["is_compatible"] is False


async def test_the_version_of_the_server_is_told(http: Any) -> None:
    assert set((await http.get("/v1/metadata/version")).json()) == {"version", "commitId"}
