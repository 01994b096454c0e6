"""`pipeline schema diff`: two versions, or a version and a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.registry_model import RegistryModel

Command = Callable[..., Any]
ADDRESS = '{"type":"record","name":"Address","namespace":"x","fields":[{"name":"street","type":"string"}]}'


def order(*fields: str) -> str:
    listed = ",".join(f'{{"name":"{name}","type":{type_}}}' for name, _, type_ in (f.partition(":") for f in fields))
    return f'{{"type":"record","name":"Order","namespace":"x","fields":[{listed}]}}'


@pytest.fixture
def orders(model: RegistryModel) -> RegistryModel:
    refer = [{"name": "x.Address", "subject": "address", "version": 1}]
    model.register("address", {"schema": ADDRESS})
    for text in (order('n:"int"'), order('n:"long"', 'to:"Address"'), order('n:"long"', 'to:["null","Address"]')):
        model.register("orders", {"schema": text, "references": refer if "to" in text else []})
    return model


def test_the_latest_is_compared_with_the_one_before(schema: Command, model_url: str, orders: RegistryModel) -> None:
    said = schema(model_url, "diff", "orders")
    assert said.startswith("FIELD ")
    assert "Order.to  type changed  record x.Address  [null, record x.Address]" in said
    assert "version 3 reads data of version 2.\n" in said
    assert "version 2 cannot read data of version 3:\n  TYPE_MISMATCH at Order.to: " in said


def test_versions_are_chosen(schema: Command, model_url: str, orders: RegistryModel) -> None:
    orders.delete("orders", "1", False)
    answer = schema(model_url, "diff", "orders", "--from", "1", "--to", "2", "--json")
    assert (answer["subject"], answer["from"]["version"], answer["to"]) == ("orders", 1, {"version": 2, "id": 3})
    assert answer["differences"] == [
        {"field": "Order.n", "change": "TYPE_CHANGED", "old": "int", "new": "long"},
        {"field": "Order.to", "change": "FIELD_ADDED", "old": None, "new": "record x.Address"},
    ]
    assert [reason["field"] for reason in answer["new_reads_old"]["reasons"]] == ["Order.to"]
    assert [reason["field"] for reason in answer["old_reads_new"]["reasons"]] == ["Order.n"]
    assert not answer["new_reads_old"]["readable"]
    backwards = schema(model_url, "diff", "orders", "--from", "2", "--to", "1", "--json")
    assert [found["change"] for found in backwards["differences"]] == ["FIELD_REMOVED", "TYPE_CHANGED"]
    assert "No differences." in schema(model_url, "diff", "orders", "--from", "2", "--to", "2")


def test_the_first_version_has_none_before_it(schema: Command, model_url: str, orders: RegistryModel) -> None:
    assert "orders version 1 is the first" in schema(model_url, "diff", "orders", "--to", "1", code=1)
    assert "40402" in schema(model_url, "diff", "orders", "--from", "9", code=1)


def test_a_file_is_compared_with_a_version(
    schema: Command, model_url: str, orders: RegistryModel, tmp_path: Path
) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(order('n:"long"', 'to:["null","Address"]'))
    arguments = ("diff", "orders", "--file", str(file), "--reference", "x.Address=address:1")
    said = schema(model_url, *arguments)
    assert said.splitlines() == [
        "No differences.",
        f"{file} reads data of version 3.",
        f"version 3 reads data of {file}.",
    ]
    answer = schema(model_url, *arguments, "--from", "1", "--json")
    assert (answer["from"]["version"], answer["to"]) == (1, {"file": str(file)})
    assert [found["field"] for found in answer["differences"]] == ["Order.n", "Order.to"]
    assert "unknown type 'x.Address'" in schema(model_url, "diff", "orders", "--file", str(file), code=1)
    file.write_text("{")
    assert "not JSON" in schema(model_url, *arguments, code=1)


def test_only_avro_is_compared(schema: Command, model_url: str, model: RegistryModel) -> None:
    for text in ("{}", "[]"):
        model.register("j", {"schema": text, "schemaType": "JSON"})
    assert "is of type JSON: only Avro schemas are compared" in schema(model_url, "diff", "j", code=1)
    assert schema(model_url, "get", "j", "--resolved") == "[]\n"
