"""`pipeline produce` and `pipeline consume` with schemas of a registry: keys and values, strategies, framings."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.client.registry.client import open_schema_registry
from pipeline.model import TopicPartition
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry
from tests.support.scripted_broker import ScriptedCluster

VISIT = '{"type": "record", "name": "Visit", "namespace": "web", "fields": [{"name": "page", "type": "string"}]}'
USER = '{"type": "record", "name": "User", "namespace": "web", "fields": [{"name": "id", "type": "long"}]}'
LINES = '{"id": 7}|{"page": "/"}\n{"id": 8}|-\n'


class Site:
    """A broker with one topic, a registry, and a folder of files."""

    def __init__(self, bootstrap: str, url: str, folder: Path, scripted: ScriptedCluster) -> None:
        self.url = url
        self._bootstrap = bootstrap
        self._folder = folder
        self._scripted = scripted

    def file(self, name: str, text: str) -> str:
        path = self._folder / name
        path.write_text(text)
        return str(path)

    def records(self) -> list[Any]:
        return self._scripted.partition(TopicPartition("visits", 0)).records()

    async def run(self, command: str, *arguments: str, code: int = 0) -> str:
        """Run a command; return what it says."""
        line = [command, "visits", *arguments, "-b", self._bootstrap]
        shown = await trio.to_thread.run_sync(CliRunner().invoke, app, line)
        assert shown.exit_code == code, shown.output
        return f"{shown.output}{shown.exception or ''}"

    async def consume(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in (await self.run("consume", "--json", *arguments)).splitlines()]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Any]:
    scripted = ScriptedCluster()
    scripted.add_topic("visits", [1])
    async with scripted.broker(1) as address, serving_registry(MemoryJournal()) as url:
        yield Site(str(address), url, tmp_path, scripted)


@pytest.mark.parametrize("in_header", [False, True])
async def test_keys_and_values_are_avro_in_both_directions(site: Any, in_header: bool) -> None:
    framing = ["--schema-id-in-header"] if in_header else []
    await site.run(
        "produce", site.file("lines", LINES), "-K", "|", "--null-marker", "-", "--registry", site.url, *framing,
        "--schema", site.file("visit.avsc", VISIT), "--key-schema", site.file("user.avsc", USER),
        "--subject-name-strategy", "RecordNameStrategy", "--key-subject-name-strategy", "TopicRecordNameStrategy",
    )  # fmt: skip
    async with open_schema_registry([site.url]) as registry:
        assert await registry.subjects() == ["visits-web.User", "web.Visit"]
    first, second = site.records()
    assert (first.value, second.value) == (b"\x02/" if in_header else b"\x00\x00\x00\x00\x02\x02/", None)
    assert [name for name, _ in first.headers] == (["__key_schema_id", "__value_schema_id"] if in_header else [])
    assert [name for name, _ in second.headers] == (["__key_schema_id"] if in_header else [])
    read = await site.consume("--registry", f"http://127.0.0.1:1,{site.url}", "--avro-keys")
    assert [(record["key"], record["value"]) for record in read] == [({"id": 7}, {"page": "/"}), ({"id": 8}, None)]


async def test_the_latest_version_a_schema_id_and_no_registration(site: Any) -> None:
    lines, at = site.file("lines", '{"page": "/"}\n'), ("--registry", site.url)
    visit = site.file("visit.avsc", VISIT)
    refused = await site.run("produce", lines, *at, "--schema", visit, "--no-auto-register", code=1)
    assert "40401" in refused
    assert "40401" in await site.run("produce", lines, *at, "--schema", "latest", code=1)
    await site.run("produce", lines, *at, "--schema", visit)
    await site.run("produce", lines, *at, "--schema", "latest")
    await site.run("produce", lines, *at, "--schema", "1")
    assert "40403" in await site.run("produce", lines, *at, "--schema", "9", code=1)
    assert [record.value[:5] for record in site.records()] == [b"\x00\x00\x00\x00\x01"] * 3


async def test_lines_are_plain_json_or_avros(site: Any) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": ["null", "string"]}, {"name": "b", "type": "bytes", "default": ""}],
    }
    lines = ['{"a": "x"}', '{"a": {"string": "x"}, "b": "\\u00ff"}', '{"a": null, "b": "y"}', "null"]
    at = ("--registry", site.url, "--schema", site.file("r.avsc", json.dumps(schema)))
    await site.run("produce", site.file("lines", "\n".join(lines)), *at)
    frame = b"\x00\x00\x00\x00\x01"
    assert [record.value for record in site.records()] == [
        frame + b"\x02\x02x\x00", frame + b"\x02\x02x\x02\xff", frame + b"\x00\x02y", None,
    ]  # fmt: skip
    told = await site.run("produce", site.file("lines", '{"a": 7}'), *at, code=1)
    assert "line 1: the object does not match the schema of visits" in told


async def test_a_line_with_an_unknown_field_is_no_record_of_defaults(site: Any) -> None:
    fields = [{"name": "a", "type": ["null", "string"], "default": None}, {"name": "n", "type": "int", "default": 0}]
    schema = site.file("r.avsc", json.dumps({"type": "record", "name": "R", "fields": fields}))
    for bad in ('{"b": "x"}', '{"a": {"string": "x"}, "b": 1}', '{"a": {"string": 7}}', '{"n": null}', "[" * 100_000):
        lines = site.file("lines", "{}\n" * 3 + bad + "\n{}\n")
        told = await site.run("produce", lines, "--registry", site.url, "--schema", schema, code=1)
        assert "line 4" in told
        assert "3 records published" in told
    assert [record.value for record in site.records()] == [b"\x00\x00\x00\x00\x01\x00\x00"] * 15


async def test_a_text_is_no_boolean_and_nothing_but_null_is_null(site: Any) -> None:
    fields = [{"name": "a", "type": "boolean"}, {"name": "n", "type": "null"}]
    schema = site.file("r.avsc", json.dumps({"type": "record", "name": "R", "fields": fields}))
    for bad in ('{"a": "false", "n": null}', '{"a": 0, "n": null}', '{"a": true, "n": "x"}'):
        lines = site.file("lines", bad)
        assert "is no " in await site.run("produce", lines, "--registry", site.url, "--schema", schema, code=1)
    assert site.records() == []


async def test_lines_in_avros_json_of_a_recursive_schema_and_a_default_of_bytes(site: Any) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "again", "type": ["null", "R"], "default": None}]}
    fields = [{"name": "i", "type": ["null", inner]}, {"name": "b", "type": "bytes", "default": "z"}]
    schema = site.file("r.avsc", json.dumps({"type": "record", "name": "R", "namespace": "x", "fields": fields}))
    lines = site.file("lines", '{"i": {"x.I": {"again": {"x.R": {"i": null, "b": "\\u00ff"}}}}}\n')
    await site.run("produce", lines, "--registry", site.url, "--schema", schema)
    assert [record.value for record in site.records()] == [b"\x00\x00\x00\x00\x01\x02\x02\x00\x02\xff\x02z"]


async def test_a_schema_with_references_and_a_reader_schema(site: Any) -> None:
    at = ("--registry", site.url)
    async with open_schema_registry([site.url]) as registry:
        await registry.register("visit", VISIT)
    both = '{"type": "record", "name": "Both", "fields": [{"name": "visit", "type": "web.Visit"}]}'
    references = site.file("references.json", '[{"name": "web.Visit", "subject": "visit", "version": 1}]')
    lines = site.file("lines", '{"visit": {"page": "/"}}\n')
    await site.run("produce", lines, *at, "--schema", site.file("both.avsc", both), "--references", references)
    wider = both.replace("web.Visit", "string").replace('"visit", "type": "string"', '"n", "type": "int", "default": 3')
    assert [record["value"] for record in await site.consume(*at)] == [{"visit": {"page": "/"}}]
    read = await site.consume(*at, "--reader-schema", site.file("wider.avsc", wider))
    assert [record["value"] for record in read] == [{"n": 3}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["produce", "--schema", "latest"], "--registry: give both or neither"),
        (["produce", "--registry", "localhost:1"], "--registry: give both or neither"),
        (["produce", "--registry", "localhost:1", "--key-schema", "latest"], "--key-schema needs it"),
        (["produce", "--registry", "localhost:1,,", "--schema", "latest"], "is not of the form"),
        (["produce", "--registry", "localhost:1", "--schema", "/no/such.avsc"], "/no/such.avsc: cannot be read"),
        (
            ["produce", "--registry", "localhost:1", "--schema", "latest", "--subject-name-strategy", "Topic"],
            "known are TopicNameStrategy",
        ),
        (
            ["produce", "--registry", "localhost:1", "--schema", "latest", "--references", "/dev/null"],
            "is no JSON list of {name, subject, version}",
        ),
        (["consume", "--avro-keys"], "give --registry too"),
    ],
)
def test_options_that_do_not_fit_together(arguments: list[str], message: str) -> None:
    command, *options = arguments
    shown = CliRunner().invoke(app, [command, "visits", *options, "-b", "127.0.0.1:1"])
    assert shown.exit_code != 0
    assert message in f"{shown.output} {shown.exception}"
