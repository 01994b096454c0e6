"""`pipeline load quarantine`: what its commands say, their JSON and exit codes."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.client.registry.client import open_schema_registry
from pipeline.hadoop.commit.checkpoints import table_of
from pipeline.hadoop.load import release as release_module
from tests.support.http_answers import as_json, http_server
from tests.unit.hadoop.load.test_release import BROKEN, GOOD, set_up
from tests.unit.hadoop.load.test_task import SCHEMAS as TEXTS

SCHEMAS = {
    "/schemas/ids/1": as_json({"schema": TEXTS[1]}),
    "/schemas/ids/1/versions": as_json([{"subject": "t-value", "version": 1}]),
}
REASONS = {(6, 0, 6), (2, 5, 7)}
"""Records, first and last offset of each reason: no schema, and no datum."""


@pytest.fixture
def call(pipeline_command: Callable[..., Any]) -> Callable[..., Any]:
    return partial(pipeline_command, "load", "quarantine")


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    set_up(tmp_path, "parquet")
    return ["--topic", "t", "--root", str(tmp_path)]


def test_list_and_show(call: Any, place: Any) -> None:
    code, out, _ = call("list", *place, "--json")
    reasons = {(line["records"], line["first_offset"], line["last_offset"]) for line in json.loads(out)["quarantine"]}
    assert (code, reasons) == (0, REASONS)
    assert len(call("list", *place)[1].splitlines()) == 1 + len(REASONS)
    code, out, _ = call("show", *place, "--offset", "5", "--limit", "2", "--json")
    shown = [(record["partition"], record["offset"], record["value"]) for record in json.loads(out)["records"]]
    assert (code, shown) == (0, [(4, 5, BROKEN.hex()), (4, 6, GOOD.hex())])
    assert call("show", *place, "--partition", "4", "--offset", "7")[1].startswith("partition 4 offset 7: ")
    assert call("show", *place, "--partition", "3")[:2] == (0, "t: nothing is set aside there.\n")


def test_release(call: Any, place: Any) -> None:
    with http_server(SCHEMAS) as url:
        code, out, err = call("release", *place, "--registry", url, "--json")
        document = json.loads(out)
        assert (code, err, document["commit"], document["released"]) == (0, "", 2, 6)
        assert sum(document["kept"].values()) == 2
        code, out, _ = call("release", *place, "--registry", url)
        assert (code, out.splitlines()[0]) == (0, "t: 0 records released, 2 still set aside.")
    assert json.loads(call("list", *place, "--json")[1])["quarantine"] != []
    assert table_of(place[3], "t").sequence == 2


def test_without_a_registry_nothing_changes(call: Any, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(open_schema_registry.__wrapped__.__kwdefaults__, "timeout_s", 1.0)  # type: ignore[attr-defined]
    code, out, err = call("release", *place, "--registry", "http://127.0.0.1:1")
    assert (code, out, err.startswith("pipeline: ")) == (1, "", True)
    assert table_of(place[3], "t").sequence == 1
    code, _, err = call("release", *place)
    assert (code, "registry" in err) == (2, True)


def test_a_release_that_meets_another_one(call: Any, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write = release_module._write

    def write_late(*given: Any) -> Any:
        written = write(*given)
        monkeypatch.setattr(release_module, "_write", write)
        assert call("release", *place, "--registry", url)[0] == 0
        return written

    monkeypatch.setattr(release_module, "_write", write_late)
    with http_server(SCHEMAS) as url:
        code, out, err = call("release", *place, "--registry", url)
    assert (code, out) == (3, ""), err
    assert table_of(place[3], "t").sequence == 2


def test_help(call: Any) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert {"list", "show", "release"} <= set(out.split())
    code, out, _ = call("release", "--help")
    assert (code, "Exits with 3" in out, "--json" in out) == (0, True, True)
