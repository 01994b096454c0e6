from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.errors import RegistryError
from pipeline.schema_registry.rules.candidates import Candidate, parse_candidate, read_request
from pipeline.schema_registry.rules.registry import WritePlan, register
from pipeline.schema_registry.state.events import (
    SchemaRemoved,
    SchemaWritten,
    SubjectDeleted,
    decode_event,
    encode_event,
)
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.writing.rounds import (
    MAX_ROUND,
    WriteRequest,
    ids_of,
    plan_round,
    reservation,
    restored_records,
)


def candidate(name: str) -> Candidate:
    text = f'{{"type":"fixed","name":"{name}","size":1}}'
    return parse_candidate(read_request({"schema": text}), (), check_defaults=True, normalize=False)


def new_state() -> RegistryState:
    return RegistryState(CompatibilityLevel.NONE)


def registration(subject: str, schema: Candidate) -> WriteRequest:
    return WriteRequest(lambda state: register(state, subject, schema, {}), schema.identity)


SCHEMAS = [candidate(f"F{number}") for number in range(6)]
SUBJECTS = ["s", "t", ":.live:s", ":.live:t"]


@given(st.lists(st.tuples(st.sampled_from(SUBJECTS), st.sampled_from(SCHEMAS)), min_size=1, max_size=30))
def test_rounds_give_what_writes_one_after_the_other_give(wanted: list[tuple[str, Candidate]]) -> None:
    state, alone = new_state(), new_state()
    waiting = [registration(subject, schema) for subject, schema in wanted]
    answers = {}
    while waiting:
        planned = plan_round(state, waiting)
        assert planned.writes
        assert len({id(request) for request in waiting}) == len(planned.writes) + len(planned.later)
        for write in planned.writes:
            assert write.refusal is None
            answers[id(write.request)] = (write.answer.subject, write.answer.schema.id)
            for key, value in write.records:  # none is refused, whatever the others of the round wrote
                assert state.apply(decode_event(key, value)) is None
        for context, highest in ids_of(planned.writes).items():
            assert state.highest_id(context) >= highest
        assert planned.judged([True] * len(planned.records)) == (planned.writes, [])
        waiting = planned.later
    for subject, schema in wanted:
        plan = register(alone, subject, schema, {})
        for event in plan.events:
            alone.apply(event)
    for context in (".", ".live"):
        ids = [schema_id for schema_id in range(1, 40) if state.schema(schema_id, context)]
        assert ids == [schema_id for schema_id in range(1, 40) if alone.schema(schema_id, context)]
    for subject in SUBJECTS:
        found, expected = ([version.schema.text for version in each.versions(subject)] for each in (state, alone))
        assert sorted(found) == sorted(expected)
    assert len(answers) == len(wanted)


def test_other_writes_have_a_round_of_their_own_in_their_order() -> None:
    state = new_state()
    other = WriteRequest(lambda _state: WritePlan("done"))
    first, second = registration("s", SCHEMAS[0]), registration("t", SCHEMAS[1])
    planned = plan_round(state, [first, other, second])
    assert [write.request for write in planned.writes] == [first, second]
    assert planned.later == [other]
    planned = plan_round(state, [other, first])
    assert ([write.answer for write in planned.writes], planned.later) == (["done"], [first])


def test_a_refusal_is_an_answer_of_the_round_and_the_others_go_on() -> None:
    refused = registration("", SCHEMAS[0])
    planned = plan_round(new_state(), [refused, registration("s", SCHEMAS[1])])
    assert isinstance(planned.writes[0].refusal, RegistryError)
    assert planned.writes[1].answer.schema.id == 1


def test_a_round_is_bounded() -> None:
    names = [f"G{number}" for number in range(MAX_ROUND + 5)]
    planned = plan_round(new_state(), [registration(name, candidate(name)) for name in names])
    assert (len(planned.writes), len(planned.later)) == (MAX_ROUND, 5)
    assert ids_of(planned.writes) == {".": MAX_ROUND}
    counts = [number != 3 for number in range(MAX_ROUND)]
    holding, refused = planned.judged(counts)
    assert refused == [planned.writes[3]]
    assert len(holding) == MAX_ROUND - 1


def test_reserved_ids_are_not_given_again() -> None:
    state = new_state()
    state.apply(reservation({".": 7, ".live": 3}))
    assert (state.next_id(), state.next_id(".live")) == (8, 4)


def test_a_deletion_that_is_restored_deletes_no_younger_version() -> None:
    """The subject was deleted for good and registered again, so that the old deletion names the new version."""
    state = new_state()
    deleted = SubjectDeleted(subject="s", version=1)
    state.apply(SchemaWritten(subject="s", version=1, id=2, text='"int"'))
    records = restored_records(state, *encode_event(deleted))
    for key, value in records:
        state.apply(decode_event(key, value))
    assert [version.deleted for version in state.versions("s")] == [False]
    assert records[-1] == (encode_event(deleted)[0], None)
    other = encode_event(SchemaWritten(subject="s", version=1, id=2, text='"int"'))
    assert restored_records(state, *other) == [other]


def test_a_version_that_is_restored_stays_deleted_with_its_subject() -> None:
    state = new_state()
    written = SchemaWritten(subject="s", version=1, id=2, text='"int"')
    state.apply(written)
    state.apply(SubjectDeleted(subject="s", version=1))
    for key, value in restored_records(state, *encode_event(written)):
        state.apply(decode_event(key, value))
    assert [version.deleted for version in state.versions("s", deleted=True)] == [True]


def test_a_version_under_a_key_of_another_registry_outlives_the_restoring_of_ours() -> None:
    state = new_state()
    written = SchemaWritten(subject="s", version=1, id=2, text='"int"')
    state.apply(replace(written, other_key=b'{"subject":"s","version":1,"magic":1,"keytype":"SCHEMA"}'))
    ours = encode_event(written)[0]
    assert restored_records(state, ours, None) == [encode_event(written)]
    state.apply(SchemaRemoved(subject="s", version=1))
    assert restored_records(state, ours, None) == [(ours, None)]
