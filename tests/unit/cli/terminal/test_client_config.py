"""Files of client settings, and who names them."""

from pathlib import Path

import pytest

from pipeline.cli.terminal.client_config import (
    CLIENT_CONFIG_VARIABLE,
    choose_client_config,
    client_security,
    read_client_config,
)
from pipeline.errors import ConfigurationError
from pipeline.model import SecurityProtocol
from pipeline.net.security.client_security import OPEN_SECURITY

PROPERTIES = """
# a comment
security.protocol = SASL_SSL
sasl.mechanisms=SCRAM-SHA-512
sasl.username=alice
sasl.password=a=b c
"""
TOML = """
[security]
protocol = "SASL_SSL"
[sasl]
mechanism = "SCRAM-SHA-512"
username = "alice"
password = "a=b c"
"""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (CLIENT_CONFIG_VARIABLE, "PIPELINE_PROFILE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_properties_and_toml_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(PROPERTIES)
    (tmp_path / "client.toml").write_text(TOML)
    first = read_client_config(tmp_path / "client.properties")
    assert first == read_client_config(tmp_path / "client.toml")
    assert first.protocol is SecurityProtocol.SASL_SSL
    assert first.password is not None
    assert first.password.reveal() == "a=b c"


def test_option_environment_and_profile_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_security() == OPEN_SECURITY
    (tmp_path / "client.properties").write_text(PROPERTIES)
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "profiles.toml").write_text(
        f'[prod]\nbootstrap = "h:1"\nclient_config = "{tmp_path}/client.properties"\n'
    )
    monkeypatch.setenv("PIPELINE_PROFILE", "prod")
    assert client_security().username == "alice"
    (tmp_path / "other.properties").write_text("security.protocol=SSL\n")
    choose_client_config(str(tmp_path / "other.properties"))
    assert client_security().protocol is SecurityProtocol.SSL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("security.protocol", r"line 1: is not key=value"),
        ("security.protocol=TLS", r"security\.protocol: must be one of"),
        ("sasl.user=x", r"sasl\.user: is not a setting of the client; did you mean sasl\.username"),
        ("security.protocol=SSL\nsecurity.protocol=SSL", "is set twice"),
    ],
)
def test_what_is_wrong_is_said_with_the_name_of_the_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said) as refusal:
        read_client_config(path)
    assert str(path) in str(refusal.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_client_config(tmp_path / "missing.properties")
