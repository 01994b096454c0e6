"""Export from and import into our own registry, and between it and one of another kind."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.schema.export_file import read_export, write_export
from pipeline.cli.schema.import_run import run_import
from pipeline.cli.schema.modes_before import ModesBefore
from pipeline.client.registry.administration import RegistryAdministration, RegistryContents
from pipeline.client.registry.client import open_schema_registry
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry
from tests.support.registry_model import DirectCalls, RegistryModel

Call = Callable[..., Awaitable[Any]]
URL = "http://registry:8081"
ADDRESS = '{"type":"record",  "name":"Address","fields":[{"name":"street","type":"string"}]}'


def order(*types: str) -> str:
    fields = [{"name": f"f{i}", "type": type_} for i, type_ in enumerate(types)]
    return json.dumps({"type": "record", "name": "Order", "fields": fields}, indent=2)


async def fill(registry: RegistryAdministration) -> None:
    refer = {"references": [{"name": "Address", "subject": "address", "version": 1}]}
    await registry.set_config({"compatibilityLevel": "NONE"})
    await registry.register("address", {"schema": ADDRESS})
    await registry.register("orders", {"schema": order("int", "Address"), **refer})
    await registry.register("orders", {"schema": order("long", "Address"), **refer})
    await registry.register("orders", {"schema": order("int")})
    await registry.register("copies", {"schema": ADDRESS})
    await registry.register("gone", {"schema": '"int"'})
    await registry.register(":.lab:address", {"schema": ADDRESS.replace("string", "bytes")})
    await registry.register(":.lab:orders", {"schema": order("int", "Address"), **refer})
    await registry.delete_version("orders", 1)
    await registry.delete_subject("gone")
    await registry.set_config({"compatibilityLevel": "FULL", "normalize": True}, "orders")
    await registry.set_config({"compatibilityLevel": "FORWARD"}, ":.lab:")
    await registry.set_mode("READONLY", "orders")
    await registry.set_mode("READONLY", ":.lab:")


def of_subjects(contents: RegistryContents) -> Any:
    modes = {scope: mode for scope, mode in contents.modes.items() if scope is not None}
    return contents.schemas, contents.configs, modes


async def import_by(call: Call, export: RegistryContents, file: Path) -> Any:
    return await run_import(RegistryAdministration(call), export, ModesBefore.read(file, URL))


async def test_our_registry_is_the_same_in_another_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "export"
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as client:
        source = RegistryAdministration(client.call)
        await fill(source)
        write_export(file, await source.contents())
    export = read_export(file)
    assert export.schemas["address", 1].text == ADDRESS
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as client:
        plan = await import_by(client.call, export, file)
        assert (plan.conflicts, len(plan.registrations)) == ([], 8)
        target = RegistryAdministration(client.call)
        assert await target.contents() == export
        assert (await import_by(client.call, export, file)).steps == 0
        await target.reset_mode(":.lab:")
        assert await target.register(":.lab:new", {"schema": '"long"'}) == 3
        assert await target.register("new", {"schema": '"long"'}) == 6


@pytest.mark.long
async def test_between_our_registry_and_another(tmp_path: Path) -> None:
    model = RegistryModel(page=1000)
    other = DirectCalls(model).call
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as client:
        await fill(RegistryAdministration(client.call))
        export = await RegistryAdministration(client.call).contents()
        plan = await import_by(other, export, tmp_path / "there")
        assert (plan.conflicts, len(plan.registrations)) == ([], 8)
        theirs = await RegistryAdministration(other).contents()
        assert (theirs.configs, theirs.modes) == (export.configs, export.modes)
        assert (await import_by(client.call, theirs, tmp_path / "back")).steps == 0
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as client:
        await import_by(client.call, theirs, tmp_path / "again")
        assert of_subjects(await RegistryAdministration(client.call).contents()) == of_subjects(theirs)


async def test_an_id_that_stands_for_another_schema_is_a_conflict(tmp_path: Path) -> None:
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as client:
        await fill(RegistryAdministration(client.call))
        export = await RegistryAdministration(client.call).contents()
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as client:
        registry = RegistryAdministration(client.call)
        await registry.register("mine", {"schema": '"long"'})
        before = await registry.contents()
        plan = await import_by(client.call, export, tmp_path / "export")
        assert [conflict.partition(" of ")[0] for conflict in plan.conflicts] == ["id 1", "id 1"]
        assert await registry.contents() == before


async def test_versions_that_were_deleted_since_come_back(tmp_path: Path) -> None:
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as client:
        registry = RegistryAdministration(client.call)
        await fill(registry)
        export = await registry.contents()
        await registry.reset_mode("orders")
        await registry.reset_mode(":.lab:")
        for subject in ("orders", "copies", ":.lab:orders", ":.lab:address"):
            await registry.delete_subject(subject)
        await registry.delete_subject(":.lab:orders", permanent=True)
        await import_by(client.call, export, tmp_path / "export")
        assert await registry.contents() == export


class Killed(BaseException):
    """The end of the process."""


class DyingCalls:
    """The process dies at a write, before or after the registry carries it out; nothing is sent after that."""

    def __init__(self, call: Call, last: int, *, is_carried_out: bool) -> None:
        self._call = call
        self._left = last
        self._is_carried_out = is_carried_out

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        self._left -= method != "GET"
        if self._left < 0 and not (self._left == -1 and method != "GET" and self._is_carried_out):
            raise Killed
        answer = await self._call(method, path, body)
        if self._left < 0:
            raise Killed
        return answer


async def dies(calls: DyingCalls, export: RegistryContents, file: Path) -> bool:
    """Import; True if the process died."""
    died = False
    try:
        await import_by(calls.call, export, file)
    except* Killed:
        died = True
    return died


@pytest.mark.long
async def test_an_import_into_ours_that_dies_is_finished_by_the_next(tmp_path: Path) -> None:
    async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as client:
        await fill(RegistryAdministration(client.call))
        export = await RegistryAdministration(client.call).contents()
    for last in range(20):
        async with serving_registry(MemoryJournal()) as url, open_schema_registry([url]) as client:
            registry = RegistryAdministration(client.call)
            await registry.set_mode("READONLY", "copies")
            calls = DyingCalls(client.call, last, is_carried_out=last % 2 == 0)
            assert await dies(calls, export, tmp_path / "export"), last
            plan = await import_by(client.call, export, tmp_path / "export")
            assert plan.conflicts == []
            contents = await registry.contents()
            assert contents.schemas == export.schemas
            assert contents.configs == export.configs
            assert contents.modes == {**export.modes, "copies": "READONLY"}
