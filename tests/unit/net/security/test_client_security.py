"""Settings of clients, and what they dial with."""

import pickle
from pathlib import Path

import pytest

from pipeline.cli.secured.certificates import Authority
from pipeline.client.cluster.config import ClientConfig
from pipeline.errors import ConfigurationError
from pipeline.net.dialing import PLAIN_DIALER
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity
from pipeline.net.security.sasl_client import SaslLogin

SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "alice", "sasl.password": "s3cret"}


def test_without_settings_connections_are_open() -> None:
    assert ClientSecurity.from_settings({}) == OPEN_SECURITY
    assert OPEN_SECURITY.dialer() is PLAIN_DIALER
    assert ClientConfig().security is OPEN_SECURITY


def test_secrets_are_taken_from_where_they_are_kept_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICES_PASSWORD", "s3cret")
    made = ClientSecurity.from_settings({**SASL, "sasl.password": "${env:ALICES_PASSWORD}", "sasl.mechanisms": "PLAIN"})
    assert made.password is not None
    assert made.password.reveal() == "s3cret"
    assert "s3cret" not in f"{made} {made!r} {made.model_dump_json()} {ClientConfig(security=made)}"
    assert pickle.loads(pickle.dumps(made)) == made
    assert made.dialer().authenticate is not None


@pytest.mark.parametrize(
    ("settings", "key", "said"),
    [
        ({"security.protocol": "TLS"}, "security.protocol", "must be one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.username", "PLAIN needs it"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.token", "OAUTHBEARER needs it"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism", "'PLAIN'"),
        ({**SASL, "sasl.password": "${env:NOT_SET}"}, "sasl.password", "NOT_SET, which is not set"),
        ({**SASL, "sasl.passwort": "s3cret"}, "sasl.passwort", "did you mean sasl.password"),
        ({"ssl.certificate.location": "/x"}, "ssl.key.location", "together, or neither"),
    ],
)
def test_errors_name_the_key_and_no_secret(settings: dict[str, str], key: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refusal:
        ClientSecurity.from_settings(settings)
    assert refusal.value.key == key
    assert "s3cret" not in str(refusal.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(Authority().certificate)
    assert ClientSecurity.from_settings(
        {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")}
    ).dialer()
    missing = ClientSecurity.from_settings({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "none.pem")})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        missing.dialer()


def test_a_false_server_is_found_out() -> None:
    exchange = SaslLogin(mechanism="SCRAM-SHA-256", user="alice", password=ClientSecurity.from_settings(SASL).password)
    tokens = exchange.begin()
    first = tokens.first().decode()
    nonce = first.partition("r=")[2]
    assert tokens.next(f"r={nonce}server,s=c2FsdCBvZiAxNSBieXRl,i=4096".encode()) is not None
    with pytest.raises(Exception, match="does not prove"):
        tokens.next(b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
    with pytest.raises(Exception, match="does not prove"):
        exchange.begin().next(b"e=other-error")


def test_a_token_is_sent_as_it_is() -> None:
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "t0k.en"}
    made = ClientSecurity.from_settings(settings)
    exchange = SaslLogin(mechanism="OAUTHBEARER", token=made.token).begin()
    assert exchange.first() == b"n,,\x01auth=Bearer t0k.en\x01\x01"
    assert exchange.next(b"") is None
