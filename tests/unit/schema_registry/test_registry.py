from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.errors import RegistryError
from pipeline.schema_registry.rules.candidates import (
    Candidate,
    SchemaComparison,
    SchemaRequest,
    parse_candidate,
    read_request,
    reasons_against,
)
from pipeline.schema_registry.rules.deletions import delete_subject, delete_version
from pipeline.schema_registry.rules.registry import (
    MAX_VERSION,
    WritePlan,
    comparison_of,
    get_version,
    look_up,
    parse_version,
    register,
)
from pipeline.schema_registry.rules.setting_commands import reset_config, set_config, set_mode
from pipeline.schema_registry.state.events import (
    IdsReserved,
    SchemaReference,
    SchemaWritten,
    decode_event,
    encode_event,
)
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.subject_settings import RegistryMode


def candidate(text: str, **more: Any) -> Candidate:
    return parse_candidate(read_request({"schema": text, **more}))


INT, LONG, STRING = (candidate(f'"{name}"') for name in ("int", "long", "string"))


def new_state() -> RegistryState:
    return RegistryState(CompatibilityLevel.BACKWARD)


@pytest.fixture
def state() -> RegistryState:
    return new_state()


def carry_out(state: RegistryState, plan: WritePlan[Any]) -> Any:
    for event in plan.events:
        assert state.apply(decode_event(*encode_event(event))) is None
    return plan.answer


def planned(state: RegistryState, subject: str, schema: Candidate) -> WritePlan[Any]:
    """As the service does it: what has to be compared is compared."""
    plan = register(state, subject, schema, {})
    if isinstance(plan.answer, SchemaComparison):
        plan = register(state, subject, schema, {plan.answer: reasons_against(schema, plan.answer)})
    assert not isinstance(plan.answer, SchemaComparison)
    return plan


def put(state: RegistryState, subject: str, schema: Candidate) -> int:
    return int(carry_out(state, planned(state, subject, schema)).schema.id)


def refused(code: int, decide: Callable[..., Any], *args: Any, **kwargs: bool) -> str:
    with pytest.raises(RegistryError) as caught:
        decide(*args, **kwargs)
    assert caught.value.code == code
    return str(caught.value)


def test_the_same_schema_gets_the_same_id_and_no_event(state: RegistryState) -> None:
    assert put(state, "s", candidate('{"type": "int"}')) == 1
    plan = planned(state, "s", candidate(' "int" '))
    assert (plan.answer.schema.id, plan.events) == (1, ())
    assert getattr(state.schema(1), "text", None) == '{"type": "int"}'


def test_two_subjects_share_the_id_of_one_schema(state: RegistryState) -> None:
    assert [put(state, "a", INT), put(state, "b", INT), put(state, "b", LONG)] == [1, 1, 2]
    assert [(v.subject, v.number) for v in state.versions_of_id(1)] == [("a", 1), ("b", 1)]


def test_a_version_again_after_others_is_the_old_version(state: RegistryState) -> None:
    carry_out(state, set_config(state, "s", {"level": CompatibilityLevel.NONE}))
    assert [put(state, "s", INT), put(state, "s", STRING), put(state, "s", INT)] == [1, 2, 1]
    assert [version.number for version in state.versions("s")] == [1, 2]


def test_an_incompatible_schema_is_refused_with_the_reasons(state: RegistryState) -> None:
    put(state, "s", LONG)
    message = refused(409, planned, state, "s", INT)
    assert "version 1 (writer): TYPE_MISMATCH: the reader has int, the writer long" in message
    carry_out(state, set_config(state, "s", {"level": CompatibilityLevel.FORWARD}))
    assert put(state, "s", INT) == 2


def read_and_parse(content: Any) -> Candidate:
    return parse_candidate(read_request(content))


@pytest.mark.parametrize(
    "content",
    [
        {"schema": "{"},
        {"schema": '"int"', "schemaType": "JSON"},
        {"schema": '"int"', "references": [{}]},
        {"schema": 7},
    ],
)
def test_invalid_schemas_are_refused(content: Any) -> None:
    refused(42201, read_and_parse, content)


@pytest.mark.parametrize(
    "subject", ["", " ", "a\n", "\ud800", ".", ":.live:..", ":.context:", ":.__GLOBAL:s", "__GLOBAL", "x" * 300]
)
def test_names_that_no_subject_may_have(state: RegistryState, subject: str) -> None:
    refused(42208, planned, state, subject, INT)


def test_a_schema_is_looked_up_by_its_text(state: RegistryState) -> None:
    put(state, "s", INT)
    assert look_up(state, "s", candidate('{"type":"int"}')).number == 1
    refused(40403, look_up, state, "s", LONG)
    refused(40401, look_up, state, "t", INT)


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("latest", None), ("-1", None), ("2147483647", 2147483647)])
def test_versions_by_name(text: str, number: int | None) -> None:
    assert parse_version(text) == number


@pytest.mark.parametrize(
    "text", ["0", "-2", "x", "", "2147483648", "9" * 5000, "0" * 10 + "1" * 5000, "00000000001999", "\u0661", "1.0"]
)
def test_invalid_versions_are_refused(text: str) -> None:
    refused(42202, parse_version, text)


def test_soft_and_permanent_delete_of_a_version(state: RegistryState) -> None:
    put(state, "s", INT)
    put(state, "s", LONG)
    refused(40407, delete_version, state, "s", 2, permanent=True)
    assert carry_out(state, delete_version(state, "s", None, permanent=False)) == 2
    assert [version.number for version in state.versions("s")] == [1]
    assert getattr(state.schema(2), "text", None) == '"long"'
    refused(40406, delete_version, state, "s", 2, permanent=False)
    refused(40402, delete_version, state, "s", 3, permanent=False)
    assert carry_out(state, delete_version(state, "s", 2, permanent=True)) == 2
    assert state.schema(2) is None
    assert put(state, "s", LONG) == 3


def test_soft_and_permanent_delete_of_a_subject(state: RegistryState) -> None:
    put(state, "s", INT)
    put(state, "s", LONG)
    carry_out(state, set_config(state, "s", {"level": CompatibilityLevel.FULL}))
    refused(40405, delete_subject, state, "s", permanent=True)
    assert carry_out(state, delete_subject(state, "s", permanent=False)) == [1, 2]
    assert (state.subjects(), state.subjects(deleted=True)) == ([], ["s"])
    assert state.settings.own_config("s") is None
    refused(40404, delete_subject, state, "s", permanent=False)
    refused(40401, get_version, state, "s", None)
    assert put(state, "s", INT) == 1
    assert [version.number for version in state.versions("s", deleted=True)] == [2, 3]
    carry_out(state, delete_subject(state, "s", permanent=False))
    assert carry_out(state, delete_subject(state, "s", permanent=True)) == [2, 3]
    assert state.subjects(deleted=True) == []
    refused(40401, delete_subject, state, "s", permanent=True)


def test_a_subject_that_is_deleted_again_after_an_import_stays_deleted_after_compaction(state: RegistryState) -> None:
    log: list[tuple[bytes, bytes | None]] = []

    def write(plan: WritePlan[Any]) -> None:
        log.extend(encode_event(event) for event in plan.events)
        carry_out(state, plan)

    for schema in (INT, LONG):
        write(planned(state, "s", schema))
    write(delete_subject(state, "s", permanent=False))
    write(set_mode(state, "s", RegistryMode.IMPORT, force=True))
    write(planned(state, "s", candidate('"int"', id=1, version=1)))
    assert [version.deleted for version in state.versions("s", deleted=True)] == [False, True]
    write(delete_subject(state, "s", permanent=False))
    compacted = new_state()
    last = {key: index for index, (key, _) in enumerate(log)}
    for index, (key, value) in enumerate(log):
        if last[key] == index and value is not None:
            compacted.apply(decode_event(key, value))
    assert [version.deleted for version in compacted.versions("s", deleted=True)] == [True, True]


def test_a_mode_that_is_overridden_does_not_allow_an_import_over_schemas(state: RegistryState) -> None:
    """As in Confluent's registry: an import begins anew if the mode in force is another, whatever the subject's own."""
    put(state, "live", INT)
    put(state, "dead", INT)
    carry_out(state, delete_subject(state, "dead", permanent=False))
    for subject in ("live", "dead"):
        carry_out(state, set_mode(state, subject, RegistryMode.IMPORT, force=True))
        assert set_mode(state, subject, RegistryMode.IMPORT, force=False).events == ()
    carry_out(state, set_mode(state, None, RegistryMode.READONLY_OVERRIDE, force=False))
    refused(42205, set_mode, state, "live", RegistryMode.IMPORT, force=False)
    assert set_mode(state, "live", RegistryMode.IMPORT, force=True).events == ()
    carry_out(state, set_mode(state, "dead", RegistryMode.IMPORT, force=False))
    assert state.subjects(deleted=True) == ["live"]


def test_there_is_no_version_after_the_last_number(state: RegistryState) -> None:
    carry_out(state, set_mode(state, "s", RegistryMode.IMPORT, force=False))
    carry_out(state, planned(state, "s", candidate('"int"', id=1, version=MAX_VERSION)))
    refused(42202, planned, state, "s", candidate('"long"', id=2))
    carry_out(state, planned(state, "s", candidate('"long"', id=2, version=4)))
    carry_out(state, set_mode(state, "s", RegistryMode.READWRITE, force=False))
    refused(42202, planned, state, "s", STRING)


def test_deleted_versions_do_not_count_for_compatibility(state: RegistryState) -> None:
    put(state, "s", INT)
    carry_out(state, delete_version(state, "s", 1, permanent=False))
    assert put(state, "s", STRING) == 2


def test_compatibility_levels_are_set_and_reset(state: RegistryState) -> None:
    assert state.settings.level("s") is CompatibilityLevel.BACKWARD
    carry_out(state, set_config(state, None, {"level": CompatibilityLevel.FULL}))
    carry_out(state, set_config(state, "s", {"level": CompatibilityLevel.NONE}))
    assert (state.settings.level("s"), state.settings.level("t")) == (CompatibilityLevel.NONE, CompatibilityLevel.FULL)
    assert carry_out(state, reset_config(state, "s")).level is CompatibilityLevel.NONE
    refused(40401, reset_config, state, "s")
    carry_out(state, reset_config(state, None))
    assert state.settings.level("s") is CompatibilityLevel.BACKWARD


def test_the_first_of_two_writers_in_the_log_wins(state: RegistryState) -> None:
    other = new_state()
    mine, theirs = planned(state, "s", INT), planned(other, "s", STRING)
    assert mine.answer.schema.id == theirs.answer.schema.id == 1
    log = [*theirs.events, *mine.events]
    outcomes = [state.apply(event) for event in log]
    assert outcomes == [None, "s version 1: id 1 stands for another schema already"]
    assert getattr(state.schema(1), "text", None) == '"string"'
    assert state.repairs() == theirs.events
    assert state.apply(state.repairs()[0]) is None
    assert state.repairs() == ()


def test_an_id_of_another_subject_is_not_taken_over(state: RegistryState) -> None:
    put(state, "a", INT)
    assert state.apply(SchemaWritten(subject="b", version=1, id=1, text='"string"')) is not None
    assert state.subjects() == ["a"]
    assert put(state, "b", STRING) == 2


def test_schemas_that_we_cannot_parse_are_kept_and_served_but_not_compared(state: RegistryState) -> None:
    state.apply(SchemaWritten(subject="s", version=1, id=4, text="not Avro"))
    state.apply(SchemaWritten(subject="p", version=1, id=5, text="syntax", schema_type="PROTOBUF"))
    assert getattr(state.schema(4), "text", None) == "not Avro"
    assert "not an Avro schema that can be compared" in refused(409, planned, state, "s", INT)
    assert state.next_id() == 6


def test_a_comparison_with_many_versions_finds_what_they_need_once(state: RegistryState) -> None:
    base = candidate('{"type":"record","name":"Base","fields":[]}')
    put(state, "base", base)
    reference = SchemaReference("Base", "base", 1)
    for number in range(1, 30):
        text = f'{{"type":"record","name":"R","doc":"{number}","fields":[{{"name":"b","type":"Base"}}]}}'
        state.apply(SchemaWritten(subject="s", version=number, id=number + 1, text=text, references=(reference,)))
    carry_out(state, set_config(state, "s", {"level": CompatibilityLevel.FULL_TRANSITIVE}))
    comparison = comparison_of(state, "s", against=None)
    assert len(comparison.versions) == 29
    assert len({id(needed) for _, needed in comparison.versions}) == 1
    again = comparison_of(state, "s", against=None)
    assert (comparison, hash(comparison)) == (again, hash(again))
    request = SchemaRequest(text='{"type":"record","name":"R","fields":[]}')
    assert reasons_against(parse_candidate(request), comparison) != []


@pytest.mark.parametrize("ids", [(7, 4, 9), (4, 9, 7), (9, 7, 4)])
def test_of_several_ids_of_one_schema_the_lowest_counts_in_every_order(
    state: RegistryState, ids: Sequence[int]
) -> None:
    for schema_id in ids:
        state.apply(SchemaWritten(subject=f"s{schema_id}", version=1, id=schema_id, text='"int"'))
    for lowest in (4, 7, 9):
        assert put(state, "t", INT) == lowest
        for subject in ("t", f"s{lowest}"):
            for permanent in (False, True):
                carry_out(state, delete_subject(state, subject, permanent=permanent))
    assert put(state, "t", INT) == 10


def test_reserved_ids_outlive_compaction(state: RegistryState) -> None:
    state.apply(IdsReserved(highest_id=9))
    assert put(state, "s", INT) == 10
