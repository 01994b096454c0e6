"""Options of Spark that protect connections: Java's names, ours, and secrets that no option may hold."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigurationError
from pipeline.hadoop.ranges.spark_security import security_of
from pipeline.hadoop.sink.options import SinkOptions
from pipeline.hadoop.source.options import SourceOptions
from pipeline.model import SecurityProtocol
from pipeline.net.client_security import OPEN_SECURITY

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
