"""`pipeline schema` on a registry: register, get, show, list, delete, config, mode."""

import json
import os
import pty
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.registry_model import RegistryModel

Command = Callable[..., Any]
INT, STRING = '"int"', '"string"'
ADDRESS = '{"type":"record","name":"Address","namespace":"x","fields":[{"name":"street","type":"string"}]}'
ORDER = '{"type":"record","name":"Order","namespace":"x","fields":[{"name":"to","type":"Address"}]}'
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    return write


def test_the_commands_of_old_answer_as_they_did(schema: Command, url: str, write: Command) -> None:
    number = write("int.avsc", INT)
    assert schema(url, "register", "n-value", number) == "n-value has schema id 1.\n"
    answer = schema(url, "register", "n-value", number, "--json")
    assert (answer["subject"], answer["id"]) == ("n-value", 1)
    assert schema(url, "show", "n-value") == f"{INT}\n"
    shown = {"subject": "n-value", "version": 1, "id": 1, "schema": INT}
    assert schema(url, "show", "n-value", "--version", "1", "--json") == shown
    assert schema(url, "list", "--json")["subjects"] == {"n-value": [1]}
    assert schema(url, "list").splitlines()[1].split() == ["n-value", "1", "BACKWARD"]
    assert schema(url, "check", "n-value", number) == "Compatible.\n"
    checked = schema(url, "check", "n-value", number, "--json")
    assert (checked["subject"], checked["compatible"], checked["reasons"]) == ("n-value", True, [])


def test_a_schema_is_got_by_version_and_by_id(schema: Command, url: str, write: Command) -> None:
    schema(url, "register", "n-key", write("int.avsc", INT))
    found = {"subject": "n-key", "version": 1, "id": 1, "type": "AVRO", "references": [], "schema": INT}
    assert schema(url, "get", "n-key", "--json") == schema(url, "get", "n-key", "--version", "1", "--json") == found
    by_id = schema(url, "get", "--id", "1", "--json")
    assert by_id == {
        "versions": [{"subject": "n-key", "version": 1}],
        "id": 1,
        "type": "AVRO",
        "references": [],
        "schema": INT,
    }
    assert schema(url, "get", "--id", "1") == schema(url, "get", "n-key") == f"{INT}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("get",), 2, "give a SUBJECT, with --version or without, or --id"),
        (("get", "--id", "1", "--version", "1"), 2, "give a SUBJECT"),
        (("get", "missing"), 1, "Subject 'missing' not found. (code 40401)"),
        (("get", "--id", "9"), 1, "Schema 9 not found (code 40403)"),
        (("show", "missing"), 1, "40401"),
        (("register", "s", "missing.avsc"), 2, "missing.avsc: cannot be read: No such file or directory"),
        (("check", "s", "missing.avsc"), 2, "missing.avsc: cannot be read"),
        (("check", "s"), 2, "SUBJECT FILE.avsc: is missing; --all DIR checks a folder"),
        (("check", "s", "--all", "."), 2, "--all: takes no SUBJECT, FILE and --reference"),
        (("register", "s", "x", "--reference", "a=b"), 2, "--reference: 'a=b' is not of the form NAME=SUBJECT:VERSION"),
        (("register", "s", "x", "--reference", "a=b:0"), 2, "is not of the form"),
        (("register", "s", "x", "--reference", "a=b:99999999999"), 2, "is not of the form"),
        (("delete", "missing", "--yes"), 1, "40401"),
        (("delete", "s"), 2, "--yes: is missing: there is no terminal to ask on"),
        (("config", "set", "s"), 2, "--level: is missing: give --level or --normalize"),
        (("config", "set", "s", "--level", "SOME"), 2, "--level: must be one of NONE, BACKWARD,"),
        (("mode", "set", "OPEN"), 2, "MODE: must be one of READWRITE, READONLY, READONLY_OVERRIDE, IMPORT"),
        (("diff", "missing"), 1, "40401"),
        (("diff", "s", "--to", "1", "--file", "x"), 2, "--to: give either --to or --file, not both"),
        (("diff", "s", "--reference", "a=b:1"), 2, "--reference: needs --file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_usage_and_refusals_have_their_codes(
    schema: Command,
    model_url: str,
    arguments: tuple[str, ...],
    code: int,
    reason: str,
    monkeypatch: Any,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    said = schema(model_url, *arguments, code=code)
    assert reason in said
    assert len(said.splitlines()) == 1


def test_a_registry_that_is_away_fails_the_command(schema: Command, write: Command, monkeypatch: Any) -> None:
    monkeypatch.setattr("pipeline.cli.schema.access.REGISTRY_TIMEOUT_S", 0.3)
    for arguments in (("list",), ("get", "s"), ("register", "s", write("a", INT)), ("export", write("x", ""))):
        assert schema(NOBODY, *arguments, code=1).startswith("pipeline: schema registry http://127.0.0.1:1: ")
    for arguments in (("check", "s", write("a", INT)), ("check", "--all", str(Path(write("d/s.avsc", INT)).parent))):
        assert "schema registry http://127.0.0.1:1: " in schema(NOBODY, *arguments, code=5)


def test_references_are_named_one_by_one(schema: Command, url: str, write: Command) -> None:
    schema(url, "register", "address", write("a", ADDRESS))
    order = write("o", ORDER)
    reference = ("--reference", "x.Address=address:1")
    schema(url, "register", "orders-value", order, *reference)
    expected = [{"name": "x.Address", "subject": "address", "version": 1}]
    got = schema(url, "get", "orders-value", "--json")
    assert got["references"] == expected
    resolved = schema(url, "get", "orders-value", "--resolved", "--json")
    assert resolved["references"] == []
    assert json.loads(resolved["schema"])["fields"][0]["type"] == json.loads(ADDRESS)
    assert schema(url, "check", "orders-value", order, *reference) == "Compatible.\n"
    assert "42206" in schema(url, "delete", "address", "--yes", code=1)


def test_references_are_taken_from_a_folder(schema: Command, url: str, write: Command) -> None:
    write("d/address.avsc", ADDRESS)
    order = write("d/orders-value.avsc", ORDER)
    folder = str(Path(order).parent)
    arguments = ("register", "orders-value", order, "--references-in", folder)
    assert schema(url, *arguments, "--dry-run").splitlines() == [
        "address would get a new version; it is compatible.",
        "orders-value would get a new version; it is compatible.",
    ]
    assert schema(url, "list", "--json")["subjects"] == {}
    assert schema(url, *arguments).splitlines() == ["address has schema id 1.", "orders-value has schema id 2."]
    expected = [{"name": "x.Address", "subject": "address", "version": 1}]
    assert schema(url, "get", "orders-value", "--json")["references"] == expected
    assert schema(url, *arguments, "--json") == {
        "subject": "orders-value",
        "id": 2,
        "version": 1,
        "references": [{"subject": "address", "id": 1, "version": 1}],
    }
    assert schema(url, *arguments, "--dry-run").splitlines() == [
        "address has schema id 1 (version 1) already.",
        "orders-value has schema id 2 (version 1) already.",
    ]
    write("d/address.avsc", ADDRESS.replace('"string"', '"bytes"'))
    schema(url, *arguments)
    changed = schema(url, "get", "orders-value", "--json")
    assert (changed["version"], changed["references"][0]["version"]) == (2, 2)
    answer = schema(url, "check", "--all", folder, "--json")
    assert {found["subject"]: found["result"] for found in answer["subjects"]} == {
        "address": "compatible",
        "orders-value": "compatible",
    }


def test_a_type_without_a_subject_cannot_be_referred_to(schema: Command, model_url: str, write: Command) -> None:
    write("d/address.avsc", ADDRESS)
    order = write("d/order.avsc", ORDER)
    write("d/subjects.toml", 'orders-value = "order.avsc"')
    folder = str(Path(order).parent)
    said = schema(model_url, "register", "orders-value", order, "--references-in", folder, code=2)
    assert "address.avsc: defines types that order.avsc uses: give it a subject in subjects.toml" in said


def test_a_dry_run_tells_what_would_be_refused(schema: Command, url: str, write: Command) -> None:
    number = write("int.avsc", INT)
    schema(url, "register", "n-value", number)
    assert schema(url, "register", "n-value", number, "--dry-run") == "n-value has schema id 1 (version 1) already.\n"
    answer = schema(url, "register", "n-value", number, "--dry-run", "--json")
    assert answer == {"subject": "n-value", "id": 1, "version": 1, "compatible": True, "reasons": []}


def test_a_dry_run_of_an_incompatible_schema_has_exit_code_1(
    schema: Command, model_url: str, model: RegistryModel, write: Command
) -> None:
    model.why_incompatible = lambda subject, body: ["no", "never"]
    said = schema(model_url, "register", "n-value", write("a", INT), "--dry-run", code=1)
    assert said.splitlines() == ["n-value: not compatible:", "no", "never"]
    answer = schema(model_url, "register", "n-value", write("a", INT), "--dry-run", "--json", code=1)
    assert answer == {
        "subject": "n-value",
        "id": None,
        "version": None,
        "compatible": False,
        "reasons": ["no", "never"],
    }
    assert model.schemas == {}


def test_normalize_reaches_the_registry(schema: Command, model_url: str, model: RegistryModel, write: Command) -> None:
    schema(model_url, "register", "n", write("a", INT), "--normalize")
    schema(model_url, "check", "n", write("a", INT), "--normalize")
    paths = [path for method, path in model.requests if method == "POST"]
    assert paths
    assert all("normalize=true" in path for path in paths)


def test_contexts_are_listed_by_their_prefix(schema: Command, url: str, write: Command) -> None:
    for subject in ("a", "ab", ":.c:a"):
        schema(url, "register", subject, write("a", INT))
    assert set(schema(url, "list", "--json")["subjects"]) == {"a", "ab", ":.c:a"}
    assert set(schema(url, "list", "--prefix", "ab", "--json")["subjects"]) == {"ab"}
    assert set(schema(url, "list", "--prefix", ":.c:", "--json")["subjects"]) == {":.c:a"}
    assert schema(url, "get", "--id", "1", ":.c:a", "--json")["versions"] == [{"subject": ":.c:a", "version": 1}]


def test_lists_are_filtered(schema: Command, model_url: str, model: RegistryModel) -> None:
    for subject in ("a", "ab", "b", ":.c:a"):
        model.register(subject, {"schema": INT})
        model.register(subject, {"schema": STRING})
    model.configs["ab"] = {"compatibilityLevel": "NONE"}
    model.delete("a", "1", False)
    model.delete("b", None, False)
    assert set(schema(model_url, "list", "--json")["subjects"]) == {"a", "ab", ":.c:a"}
    assert set(schema(model_url, "list", "--prefix", "a", "--json")["subjects"]) == {"a", "ab"}
    assert set(schema(model_url, "list", "--prefix", ":.c:", "--json")["subjects"]) == {":.c:a"}
    rows = [line.split("  ") for line in schema(model_url, "list", "--deleted").splitlines()]
    cells = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert cells["a"] == ["1 (deleted), 2", "BACKWARD"]
    assert cells["b"] == ["1 (deleted), 2 (deleted)", "BACKWARD"]
    assert cells["ab"] == ["1, 2", "NONE"]
    answer = schema(model_url, "list", "--deleted", "--json")
    assert answer["deleted"] == {"a": [1], "b": [1, 2]}
    assert answer["levels"]["ab"] == "NONE"


@pytest.mark.long
def test_deleting_is_soft_first_and_then_for_good(schema: Command, url: str, write: Command) -> None:
    schema(url, "register", "n", write("a", INT))
    schema(url, "register", "n", write("a", '"long"'))
    assert "was not deleted first" in schema(url, "delete", "n", "--permanent", "--yes", code=1)
    assert schema(url, "delete", "n", "--version", "1", "--yes") == "Deleted n version 1.\n"
    assert schema(url, "delete", "n", "--yes", "--json") == {"subject": "n", "versions": [2], "permanent": False}
    assert "40401" in schema(url, "get", "n", code=1)
    assert schema(url, "get", "n", "--version", "1", "--deleted") == f"{INT}\n"
    assert schema(url, "delete", "n", "--permanent", "--yes") == "Deleted n versions 1, 2 for good.\n"
    assert schema(url, "list", "--deleted", "--json")["subjects"] == {}


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Give the command a terminal on which a line is typed."""
    ours, theirs = pty.openpty()
    monkeypatch.setattr(sys, "stdin", os.fdopen(theirs, "r"))

    def type_line(line: str) -> None:
        os.write(ours, line.encode())

    yield type_line
    os.close(ours)
    sys.stdin.close()


def test_a_deletion_is_asked_for_on_a_terminal(
    schema: Command, model_url: str, model: RegistryModel, typed: Callable[[str], None]
) -> None:
    model.register("n", {"schema": INT})
    typed("\n")
    assert schema(model_url, "delete", "n", code=1) == "Delete n? [y/N] pipeline: nothing was deleted\n"
    assert not model.schemas["n", 1]["deleted"]
    typed("y\n")
    assert "Deleted n version 1." in schema(model_url, "delete", "n")
    typed("no\n")
    assert "Delete n version 1 for good? [y/N]" in schema(
        model_url, "delete", "n", "--version", "1", "--permanent", code=1
    )
    assert model.schemas["n", 1]["deleted"]


def test_configs_are_set_and_reset(schema: Command, url: str) -> None:
    assert schema(url, "config", "get") == "compatibilityLevel = BACKWARD\n"
    assert schema(url, "config", "set", "--level", "full") == "Default context: compatibilityLevel = FULL\n"
    answer = schema(url, "config", "get", "n", "--json")
    assert (answer["subject"], answer["config"]["compatibilityLevel"], answer["inherited"]) == ("n", "FULL", True)
    assert "n has none of its own." in schema(url, "config", "get", "n")
    assert schema(url, "config", "set", "n", "--level", "NONE", "--json") == {
        "subject": "n",
        "config": {"compatibilityLevel": "NONE"},
    }
    answer = schema(url, "config", "get", "n", "--json")
    assert (answer["config"]["compatibilityLevel"], answer["inherited"]) == ("NONE", False)
    assert schema(url, "config", "reset", "n") == "n: reset.\n"
    assert schema(url, "config", "get", "n", "--json")["inherited"]


def test_normalizing_is_a_config(schema: Command, model_url: str, model: RegistryModel) -> None:
    schema(model_url, "config", "set", "--normalize", ":.c:")
    assert model.configs[":.c:"] == {"normalize": True}
    schema(model_url, "config", "set", ":.c:", "--no-normalize", "--level", "NONE")
    assert model.configs[":.c:"] == {"normalize": False, "compatibilityLevel": "NONE"}


def test_modes_are_set_and_reset(schema: Command, url: str, write: Command) -> None:
    assert schema(url, "mode", "get") == "READWRITE\n"
    assert schema(url, "mode", "set", "readonly", "n") == "n: READONLY\n"
    assert schema(url, "mode", "get", "n", "--json") == {"subject": "n", "mode": "READONLY", "inherited": False}
    assert schema(url, "mode", "get", "m", "--json") == {"subject": "m", "mode": "READWRITE", "inherited": True}
    assert schema(url, "mode", "reset", "n") == "n: reset.\n"
    assert "READWRITE\nn has none of its own." in schema(url, "mode", "get", "n")
    schema(url, "register", "n", write("a", INT))
    assert "42205" in schema(url, "mode", "set", "IMPORT", code=1)
    assert schema(url, "mode", "set", "IMPORT", "--force", "--json") == {"subject": None, "mode": "IMPORT"}


@pytest.mark.long
def test_a_subject_may_have_any_name(schema: Command, url: str, write: Command) -> None:
    for name in ("a/b", "a?b", "a%2Fb", "a b", "\u00e9\u4e16"):
        schema(url, "register", name, write("a", INT))
        assert schema(url, "get", name, "--json")["subject"] == name
        schema(url, "config", "set", name, "--level", "NONE")
        assert not schema(url, "config", "get", name, "--json")["inherited"]
