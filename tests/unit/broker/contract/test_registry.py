"""Questions to a registry: what its answers mean, and that nonsense is never a verdict."""

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from pipeline.broker.contract import registry as questions
from pipeline.broker.contract.registry import RegistryAwayError, RegistryQuestions, open_questions
from pipeline.broker.contract.verdicts import ContractVerdict, RefusalReason, SchemaQuestion
from pipeline.broker.settings.contract import SubjectRule
from pipeline.hadoop.avro.datum_walk import compile_datums
from tests.support.scripted_registry import ScriptedRegistry, scripted_registry

OF_TOPIC = SubjectRule("t-value")
BY_NAME = SubjectRule("", has_name=True)
Ask = Callable[..., Awaitable[ContractVerdict]]


@pytest.fixture
async def asked(registry: ScriptedRegistry) -> AsyncIterator[RegistryQuestions]:
    async with open_questions([registry.url], timeout_s=60, compile_schema=compile_datums) as asked:
        yield asked


def about(schema: int | bytes, rule: SubjectRule = OF_TOPIC, *, decodes: bool = False) -> SchemaQuestion:
    return SchemaQuestion(schema, rule, decodes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ('{"type": "record", "name": "V", "namespace": "a.b", "fields": []}', "AVRO", "a.b.V"),
        ('{"type": "record", "name": "c.V", "namespace": "a.b", "fields": []}', None, "c.V"),
        ('{"type": "enum", "name": "E", "symbols": []}', "AVRO", "E"),
        ('"string"', "AVRO", "string"),
        ('{"type": "string"}', "AVRO", "string"),
        ('{"type": "array", "items": "int"}', "AVRO", "array"),
        ('{"type": {"type": "record", "name": "V", "fields": []}}', "AVRO", "V"),
        ('{"title": "Visit"}', "JSON", "Visit"),
        ('["null", "string"]', "AVRO", None),
        ("{}", "AVRO", None),
        ('{"name": 7}', "AVRO", None),
        ('syntax = "proto3";', "PROTOBUF", None),
    ],
)
async def test_names_of_schemas(
    registry: ScriptedRegistry, asked: RegistryQuestions, text: str, kind: str | None, name: str | None
) -> None:
    registry.add(1, str(name), text=text, **({} if kind is None else {"schemaType": kind}))
    verdict = await asked.judge(about(1, BY_NAME))
    assert verdict.reason == (RefusalReason.UNUSABLE_SCHEMA if name is None else None)


async def test_all_registries_must_answer_before_a_schema_is_refused(registry: ScriptedRegistry) -> None:
    async with (
        scripted_registry() as late,
        open_questions([late.url, registry.url], timeout_s=60, compile_schema=None) as asked,
    ):
        registry.add(1, "t-value", "u-value")
        late.add(1, "u-value")
        assert (await asked.judge(about(1))).reason is None, "known in this subject by the other registry"
        assert (await asked.judge(about(2))).reason == RefusalReason.UNKNOWN_ID
        assert (await asked.judge(about(1, SubjectRule("w-value")))).reason == RefusalReason.OTHER_SUBJECT
        for away in (registry, late):
            away.broken = (502, b"")
            for schema_id in (2, 1):
                with pytest.raises(RegistryAwayError) as caught:
                    await asked.judge(about(schema_id, SubjectRule("w-value")))
                assert not caught.value.is_silent
            away.broken = None
        late.broken = (502, b"")
        assert (await asked.judge(about(1))).reason is None


async def test_a_registry_that_does_not_listen_is_left_alone_while_another_answers(registry: ScriptedRegistry) -> None:
    async with open_questions([registry.url, "http://127.0.0.1:1"], timeout_s=60, compile_schema=None) as asked:
        for _ in range(5):
            with pytest.raises(RegistryAwayError) as caught:
                await asked.judge(about(1))
            assert not caught.value.is_silent, "others with unknown ids are not kept from the one that answers"
        assert asked.calls["not_found"] == 5
        assert asked.calls["failed"] < 5


@pytest.mark.long
@pytest.mark.parametrize("age", ["unknown", "3600.000", "nan", "x"])
async def test_a_replica_that_may_be_behind_refuses_nothing(
    registry: ScriptedRegistry, asked: RegistryQuestions, age: str
) -> None:
    registry.add(1, "t-value")
    registry.add(2, "u-value")
    registry.age = age
    assert (await asked.judge(about(1))).reason is None
    for schema in (2, 3, b"g" * 16):
        with pytest.raises(RegistryAwayError) as caught:
            await asked.judge(about(schema))
        assert not caught.value.is_silent
    async with (
        scripted_registry() as hub,
        open_questions([registry.url, hub.url], timeout_s=60, compile_schema=None) as asked_both,
    ):
        assert (await asked_both.judge(about(3))).reason == RefusalReason.UNKNOWN_ID, "where the log is written"


async def test_a_replica_refuses_once_it_is_complete_up_to_the_first_question(
    registry: ScriptedRegistry, asked: RegistryQuestions
) -> None:
    first_s = trio.current_time()
    registry.age = "60.000"
    with pytest.raises(RegistryAwayError):
        await asked.judge(about(3))
    registry.age = "0.000"
    with trio.fail_after(60):
        assert (await asked.judge(about(3))).reason == RefusalReason.UNKNOWN_ID
    registry.age = f"{trio.current_time() - first_s:.3f}"
    with pytest.raises(RegistryAwayError):
        await asked.judge(about(3))  # a new question, since the other one has its answer


@pytest.mark.parametrize("answer", [b"null", b"[{}]", b'[{"subject": 5}]', b"{}", b"7"])
async def test_nonsense_is_no_verdict(registry: ScriptedRegistry, asked: RegistryQuestions, answer: bytes) -> None:
    registry.add(1, "t-value")
    registry.guids[b"g" * 16] = 1
    registry.broken = (200, answer)
    with pytest.raises(RegistryAwayError):
        await asked.judge(about(1))
    registry.broken, registry.broken_posts = None, (200, answer)
    with pytest.raises(RegistryAwayError):
        await asked.judge(about(b"g" * 16))


async def test_a_registry_that_does_not_listen_is_silent() -> None:
    async with open_questions(["http://127.0.0.1:1"], timeout_s=60, compile_schema=None) as asked:
        with pytest.raises(RegistryAwayError) as caught:
            await asked.judge(about(1))
    assert caught.value.is_silent


async def test_endless_answers_count_as_none(
    registry: ScriptedRegistry, asked: RegistryQuestions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MAX_ANSWER_BYTES", 1000)
    registry.broken = (200, b"[" + b" " * 2000 + b"]")
    with pytest.raises(RegistryAwayError):
        await asked.judge(about(1))


async def test_references_that_lead_in_a_circle_end(registry: ScriptedRegistry, asked: RegistryQuestions) -> None:
    circle = [{"name": "x", "subject": "t-value", "version": 1}]
    registry.add(1, "t-value", references=circle)
    assert (await asked.judge(about(1, decodes=True))).reason in {None, RefusalReason.UNUSABLE_SCHEMA}
    assert len(registry.calls) < 10


async def test_schemas_of_other_kinds_are_not_decoded(registry: ScriptedRegistry, asked: RegistryQuestions) -> None:
    registry.add(1, "t-value", text="{}", schemaType="JSON")
    registry.add(2, "t-value", text='{"type": "no such type"}')
    for schema_id in (1, 2):
        assert (await asked.judge(about(schema_id, decodes=True))).reason == RefusalReason.UNUSABLE_SCHEMA
        assert (await asked.judge(about(schema_id))).reason is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["AVRO", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["schema", "schemaType", "references", "subject", "version", "error_code", "name"]), inner
        )
    ),
    max_leaves=8,
)
SCHEMA_TEXTS = ANYTHING.map(json.dumps)
ANSWERS: st.SearchStrategy[Any] = ANYTHING | st.builds(
    dict, schema=SCHEMA_TEXTS | st.text(max_size=5), references=ANYTHING, schemaType=st.just("AVRO") | ANYTHING
)


class Answers(httpx.AsyncBaseTransport):
    """Gives these answers in turn, whatever is asked."""

    def __init__(self, answers: Any) -> None:
        self._turn = itertools.cycle(answers)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        status, body = next(self._turn)
        return httpx.Response(status, stream=httpx.ByteStream(json.dumps(body).encode()))


@given(
    answers=st.lists(st.tuples(st.sampled_from([200, 200, 404, 500]), ANSWERS), min_size=1, max_size=4),
    schema=st.integers(0, 2**31 - 1) | st.binary(min_size=16, max_size=16),
    rule=st.sampled_from([OF_TOPIC, BY_NAME]),
    decodes=st.booleans(),
)
def test_any_json_is_an_answer_or_none(answers: Any, schema: int | bytes, rule: SubjectRule, decodes: bool) -> None:
    """A verdict, or RegistryAwayError: no other error may leave, since it would end the broker."""

    async def run() -> None:
        async with httpx.AsyncClient(transport=Answers(answers)) as http:
            asked = RegistryQuestions(http, ["http://r"], attempt_s=60, compile_schema=compile_datums)
            try:
                verdict = await asked.judge(SchemaQuestion(schema, rule, decodes))
            except RegistryAwayError:
                return
            assert isinstance(verdict, ContractVerdict)

    trio.run(run)
