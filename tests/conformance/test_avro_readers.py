"""Our rules for Avro schemas against Java's Avro (its parser, checker and reader) and fastavro.

Thousands of pairs of schemas come from seeds, with data that reach each part of the writer's schema. A schema that may
follow another one must read all its data, with both. One that may not must fail with one of the two, or change what the
data mean. What differs was decided: docs/registry/compatibility.md.
"""

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from fastavro.schema import SchemaParseException, UnknownType

from pipeline.schema_registry.avro.canonical import canonical_form
from pipeline.schema_registry.avro.normalization import normalized_text, resolved_text
from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema
from pipeline.schema_registry.avro.resolution import Mismatch, Reasons, why_unreadable
from pipeline.schema_registry.avro.types import AvroSchema
from tests.support.avro_oracle import (
    AvroOracle,
    encode_with_fastavro,
    read_with_fastavro,
    running_avro_oracle,
)
from tests.support.avro_pairs import Pair, annotated, pair_of, respelled, short, text_of, with_references
from tests.support.sizes import size

PAIRS = 300
MANY_PAIRS = size(10_000, 40_000)
FAULTS_OF_JAVA = ("Invalid default for field", "Not an array: [")
"""Of defaults in Avro 1.12: a writer's that holds fields which the reader renames; of a union of an array, if empty."""
OTHERWISE_DECIDED = {Mismatch.AMBIGUOUS_ALIAS, Mismatch.LOGICAL_TYPE_MISMATCH}
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

many = pytest.mark.parametrize(
    "seeds",
    [range(PAIRS), pytest.param(range(MANY_PAIRS), marks=[pytest.mark.long, pytest.mark.timeout(1200)])],
    ids=["some", "many"],
)


@pytest.fixture(scope="module")
def java() -> Iterator[AvroOracle]:
    with running_avro_oracle() as oracle:
        yield oracle


@many
def test_compatible_means_that_java_and_fastavro_read_the_data(java: AvroOracle, seeds: range) -> None:
    judged: Counter[str] = Counter()
    for seed in seeds:
        pair = pair_of(seed)
        texts = (text_of(pair.reader), text_of(pair.writer))
        try:
            reader, writer = map(parse_schema, texts)
            data = encode_with_fastavro(pair.writer, pair.data)
            by_fastavro = read_with_fastavro(pair.reader, pair.writer, data)
        except (InvalidSchemaError, UnknownType, SchemaParseException):  # fastavro takes fewer schemas
            judged["invalid"] += 1
            continue
        reasons = why_unreadable(reader=reader, writer=writer)
        verdict = java.judge(*texts, data)
        readings = (verdict.readings, by_fastavro)
        if reasons:
            judged["incompatible"] += 1
            assert _is_shown(reasons, readings) or _is_decided(reasons, verdict.reasons, reader), (
                seed,
                *texts,
                reasons,
            )
        else:
            judged["compatible"] += 1
            assert _is_read(pair, readings), (seed, *texts, readings)
            assert not verdict.reasons or "multiple fields" in verdict.reasons[0], (seed, *texts, verdict)
        if (not reasons) != (not verdict.reasons):
            judged["the checker differs"] += 1
    print(dict(judged))
    assert judged["invalid"] < len(seeds) / 20
    assert min(judged["compatible"], judged["incompatible"]) > len(seeds) / 5


def _is_shown(reasons: Reasons, readings: Any) -> bool:
    """True if a datum exists that one of the two does not read, or that they read otherwise."""
    by_java, by_fastavro = readings
    pairs = list(zip(by_java, by_fastavro, strict=True))
    return any(one.error or other.error for one, other in pairs) or any(
        not _alike(one.value, other.value) for one, other in pairs
    )


def _is_decided(reasons: Reasons, by_checker: Any, reader: AvroSchema) -> bool:
    """True if the rule is stricter on purpose, or the checker, which sees no data, refuses the pair as well."""
    aliases = {alias for type_ in reader.names.values() for alias in type_.aliases}
    return bool(by_checker or OTHERWISE_DECIDED & {reason.kind for reason in reasons} or aliases & set(reader.names))


def _is_read(pair: Pair, readings: Any) -> bool:
    by_java, by_fastavro = readings
    if any(reading.error and not any(fault in reading.error for fault in FAULTS_OF_JAVA) for reading in by_java):
        return False
    return all(reading.error is None for reading in by_fastavro) or '"aliases"' in text_of(pair.reader)


def _alike(one: Any, other: Any) -> bool:
    """True for equal values; texts may be bytes, and a float may be rounded."""
    if isinstance(one, float) and isinstance(other, (int, float)):
        return abs(one - other) <= 1e-6 * abs(one)
    if isinstance(one, str) and isinstance(other, str):
        return one == other or one.encode() == other.encode("latin-1", "replace")
    return bool(one == other)


@many
def test_java_takes_the_same_schemas(java: AvroOracle, seeds: range) -> None:
    taken: Counter[bool] = Counter()
    for seed in seeds:
        text = text_of(pair_of(seed).reader)
        [parsed] = java.parse([text])
        try:
            parse_schema(text)
        except InvalidSchemaError as error:
            assert parsed.error is not None or "must be defined before it is used" in str(error), (seed, text, error)
            taken[False] += 1
        else:
            assert parsed.text is not None, (seed, text, parsed.error)
            taken[True] += 1
    assert taken[True] > len(seeds) * 0.9


@many
def test_one_identity_means_that_java_takes_them_for_equal(java: AvroOracle, seeds: range) -> None:
    different = 0
    for seed in seeds:
        random = Random(seed)
        schema = pair_of(seed).writer
        same, other = respelled(random, schema), annotated(random, schema)
        texts = [text_of(one) for one in (schema, same, other)]
        by_java = java.parse(texts)
        if not all(parsed.text for parsed in by_java):
            continue
        forms = [canonical_form(text) for text in texts]
        assert _plain(by_java[1].text) == _plain(by_java[0].text), (seed, *texts)
        assert forms[1] == forms[0], (seed, *texts)
        assert (forms[2] == forms[0]) == (_plain(by_java[2].text) == _plain(by_java[0].text)), (seed, *texts)
        different += forms[2] != forms[0]
    assert different > len(seeds) / 2


def _plain(text: str | None) -> Any:
    """What Java writes of a schema, with aliases as sets and properties in no order."""
    assert text is not None
    return json.loads(text, object_hook=lambda found: {**found, "aliases": sorted(set(found.get("aliases", [])))})


@many
def test_a_normalised_text_is_as_java_writes_it(java: AvroOracle, seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        schema = annotated(random, pair_of(seed).writer)
        texts = [text_of(schema), text_of(respelled(random, schema))]
        try:
            normalized = [normalized_text(parse_schema(text)) for text in texts]
        except InvalidSchemaError:
            continue
        assert normalized[0] == normalized[1], (seed, *texts)
        assert normalized_text(parse_schema(normalized[0])) == normalized[0], seed
        given, written = java.parse([texts[0], normalized[0]])
        assert written.equal, (seed, texts[0], normalized[0])
        assert _plain(written.text) == _plain(given.text), (seed, texts[0])
        if '"namespace":""' not in normalized[0]:  # Java writes it only where it differs
            assert json.loads(written.text or "") == json.loads(normalized[0]), (seed, written.text)


@many
def test_references_change_no_verdict(java: AvroOracle, seeds: range) -> None:
    found = 0
    for seed in seeds:
        pair = pair_of(seed)
        try:
            whole = [parse_schema(text_of(one)) for one in (pair.reader, pair.writer)]
        except InvalidSchemaError:
            continue
        if any(len({short(name) for name in one.names}) < len(one.names) for one in whole):
            continue  # a name may mean another type outside its definition
        split = [with_references(one) for one in (pair.reader, pair.writer)]
        found += any(references for _, references in split)
        schemas, all_references = [], []
        for text, references in split:
            parsed: list[AvroSchema] = []
            for reference in references:
                parsed.append(parse_schema(text_of(reference), references=parsed))
            schemas.append(parse_schema(text_of(text), references=parsed))
            all_references.append(parsed)
        reasons, expected = (why_unreadable(reader=one, writer=other) for one, other in (schemas, whole))
        assert [(reason.kind, reason.path) for reason in reasons] == [
            (reason.kind, reason.path) for reason in expected
        ], (seed, split)
        for schema, references, one in zip(schemas, all_references, whole, strict=True):
            [by_java] = java.parse([schema.text], [reference.text for reference in references])
            assert by_java.error is None, (seed, schema.text, by_java.error)
            resolved = resolved_text(schema, references)
            assert canonical_form(resolved) == canonical_form(one.text), (seed, resolved, one.text)
    assert found > len(seeds) / 3


@pytest.mark.parametrize("writer", PRIMITIVES)
def test_promotions_are_those_of_the_checker(java: AvroOracle, writer: str) -> None:
    for reader in PRIMITIVES:
        texts = (text_of(reader), text_of(writer))
        reasons = why_unreadable(reader=parse_schema(texts[0]), writer=parse_schema(texts[1]))
        assert [reason.kind.value for reason in reasons] == list(java.judge(*texts, []).reasons)


def field(name: str, type_: Any, **attributes: Any) -> Any:
    return {"name": name, "type": type_, **attributes}


def record(*fields: Any, **attributes: Any) -> Any:
    return {"type": "record", "name": "R", "fields": list(fields), **attributes}


def enum(*symbols: str, **attributes: Any) -> Any:
    return {"type": "enum", "name": "E", "symbols": symbols, **attributes}


OLD = record(field("a", "int"), field("b", "string"))
EVOLUTIONS = {
    "a field less": (record(field("a", "int")), OLD),
    "a field more": (record(*OLD["fields"], field("c", "int")), OLD),
    "a field more with a default": (record(*OLD["fields"], field("c", "int", default=1)), OLD),
    "an optional field without a default": (record(*OLD["fields"], field("c", ["null", "int"])), OLD),
    "a field renamed": (record(field("x", "int"), OLD["fields"][1]), OLD),
    "a field renamed with an alias": (record(field("x", "int", aliases=["a"]), OLD["fields"][1]), OLD),
    "a field promoted": (record(field("a", "long"), OLD["fields"][1]), OLD),
    "a field narrowed": (OLD, record(field("a", "long"), OLD["fields"][1])),
    "bytes for a string": (record(field("a", "int"), field("b", "bytes")), OLD),
    "an optional field": (record(field("a", ["null", "int"]), OLD["fields"][1]), OLD),
    "a record renamed": ({**OLD, "name": "S"}, OLD),
    "a record renamed with an alias": ({**OLD, "name": "S", "aliases": ["R"]}, OLD),
    "a namespace more": ({**OLD, "namespace": "x"}, OLD),
    "another namespace": ({**OLD, "namespace": "x"}, {**OLD, "namespace": "y"}),
    "a symbol more": (enum("A", "B"), enum("A")),
    "a symbol less": (enum("A"), enum("A", "B")),
    "a symbol less with a default": (enum("A", default="A"), enum("A", "B")),
    "a symbol less in a field with a default": (record(field("e", enum("A"), default="A")),
                                                record(field("e", enum("A", "B")))),
    "a branch more": (["null", "int", "string"], ["null", "int"]),
    "a branch less": (["null", "int"], ["null", "int", "string"]),
    "a union for a type": (["null", "string"], "string"),
    "a type for a union": ("string", ["null", "string"]),
    "a fixed of another size": ({"type": "fixed", "name": "F", "size": 3}, {"type": "fixed", "name": "F", "size": 2}),
    "a fixed renamed": ({"type": "fixed", "name": "G", "size": 2}, {"type": "fixed", "name": "F", "size": 2}),
    "a logical type more": ({"type": "long", "logicalType": "timestamp-millis"}, "long"),
    "a logical type less": ("int", {"type": "int", "logicalType": "date"}),
    "items promoted": ({"type": "array", "items": "double"}, {"type": "array", "items": "float"}),
    "items narrowed": ({"type": "map", "values": "float"}, {"type": "map", "values": "double"}),
}  # fmt: skip


@pytest.mark.parametrize("name", EVOLUTIONS)
def test_usual_evolutions_are_judged_as_by_confluents_checker(java: AvroOracle, name: str) -> None:
    for reader, writer in (EVOLUTIONS[name], EVOLUTIONS[name][::-1]):
        texts = (text_of(reader), text_of(writer))
        ours = why_unreadable(reader=parse_schema(texts[0]), writer=parse_schema(texts[1]))
        assert {reason.kind.value for reason in ours} == set(java.judge(*texts, []).reasons)


MILLIS, MICROS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
DECIDED = [
    ("other meanings of one stored value", MICROS, MILLIS, 5, Mismatch.LOGICAL_TYPE_MISMATCH, True),
    ("an enum of another namespace in another union", ["null", enum("A", namespace="x")], enum("A", namespace="y"),
     "A", Mismatch.MISSING_UNION_BRANCH, False),
    ("a renamed field in a record of another namespace", record(field("b", "int", aliases=["a"]), namespace="x"),
     record(field("a", "int"), namespace="y"), {"a": 7}, Mismatch.AMBIGUOUS_ALIAS, False),
    ("an alias that the reader has as a field, too",
     record(field("a", "int", default=0), field("b", "int", aliases=["a"])), record(field("a", "int")), {"a": 7},
     Mismatch.AMBIGUOUS_ALIAS, True),
    ("aliases in a chain", record(field("a", "long", aliases=["b"]), field("b", "int", aliases=["c"])),
     record(field("b", "int"), field("c", "int")), {"b": 7, "c": 8}, Mismatch.AMBIGUOUS_ALIAS, False),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "datum", "reason", "java_reads"), [case[1:] for case in DECIDED],
                         ids=[case[0] for case in DECIDED])  # fmt: skip
def test_what_the_checker_allows_and_we_refuse(
    java: AvroOracle, reader: Any, writer: Any, datum: Any, reason: Mismatch, java_reads: bool
) -> None:
    texts = (text_of(reader), text_of(writer))
    verdict = java.judge(*texts, encode_with_fastavro(writer, [datum]))
    reasons = why_unreadable(reader=parse_schema(texts[0]), writer=parse_schema(texts[1]))
    assert reasons[0].kind is reason
    if reason is not Mismatch.AMBIGUOUS_ALIAS or len(reader["fields"]) == 1:
        assert verdict.reasons == []
    assert (verdict.readings[0].error is None) == java_reads


def test_an_alias_that_is_the_fields_own_name_changes_nothing(java: AvroOracle) -> None:
    texts = (text_of(record(field("a", "int", aliases=["a"]))), text_of(record(field("a", "int"))))
    verdict = java.judge(*texts, [b"\x0e"])
    assert why_unreadable(reader=parse_schema(texts[0]), writer=parse_schema(texts[1])) == ()
    assert "multiple fields" in verdict.reasons[0]
    assert verdict.readings[0].value == {"a": 7}
