import json
import string
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cli.schema.export_file import read_export, write_export
from pipeline.cli.schema.import_plan import ImportPlan
from pipeline.cli.schema.import_run import run_import
from pipeline.cli.schema.modes_before import ModesBefore
from pipeline.client.registry.administration import RegistryAdministration, RegistryContents
from pipeline.client.registry.client import SchemaRegistryError
from pipeline.errors import ConfigurationError, DeadlineExceededError
from tests.support.registry_model import DirectCalls, RegistryModel

URL = "http://registry:8081"


def record(name: str, *types: str) -> str:
    fields = [{"name": f"f{i}", "type": type_} for i, type_ in enumerate(types)]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def rich_model() -> RegistryModel:
    """Two contexts, references, soft deletes of versions and subjects, one schema in two subjects, configs, modes."""
    model = RegistryModel()
    refer = [{"name": "Address", "subject": "address", "version": 1}]
    model.register("address", {"schema": record("Address", "string")})
    model.register("orders-value", {"schema": record("Order", "int", "Address"), "references": refer})
    model.register("orders-value", {"schema": record("Order", "int", "Address", "long"), "references": refer})
    model.register("copies-value", {"schema": record("Address", "string")})
    model.register("gone-value", {"schema": record("Gone", "int")})
    model.register("other-value", {"schema": "{}", "schemaType": "JSON"})
    model.register(":.lab:address", {"schema": record("Address", "bytes")})
    model.register(":.lab:tests", {"schema": record("Test", "Address"), "references": refer})
    model.delete("orders-value", "1", False)
    model.delete("gone-value", None, False)
    model.configs |= {"": {"compatibilityLevel": "FULL"}, ":.lab:": {"compatibilityLevel": "NONE"}}
    model.configs["orders-value"] = {"compatibilityLevel": "FORWARD", "normalize": True}
    model.modes |= {"orders-value": "READONLY", ":.lab:": "READONLY"}
    return model


def administration(model: RegistryModel) -> RegistryAdministration:
    return RegistryAdministration(DirectCalls(model).call)


async def contents_of(model: RegistryModel) -> RegistryContents:
    return await administration(model).contents()


async def imported(export: RegistryContents, model: RegistryModel, file: Path, **options: bool) -> ImportPlan:
    return await run_import(administration(model), export, ModesBefore.read(file, URL), **options)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def without_global_mode(contents: RegistryContents) -> Any:
    modes = {scope: mode for scope, mode in contents.modes.items() if scope is not None}
    return contents.schemas, contents.configs, modes


async def test_a_registry_is_the_same_in_another_one(tmp_path: Path) -> None:
    export = await contents_of(rich_model())
    write_export(tmp_path / "export", export)
    export = read_export(tmp_path / "export")
    assert export == await contents_of(rich_model())
    target = RegistryModel()
    plan = await imported(export, target, tmp_path / "export")
    assert (len(plan.registrations), len(plan.deletions), len(plan.configs), len(plan.modes)) == (8, 2, 3, 2)
    assert await contents_of(target) == export
    write_export(tmp_path / "again", await contents_of(target))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "export").read_bytes()
    assert files_in(tmp_path) == ["again", "export"]


async def test_the_same_import_again_writes_nothing(tmp_path: Path) -> None:
    export = await contents_of(rich_model())
    target = RegistryModel()
    await imported(export, target, tmp_path / "export")
    calls = DirectCalls(target)
    plan = await run_import(RegistryAdministration(calls.call), export, ModesBefore.read(tmp_path / "export", URL))
    assert plan.steps == 0
    assert {method for method, _ in calls.requests} == {"GET"}


async def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    target = RegistryModel()
    calls = DirectCalls(target)
    export = await contents_of(rich_model())
    before = ModesBefore.read(tmp_path / "export", URL)
    plan = await run_import(RegistryAdministration(calls.call), export, before, dry_run=True)
    assert plan.steps == 15
    assert {method for method, _ in calls.requests} == {"GET"}
    assert files_in(tmp_path) == []


async def test_other_schemas_settings_and_modes_of_the_registry_stay(tmp_path: Path) -> None:
    target = RegistryModel()
    target.register("mine", {"schema": '"long"', "id": None})
    target.schemas["mine", 1]["id"] = 77
    target.configs["mine"] = {"compatibilityLevel": "NONE"}
    target.modes |= {"": "READONLY", "mine": "READONLY", "copies-value": "READONLY"}
    await imported(await contents_of(rich_model()), target, tmp_path / "export")
    assert target.schemas["mine", 1]["id"] == 77
    assert target.configs["mine"] == {"compatibilityLevel": "NONE"}
    assert target.modes == dict.fromkeys(("", "mine", "copies-value", "orders-value", ":.lab:"), "READONLY")


async def test_a_registry_that_is_left_in_import_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = RegistryModel()
    export = await contents_of(rich_model())
    await imported(export, target, tmp_path / "export")
    assert "IMPORT" not in capsys.readouterr().err
    target.modes[""] = "IMPORT"  # as an import from elsewhere does, or leaves it
    await imported(export, target, tmp_path / "export")
    assert "is in mode IMPORT already, and stays in it" in capsys.readouterr().err
    ModesBefore.read(tmp_path / "export", URL).keep({None: "READWRITE"})
    await imported(export, target, tmp_path / "export")
    assert "IMPORT" not in capsys.readouterr().err
    assert target.modes[""] == "READWRITE"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.schemas["gone-value", 1].update(schema='"int"'), "id 4 of gone-value version 1 stands for"),
        (lambda m: m.schemas["gone-value", 1].update(id=9), "gone-value version 1 has id 4 in the export and id 9"),
        (lambda m: m.schemas["copies-value", 1].update(references=[{"name": "X", "subject": "x", "version": 1}]),
         "id 1 of copies-value version 1 stands for another schema"),
    ],
)  # fmt: skip
async def test_a_conflict_writes_nothing(tmp_path: Path, change: Any, reason: str) -> None:
    target = rich_model()
    change(target)
    del target.schemas["address", 1]
    before = json.dumps(sorted(target.schemas.items()), default=str), dict(target.modes), dict(target.configs)
    plan = await imported(await contents_of(rich_model()), target, tmp_path / "export")
    assert any(conflict.startswith(reason) for conflict in plan.conflicts), plan.conflicts
    assert (json.dumps(sorted(target.schemas.items()), default=str), target.modes, target.configs) == before


async def test_an_id_of_another_subject_that_stands_for_another_schema_is_a_conflict(tmp_path: Path) -> None:
    target = RegistryModel()
    target.register("mine", {"schema": '"long"'})
    plan = await imported(await contents_of(rich_model()), target, tmp_path / "export")
    assert plan.conflicts == [
        f"id 1 of {subject} version 1 stands for another schema in the registry (mine version 1)"
        for subject in ("address", "copies-value")
    ]


async def test_texts_that_a_registry_spells_otherwise_are_the_same(tmp_path: Path) -> None:
    export = await contents_of(rich_model())
    target = rich_model()
    for entry in target.schemas.values():
        if entry.get("schemaType") != "JSON":
            entry["schema"] = json.dumps(json.loads(entry["schema"]), indent=3)
    plan = await imported(export, target, tmp_path / "export")
    assert (plan.steps, plan.conflicts) == (0, [])


class Killed(BaseException):
    """The end of the process."""


class DyingCalls(DirectCalls):
    """The process dies at a request, before or after the registry carries it out; nothing is sent after that."""

    def __init__(self, model: RegistryModel, last: int, *, is_carried_out: bool) -> None:
        super().__init__(model)
        self.last = last
        self.is_carried_out = is_carried_out

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        if len(self.requests) == self.last and self.is_carried_out:
            with suppress(SchemaRegistryError):
                await super().call(method, path, body)
        if len(self.requests) >= self.last:
            raise Killed
        return await super().call(method, path, body)


async def dies(calls: DyingCalls, export: RegistryContents, file: Path) -> bool:
    """Import; True if the process died."""
    died = False
    try:
        await run_import(RegistryAdministration(calls.call), export, ModesBefore.read(file, URL))
    except* Killed:
        died = True
    return died


async def all_requests(tmp_path: Path) -> int:
    calls = DirectCalls(half_full())
    await run_import(
        RegistryAdministration(calls.call), await contents_of(rich_model()), ModesBefore.read(tmp_path / "count", URL)
    )
    return len(calls.requests)


def half_full() -> RegistryModel:
    """A registry with a part of what is imported, and modes of its own."""
    model = RegistryModel()
    model.register("address", {"schema": record("Address", "string")})
    model.modes |= {"": "READONLY_OVERRIDE", "copies-value": "READONLY"}
    return model


@pytest.mark.parametrize("is_carried_out", [False, True])
async def test_an_import_that_dies_at_any_request_is_finished_by_the_next(tmp_path: Path, is_carried_out: bool) -> None:
    export = await contents_of(rich_model())
    straight = half_full()
    await imported(export, straight, tmp_path / "straight")
    expected = await contents_of(straight)
    assert expected.modes[None] == "READONLY_OVERRIDE"
    assert expected.modes["copies-value"] == "READONLY"
    requests = await all_requests(tmp_path)
    assert requests > 70
    for last in range(requests):
        target, file = half_full(), tmp_path / f"export-{last}"
        calls = DyingCalls(target, last, is_carried_out=is_carried_out)
        assert await dies(calls, export, file)
        plan = await imported(export, target, file)
        assert plan.conflicts == []
        assert await contents_of(target) == expected, last
        assert files_in(tmp_path) == []


async def test_an_import_that_dies_twice_still_restores_the_modes(tmp_path: Path) -> None:
    export = await contents_of(rich_model())
    target = half_full()
    for last in (36, 40):
        calls = DyingCalls(target, last, is_carried_out=True)
        assert await dies(calls, export, tmp_path / "export")
    await imported(export, target, tmp_path / "export")
    assert (target.modes[""], target.modes["copies-value"]) == ("READONLY_OVERRIDE", "READONLY")


class FailingCalls(DirectCalls):
    """One request fails."""

    def __init__(self, model: RegistryModel, failing: str, error: BaseException) -> None:
        super().__init__(model)
        self.failing = failing
        self.error = error

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        if f"{method} {path}" == self.failing:
            self.failing = ""
            raise self.error
        return await super().call(method, path, body)


@pytest.mark.parametrize(
    "error", [SchemaRegistryError(422, 42201, "no"), DeadlineExceededError("away"), KeyboardInterrupt()]
)
async def test_an_import_that_fails_restores_the_modes(tmp_path: Path, error: BaseException) -> None:
    target = half_full()
    calls = FailingCalls(target, "POST /subjects/orders-value/versions", error)
    with pytest.raises(type(error)):
        await run_import(
            RegistryAdministration(calls.call), await contents_of(rich_model()), ModesBefore.read(tmp_path / "x", URL)
        )
    assert (target.modes[""], target.modes["copies-value"]) == ("READONLY_OVERRIDE", "READONLY")
    assert files_in(tmp_path) == []


async def test_a_cancelled_import_restores_the_modes(tmp_path: Path) -> None:
    target = half_full()
    with trio.CancelScope() as scope:

        class Cancelling(DirectCalls):
            async def call(self, method: str, path: str, body: Any = None) -> Any:
                if method == "POST":
                    scope.cancel()
                return await super().call(method, path, body)

        registry = RegistryAdministration(Cancelling(target).call)
        await run_import(registry, await contents_of(rich_model()), ModesBefore.read(tmp_path / "x", URL))
    assert scope.cancelled_caught
    assert (target.modes[""], target.modes["copies-value"]) == ("READONLY_OVERRIDE", "READONLY")


async def test_a_registry_that_is_away_when_modes_are_restored_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, file = half_full(), tmp_path / "x"

    class Away(DirectCalls):
        async def call(self, method: str, path: str, body: Any = None) -> Any:
            if method == "POST" or (method == "GET" and target.modes[""] == "IMPORT"):
                raise DeadlineExceededError("away")
            return await super().call(method, path, body)

    with pytest.raises(DeadlineExceededError):
        registry = RegistryAdministration(Away(target).call)
        await run_import(registry, await contents_of(rich_model()), ModesBefore.read(file, URL))
    assert target.modes[""] == "IMPORT"
    assert "modes of the registry were not restored: repeat the import" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="of an import into http://registry:8081 that was interrupted"):
        ModesBefore.read(file, "http://elsewhere:8081")
    assert ModesBefore.read(file, URL).modes[None] == "READONLY_OVERRIDE"
    await imported(await contents_of(rich_model()), target, file)
    assert target.modes[""] == "READONLY_OVERRIDE"


async def test_no_password_is_kept(tmp_path: Path) -> None:
    url = "http://me:secret@registry:8081"
    ModesBefore.read(tmp_path / "x", url).keep({None: "READWRITE"})
    assert "secret" not in (tmp_path / "x.modes-before").read_text()
    assert ModesBefore.read(tmp_path / "x", url).modes == {None: "READWRITE"}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"registry": "x", "modes": 7}', "\xff"])
def test_a_damaged_file_of_modes_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "export.modes-before").write_text(content, encoding="latin-1")
    with pytest.raises(ConfigurationError, match=r"export\.modes-before: cannot be read"):
        ModesBefore.read(tmp_path / "export", URL)


async def test_modes_that_cannot_be_kept_are_not_changed(tmp_path: Path) -> None:
    target = RegistryModel()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        await imported(await contents_of(rich_model()), target, tmp_path / "missing" / "export")
    assert target.modes == {}


NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=2)
CONTEXTS = st.sampled_from(["", "", ":.a:", ":.b:"])


@st.composite
def registries(draw: st.DrawFn) -> RegistryModel:
    """Registries as commands could have made them."""
    model = RegistryModel(page=draw(st.integers(1, 4)))
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    for _ in range(draw(st.integers(0, 12))):
        subject = draw(CONTEXTS) + draw(st.sampled_from(names))
        versions = [key for key, entry in model.schemas.items() if key[0] == subject and not entry["deleted"]]
        match draw(st.sampled_from(["register", "register", "refer", "delete", "config", "mode"])):
            case "register":
                model.modes |= {"": "READWRITE"}
                text = record(draw(st.sampled_from(["A", "B"])), draw(st.sampled_from(["int", "long", "string"])))
                ignore_refusal(model.register, subject, {"schema": text})
            case "refer" if versions:
                referrer = model.context(subject) + draw(st.sampled_from(names)) + "-r"
                reference = {"name": "A", "subject": versions[-1][0], "version": versions[-1][1]}
                ignore_refusal(model.register, referrer, {"schema": record("R", "A"), "references": [reference]})
            case "delete" if versions:
                ignore_refusal(model.delete, subject, draw(st.sampled_from([None, str(versions[0][1])])), False)
            case "config":
                ignore_refusal(model.set_config, subject, {"compatibility": draw(st.sampled_from(["FULL", "NONE"]))})
            case "mode" if versions:
                model.set_mode(subject, {"mode": draw(st.sampled_from(["READONLY", "READWRITE"]))}, True)
    known = {subject for subject, _ in model.schemas}
    model.configs = {scope: config for scope, config in model.configs.items() if not scope or scope in known}
    return model


def ignore_refusal(command: Any, *arguments: Any) -> None:
    try:
        command(*arguments)
    except Exception as error:
        assert type(error).__name__ == "Refused"


@pytest.mark.long
@given(registries(), st.data())
@settings(max_examples=60)
def test_any_registry_is_the_same_in_another_one_also_after_a_death(source: RegistryModel, data: st.DataObject) -> None:
    async def run(file: Path) -> None:
        export = await contents_of(source)
        target = RegistryModel()
        last = data.draw(st.integers(0, 40))
        calls = DyingCalls(target, last, is_carried_out=data.draw(st.booleans()))
        if await dies(calls, export, file):
            await imported(export, target, file)
        assert without_global_mode(await contents_of(target)) == without_global_mode(export)
        assert target.modes.get("", "READWRITE") == "READWRITE"

    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, Path(folder, "export"))
