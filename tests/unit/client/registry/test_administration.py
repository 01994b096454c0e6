import json
from typing import Any

import pytest
import trio

from pipeline.client.registry.administration import (
    RegistryAdministration,
    RegistryAnswerError,
    SchemaEntry,
    ask_each,
    context_prefix,
    in_context,
    open_registry_administration,
)
from pipeline.client.registry.client import SchemaRegistryError
from pipeline.errors import PipelineError
from tests.support.registry_model import DirectCalls, RegistryModel, serving_model

INT, LONG = {"schema": '"int"'}, {"schema": '"long"'}


@pytest.fixture
def model() -> RegistryModel:
    return RegistryModel()


@pytest.fixture
def registry(model: RegistryModel) -> RegistryAdministration:
    return RegistryAdministration(DirectCalls(model).call)


@pytest.mark.parametrize(
    ("subject", "context", "named"),
    [
        ("a", "", ":.d:a"),
        (":.c:a", ":.c:", ":.c:a"),
        (":.c:", ":.c:", ":.c:"),
        (":a", "", ":.d::a"),
        (":.a", "", ":.d::.a"),
    ],
)
def test_subjects_have_contexts(subject: str, context: str, named: str) -> None:
    assert context_prefix(subject) == context
    assert in_context(subject, "") == subject
    assert in_context(subject, ":.d:") == named


async def test_requests_over_http() -> None:
    model = RegistryModel()
    with serving_model(model) as url:
        async with open_registry_administration([url]) as registry:
            assert await registry.register("a/b", INT) == 1
            assert await registry.subjects() == ["a/b"]
            assert (await registry.version("a/b")).text == '"int"'
            with pytest.raises(SchemaRegistryError, match="40402"):
                await registry.version("a/b", 2)


@pytest.mark.parametrize("answer", [None, {}, [], "abc", 7, True, [None], [{}], {"is_compatible": "no"}, {"id": "1"}])
async def test_the_answers_of_another_service_are_no_answers(answer: Any) -> None:
    async def call(method: str, path: str, body: Any = None) -> Any:
        return answer

    registry = RegistryAdministration(call)
    entry = SchemaEntry(subject="s", version=1, id=1, content=INT)
    for ask in (
        lambda: registry.version("s"),
        lambda: registry.content_of_id(1),
        lambda: registry.look_up("s", INT),
        lambda: registry.register("s", INT),
        lambda: registry.restore(entry),
        lambda: registry.why_incompatible("s", INT),
        registry.mode,
        registry.contents,
        *(
            lambda read=read: read("s")
            for read in (registry.subjects, registry.versions, registry.versions_of_id, registry.delete_subject)
            if answer != []
        ),
        *(() if isinstance(answer, dict) else (registry.config, lambda: registry.set_config({}))),
    ):
        with pytest.raises(RegistryAnswerError, match="no answer of a schema registry"):
            await ask()


async def test_long_lists_come_in_pages(model: RegistryModel, registry: RegistryAdministration) -> None:
    for number in range(8):
        model.register(f"s{number}", INT)
        model.register("s0", {"schema": json.dumps({"type": "fixed", "name": "F", "size": number})})
    assert await registry.subjects() == [f"s{number}" for number in range(8)]
    assert await registry.subjects("s1") == ["s1"]
    assert await registry.versions("s0") == list(range(1, 10))
    assert len(await registry.schemas()) == 16
    assert {entry.subject for entry in await registry.schemas("s7")} == {"s7"}


async def test_a_registry_without_pages_is_read_once(model: RegistryModel) -> None:
    for number in range(8):
        model.register(f"s{number}", INT)
    model.page = 1000
    calls = DirectCalls(model)

    async def without_pages(method: str, path: str, body: Any = None) -> Any:
        return await calls.call(method, path.replace("offset", "ignored"), body)

    assert len(await RegistryAdministration(without_pages).subjects()) == 8
    assert len(calls.requests) == 2


async def test_references_deletes_and_ids(model: RegistryModel, registry: RegistryAdministration) -> None:
    reference = {"name": "x", "subject": "a", "version": 1}
    assert await registry.register(":.c:a", INT) == 1
    assert await registry.register(":.c:b", {**LONG, "references": [reference]}) == 2
    assert await registry.referenced_by(":.c:a", None) == [2]
    assert (await registry.version(":.c:b")).references == [("x", ":.c:a", 1)]
    assert await registry.versions_of_id(2, ":.c:") == [(":.c:b", 1)]
    assert (await registry.content_of_id(2, ":.c:"))["references"] == [reference]
    assert await registry.contexts() == [":.c:"]
    assert await registry.look_up(":.c:a", LONG) is None
    assert await registry.look_up(":.c:z", LONG) is None
    assert await registry.delete_version(":.c:b", None) == 1
    assert await registry.look_up(":.c:b", {**LONG, "references": [reference]}) is None
    found = await registry.look_up(":.c:b", {**LONG, "references": [reference]}, deleted=True)
    assert found == SchemaEntry(subject=":.c:b", version=1, id=2, content={**LONG, "references": [reference]})
    assert await registry.delete_subject(":.c:b", permanent=True) == [1]


async def test_what_a_registry_lacks_is_none(model: RegistryModel, registry: RegistryAdministration) -> None:
    async def old(method: str, path: str, body: Any = None) -> Any:
        if path.startswith(("/contexts", "/mode", "/schemas/types")):
            raise SchemaRegistryError(404, 404, "HTTP 404 Not Found")
        return await DirectCalls(model).call(method, path, body)

    model.register("s", INT)
    older = RegistryAdministration(old)
    assert (await older.contexts(), await older.mode(), await older.schema_types()) == (None, None, [])
    contents = await older.contents()
    assert (list(contents.schemas), contents.modes) == ([("s", 1)], {})
    assert (await registry.config("s"), await registry.mode("s")) == (None, None)
    assert await registry.config("s", inherited=True) == {"compatibilityLevel": "BACKWARD"}


async def test_a_registry_that_changes_while_it_is_read_is_read_again(model: RegistryModel) -> None:
    model.register("a", INT)
    model.delete("a", None, False)
    calls = DirectCalls(model)
    changes = iter([lambda: model.register("b", INT), lambda: model.delete("a", None, True)])

    async def changing(method: str, path: str, body: Any = None) -> Any:
        if path.startswith("/subjects"):
            next(changes, lambda: None)()
        return await calls.call(method, path, body)

    contents = await RegistryAdministration(changing).contents()
    assert list(contents.schemas) == [("b", 1)]

    async def restless(method: str, path: str, body: Any = None) -> Any:
        if path.startswith("/subjects"):
            model.register(f"n{len(model.schemas)}", INT)
        return await calls.call(method, path, body)

    with pytest.raises(PipelineError, match="registered or deleted while they were read"):
        await RegistryAdministration(restless).contents()


async def test_a_deletion_between_two_pages_hides_no_version(model: RegistryModel) -> None:
    for number in range(8):
        model.register(f"s{number}", INT)
    calls = DirectCalls(model)
    deleted: set[str] = set()

    async def deleting(method: str, path: str, body: Any = None) -> Any:
        answer = await calls.call(method, path, body)
        is_listing = path.startswith("/schemas?") and "deleted=true" not in path
        if is_listing and "offset=0" in path and not deleted:
            model.delete("s0", None, False)
            deleted.add("s0")
        return answer

    contents = await RegistryAdministration(deleting).contents()
    assert {subject for (subject, _), entry in contents.schemas.items() if entry.deleted} == deleted == {"s0"}
    assert len(contents.schemas) == 8


@pytest.mark.parametrize("answer", [[7], [{}], [{"subject": "s", "version": 1, "id": 1}], [None]])
async def test_other_answers_are_refused(answer: Any) -> None:
    async def other(*_: Any) -> Any:
        return answer

    with pytest.raises(PipelineError, match="no answer of a schema registry"):
        await RegistryAdministration(other).schemas()


async def test_few_requests_are_under_way_at_a_time() -> None:
    under_way, most = 0, 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        under_way -= 1
        return -number

    assert await ask_each(range(50), ask) == [-number for number in range(50)]
    assert most == 8
    assert await ask_each([], ask) == []
