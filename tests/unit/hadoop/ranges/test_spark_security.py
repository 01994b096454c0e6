"""Options of Spark that protect connections: Java's names, ours, and secrets that no option may hold."""

import pickle
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.client.registry.client import open_schema_registry
from pipeline.errors import ConfigurationError
from pipeline.hadoop.avro.registry_lookup import RegistryLookup
from pipeline.hadoop.ranges.spark_security import security_of
from pipeline.hadoop.sink.options import SinkOptions
from pipeline.hadoop.source.options import SourceOptions
from pipeline.hadoop.source.values import find_schema
from pipeline.model import SecurityProtocol
from pipeline.net.http.login import HttpLogin
from pipeline.net.security.client_security import OPEN_SECURITY
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry
from tests.support.secured_http import PASSWORDS, http_files

PLAIN = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{}";'
SASL = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512"}


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICES", "hidden-1")


def test_options_of_kafkas_java_clients_are_understood() -> None:
    made = security_of(
        {
            **SASL,
            "kafka.sasl.jaas.config": JAAS.format("${env:ALICES}"),
            "kafka.ssl.truststore.location": "/ca.pem",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.keystore.location": "/alice.pem",
            "kafka.ssl.endpoint.identification.algorithm": "",
            "kafka.bootstrap.servers": "h:1",
        }
    )
    assert (made.protocol, made.mechanism) == (SecurityProtocol.SASL_SSL, "SCRAM-SHA-512")
    assert made.username == "alice"
    assert made.password is not None
    assert made.password.reveal() == "hidden-1"
    assert made.ca_location == Path("/ca.pem")
    assert made.certificate_location == made.key_location == Path("/alice.pem")
    assert made.identification == "none"


def test_source_and_sink_hand_the_secret_to_tasks_and_show_it_nowhere() -> None:
    ours = {**SASL, "kafka.sasl.username": "alice", "kafka.sasl.password": "${env:ALICES}"}
    source = SourceOptions.parse({**PLAIN, **ours})
    sink = SinkOptions.parse({"kafka.bootstrap.servers": "h:1", "topic": "t", **ours}, is_stream=False)
    for options in (source, sink):
        assert "hidden-1" not in f"{options!r}{options}{options.client!r}"
        there: Any = pickle.loads(pickle.dumps(options))
        assert there.client.security.password.reveal() == "hidden-1"


AVRO = {"valueFormat": "avro", "schema.registry.url": "https://r:1"}


@pytest.mark.parametrize(
    "login",
    [
        {"basic.auth.user.info": "alice:${env:ALICES}", "basic.auth.credentials.source": "USER_INFO"},
        {"basic.auth.user.info": "${env:BOTH}"},
        {"bearer.auth.token": "${env:ALICES}", "schema.registry.ssl.ca.location": "/ca.pem"},
    ],
)
def test_the_login_at_a_registry_reaches_tasks_and_is_shown_nowhere(
    login: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTH", "alice:hidden-1")
    source = SourceOptions.parse({**PLAIN, **AVRO, **login}).values
    sink = SinkOptions.parse({"kafka.bootstrap.servers": "h:1", "topic": "t", **AVRO, **login}, is_stream=False).avro
    for options in (source, sink):
        assert options is not None
        assert "hidden-1" not in f"{options!r}{options}"
        there: Any = pickle.loads(pickle.dumps(options))
        assert "hidden-1" in str(b64decode(there.login.headers()["Authorization"].split()[1] + "==")) or (
            there.login.headers()["Authorization"] == "Bearer hidden-1"
        )


@pytest.mark.parametrize(
    "login",
    [
        {"basic.auth.user.info": "alice:clear-text"},
        {"basic.auth.user.info": "${env:ALICES}:clear-text"},
        {"bearer.auth.token": "clear-text"},
        {"bearer.auth.token": "${env:ALICES}clear-text"},
        {"schema.registry.url": "https://alice:clear-text@r:1"},
    ],
)
def test_an_option_never_holds_a_password_of_a_registry(login: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="which Spark shows in plans") as refused:
        SourceOptions.parse({**PLAIN, **AVRO, **login})
    assert "clear-text" not in str(refused.value)


async def test_a_schema_is_found_in_a_registry_with_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("READER", f"reader:{PASSWORDS['reader']}")
    files = http_files(tmp_path)
    trust = {"schema.registry.ssl.ca.location": str(files.ca)}
    async with serving_registry(MemoryJournal(), **files.settings) as url:
        writer = HttpLogin.from_settings({**trust, "basic.auth.user.info": f"writer:{PASSWORDS['writer']}"})
        async with open_schema_registry([url], login=writer) as registry:
            await registry.register("t-value", '{"type":"record","name":"E","fields":[]}')
        login = {**trust, "basic.auth.user.info": "${env:READER}", "schema.registry.url": url}
        values = SourceOptions.parse({**PLAIN, **AVRO, **login}).values
        assert values is not None
        found = await trio.to_thread.run_sync(find_schema, values, ["t"])
        lookup = pickle.loads(pickle.dumps(RegistryLookup(values.registry, values.login)))
        assert await trio.to_thread.run_sync(lookup, found.schema_id) == found.text


def test_without_options_connections_are_open() -> None:
    assert SourceOptions.parse(PLAIN).client.security is OPEN_SECURITY


@pytest.mark.parametrize(
    ("options", "key", "said"),
    [
        ({"kafka.sasl.username": "a", "kafka.sasl.password": "hidden-1"}, "kafka.sasl.password", "holds a secret"),
        ({"kafka.sasl.jaas.config": JAAS.format("hidden-1")}, "kafka.sasl.jaas.config", "holds a secret"),
        ({"kafka.sasl.jaas.config": "hidden-1"}, "kafka.sasl.jaas.config", "is not MODULE"),
        ({"kafka.sasl.oauthbearer.token": "hidden-1"}, "kafka.sasl.oauthbearer.token", "holds a secret"),
        ({"kafka.sasl.oauthbearer.client.secret": "hidden-1"}, "kafka.sasl.oauthbearer.client.secret", "holds"),
        ({"kafka.ssl.key.pem": "hidden-1"}, "kafka.ssl.key.pem", "holds a secret"),
        ({"kafka.ssl.keystore.key": "hidden-1"}, "kafka.ssl.keystore.key", "holds a secret"),
        ({"kafka.ssl.key.password": "hidden-1"}, "kafka.ssl.key.password", "holds a secret"),
        ({"kafka.ssl.key.password": "hidden-1${env:ALICES}"}, "kafka.ssl.key.password", "holds a secret"),
        ({"kafka.ssl.keystore.type": "JKS"}, "kafka.ssl.keystore.type", "PEM"),
        ({"kafka.ssl.keystore.pasword": "hidden-1"}, "kafka.ssl.keystore.pasword", "is not an option"),
        ({**SASL, "kafka.sasl.username": "alice"}, "kafka.sasl.password", "is missing"),
        (
            {"kafka.sasl.username": "bob", "kafka.sasl.jaas.config": JAAS.format("${env:ALICES}")},
            "kafka.sasl.jaas.config",
            "both give",
        ),
    ],
)
def test_what_would_be_shown_or_cannot_be_understood_is_refused(options: dict[str, str], key: str, said: str) -> None:
    for parse in (
        security_of,
        lambda given: SourceOptions.parse({**PLAIN, **given}),
        lambda given: SinkOptions.parse({"kafka.bootstrap.servers": "h:1", **given}, is_stream=False),
    ):
        with pytest.raises(ConfigurationError, match=said) as refusal:
            parse(options)
        assert refusal.value.key == key
        assert "hidden-1" not in f"{refusal.value}{refusal.value!r}"
