"""Schemas made to keep a registry busy: each is judged or refused within the steps that a request has."""

import json
import re
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.schema_registry.avro.canonical import canonical_form, nests_too_deep
from pipeline.schema_registry.avro.compatibility import CompatibilityLevel, why_incompatible
from pipeline.schema_registry.avro.normalization import normalized_text
from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema
from pipeline.schema_registry.avro.resolution import Mismatch, why_unreadable
from pipeline.schema_registry.avro.types import AvroSchema
from pipeline.schema_registry.avro.work import MAX_STEPS, TooMuchWorkError, Work

MAX_BYTES = 100_000_000


class CountedWork(Work):
    """Counts the steps taken."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def take(self, what: str, steps: int = 1) -> None:
        self.taken += steps
        super().take(what, steps)


def schema(json_schema: Any) -> AvroSchema:
    return parse_schema(json.dumps(json_schema))


def record(name: str, *fields: Any, **attributes: Any) -> Any:
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def field(name: str, type_: Any, **attributes: Any) -> Any:
    return {"name": name, "type": type_, **attributes}


def twins_in_unions(depth: int) -> Any:
    """Each level has two records that take the default, so that it could be tried in 2^depth ways."""
    one = record("A", field("a", ["null", "B", "A"]))
    types = [record("A", field("a", ["null", "A"])), record("B", field("a", ["null", "A", "B"]))]
    default: Any = "fits nothing"
    for _ in range(depth):
        default = {"a": default}
    return record("R", field("types", types), field("f", ["A", "B"], default=default)), one


@pytest.mark.parametrize("depth", [10, 40])
def test_a_default_is_tried_once_against_each_type(depth: int) -> None:
    work = CountedWork()
    with pytest.raises(InvalidSchemaError, match="fits no branch"):
        parse_schema(json.dumps(twins_in_unions(depth)[0]), work=work)
    assert work.taken < 100 + 20 * depth


@pytest.mark.long
def test_a_large_default_of_a_large_union_ends_with_the_steps() -> None:
    types = [record(f"R{number}", field("a", "int")) for number in range(2_999)]
    types.append(record("R2999", field("a", "string")))
    items = {"type": "array", "items": types_of(3_000)}
    hostile = record("R", field("types", types), field("f", items, default=[{"a": "of the last"}] * 3_000))
    text = json.dumps(hostile)
    with pytest.raises(InvalidSchemaError, match="takes too many steps"):
        parse_schema(text)


def test_a_long_default_is_written_into_no_message_again_and_again() -> None:
    types = [record(f"R{number}", field("a", "int")) for number in range(1_000)]
    text = json.dumps(record("R", field("types", types), field("f", types_of(1_000), default={"b": "x" * 500_000})))
    with pytest.raises(InvalidSchemaError, match="fits no branch") as caught:
        parse_schema(text)
    assert len(str(caught.value)) < 500


def types_of(count: int) -> list[str]:
    return [f"R{number}" for number in range(count)]


@pytest.mark.parametrize("same", [True, False])
def test_the_steps_of_a_union_grow_with_its_branches(same: bool) -> None:
    taken = {}
    for count in (500, 2_000):
        reader = schema([record(f"N{number}" if same else f"M{number}") for number in range(count)])
        writer = schema([record(f"N{number}", field("a", "int")) for number in range(count)])
        work = CountedWork()
        reasons = why_unreadable(reader=reader, writer=writer, work=work)
        assert (reasons == ()) is same
        assert all(len(str(reason)) < 500 for reason in reasons)
        taken[count] = work.taken
    assert taken[2_000] < 5 * taken[500]


def test_a_branch_is_found_by_its_alias_and_by_its_short_name() -> None:
    old = [record("a.Old", field("x", "int")), record("a.Same", field("x", "int"))]
    new = [record("b.New", field("x", "int"), aliases=["a.Old"]), record("b.Same", field("x", "int"))]
    assert why_unreadable(reader=schema(new), writer=schema(old)) == ()
    assert [reason.kind for reason in why_unreadable(reader=schema(new[1:]), writer=schema(old))] == [
        Mismatch.MISSING_UNION_BRANCH
    ]


def test_a_branch_of_the_same_kind_is_read_before_one_that_promotes() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    reasons = why_unreadable(reader=schema(["double", micros]), writer=schema(millis))
    assert [reason.kind for reason in reasons] == [Mismatch.MISSING_UNION_BRANCH, Mismatch.LOGICAL_TYPE_MISMATCH]


def test_symbols_that_are_missing_are_counted() -> None:
    many = {"type": "enum", "name": "E", "symbols": [f"S{number}" for number in range(20_000)]}
    [reason] = why_unreadable(reader=schema({**many, "symbols": ["A"]}), writer=schema(many))
    assert "S9 and 19990 more" in reason.message


def chain(length: int, type_: str) -> list[Any]:
    first = record("R0", field("f", type_))
    return [first, *(record(f"R{number}", field("f", f"R{number - 1}")) for number in range(1, length))]


def test_types_that_nest_by_their_names_have_a_bound() -> None:
    def deepest_first(unread: str, kind: str) -> AvroSchema:
        return schema(record("R", field(unread, chain(5_000, kind), default={"f": 1}), field("f", "R4999")))

    with pytest.raises(TooMuchWorkError, match="nest deeper than"):
        why_unreadable(reader=deepest_first("one", "int"), writer=deepest_first("other", "long"))


def test_what_cannot_be_compared_is_incompatible() -> None:
    reader, writer = ([record("Z", field("f", [*chain(300, kind)]))] for kind in ("int", "long"))
    sentences = why_incompatible(CompatibilityLevel.FULL, schema(reader), [(1, schema(writer))], Work(steps=50))
    assert "takes too many steps" in sentences[-1]


@pytest.mark.long
@pytest.mark.parametrize(
    "hostile",
    [
        lambda: record("n" * 300_000, *(field(f"f{number}", {"type": "fixed", "name": f"x.F{number}", "size": 1})
                                        for number in range(3_000))),
        lambda: record("R", *(field(f"f{number}", {"type": "fixed", "name": f"F{number}", "size": 1})
                              for number in range(5_000)), namespace="n" * 300_000),
        lambda: record("R", field("a" * 300_000, record("S", *(field(f"f{number}", "int", default=1)
                                                              for number in range(10_000))))),
        lambda: record("R", field("a", {"type": "fixed", "name": "n" * 100_000, "size": 1}),
                       *(field(f"f{number}", "n" * 100) for number in range(1_000))),
        lambda: [[]] * 300_000,
        lambda: {"type": "enum", "name": "E", "symbols": ["a"] * 200_000},
        lambda: record("R", field("f", {"type": "map", "values": "int"}, default={str(n): n for n in range(60_000)})),
    ],
    ids=["long names", "a long namespace", "a long path", "an unknown long name", "no types", "symbols", "a default"],
)  # fmt: skip
def test_memory_is_bounded(hostile: Callable[[], Any]) -> None:
    text = json.dumps(hostile())[:1_000_000]
    tracemalloc.start()
    try:
        parse_schema(text)
    except InvalidSchemaError as error:
        assert len(str(error)) < 1_000
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < MAX_BYTES


@pytest.mark.parametrize("text", ['"\ud800"', '{"type":"record","name":"\udfff","fields":[]}'])
def test_half_of_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError, match="surrogate"):
        parse_schema(text)


def test_a_pair_of_escapes_is_a_text_like_any_other() -> None:
    assert parse_schema('{"type": "int", "doc": "\\ud800"}').text == '{"type": "int", "doc": "\\ud800"}'


def test_real_schemas_take_a_small_part_of_the_steps() -> None:
    work = CountedWork()
    wide = json.dumps(record("R", *(field(f"f{number}", ["null", "long"], default=None) for number in range(300))))
    versions = [(number, parse_schema(wide)) for number in range(100)]
    newer = parse_schema(wide.replace("f299", "f300"))
    assert why_incompatible(CompatibilityLevel.FULL_TRANSITIVE, newer, versions, work) == []
    assert work.taken < MAX_STEPS / 2


@pytest.mark.parametrize("around", [lambda name: name, lambda name: ["null", name]], ids=["records", "unions"])
def test_types_that_nest_by_their_names_have_a_bound_in_unions_too(around: Callable[[str], Any]) -> None:
    def deepest_first(unread: str, kind: str) -> AvroSchema:
        more = [record(f"R{number}", field("f", around(f"R{number - 1}"))) for number in range(1, 2_000)]
        types = [record("R0", field("f", kind)), *more]
        return schema(record("R", field(unread, types, default={"f": 1}), field("f", around("R1999"))))

    with pytest.raises(TooMuchWorkError, match="nest deeper than"):
        why_unreadable(reader=deepest_first("one", "int"), writer=deepest_first("other", "long"))


def test_the_steps_of_equal_unions_grow_with_their_number() -> None:
    taken = {}
    for count in (50, 200):
        types = [record("Big", *(field(f"f{number}", "int") for number in range(200))), record("Other")]
        fields = [field(f"u{number}", ["null", "Big", "Other"]) for number in range(count)]
        versions = [
            schema(record("R", field("types", types), *fields)),
            schema(record("R", field("types", types), *fields, namespace="x")),
            schema(record("R", field("types", [types[0], record("Other", field("a", "int", default=1))]), *fields)),
        ]
        work = CountedWork()
        for other in versions[1:]:
            assert why_unreadable(reader=other, writer=versions[0], work=work) == ()
        taken[count] = work.taken
    assert taken[200] < 5 * taken[50]


def test_names_that_are_not_compared_are_counted_as_work() -> None:
    many = schema(record("R", *(field(f"f{number}", record(f"R{number}")) for number in range(1_000))))
    work = CountedWork()
    why_incompatible(CompatibilityLevel.FULL_TRANSITIVE, many, [(number, schema("int")) for number in range(10)], work)
    assert work.taken >= 2 * 10 * 1_000


STRANGE_TEXTS = {
    "NUL in a name": (record("a\0b"), "is not a name"),
    "NUL in the name of a field": (record("R", field("a\0", "int")), "not a field name"),
    "NUL in a symbol": ({"type": "enum", "name": "E", "symbols": ["A\0"]}, "is not a symbol"),
    "NUL in a namespace": (record("R", namespace="a\0"), "is not a name"),
    "a homoglyph": (record("\u0410"), "is not a name"),
    "digits of another script": (record("R\u0663"), "is not a name"),
    "a line break at the end": (record("R\n"), "is not a name"),
    "half of a pair": (record("R", field("\ud800", "int")), "not a field name"),
    "a float for a size": ({"type": "fixed", "name": "F", "size": 2.0}, "whole number"),
    "a truth for a size": ({"type": "fixed", "name": "F", "size": True}, "whole number"),
    "a float for an int": (record("R", field("f", "int", default=1.0)), "not of type int"),
    "an int beyond a long": (record("R", field("f", "long", default=1 << 63)), "not of type long"),
    "an int beyond a double": (record("R", field("f", "double", default=10**4_000)), "not of type double"),
    "an object for a namespace": (record("R", namespace={"a": 1}), "must be a string"),
    "a number for an alias": (record("R", aliases=[1]), "'aliases' must be an array of names"),
    "an object for a type": (record("R", field("f", {"type": {"type": "int"}})), "'type' of a schema object"),
    "an array for a name": (record(["R"]), "needs a 'name'"),  # type: ignore[arg-type]
    "an empty name": (record(""), "is not a name"),
    "dots alone": (record("..."), "is not a name"),
    "a recursive default that never ends": (record("R", field("r", "R", default={"r": {"r": {}}}), field("a", "int")),
                                            "lacks field 'a'"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE_TEXTS)
def test_strange_texts_are_refused_with_a_sentence(name: str) -> None:
    json_schema, message = STRANGE_TEXTS[name]
    with pytest.raises(InvalidSchemaError, match=re.escape(message)) as caught:
        parse_schema(json.dumps(json_schema))
    str(caught.value).encode(errors="backslashreplace")


def test_the_last_of_two_equal_attributes_counts_as_in_java() -> None:
    text = '{"type": "fixed", "name": "F", "size": 1, "size": 2}'
    assert why_unreadable(reader=parse_schema(text), writer=schema({"type": "fixed", "name": "F", "size": 2})) == ()
    assert canonical_form(text) == canonical_form('{"type": "fixed", "name": "F", "size": 2}')
    assert normalized_text(parse_schema(text)) == '{"type":"fixed","name":"F","size":2}'


@pytest.mark.long
@pytest.mark.parametrize(
    "hostile",
    [
        lambda: record("R", field("f", "string", default="d" * 900_000)),
        lambda: record("R", field("f", "int", unit={"u": [[]] * 100_000})),
        lambda: record("R", *(field(f"f{number}", "int", aliases=[f"f{number + 1}"]) for number in range(2_000))),
        lambda: [record(f"R{number}", aliases=[f"R{number + 1}"]) for number in range(2_000)],
        lambda: record("R", *(field(f"f{number}", "int", aliases=["a"]) for number in range(2_000))),
        lambda: record("R", field("f", "int", aliases=["a" * 9] * 70_000)),
        lambda: {"type": "enum", "name": "E", "symbols": [f"S{number}" for number in range(30_000)]},
        lambda: [{"type": "fixed", "name": f"F{number}", "size": 1} for number in range(3_000)],
    ],
    ids=["a text", "a property", "fields in a chain", "types in a chain", "one alias", "aliases", "symbols", "a union"],
)  # fmt: skip
def test_large_schemas_are_parsed_compared_and_normalised_within_the_steps(hostile: Callable[[], Any]) -> None:
    reader = schema(hostile())
    writer = parse_schema(f" {reader.text}")
    reasons = why_incompatible(CompatibilityLevel.FULL, reader, [(1, writer)])
    assert not any("too many steps" in sentence or len(sentence) > 1_000 for sentence in reasons)
    normalized = parse_schema(normalized_text(reader))
    assert normalized_text(normalized) == normalized.text


@pytest.mark.parametrize("end", ["", "\\", '"'])
def test_the_depth_of_a_text_of_quotes_without_an_end_is_found_in_one_pass(end: str) -> None:
    """A pass of its own for each quote took minutes for 300 kB, and Python's lock with it: nobody else was answered."""
    text = "[]" * 301 + '"' + '\\"' * 150_000 + end
    began_s = time.process_time()
    assert not nests_too_deep(text)
    assert nests_too_deep("[" * 301 + text)
    assert time.process_time() - began_s < 5  # some milliseconds
