"""`pipeline http-user`: the file that it writes is one that servers take."""

import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.errors import ConfigurationError
from pipeline.net.http.protection import read_users
from pipeline.net.http.users import Role, parse_users


def run(*arguments: str, password: str | None = None, **more: Any) -> Any:
    env = {"PIPELINE_HTTP_PASSWORD": password}
    return CliRunner().invoke(app, ["http-user", *arguments], env=env, **more)


def test_passwords_and_tokens_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "users"
    assert run(str(file), "alice", "--role", "admin", password="first").exit_code == 0
    token = run(str(file), "alice", "--role", "write", "--token").output.strip()
    assert run(str(file), "alice", password="second").exit_code == 0
    users = read_users(file)
    assert users.passwords["alice"].user.role is Role.READ
    assert users.passwords["alice"].has(b"second")
    assert not users.passwords["alice"].has(b"first")
    found = users.of_token(token.encode())
    assert found is not None
    assert found.role is Role.WRITE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in file.read_text()
    file.chmod(0o640)
    assert [each.name for each in tmp_path.iterdir()] == ["users"]
    assert run(str(file), "bob", password="b").exit_code == 0
    assert run(str(file), "alice", "--remove").exit_code == 0
    assert [*read_users(file).passwords, *read_users(file).tokens] == ["bob"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_certificate_has_a_role_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "users"
    assert run(str(file), "alice", "--role", "admin", "--certificate").exit_code == 0
    assert run(str(file), "alice", password="a").exit_code == 0
    assert run(str(file), "alice", "--role", "write", "--certificate").exit_code == 0
    users = read_users(file)
    assert users.certificates["alice"].role is Role.WRITE
    assert users.passwords["alice"].user.role is Role.READ
    assert isinstance(run(str(file), "alice", "--token", "--certificate").exception, ConfigurationError)
    with pytest.raises(ConfigurationError, match="line 2 gives a user a second role with a certificate"):
        parse_users("alice:read:$certificate$\nalice:admin:$certificate$\n")


def test_a_password_is_asked_for_twice_and_not_shown(tmp_path: Path) -> None:
    shown = run(str(tmp_path / "users"), "alice", input="secret\nsecret\n")
    assert shown.exit_code == 0
    assert "secret" not in shown.output
    assert read_users(tmp_path / "users").passwords["alice"].has(b"secret")


@pytest.mark.parametrize(
    "arguments", [["a:b"], ["a b"], [""], ["alice", "--role", "root"], ["alice", "--remove"], ["#a"]]
)
def test_what_no_entry_can_be_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    assert isinstance(run(str(tmp_path / "users"), *arguments, password="a").exception, ConfigurationError)
    assert not (tmp_path / "users").exists()


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice:read",
        "alice:root:$sha256$",
        ":read:$sha256$" + "A" * 43 + "=",
        "alice:read:$sha256$short",
        "alice:read:$sha256$" + "*" * 44,
        "alice:read:$scrypt$ln=1,r=8,p=1$" + "A" * 22 + "==$" + "A" * 43 + "=",
        "alice:read:$scrypt$ln=14,r=8,p=1$" + "A" * 22 + "==",
        "alice:read:secret",
        "",
    ],
)
def test_a_damaged_line_is_named_and_not_shown(line: str) -> None:
    with pytest.raises(ConfigurationError, match=r"line 2|names no user") as caught:
        parse_users(f"# users\n{line}\n")
    assert "secret" not in str(caught.value)
    assert "AAA" not in str(caught.value)
