"""The protection of loads: their own settings, or the file that the command names."""

from pathlib import Path

import pytest

from pipeline.cli.load.settings import loads_config
from pipeline.cli.terminal.client_config import CLIENT_CONFIG_VARIABLE

OPTIONS = {"topic": "clicks", "root": "file:///lake", "bootstrap.servers": "h:1", "value.format": "binary"}


def test_the_file_of_the_command_counts_unless_the_settings_protect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(loads_config(None, OPTIONS, []).security) == "PLAINTEXT"
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=load\nsasl.password=pw\n")
    monkeypatch.setenv(CLIENT_CONFIG_VARIABLE, str(file))
    config = loads_config(None, OPTIONS, [])
    assert (str(config.security), config.security.username) == ("SASL_SSL", "load")
    assert config.config_of("clicks").security == config.security
    own = tmp_path / "load.toml"
    own.write_text('"security.protocol" = "SSL"\n')
    assert str(loads_config(own, OPTIONS, []).security) == "SSL"


def test_the_file_of_the_command_logs_in_to_registries_unless_the_settings_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("basic.auth.user.info=load:pw\nssl.ca.location=/etc/ca.pem\n")
    monkeypatch.setenv(CLIENT_CONFIG_VARIABLE, str(file))
    login = loads_config(None, OPTIONS, []).config_of("clicks").login
    assert login.user_info is not None
    assert (login.user_info.reveal(), login.ca_location) == ("load:pw", Path("/etc/ca.pem"))
    own = tmp_path / "load.toml"
    own.write_text('"bearer.auth.token" = "token"\n')
    assert loads_config(own, OPTIONS, []).config_of("clicks").login.user_info is None
