"""`pipeline cluster secure-znodes` before it reaches ZooKeeper: whose znodes, and which."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.cli.terminal.client_config import CLIENT_CONFIG_VARIABLE

COMMAND = ["cluster", "secure-znodes", "--zookeeper", "127.0.0.1:1", "--zookeeper.acl", "secure"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option changes the environment, which is as before after the test."""
    monkeypatch.setenv(CLIENT_CONFIG_VARIABLE, "")


@pytest.fixture
def credentials(tmp_path: Path) -> str:
    path = tmp_path / "broker.properties"
    path.write_text("zookeeper.auth.username=broker\nzookeeper.auth.password=p\n")
    return str(path)


@pytest.mark.parametrize("command", [COMMAND, ["cluster", "remove-stray", "--zookeeper", "127.0.0.1:1", "id"]])
def test_commands_that_reach_zookeeper_alone_take_client_settings(command: list[str], credentials: str) -> None:
    ended = CliRunner().invoke(app, [*command, "--client-config", f"{credentials}-missing"])
    assert "No such option" not in ended.output
    assert ended.exit_code != 0


@pytest.mark.parametrize("path", ["mirrors", "/mirrors/"])
def test_a_path_that_is_none_is_refused(credentials: str, path: str) -> None:
    ended = CliRunner().invoke(app, [*COMMAND, "--client-config", credentials, "--path", path])
    assert "--path: is" in str(ended.exception)


def test_nobodys_znodes_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "open.properties").write_text("")
    ended = CliRunner().invoke(app, [*COMMAND, "--client-config", str(tmp_path / "open.properties")])
    assert "zookeeper.auth.username" in str(ended.exception)
