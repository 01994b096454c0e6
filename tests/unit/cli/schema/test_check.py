"""`pipeline schema check --all`: the schemas of a service repository in a CI job."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.schema.folder import MAX_CHAIN, MAX_FILE_BYTES, read_folder
from pipeline.schema_registry.avro.parsing import InvalidSchemaError
from tests.support.http_answers import http_server
from tests.support.registry_model import Refused, RegistryModel

Command = Callable[..., Any]
ADDRESS = '{"type":"record","name":"Address","namespace":"x","fields":[{"name":"street","type":"string"}]}'
ORDER = '{"type":"record","name":"Order","namespace":"x","fields":[{"name":"to","type":"Address"}%s]}'


def put(folder: Path, **texts: str) -> Path:
    """Write files by name; `__` stands for a slash and `_` for a dash."""
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/').replace('_', '-')}.avsc"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text, encoding="utf-8")
    return folder


def results(answer: Any) -> dict[str, str]:
    return {found["subject"]: found["result"] for found in answer["subjects"]}


def reasons(answer: Any, subject: str) -> list[str]:
    return next(found["reasons"] for found in answer["subjects"] if found["subject"] == subject)


def test_no_file_is_passed_over(schema: Command, our_url: str, tmp_path: Path) -> None:
    put(tmp_path, a_value='"int"')
    schema(our_url, "register", "a-value", str(tmp_path / "a-value.avsc"))
    (tmp_path / "b.AVSC").write_text("{")
    (tmp_path / "a-value.avsc").rename(tmp_path / "a-value.Avsc")
    (tmp_path / "c.avsc").write_text(ORDER % "")
    names = 'a-value = "a-value.Avsc"\nb = "b.AVSC"\nc = {file = "c.avsc", references = ["x.Address=missing:1"]}'
    assert results(schema(our_url, "check", "--all", str(tmp_path), "--json", code=1)) == {
        "a-value": "compatible",
        "b": "invalid",
        "c": "invalid",
    }
    (tmp_path / "subjects.toml").write_text(names)
    answer = schema(our_url, "check", "--all", str(tmp_path), "--json", code=1)
    assert results(answer) == {"a-value": "compatible", "b": "invalid", "c": "invalid"}
    assert "a reference: Subject 'missing' not found." in reasons(answer, "c")


def test_what_a_check_accepts_can_be_registered(schema: Command, our_url: str, tmp_path: Path) -> None:
    (tmp_path / "marked.avsc").write_bytes(b'\xef\xbb\xbf"int"')
    schema(our_url, "check", "--all", str(tmp_path))
    schema(our_url, "check", "marked", str(tmp_path / "marked.avsc"))
    schema(our_url, "register", "marked", str(tmp_path / "marked.avsc"))


@pytest.mark.parametrize("answer", [b"{}", b"null", b"true", b'{"is_compatible": "false"}', b'{"is_compatible": 1}'])
def test_the_answer_of_another_service_is_no_verdict(schema: Command, tmp_path: Path, answer: bytes) -> None:
    put(tmp_path, a=ADDRESS)
    path = "/compatibility/subjects/a/versions?verbose=true"
    with http_server({"/subjects?offset=0&limit=500": (200, b"[]"), path: (200, answer)}) as url:
        assert "no answer of a schema registry" in schema(url, "check", "--all", str(tmp_path), code=5)
        assert "no answer of a schema registry" in schema(url, "check", "a", str(tmp_path / "a.avsc"), code=5)


OLD = '{"type":"record","name":"V","fields":[{"name":"page","type":"string"},{"name":"at","type":"long"}]}'
NEW = '{"type":"record","name":"V","fields":[{"name":"page","type":"int"},{"name":"user","type":"string"}]}'


def test_all_subjects_are_checked_and_what_breaks_is_named(schema: Command, our_url: str, tmp_path: Path) -> None:
    put(tmp_path, visits_value=OLD, visits_key='"string"')
    for subject in ("visits-value", "visits-key"):
        schema(our_url, "register", subject, str(tmp_path / f"{subject}.avsc"))
    assert "compatible" in schema(our_url, "check", "--all", str(tmp_path))
    put(tmp_path, visits_value=NEW, deep__er__clicks_value='"long"', broken="{")
    answer = schema(our_url, "check", "--all", str(tmp_path), "--json", code=1)
    assert results(answer) == {
        "broken": "invalid",
        "clicks-value": "new",
        "visits-key": "compatible",
        "visits-value": "incompatible",
    }
    (visits,) = [each for each in answer["subjects"] if each["subject"] == "visits-value"]
    assert visits["file"] == str(tmp_path / "visits-value.avsc")
    assert [(d["field"], d["rule"], d["version"], d["old"], d["new"]) for d in visits["details"]] == [
        ("V.page", "TYPE_MISMATCH", 1, "string", "int"),
        ("V.user", "READER_FIELD_MISSING_DEFAULT_VALUE", 1, None, "string"),
    ]
    shown = schema(our_url, "check", "--all", str(tmp_path), code=1)
    rows = [line.split() for line in shown.splitlines()]
    assert rows[0] == ["SUBJECT", "FILE", "RESULT", "VERSION", "FIELD", "RULE", "OLD", "NEW"]
    assert [
        "visits-value",
        "visits-value.avsc",
        "incompatible",
        "1",
        "V.page",
        "TYPE_MISMATCH",
        "string",
        "int",
    ] in rows
    assert f"{tmp_path}/broken.avsc: broken: invalid: not JSON: " in shown
    assert f"{tmp_path}/visits-value.avsc: visits-value: incompatible: the new schema (reader) cannot read" in shown


def test_one_schema_is_checked_with_its_details(schema: Command, our_url: str, tmp_path: Path) -> None:
    put(tmp_path, v=OLD, w=NEW)
    schema(our_url, "register", "v", str(tmp_path / "v.avsc"))
    arguments = ("check", "v", str(tmp_path / "w.avsc"))
    said = schema(our_url, *arguments, code=1).splitlines()
    assert said[0] == "Not compatible:"
    assert len(said) == 3
    answer = schema(our_url, *arguments, "--json", code=1)
    assert (answer["subject"], answer["compatible"], answer["reasons"]) == ("v", False, said[1:])
    assert [detail["field"] for detail in answer["details"]] == ["V.page", "V.user"]
    put(tmp_path, w="{")
    assert "not JSON" in schema(our_url, *arguments, code=1)


def test_all_levels_name_the_version_and_the_reader(schema: Command, our_url: str, tmp_path: Path) -> None:
    put(tmp_path, v='"int"', w='"long"', x='"string"')
    schema(our_url, "config", "set", "--level", "NONE", "v")
    for name in ("v", "w"):
        schema(our_url, "register", "v", str(tmp_path / f"{name}.avsc"))
    for level, expected in {
        "BACKWARD": [(2, "new")],
        "FORWARD": [(2, "old")],
        "FULL_TRANSITIVE": [(1, "new"), (1, "old"), (2, "new"), (2, "old")],
    }.items():
        schema(our_url, "config", "set", "--level", level, "v")
        answer = schema(our_url, "check", "v", str(tmp_path / "x.avsc"), "--json", code=1)
        assert [(detail["version"], detail["reader"]) for detail in answer["details"]] == expected


def test_types_of_other_files_are_put_in(schema: Command, model_url: str, model: RegistryModel, tmp_path: Path) -> None:
    sent = {}

    def why_incompatible(subject: str, body: dict[str, Any]) -> list[str]:
        sent[subject] = json.loads(body["schema"])
        return []

    model.why_incompatible = why_incompatible
    country = '{"type":"enum","name":"Country","namespace":"x.y","symbols":["DE"]}'
    address = ADDRESS.replace('"string"', '"x.y.Country"')
    put(tmp_path, a__orders_value=ORDER % ',{"name":"from","type":"Address"}', b__address=address, country=country)
    answer = schema(model_url, "check", "--all", str(tmp_path), "--json")
    assert results(answer) == {"address": "new", "country": "new", "orders-value": "new"}
    inner = {"type": "enum", "name": "Country", "namespace": "x.y", "symbols": ["DE"]}
    assert sent["address"]["fields"] == [{"name": "street", "type": inner}]
    outer = {"type": "record", "name": "Address", "namespace": "x", "fields": sent["address"]["fields"]}
    assert sent["orders-value"]["fields"] == [{"name": "to", "type": outer}, {"name": "from", "type": "Address"}]


def test_a_file_names_subjects_files_and_references(
    schema: Command, model_url: str, model: RegistryModel, tmp_path: Path
) -> None:
    sent = {}
    model.why_incompatible = lambda subject, body: sent.update({subject: body["schema"]}) or []
    model.register("address", {"schema": ADDRESS})
    put(tmp_path / "schemas", Order=ORDER % "", unused='"int"')
    (tmp_path / "subjects.toml").write_text(
        '"a/b" = "schemas/unused.avsc"\n'
        "[orders-value]\n"
        'file = "schemas/Order.avsc"\n'
        'references = ["x.Address=address:1"]\n'
        '[":.lab:orders-value"]\n'
        'file = "schemas/Order.avsc"\n'
    )
    answer = schema(model_url, "check", "--all", str(tmp_path), "--json")
    assert results(answer) == {":.lab:orders-value": "new", "a/b": "new", "orders-value": "new"}
    assert "street" in sent["orders-value"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no subject in subjects.toml"),
        ("x = 7", "subjects.toml: x: needs a file"),
        ("[x]\nfiles = 'a'", "subjects.toml: x: needs a file"),
        ("[x]\nfile = 'a'\nreferences = 'r'", "subjects.toml: x: needs a file"),
        (
            "[x]\nfile = 'a'\nreferences = ['r']",
            "subjects.toml: x: reference 'r' is not of the form NAME=SUBJECT:VERSION",
        ),
        ("=", "subjects.toml: is not TOML"),
    ],
)
def test_a_faulty_list_of_subjects_is_wrong_usage(
    schema: Command, model_url: str, tmp_path: Path, text: str, reason: str
) -> None:
    put(tmp_path, v='"int"')
    (tmp_path / "subjects.toml").write_text(text)
    assert reason in schema(model_url, "check", "--all", str(tmp_path), code=2)


def test_a_folder_without_schemas_is_wrong_usage(schema: Command, model_url: str, tmp_path: Path) -> None:
    assert "holds no file SUBJECT.avsc" in schema(model_url, "check", "--all", str(tmp_path), code=2)
    assert "is not a folder" in schema(model_url, "check", "--all", str(tmp_path / "missing"), code=2)
    put(tmp_path / ".git", v='"int"')
    assert "holds no file SUBJECT.avsc" in schema(model_url, "check", "--all", str(tmp_path), code=2)


def test_hostile_files_are_invalid_and_hide_nothing(schema: Command, model_url: str, tmp_path: Path) -> None:
    put(tmp_path, fine='"int"', deep="[" * 100_000, two='"int"', other__two='"int"', empty="")
    (tmp_path / "latin.avsc").write_bytes(b'"\xff"')
    (tmp_path / "huge.avsc").write_bytes(b" " * (MAX_FILE_BYTES + 1))
    (tmp_path / "broken.avsc").symlink_to("nowhere")
    (tmp_path / "loop.avsc").symlink_to("loop.avsc")
    (tmp_path / "folder.avsc").mkdir()
    (tmp_path / "linked.avsc").symlink_to("folder.avsc")
    (tmp_path / "circle").symlink_to(".")
    os.mkfifo(tmp_path / "pipe.avsc")
    put(tmp_path, nested="[" * 150 + '"int"' + "]" * 150, number="7")
    answer = schema(model_url, "check", "--all", str(tmp_path), "--json", code=1)
    found = results(answer)
    assert found.pop("fine") == "new"
    assert found.pop("number") == "new"  # the model takes every JSON
    assert found.pop("nested") == "new"
    assert set(found.values()) == {"invalid"}
    expected = {
        "broken": "cannot be read: No such file or directory",
        "loop": "cannot be read: Too many levels of symbolic links",
        "pipe": "is not a file",
        "latin": "is not UTF-8 text",
        "huge": f"is larger than {MAX_FILE_BYTES} bytes",
        "deep": "nested deeper than 200 types",
        "two": f"also in {tmp_path}/two.avsc: keep one file",
    }
    assert {subject: reasons(answer, subject)[0] for subject in expected} == expected
    assert reasons(answer, "empty")[0].startswith("not JSON")
    assert found.keys() == {*expected, "empty"}


def test_circles_and_types_of_several_files_are_invalid(schema: Command, model_url: str, tmp_path: Path) -> None:
    put(
        tmp_path,
        a='{"type":"record","name":"A","fields":[{"name":"b","type":"B"}]}',
        b='{"type":"record","name":"B","fields":[{"name":"c","type":"C"}]}',
        c='{"type":"record","name":"C","fields":[{"name":"a","type":"A"}]}',
        e='{"type":"enum","name":"E","symbols":[]}',
        f='{"type":"enum","name":"E","symbols":["X"]}',
        g='["null","E"]',
        h='["null","H",{"type":"enum","name":"H","symbols":[]}]',
    )
    answer = schema(model_url, "check", "--all", str(tmp_path), "--json", code=1)
    assert reasons(answer, "a") == ["files need one another: a.avsc -> b.avsc -> c.avsc -> a.avsc"]
    assert reasons(answer, "c") == ["files need one another: c.avsc -> a.avsc -> b.avsc -> c.avsc"]
    assert reasons(answer, "g") == ["type E is defined in e.avsc and f.avsc"]
    assert results(answer)["e"] == "new"


def test_long_chains_of_files_end(tmp_path: Path) -> None:
    for number in range(MAX_CHAIN + 5):
        inner = f'"T{number + 1}"' if number < MAX_CHAIN + 4 else '"int"'
        text = f'{{"type":"record","name":"T{number}","fields":[{{"name":"f","type":{inner}}}]}}'
        (tmp_path / f"t{number}.avsc").write_text(text)
    folder = read_folder(tmp_path)
    by_name = {schema.subject: schema for schema in folder.schemas}
    with pytest.raises(InvalidSchemaError, match=f"needs types through more than {MAX_CHAIN} files"):
        folder.needs(by_name["t0"])
    assert [schema.subject for schema in folder.needs(by_name["t100"])] == ["t104", "t103", "t102", "t101"]


def test_an_invalid_schema_names_the_field(schema: Command, our_url: str, tmp_path: Path) -> None:
    put(tmp_path, v='{"type":"record","name":"V","fields":[{"name":"a","type":"int","default":"x"}]}', w='["Other"]')
    answer = schema(our_url, "check", "--all", str(tmp_path), "--json", code=1)
    (v, w) = answer["subjects"]
    assert (v["result"], v["details"][0]["field"], v["details"][0]["rule"]) == ("invalid", "V.a", "INVALID_SCHEMA")
    assert "default" in v["details"][0]["new"]
    assert "unknown type 'Other'" in w["reasons"][0]


def test_a_registry_that_refuses_the_request_was_not_asked(
    schema: Command, model_url: str, model: RegistryModel, tmp_path: Path
) -> None:
    def refuse(subject: str, body: dict[str, Any]) -> list[str]:
        raise Refused(403, "not for you")

    model.why_incompatible = refuse
    put(tmp_path, v='"int"')
    assert "not for you" in schema(model_url, "check", "--all", str(tmp_path), code=5)
    assert "not for you" in schema(model_url, "check", "v", str(tmp_path / "v.avsc"), code=5)


def test_a_subject_of_another_kind_has_no_details(
    schema: Command, model_url: str, model: RegistryModel, tmp_path: Path
) -> None:
    model.register("v", {"schema": "{}", "schemaType": "JSON"})
    model.why_incompatible = lambda subject, body: ["of another kind"]
    put(tmp_path, v='"int"')
    answer = schema(model_url, "check", "--all", str(tmp_path), "--json", code=1)
    (found,) = answer["subjects"]
    assert (found["reasons"], found["details"]) == (["of another kind"], [])
    assert "of another kind" in schema(model_url, "check", "--all", str(tmp_path), code=1)
