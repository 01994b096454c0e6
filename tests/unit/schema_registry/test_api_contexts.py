"""References and contexts, as tables of requests and answers."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry_api import BASE, INT, LONG, NONE, REFERENCE, STRING, USER, Code, Step, put, run, schema

TWO = [put("s", schema(INT), 1, 1), put("s", schema(LONG), 2, 2)]

SCRIPTS: dict[str, list[Step]] = {
    "references": [
        ("POST", "/subjects/user/versions", schema(USER, REFERENCE), Code(42201)),
        put("base", schema(BASE), 1, 1),
        ("POST", "/subjects/user/versions", schema(USER), Code(42201)),
        ("POST", "/subjects/user/versions", schema(USER, {"name": "n.Base"}), Code(42201)),
        ("POST", "/subjects/user/versions", schema(USER, {**REFERENCE, "version": True}), Code(42201)),
        ("POST", "/subjects/user/versions", schema(USER, {**REFERENCE, "version": 0}), Code(42201)),
        ("POST", "/subjects/user/versions", schema(USER, references=REFERENCE), Code(42201)),
        put("user", schema(USER, {**REFERENCE, "version": -1}), 2, 1),
        put("user", schema(USER, REFERENCE), 2, 1),
        put("other", schema(USER, REFERENCE), 2, 1),
        ("GET", "/schemas/ids/2", None, {"references": [REFERENCE]}),
        (
            "POST",
            "/subjects/user",
            schema(USER, REFERENCE),
            {"subject": "user", "version": 1, "id": 2, "references": [REFERENCE]},
        ),
        ("GET", "/subjects/base/versions/1/referencedby", None, [2]),
        ("GET", "/subjects/base/versions/latest/referencedby", None, [2]),
        ("GET", "/subjects/base/versions/1/referencedby?offset=1", None, []),
        ("DELETE", "/subjects/base/versions/1", None, Code(42206)),
        ("DELETE", "/subjects/base", None, Code(42206)),
        ("POST", "/compatibility/subjects/user/versions", schema(USER, REFERENCE), {"is_compatible": True}),
        ("DELETE", "/subjects/user", None, [1]),
        ("DELETE", "/subjects/other", None, [1]),
        ("GET", "/subjects/base/versions/1/referencedby", None, []),
        ("GET", "/subjects/base/versions/1/referencedby?deleted=true", None, [2]),
        ("DELETE", "/subjects/base/versions/1", None, 1),
        ("DELETE", "/subjects/base/versions/1?permanent=true", None, Code(42206)),
        ("DELETE", "/subjects/base?permanent=true", None, Code(42206)),
        ("DELETE", "/subjects/user?permanent=true", None, [1]),
        ("DELETE", "/subjects/other?permanent=true", None, [1]),
        ("DELETE", "/subjects/base?permanent=true", None, [1]),
    ],
    "a reference to a soft-deleted version": [
        put("base", schema(BASE), 1, 1),
        put("user", schema(USER, REFERENCE), 2, 1),
        ("DELETE", "/subjects/user", None, [1]),
        ("DELETE", "/subjects/base", None, [1]),
        ("POST", "/subjects/user/versions", schema(USER, REFERENCE), Code(42201)),
        ("POST", "/subjects/other/versions", schema(USER, REFERENCE), Code(42201)),
        ("PUT", "/mode/user", {"mode": "IMPORT"}, {"mode": "IMPORT"}),
        put("user", schema(USER, REFERENCE, id=2, version=1), 2, 1),
    ],
    "an id that the default context lacks is not one of another context": [
        put(":.c:s", schema(INT), 1, 1),
        ("GET", "/schemas/ids/1", None, Code(40403)),
        ("GET", "/schemas/ids/1/schema", None, Code(40403)),
        ("GET", "/schemas/ids/1/versions", None, Code(40403)),
        ("GET", "/contexts/:.:/schemas/ids/1", None, Code(40403)),
        ("GET", "/schemas/ids/1?subject=other", None, Code(40403)),
        ("GET", "/schemas/ids/1?subject=s", None, {"subject": ":.c:s", "version": 1, "id": 1}),
        ("GET", "/contexts/c/schemas/ids/1", None, {"subject": ":.c:s", "version": 1, "id": 1}),
        ("GET", "/schemas/ids/1/versions?subject=:.c:", None, [{"subject": ":.c:s", "version": 1}]),
    ],
    "an import without a subject purges the deleted versions of all contexts": [
        put(":.c:s", schema(INT), 1, 1),
        ("PUT", "/mode", {"mode": "IMPORT"}, Code(42205)),
        ("DELETE", "/subjects/:.c:s", None, [1]),
        ("PUT", "/mode?force=true", {"mode": "IMPORT"}, {"mode": "IMPORT"}),
        ("GET", "/subjects?deleted=true&subjectPrefix=:*:", None, [":.c:s"]),
        ("DELETE", "/mode", None, {"mode": "IMPORT"}),
        ("PUT", "/mode", {"mode": "IMPORT"}, {"mode": "IMPORT"}),
        ("GET", "/subjects?deleted=true&subjectPrefix=:*:", None, []),
    ],
    "references of references, and within a subject": [
        put("base", schema(BASE), 1, 1),
        put("user", schema(USER, REFERENCE), 2, 1),
        put(
            "top",
            schema('{"type":"array","items":"n.User"}', {"name": "n.User", "subject": "user", "version": 1}),
            3,
            1,
        ),
        put(
            "pair", schema('["n.User","n.Base"]', {"name": "n.User", "subject": "user", "version": 1}, REFERENCE), 4, 1
        ),
        ("PUT", "/config/base", NONE, NONE),
        put("base", schema('{"type":"map","values":"n.Base"}', REFERENCE), 5, 2),
        ("DELETE", "/subjects/top", None, [1]),
        ("DELETE", "/subjects/pair", None, [1]),
        ("DELETE", "/subjects/user", None, [1]),
        ("DELETE", "/subjects/base", None, [1, 2]),
        ("DELETE", "/subjects/user?permanent=true", None, Code(42206)),
        ("DELETE", "/subjects/top?permanent=true", None, [1]),
        ("DELETE", "/subjects/pair?permanent=true", None, [1]),
        ("DELETE", "/subjects/user?permanent=true", None, [1]),
        ("DELETE", "/subjects/base?permanent=true", None, [1, 2]),
        ("GET", "/subjects?deleted=true", None, []),
    ],
    "contexts": [
        *TWO,
        put(":.c:s", schema(STRING), 1, 1),
        put(":.c:t", schema(INT), 2, 1),
        put(":.:u", schema(INT), 1, 1),
        ("GET", "/contexts", None, [".", ".c"]),
        ("GET", "/contexts?contextPrefix=.c", None, [".c"]),
        ("GET", "/contexts?offset=1", None, [".c"]),
        ("GET", "/subjects", None, [":.c:s", ":.c:t", "s", "u"]),
        ("GET", "/subjects?subjectPrefix=:.c:", None, [":.c:s", ":.c:t"]),
        ("GET", "/subjects?subjectPrefix=", None, ["s", "u"]),
        ("GET", "/subjects?subjectPrefix=:*:s", None, [":.c:s", "s"]),
        ("GET", "/schemas/ids/2/subjects?subject=:.c:", None, [":.c:t"]),
        ("GET", "/schemas/ids/2/subjects", None, ["s"]),
        ("GET", "/schemas/ids/2/subjects?subject=t", None, [":.c:t"]),
        ("GET", "/schemas/ids/2/subjects?subject=:.c:s", None, Code(40403)),
        ("GET", "/schemas/ids/1?subject=:.none:", None, Code(40403)),
        ("GET", "/subjects/t/versions/1", None, {"subject": ":.c:t", "version": 1, "id": 2}),
        ("GET", "/contexts/.c/subjects", None, [":.c:s", ":.c:t"]),
        ("GET", "/contexts/c/subjects/s/versions", None, [1]),
        ("GET", "/contexts/:.c:/schemas/ids/2/subjects", None, [":.c:t"]),
        (
            "GET",
            "/contexts/.c/schemas",
            None,
            [{"subject": ":.c:s", "version": 1, "id": 1}, {"subject": ":.c:t", "version": 1, "id": 2}],
        ),
        ("GET", "/contexts/a:b/subjects", None, Code(400)),
        ("PUT", "/contexts/.c/config", NONE, NONE),
        ("GET", "/config/:.c:", None, {"compatibilityLevel": "NONE"}),
        ("GET", "/config", None, {"compatibilityLevel": "BACKWARD"}),
        put(":.c:s", schema(INT), 2, 2),
        ("PUT", "/config/:.__GLOBAL:", {"compatibility": "FULL"}, {"compatibility": "FULL"}),
        ("GET", "/config/x?defaultToGlobal=true", None, {"compatibilityLevel": "FULL"}),
        ("GET", "/config/:.d:x?defaultToGlobal=true", None, {"compatibilityLevel": "FULL"}),
        ("GET", "/config/:.c:x?defaultToGlobal=true", None, {"compatibilityLevel": "NONE"}),
        ("PUT", "/contexts/.c/mode", {"mode": "READONLY"}, {"mode": "READONLY"}),
        ("GET", "/mode/:.c:x?defaultToGlobal=true", None, {"mode": "READONLY"}),
        ("POST", "/contexts/.c/subjects/x/versions", schema(INT), Code(42205)),
        ("DELETE", "/contexts/.c/mode", None, {"mode": "READONLY"}),
        ("DELETE", "/contexts/.c", None, Code(42211)),
        ("DELETE", "/contexts/:.:", None, Code(42211)),
        ("POST", "/subjects/:.__GLOBAL:x/versions", schema(INT), Code(42208)),
        ("DELETE", "/subjects/:.c:s", None, [1, 2]),
        ("DELETE", "/subjects/:.c:t", None, [1]),
        ("DELETE", "/subjects/:.c:s?permanent=true", None, [1, 2]),
        ("DELETE", "/subjects/:.c:t?permanent=true", None, [1]),
        ("DELETE", "/contexts/.c", None, None),
        ("GET", "/contexts", None, ["."]),
        ("DELETE", "/config/:.c:", None, {"compatibilityLevel": "NONE"}),
        put(":.c:s", schema(INT), 3, 1),
    ],
    "references in a context": [
        put("base", schema(STRING), 1, 1),
        put(":.c:base", schema(BASE), 1, 1),
        put(":.c:user", schema(USER, REFERENCE), 2, 1),
        ("GET", "/contexts/.c/subjects/base/versions/1/referencedby", None, [2]),
        ("GET", "/subjects/base/versions/1/referencedby", None, []),
        (
            "GET",
            "/subjects/:.c:user/versions/1",
            None,
            {"subject": ":.c:user", "version": 1, "id": 2, "references": [REFERENCE]},
        ),
        (
            "GET",
            "/subjects/:.c:user/versions/1?referenceFormat=qualified",
            None,
            {"subject": ":.c:user", "version": 1, "id": 2, "references": [{**REFERENCE, "subject": ":.c:base"}]},
        ),
        put("user", schema(USER, {**REFERENCE, "subject": ":.c:base"}), 2, 1),
        ("DELETE", "/subjects/:.c:user", None, [1]),
        ("DELETE", "/subjects/:.c:base", None, Code(42206)),
    ],
}


@pytest.fixture
async def http(journal: MemoryJournal, open_registry: Callable[..., Any]) -> AsyncIterator[Any]:
    async with open_registry(journal) as http:
        yield http


@pytest.mark.parametrize("name", SCRIPTS)
async def test_answers_are_those_of_the_documented_api(http: Any, journal: MemoryJournal, name: str) -> None:
    await run(http, SCRIPTS[name])


RESOLVED: Any = {
    "type": "record",
    "name": "User",
    "namespace": "n",
    "fields": [{"name": "base", "type": json.loads(BASE)}],
}
RESOLVED["fields"][0]["type"].pop("namespace")


async def test_types_that_a_schema_refers_to_are_put_in_on_request(http: Any) -> None:
    await run(http, [put("base", schema(BASE), 1, 1), put("user", schema(USER, REFERENCE), 2, 1)])
    guid = (await http.get("/schemas/ids/2")).json()["guid"]
    for path in ("/schemas/ids/2", "/subjects/user/versions/1", f"/schemas/guids/{guid}"):
        answer = (await http.get(f"{path}?format=resolved")).json()
        assert (json.loads(answer["schema"]), answer["guid"]) == (RESOLVED, guid), path
        assert (await http.get(f"{path}?format=unknown")).json()["schema"] == USER
    for path in ("/schemas/ids/2/schema", "/subjects/user/versions/1/schema"):
        assert json.loads((await http.get(f"{path}?format=resolved")).text) == RESOLVED
    assert (await http.get("/schemas/ids/1?format=resolved")).json()["schema"] == BASE


async def test_a_subject_whose_references_nest_too_deep_to_be_put_in_is_served(http: Any) -> None:
    def link(number: int) -> Any:
        type_: Any = f"R{number - 1}"
        for _ in range(60):
            type_ = {"type": "array", "items": type_}
        text = json.dumps({"type": "record", "name": f"R{number}", "fields": [{"name": "f", "type": type_}]})
        return schema(text, {"name": "", "subject": f"r{number - 1}", "version": 1})

    await run(http, [put("r0", schema('{"type": "record", "name": "R0", "fields": []}'), 1, 1)])
    await run(http, [put(f"r{number}", link(number), number + 1, 1) for number in range(1, 20)])
    assert (await http.get("/schemas/ids/20?format=resolved")).json()["schema"] == link(19)["schema"]
    await run(
        http,
        [
            ("POST", "/subjects/r19", schema('"int"'), Code(40403)),
            ("PUT", "/config/r19", {"compatibility": "NONE"}, {"compatibility": "NONE"}),
            put("r19", schema('"int"'), 21, 2),
        ],
    )


async def test_a_schema_with_its_references_put_in_is_the_registered_one(http: Any) -> None:
    whole = schema(json.dumps(RESOLVED))
    found = {"subject": "user", "version": 1, "id": 2, "references": [REFERENCE]}
    await run(
        http,
        [
            put("base", schema(BASE), 1, 1),
            put("user", schema(USER, REFERENCE), 2, 1),
            ("POST", "/subjects/user", whole, found),
            put("user", whole, 2, 1),
            put("other", whole, 3, 1),
            ("POST", "/subjects/user", schema(json.dumps(RESOLVED).replace('"a"', '"b"')), Code(40403)),
            ("DELETE", "/subjects/user/versions/1", None, 1),
            ("POST", "/subjects/user", whole, Code(40401)),
            ("POST", "/subjects/user?deleted=true", whole, {**found, "deleted": True}),
        ],
    )
