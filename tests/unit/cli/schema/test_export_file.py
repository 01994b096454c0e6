import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.schema.export_file import read_export, write_export
from pipeline.client.registry.administration import RegistryContents, SchemaEntry
from pipeline.errors import ConfigurationError
from tests.support.registry_model import RegistryModel

HEAD = '{"kind": "registry", "format": 1}\n'
SCHEMA = '{"kind": "schema", "subject": "s", "version": 1, "id": 1, "schema": "\\"int\\""}\n'


def end(lines: int) -> str:
    return f'{{"kind": "end", "lines": {lines}}}\n'


def test_texts_are_kept_to_the_last_character(tmp_path: Path) -> None:
    text = '{"type":"enum", "name":"E",\r\n\t"symbols":[], "doc":"\u00e9\u4e16\U0001f600 \\u0000"}'
    entry = SchemaEntry(
        subject="\u4e16/\u2028", version=3, id=2, content={"schema": text, "metadata": {"tags": {}}}, deleted=True
    )
    contents = RegistryContents(
        schemas={(entry.subject, 3): entry}, configs={None: {"normalize": True}}, modes={":.c:": "READONLY"}
    )
    write_export(tmp_path / "export", contents)
    assert read_export(tmp_path / "export") == contents
    assert (tmp_path / "export").read_bytes().isascii()


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "linked_pipe").symlink_to(pipe)
    for name in ("pipe", "linked_pipe"):
        with pytest.raises(ConfigurationError, match="is not a file"):
            write_export(tmp_path / name, RegistryContents())
    assert pipe.is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_export(tmp_path / "link", RegistryContents())
    assert read_export(tmp_path / "file") == RegistryContents()
    assert (tmp_path / "link").is_symlink()


def test_a_version_that_is_no_number_is_refused(tmp_path: Path) -> None:
    reference = '"references": [{"name": "x", "subject": "a", "version": 1e999}]'
    (tmp_path / "export").write_text(HEAD + SCHEMA.replace('"id": 1', f'"id": 1, {reference}') + end(2))
    with pytest.raises(ConfigurationError, match="line 2"):
        read_export(tmp_path / "export")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is not a whole export: it ends after 0 lines"),
        (HEAD, "is not a whole export: it ends after 1 lines"),
        (HEAD + SCHEMA, "is not a whole export: it ends after 2 lines"),
        (HEAD + SCHEMA + end(3), "line 3: is the end of a file of other length"),
        (HEAD + end(1) + SCHEMA, "line 3: stands after the end"),
        (HEAD + SCHEMA + SCHEMA + end(3), "line 3: is s version 1 for the second time"),
        (SCHEMA + end(1), "line 1: does not begin an export"),
        (HEAD.replace("1", "2") + end(1), "line 1: is not of format 1"),
        (HEAD + "{\n", "line 2: is not JSON"),
        (HEAD + "[]\n", "line 2: is not a JSON object"),
        (HEAD + "[" * 100_000, "line 2: is not JSON"),
        (HEAD + '{"kind": "other"}\n', "line 2: is of unknown kind other"),
        (HEAD + "{}\n", "line 2: lacks 'kind'"),
        (HEAD + SCHEMA.replace('"id": 1, ', ""), "line 2: lacks 'id'"),
        (HEAD + SCHEMA.replace('"id": 1', '"id": "1"'), "line 2: '1' is not a number from 0 to 2147483647"),
        (HEAD + SCHEMA.replace('"version": 1', '"version": 0'), "line 2: 0 is not a number from 1"),
        (HEAD + SCHEMA.replace('"s"', "7"), "line 2: 7 is not a text"),
        (HEAD + SCHEMA.replace('"s"', '"\\ud800"'), "line 2: 'utf-8' codec can't encode"),
        (HEAD + SCHEMA.replace('"id": 1', '"id": 1, "references": [{}]'), "line 2: lacks 'name'"),
        (HEAD + SCHEMA.replace('"id": 1', '"id": 1, "references": 7'), "line 2: "),
        (HEAD + '{"kind": "config", "subject": null, "config": 7}\n', "line 2: "),
        (HEAD + '{"kind": "mode", "subject": 7, "mode": "READONLY"}\n', "line 2: 7 is not a text"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "export").write_text(content)
    with pytest.raises(ConfigurationError) as refused:
        read_export(tmp_path / "export")
    assert reason in str(refused.value)


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    for name, reason in (("missing", "No such file"), (".", "Is a directory")):
        with pytest.raises(ConfigurationError, match=reason):
            read_export(tmp_path / name)
    (tmp_path / "latin").write_bytes(b"\xff\n")
    with pytest.raises(ConfigurationError, match="line 1: is not JSON"):
        read_export(tmp_path / "latin")
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        write_export(tmp_path / "missing" / "export", RegistryContents())


def test_a_failed_write_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    write_export(tmp_path / "export", RegistryContents(modes={None: "READWRITE"}))
    before = (tmp_path / "export").read_bytes()
    (tmp_path / "export.partial").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be written: Is a directory"):
        write_export(tmp_path / "export", RegistryContents())
    assert (tmp_path / "export").read_bytes() == before


def test_the_commands_export_and_import(schema: Callable[..., Any], model_url: str, model: Any, tmp_path: Path) -> None:
    model.register("a", {"schema": '"int"'})
    model.register("a", {"schema": '"long"'})
    model.delete("a", "1", False)
    file = str(tmp_path / "export")
    assert schema(model_url, "export", file) == f"{file}: 1 subject, 2 versions, 2 ids.\n"
    assert schema(model_url, "export", file, "--json") == {"file": file, "subjects": 1, "versions": 2, "ids": 2}
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["registry", *["config"] * 2, *["mode"] * 2, *["schema"] * 2, "end"]
    model.schemas.clear()
    would = "Would register 2 versions; 1 deleted softly, 0 configs and 0 modes set.\n"
    assert schema(model_url, "import", file, "--dry-run") == would
    assert model.schemas == {}
    assert schema(model_url, "import", file) == would.replace("Would register", "Registered")
    deleted = {version: entry["deleted"] for (_, version), entry in model.schemas.items()}  # they arrive in any order
    assert deleted == {1: True, 2: False}
    answer = schema(model_url, "import", file, "--json")
    expected = {"registered": 0, "deleted": 0, "configs": 0, "modes": 0, "conflicts": []}
    assert answer == {"file": file, "dry_run": False, **expected}
    model.schemas["a", 2]["id"] = 7
    for more in ((), ("--dry-run",)):
        said = schema(model_url, "import", file, *more, code=1)
        assert "a version 2 has id 2 in the export and id 7 in the registry\n" in said
        assert "nothing was written: 1 conflict" in said


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_import_after_the_modes_are_restored(
    pipeline_command: Callable[..., Any], model_url: str, model: RegistryModel, tmp_path: Path, number: int
) -> None:
    for subject in ("a", "b", "c"):
        model.register(subject, {"schema": f'{{"type":"fixed","name":"F","size":{ord(subject)}}}'})
    file = str(tmp_path / "export")
    assert pipeline_command("schema", "export", file, "--registry", model_url)[0] == 0
    model.schemas.clear()
    register = model.register

    signals = [number]

    def interrupted(subject: str, body: dict[str, Any]) -> dict[str, Any]:
        if signals:
            signal.raise_signal(signals.pop())
        return register(subject, body)

    model.register = interrupted  # type: ignore[method-assign]
    assert pipeline_command("schema", "import", file, "--registry", model_url) == (130, "", "")
    assert model.modes[""] == "READWRITE"
    assert list(tmp_path.iterdir()) == [Path(file)]
    model.register = register  # type: ignore[method-assign]
    assert pipeline_command("schema", "import", file, "--registry", model_url)[0] == 0
    assert len(model.schemas) == 3
