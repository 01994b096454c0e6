"""Roles and rules of a registry with users, by its whole API."""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.terminal.settings import read_settings
from pipeline.errors import ConfigurationError
from pipeline.schema_registry.api.roles import REGISTRY_ROLES
from pipeline.schema_registry.config import RegistryConfig
from pipeline.schema_registry.page.registry_page import PAGE_ROLES
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry
from tests.support.secured_http import ROLES, TOKEN, basic, users_text

RULES = [
    {"pattern": "payments-*", "read": ["reader"], "write": ["writer"]},
    {"pattern": "secret", "read": [], "write": ["ci"]},
    {"pattern": ":.eu:*", "read": [], "write": ["ci"]},
    {"pattern": "open-*", "read": ["*"], "write": ["*"]},
]
CI = {"Authorization": f"Bearer {TOKEN}"}
ADMIN = basic("admin")
SCHEMA = {"schema": json.dumps("string")}


def record(name: str, *fields: tuple[str, Any]) -> dict[str, str]:
    return {
        "schema": json.dumps(
            {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields]}
        )
    }


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text(users_text())
    return path


@asynccontextmanager
async def registry(users: Path, *, rules: Any = RULES) -> AsyncIterator[httpx.AsyncClient]:
    settings = {"http.users.file": str(users), "subjects": rules}
    async with (
        serving_registry(MemoryJournal(), **settings) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        yield http


async def test_every_route_is_open_to_its_role_and_to_no_lower_one(users: Path) -> None:
    async with registry(users, rules=[]) as http:
        await register(http, "open-a", SCHEMA)
        for (method, path), needed in {**REGISTRY_ROLES, **PAGE_ROLES}.items():
            filled = path.replace("{subject}", "open-a").replace("{version}", "1").replace("{id}", "1")
            filled = filled.replace("{guid}", "0" * 32).replace("{context}", ".none")
            for name, role in ROLES.items():
                body = SCHEMA if method != "GET" else None
                answer = await http.request(method, filled, headers=basic(name), json=body)
                refused = answer.status_code in {401, 403}
                assert refused == (role < needed), (method, path, name, answer.text)
                if refused:
                    assert answer.json()["error_code"] == 403


async def register(
    http: httpx.AsyncClient, subject: str, schema: dict[str, Any], headers: dict[str, str] | None = None
) -> httpx.Response:
    path = f"/subjects/{quote(subject, '')}/versions"
    answer = await http.post(path, json=schema, headers=ADMIN if headers is None else headers)
    if headers is None:
        answer.raise_for_status()
    return answer


@asynccontextmanager
async def filled(users: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A registry with a schema of its own in each subject: ids 1 to 4, and 1 of the context."""
    async with registry(users) as http:
        for subject in ("payments-value", "secret", "open-value", "other", ":.eu:clicks"):
            await register(http, subject, record("R" + "".join(filter(str.isalnum, subject)), ("a", "string")))
        yield http


async def test_rules_hold_for_each_way_to_a_subject(users: Path) -> None:
    async with filled(users) as http:
        for headers, sees in (
            (basic("reader"), {"payments-value", "open-value", "other"}),
            (basic("writer"), {"payments-value", "open-value", "other"}),
            (CI, {"secret", "open-value", "other", ":.eu:clicks"}),
            (ADMIN, {"payments-value", "secret", "open-value", "other", ":.eu:clicks"}),
        ):
            assert set((await http.get("/subjects", headers=headers)).json()) == sees
            assert {each["subject"] for each in (await http.get("/schemas", headers=headers)).json()} == sees
            contexts = (await http.get("/contexts", headers=headers)).json()
            assert (".eu" in contexts) == (":.eu:clicks" in sees)
            assert "." in contexts
            for number, subject in enumerate(("payments-value", "secret", "open-value", "other"), 1):
                status = 200 if subject in sees else 403
                for path in (
                    f"/subjects/{subject}/versions",
                    f"/subjects/{subject}/versions/latest",
                    f"/subjects/{subject}/versions/1/schema",
                    f"/subjects/{subject}/versions/1/referencedby",
                    f"/contexts/.default/../subjects/{subject}/versions",
                    f"/schemas/ids/{number}",
                    f"/schemas/ids/{number}/schema",
                    f"/schemas/ids/{number}/subjects",
                    f"/schemas/ids/{number}/versions",
                    f"/schemas/ids/{number}?subject={subject}",
                    f"/schemas/ids/{number}?subject=open-value",
                    f"/config/{subject}?defaultToGlobal=true",
                    f"/mode/{subject}?defaultToGlobal=true",
                ):
                    answer = await http.get(path, headers=headers)
                    if ".." not in path:
                        assert answer.status_code == status, (headers, path, answer.text)
                    elif status == 403:
                        assert answer.status_code != 200
                for path in (f"/subjects/{subject}", f"/compatibility/subjects/{subject}/versions"):
                    answer = await http.post(path, json=SCHEMA, headers=headers)
                    assert (answer.status_code == 403) == (status == 403)


async def test_only_those_named_write(users: Path) -> None:
    async with filled(users) as http:
        for headers, subject, status in (
            (basic("writer"), "payments-value", 200),
            (basic("writer"), "payments-new", 200),
            (basic("writer"), "secret", 403),
            (basic("writer"), ":.eu:clicks", 403),
            (basic("writer"), "unnamed", 200),
            (basic("reader"), "unnamed", 403),
            (basic("reader"), "open-value", 403),
            (CI, "payments-value", 403),
            (CI, "secret", 200),
        ):
            found = await register(http, subject, record("Next", ("a", ["null", "string"])) | {}, headers)
            assert (found.status_code == 403) == (status == 403), (subject, found.text)
            level = await http.put(f"/config/{quote(subject, '')}", json={"compatibility": "NONE"}, headers=headers)
            assert level.status_code == status


async def test_a_name_that_stands_for_another_subject_leads_to_no_other_rights(users: Path) -> None:
    async with filled(users) as http:
        # `clicks` stands for the subject of any context that has it
        answer = await http.get("/subjects/clicks/versions/1", headers=basic("writer"))
        assert answer.status_code == 403
        text = record("Reuclicks", ("a", "string"))
        assert (await http.post("/subjects/clicks", json=text, headers=basic("writer"))).status_code == 403
        assert (await http.get("/contexts/.eu/subjects/clicks/versions", headers=basic("writer"))).status_code == 403
        assert (await http.get("/contexts/eu/subjects/clicks/versions", headers=basic("writer"))).status_code == 403
        # an alias of an own subject
        alias = await http.put("/config/open-alias", json={"alias": "secret"}, headers=basic("writer"))
        assert alias.status_code == 200
        for path in ("/subjects/open-alias/versions", "/subjects/open-alias/versions/1"):
            assert (await http.get(path, headers=basic("writer"))).status_code == 403
        assert (await register(http, "open-alias", SCHEMA, basic("writer"))).status_code == 403
        assert (await http.get("/schemas/ids/2?subject=open-alias", headers=basic("writer"))).status_code == 403


async def test_a_reference_needs_the_right_to_read(users: Path) -> None:
    async with filled(users) as http:
        schema = record("Holder", ("s", "Rsecret")) | {
            "references": [{"name": "Rsecret", "subject": "secret", "version": -1}]
        }
        for path in ("/subjects/open-h/versions", "/subjects/open-h", "/compatibility/subjects/open-h/versions"):
            assert (await http.post(path, json=schema, headers=basic("writer"))).status_code == 403
        assert (await register(http, "open-h", schema, CI)).status_code == 200


async def test_settings_of_a_context_need_the_role_admin(users: Path) -> None:
    async with filled(users) as http:
        for scope in (":.eu:", ":.us:", ":.__GLOBAL:"):
            path = f"/config/{quote(scope, '')}"
            assert (await http.put(path, json={"compatibility": "NONE"}, headers=CI)).status_code == 403
            assert (await http.put(path, json={"compatibility": "FULL"}, headers=ADMIN)).status_code == 200
        for path in ("/contexts/.eu/config", "/contexts/.eu/config/"):
            assert (await http.put(path, json={"compatibility": "NONE"}, headers=CI)).status_code == 403


SPELLINGS: list[Callable[[str], str]] = [
    lambda path: path,
    lambda path: path.replace("/subjects", "//subjects"),
    lambda path: "/." + path,
    lambda path: "/x/.." + path,
    lambda path: path.replace("secret", "%73ecret"),
    lambda path: path.replace("secret", "%2573ecret"),
    lambda path: path.replace("secret", "secret%00"),
    lambda path: path.replace("secret", "secret;a=b"),
    lambda path: path.replace("secret", "x%2f..%2fsecret"),
    lambda path: path.replace("secret", ":.:secret"),
    lambda path: path.replace("secret", "%3A.%3Asecret"),
    lambda path: path.replace("secret", "SECRET"),
    lambda path: path.replace("secret", "secret."),
    lambda path: path.replace("secret", "%20secret"),
    lambda path: path + "/",
    lambda path: path + "//",
    lambda path: path + "?subject=open-value",
    lambda path: path + "%3Fa",
    lambda path: "/contexts/." + path,
    lambda path: "/contexts/:.:" + path,
    lambda path: "/contexts/%2e" + path,
    lambda path: "/contexts/.eu/../." + path,
    lambda path: "http://a" + path,
    lambda path: "/ui/.." + path,
]


async def test_no_spelling_of_a_path_leads_around_a_rule(users: Path) -> None:
    found = set()
    async with filled(users) as http:
        for spell in SPELLINGS:
            for below in ("/1", "/1/schema", ""):
                path = spell(f"/subjects/secret/versions{below}")
                for headers in (basic("writer"), CI):
                    request = http.build_request("GET", "/", headers=headers)
                    request.url = _Target(request.url, path)
                    answer = await http.send(request)
                    if headers is CI:
                        found |= {path} if answer.status_code == 200 else set()
                    else:
                        assert "Rsecret" not in answer.text, path
                        assert answer.status_code != 200, (path, answer.text)
    assert len(found) >= len(SPELLINGS), "most spellings lead nowhere, which shows nothing"


class _Target(httpx.URL):
    """A URL with a target of a request that httpx would write in another way."""

    def __init__(self, url: httpx.URL, target: str) -> None:
        super().__init__(url)
        self._target = target.encode()

    @property
    def raw_path(self) -> bytes:
        return self._target


def test_rules_need_users() -> None:
    with pytest.raises(ConfigurationError, match=r"subjects.*needs http\.users\.file"):
        RegistryConfig.from_settings({"bootstrap.servers": "a:1", "subjects": RULES})


@given(st.text(max_size=6), st.text(max_size=6))
def test_a_pattern_fits_its_name_or_its_beginning(beginning: str, name: str) -> None:
    from pipeline.schema_registry.config import SubjectRights

    rule = SubjectRights.from_settings({"pattern": f"{beginning}*"})
    assert rule.fits(name) == (name.startswith(beginning) or name == f"{beginning}*")


def test_the_settings_of_the_page_are_settings_of_a_registry(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/security/http.md").read_text()
    file = tmp_path / "registry.toml"
    blocks = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    file.write_text('bootstrap.servers = "a:1"\nhttp.listen = "0.0.0.0:8081"\n' + "\n".join(blocks))
    config = RegistryConfig.from_settings(read_settings(file))
    assert config.http.asks_login
    assert config.http.is_encrypted
    assert [rule.pattern for rule in config.subjects] == ["payments-*", "*"]
