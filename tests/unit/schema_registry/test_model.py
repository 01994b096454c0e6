"""Any commands in any order: answers are those of the model, ids keep their meaning, and every replay is the same."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.errors import RegistryError
from pipeline.schema_registry.rules.candidates import SchemaComparison, SchemaRequest, parse_candidate, reasons_against
from pipeline.schema_registry.rules.deletions import delete_context, delete_subject, delete_version
from pipeline.schema_registry.rules.references import dependencies_of, numbered
from pipeline.schema_registry.rules.registry import WritePlan, register
from pipeline.schema_registry.rules.setting_commands import reset_config, reset_mode, set_config, set_mode
from pipeline.schema_registry.state.contexts import context_of
from pipeline.schema_registry.state.events import SchemaReference, decode_event, encode_event
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.subject_settings import RegistryMode
from tests.support.documented_registry import GLOBAL, TEXTS, DocumentedRegistry, Reference

SUBJECTS = ("a", "b", ":.c:a", ":.c:b")
SCOPES = (*SUBJECTS, None, ":.c:", GLOBAL)
LEVELS = ("NONE", "BACKWARD")

Log = list[tuple[bytes, bytes | None]]

subjects = st.sampled_from(SUBJECTS)
scopes = st.sampled_from(SCOPES)
numbers = st.integers(1, 4)
references = st.lists(st.tuples(subjects, st.just(-1) | numbers), min_size=1, max_size=2, unique=True).map(tuple)
modes = st.sampled_from([*RegistryMode, RegistryMode.READWRITE, RegistryMode.IMPORT])


def new_state() -> RegistryState:
    return RegistryState(CompatibilityLevel.BACKWARD)


def written_out(used: tuple[Reference, ...]) -> tuple[SchemaReference, ...]:
    return tuple(SchemaReference("n", subject, version) for subject, version in used)


def plan_registration(state: RegistryState, subject: str, request: SchemaRequest) -> WritePlan[Any]:
    """As the routes and the service do it."""
    request = numbered(state, subject, request)
    candidate = parse_candidate(request, dependencies_of(state, subject, request.references))
    plan = register(state, subject, candidate, {})
    if isinstance(plan.answer, SchemaComparison):
        plan = register(state, subject, candidate, {plan.answer: reasons_against(candidate, plan.answer)})
    return plan


class Commands(RuleBasedStateMachine):
    """The registry's rules beside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.state = new_state()
        self.model = DocumentedRegistry()
        self.log: Log = []
        self.meaning: dict[Any, Any] = {}

    def command(self, decide: Callable[..., WritePlan[Any]], *args: Any, **kwargs: Any) -> Any:
        """Carry out a plan, and return its answer or the code of its refusal. Each prefix of the log is valid."""
        try:
            plan = decide(self.state, *args, **kwargs)
        except RegistryError as error:
            return int(error.code)
        for event in plan.events:
            record = encode_event(event)
            self.log.append(record)
            assert self.state.apply(decode_event(*record)) is None
        return plan.answer

    @rule(subject=subjects, text=st.sampled_from(TEXTS), used=references, wanted=st.none() | numbers)
    def register(self, subject: str, text: str, used: tuple[Reference, ...], wanted: int | None) -> None:
        self.put(subject, text, used, None, wanted)

    @rule(
        subject=subjects,
        text=st.sampled_from(TEXTS),
        used=st.just(()) | references,
        schema_id=st.integers(0, 9),
        wanted=st.none() | numbers,
    )
    def import_schema(
        self, subject: str, text: str, used: tuple[Reference, ...], schema_id: int, wanted: int | None
    ) -> None:
        self.put(subject, text, used, schema_id, wanted)

    def put(
        self, subject: str, text: str, used: tuple[Reference, ...], schema_id: int | None, wanted: int | None
    ) -> None:
        context = context_of(subject)
        if schema_id is not None and self.state.schema(schema_id, context) is None:
            self.meaning.pop((context, schema_id), None)
        request = SchemaRequest(text=text, references=written_out(used), id=schema_id, version=wanted)
        answer = self.command(plan_registration, subject, request)
        if not isinstance(answer, int):
            answer = answer.schema.id, answer.number
        assert answer == self.model.register(subject, text, used, schema_id, wanted)

    @rule(subject=subjects, text=st.sampled_from(TEXTS[:3]))
    def register_plainly(self, subject: str, text: str) -> None:
        self.put(subject, text, (), None, None)

    @rule(subject=subjects, pick=numbers, permanent=st.booleans())
    def delete_version(self, subject: str, pick: int, permanent: bool) -> None:
        known = sorted(self.model.rows(subject))
        number = known[pick % len(known)] if known else pick
        answer = self.command(delete_version, subject, number, permanent=permanent)
        assert answer == self.model.delete_version(subject, number, permanent=permanent)

    @rule(subject=subjects, permanent=st.booleans())
    def delete_subject(self, subject: str, permanent: bool) -> None:
        answer = self.command(delete_subject, subject, permanent=permanent)
        assert answer == self.model.delete_subject(subject, permanent=permanent)

    @rule(subject=subjects)
    def delete_all_of_a_subject(self, subject: str) -> None:
        self.delete_subject(subject, False)
        self.delete_subject(subject, True)

    @rule(scope=scopes, level=st.sampled_from(LEVELS))
    def set_level(self, scope: str | None, level: str) -> None:
        answer = self.command(set_config, scope, {"level": CompatibilityLevel(level)})
        if self.model.mode(scope).startswith("READONLY"):
            assert answer == 42205
        else:
            assert answer.level == level
            self.model.levels[scope] = level

    @rule(scope=scopes)
    def reset_level(self, scope: str | None) -> None:
        answer = self.command(reset_config, scope)
        if scope not in self.model.levels and scope not in {None, GLOBAL}:
            assert answer == 40401
        elif self.model.mode(scope).startswith("READONLY"):
            assert answer == 42205
        else:
            self.model.levels.pop(scope, None)

    @rule(scope=scopes, mode=modes, force=st.booleans())
    def set_mode(self, scope: str | None, mode: RegistryMode, force: bool) -> None:
        answer = self.command(set_mode, scope, mode, force=force)
        assert answer == self.model.set_mode(scope, mode.value, force=force)

    @rule(scope=scopes)
    def reset_mode(self, scope: str | None) -> None:
        answer = self.command(reset_mode, scope, recursive=False)
        if scope not in self.model.modes and scope not in {None, GLOBAL}:
            assert answer == 40401
        else:
            assert answer == self.model.modes.pop(scope, "READWRITE")

    @rule()
    @precondition(lambda self: self.model.modes)
    def allow_everything(self) -> None:
        """Modes and levels that forbid most commands do not last."""
        for scope in list(self.model.modes):
            self.reset_mode(scope)
        self.set_level(GLOBAL, "NONE")

    @rule()
    @precondition(lambda self: self.model.contexts)
    def delete_context(self) -> None:
        assert self.command(delete_context, ".c") == self.model.delete_context(".c")

    @rule()
    def compact(self) -> None:
        last = {key: index for index, (key, _) in enumerate(self.log)}
        kept: Log = [(key, value) for i, (key, value) in enumerate(self.log) if last[key] == i and value is not None]
        assert view(replay(kept)) == view(self.state)
        self.log = kept

    @invariant()
    def reads_are_those_of_the_model(self) -> None:
        state, model = self.state, self.model
        for subject in SUBJECTS:
            rows = {
                version.number: (version.schema.id, version.schema.text, version.deleted)
                for version in state.versions(subject, deleted=True)
            }
            assert rows == {n: (row.id, row.text, row.deleted) for n, row in sorted(model.rows(subject).items())}
            for number in rows:
                for deleted in (False, True):
                    users = state.referrers(subject, number, deleted=deleted)
                    wanted = model.referrers(subject, number, deleted=deleted)
                    assert [(user.subject, user.number) for user in users] == wanted
        for scope in SCOPES:
            assert state.settings.level(scope) == model.level(scope)
            assert state.settings.mode(scope) == model.mode(scope)
        assert set(state.contexts()) == {".", *model.contexts}

    @invariant()
    def ids_keep_their_meaning(self) -> None:
        """An import alone may bring the id of a permanently deleted schema again."""
        for context in (".", ".c"):
            for schema_id in range(self.state.next_id(context)):
                schema = self.state.schema(schema_id, context)
                if schema is not None:
                    versions = self.state.versions_of_id(schema_id, context, deleted=True)
                    assert versions
                    assert {version.schema.identity for version in versions} == {schema.identity}
                    assert self.state.ids_of_guid(schema.guid)
                    meaning = self.meaning.setdefault((context, schema_id), schema)
                    assert (meaning.text, meaning.references) == (schema.text, schema.references)
            assert self.state.highest_id(context) == self.model.highest.get(context, 0)

    def teardown(self) -> None:
        assert view(replay(self.log)) == view(self.state)


def replay(log: Log) -> RegistryState:
    state = new_state()
    for key, value in log:
        assert state.apply(decode_event(key, value)) is None
    return state


def view(state: RegistryState) -> Any:
    versions = [version for subject in SUBJECTS for version in state.versions(subject, deleted=True)]
    own = [(state.settings.own_config(scope), state.settings.own_mode(scope)) for scope in SCOPES]
    return versions, own, state.contexts(), [state.next_id(context) for context in (".", ".c")]


@pytest.mark.long
def test_the_rules_are_those_of_the_model() -> None:
    run_state_machine_as_test(Commands, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))


@pytest.mark.long
def test_the_rules_are_those_of_the_model_in_many_examples() -> None:
    run_state_machine_as_test(Commands, settings=settings(max_examples=3_000, stateful_step_count=60, deadline=None))
