"""Clients of a registry with TLS and users: our own, and those of others, unchanged."""

import json
import pickle
import subprocess
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from typer.testing import CliRunner

from pipeline.broker.contract.registry import RegistryAwayError, open_questions
from pipeline.broker.contract.verdicts import SchemaQuestion
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.contract import SubjectRule
from pipeline.cli.main import app
from pipeline.client.registry.client import SchemaRegistryError, open_schema_registry
from pipeline.errors import ConfigurationError, DeadlineExceededError
from pipeline.hadoop.avro.registry_lookup import RegistryLookup
from pipeline.hadoop.load.config import LoadConfig
from pipeline.net.http.login import HttpLogin
from pipeline.schema_registry.config import RegistryConfig
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry
from tests.support.secured_http import PASSWORDS, TOKEN, HttpFiles, http_files

pytest.importorskip("authlib", reason="confluent-kafka's registry client needs authlib")
pytest.importorskip("cachetools", reason="confluent-kafka's registry client needs cachetools")
with warnings.catch_warnings(action="ignore"):
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError as TheirError

TEXT = json.dumps({"type": "record", "name": "E", "fields": []})
DEADLINE_S = 60


@pytest.fixture
def files(tmp_path: Path) -> HttpFiles:
    return http_files(tmp_path)


@pytest.fixture
async def url(files: HttpFiles) -> AsyncIterator[Any]:
    async with serving_registry(MemoryJournal(), **files.settings) as url:
        yield url


def user(name: str) -> dict[str, str]:
    return {"basic.auth.user.info": f"{name}:{PASSWORDS[name]}"}


def login(files: HttpFiles, **settings: str) -> HttpLogin:
    trust = {"schema.registry.ssl.ca.location": str(files.ca)}
    return HttpLogin.from_settings(trust | {key.replace("_", "."): value for key, value in settings.items()})


async def test_our_client_logs_in_by_password_and_by_token(files: HttpFiles, url: str) -> None:
    async with open_schema_registry([url], login=login(files, **user("writer"))) as registry:
        assert await registry.register("s", TEXT) == 1
    async with open_schema_registry([url], login=login(files, bearer_auth_token=TOKEN)) as registry:
        assert await registry.register("t", TEXT) == 1
    async with open_schema_registry([url], login=login(files, **user("reader"))) as registry:
        assert await registry.schema_text(1) == TEXT
        with pytest.raises(SchemaRegistryError, match=r"reader with role read may not do this.* role write") as refused:
            await registry.register("u", TEXT)
        assert refused.value.status == 403
    for wrong in ({}, {"basic.auth.user.info": "reader:wrong"}, {"bearer.auth.token": "wrong"}):
        async with open_schema_registry([url], login=login(files, **wrong)) as registry:
            with pytest.raises(SchemaRegistryError) as refused:
                await registry.schema_text(1)
        assert refused.value.status == 401
        assert "wrong" not in str(refused.value)
    with_url = url.replace("//", "//reader:read%20it@")
    async with open_schema_registry([with_url], login=login(files)) as registry:
        assert await registry.schema_text(1) == TEXT
    async with open_schema_registry([url], login=HttpLogin.from_settings(user("reader")), timeout_s=1) as registry:
        with pytest.raises(DeadlineExceededError, match="nobody who is trusted has signed"):
            await registry.schema_text(1)


@pytest.mark.filterwarnings("ignore")
async def test_confluents_client_logs_in_by_password_and_by_token(files: HttpFiles, url: str) -> None:
    def calls() -> None:
        trust = {"url": url, "ssl.ca.location": str(files.ca)}
        with SchemaRegistryClient(trust | user("writer")) as client:
            assert client.register_schema("s", Schema(TEXT, "AVRO")) == 1
        bearer = {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": TOKEN,
            "bearer.auth.logical.cluster": "any",
            "bearer.auth.identity.pool.id": "any",
        }
        with SchemaRegistryClient(trust | bearer) as client:
            assert client.register_schema("t", Schema(TEXT, "AVRO")) == 1
        with SchemaRegistryClient(trust | user("reader")) as client:
            assert sorted(client.get_subjects()) == ["s", "t"]
            with pytest.raises(TheirError) as refused:
                client.register_schema("u", Schema(TEXT, "AVRO"))
            assert (refused.value.http_status_code, refused.value.error_code) == (403, 403)
        with SchemaRegistryClient(trust | {"basic.auth.user.info": "reader:wrong"}) as client:
            with pytest.raises(TheirError) as refused:
                client.get_subjects()
            assert refused.value.http_status_code == 401

    await trio.to_thread.run_sync(calls)


async def test_curl_logs_in(files: HttpFiles, url: str) -> None:
    async def curl(*arguments: str) -> str:
        command = ["curl", "--silent", "--max-time", str(DEADLINE_S), "--write-out", " %{http_code}", *arguments]
        done = await trio.run_process(command, capture_stdout=True, check=False, stdin=subprocess.DEVNULL)
        return done.stdout.decode()

    trust = ("--cacert", str(files.ca))
    for version in ("--http1.0", "--http1.1", "--http2"):
        given = [version, *trust, "--user", f"reader:{PASSWORDS['reader']}"]
        assert await curl(*given, f"{url}/subjects") == "[] 200"
        assert await curl(*given, "--anyauth", f"{url}/subjects") == "[] 200"
    assert await curl(*trust, "--oauth2-bearer", TOKEN, f"{url}/subjects") == "[] 200"
    assert (await curl(*trust, f"{url}/subjects")).endswith(" 401")
    assert (await curl("--user", "reader:x", f"{url}/subjects")).endswith(" 000"), "an unknown authority"
    assert (await curl(url.replace("https", "http"))).endswith(" 000")


async def test_a_broker_and_a_load_log_in(files: HttpFiles, url: str) -> None:
    async with open_schema_registry([url], login=login(files, **user("writer"))) as registry:
        await registry.register("t-value", TEXT)
    given = user("reader") | {"schema.registry.ssl.ca.location": str(files.ca)}
    broker = BrokerConfig.from_settings(
        {"broker.id": 1, "log.dirs": "/none", "zookeeper.connect": "none:1", "confluent.schema.registry.url": url}
        | {f"confluent.{key}": value for key, value in given.items()}
    )
    question = SchemaQuestion(1, SubjectRule("t-value"), False)
    urls, known = broker.schema_registry_urls, broker.schema_registry_login
    async with open_questions(urls, timeout_s=60, compile_schema=None, login=known) as questions:
        assert (await questions.judge(question)).reason is None
    async with open_questions(urls, timeout_s=60, compile_schema=None, login=login(files)) as questions:
        with pytest.raises(RegistryAwayError, match="401"):
            await questions.judge(question)
    load = LoadConfig.from_settings(
        {"bootstrap.servers": "none:1", "topic": "t", "root": "/none", "schema.registry.url": url} | given
    )
    lookup = pickle.loads(pickle.dumps(RegistryLookup(load.registry, load.login)))
    assert await trio.to_thread.run_sync(lookup, 1) == TEXT
    for shown in (repr(load), str(load), load.model_dump_json(), repr(broker), repr(lookup)):
        assert PASSWORDS["reader"] not in shown


async def test_commands_log_in_by_the_file_of_client_settings(
    files: HttpFiles, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_CLIENT_CONFIG", "")  # the option sets it, for this test alone

    def run(name: str, *arguments: str) -> Any:
        config = tmp_path / "client.properties"
        trust = {
            "reader": f"ssl.ca.location={files.ca}",
            "writer": f"schema.registry.ssl.truststore.location={files.ca}\nschema.registry.ssl.truststore.type=PEM",
        }
        config.write_text(f"basic.auth.user.info={name}:{PASSWORDS[name]}\n{trust[name]}\n")
        return CliRunner().invoke(app, ["schema", *arguments, "--client-config", str(config), "--registry", url])

    def calls() -> None:
        schema = tmp_path / "e.avsc"
        schema.write_text(TEXT)
        assert run("writer", "register", "s-value", str(schema)).exit_code == 0
        assert TEXT in run("reader", "get", "s-value").output.replace("\n", "")
        refused = run("reader", "register", "t-value", str(schema))
        assert refused.exit_code != 0
        assert "needs the role write" in str(refused.exception)

    await trio.to_thread.run_sync(calls)


async def test_registries_forward_with_the_clients_own_password(files: HttpFiles) -> None:
    journal = MemoryJournal()
    settings: dict[str, Any] = {**files.settings, "leader.schema.registry.ssl.ca.location": str(files.ca)}
    settings |= {f"leader.{key}": value for key, value in user("reader").items()}
    async with serving_registry(journal, **settings) as writer, serving_registry(journal, **settings) as follower:
        async with open_schema_registry([writer], login=login(files, **user("writer"))) as registry:
            assert await registry.register("s", TEXT) == 1
        async with open_schema_registry([follower], login=login(files, **user("writer"))) as registry:
            assert await registry.register("s2", json.dumps("string")) == 2
        settings |= {"leader.urls": [writer]}
        async with serving_registry(journal, is_copy=True, **settings) as copy:
            async with open_schema_registry([copy], login=login(files, **user("writer"))) as registry:
                assert await registry.register("s3", json.dumps("int")) == 3
            with trio.fail_after(DEADLINE_S):
                async with httpx.AsyncClient(verify=files.context, auth=("reader", PASSWORDS["reader"])) as http:
                    while (await http.get(f"{copy}/subjects")).headers["x-staleness-seconds"] == "unknown":
                        await trio.sleep(0.05)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"basic.auth.user.info": "alice"}, "basic.auth.user.info: is not NAME:PASSWORD"),
        ({"basic.auth.user.info": "alice:x", "bearer.auth.token": "t"}, "bearer.auth.token: excludes"),
        ({"basic.auth.credentials.source": "USER_INFO"}, "basic.auth.user.info: is missing"),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN"}, "bearer.auth.token: is missing"),
        ({"bearer.auth.token": "a\r\nb"}, "bearer.auth.token: has characters"),
        ({"basic.auth.user.info": "${env:NOT_SET_HERE}"}, r"basic\.auth\.user\.info.*NOT_SET_HERE, which is not set"),
    ],
)
def test_errors_name_the_setting_and_show_no_secret(settings: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        HttpLogin.from_settings(settings)
    assert "alice:x" not in str(caught.value)
    prefixed = {f"leader.{key}": value for key, value in settings.items()}
    with pytest.raises(ConfigurationError, match=rf"leader\.{named}"):
        RegistryConfig.from_settings({"bootstrap.servers": "a:1"} | prefixed)
