"""Passwords of commands: from files and the environment, and never shown by an error."""

import io
import sys
from pathlib import Path

import pytest
import typer

from pipeline.cli.terminal.passwords import STANDARD_INPUT, read_new_password
from pipeline.errors import ConfigurationError


def test_a_file_holds_the_password_alone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3 cret!\n")
    assert read_new_password(file, None).reveal() == "s3 cret!"


def test_standard_input_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped\n")))
    assert read_new_password(STANDARD_INPUT, None).reveal() == "piped"
    monkeypatch.setenv("NEW_PASSWORD", "kept")
    assert read_new_password(None, "NEW_PASSWORD").reveal() == "kept"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\n", "holds no password"),
        (b"two\nlines-of-it\n", "line ends"),
        ("ﬁne-ligature".encode(), "two forms"),
        (b"\xff\xfe-secret", "not text in UTF-8"),
        (b"x" * 1025, "more than 1024 bytes"),
    ],
)
def test_what_clients_would_not_send_alike_is_refused_and_not_shown(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refusal:
        read_new_password(file, None)
    assert said in str(refusal.value)
    assert all(part not in str(refusal.value) for part in ("lines-of-it", "ligature", "-secret", "xxx"))


def test_a_missing_password_names_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(ConfigurationError, match="--password-file: is missing: give it, or --password-env"):
        read_new_password(None, None)
    with pytest.raises(ConfigurationError, match="names NO_SUCH_VARIABLE, which is not set"):
        read_new_password(None, "NO_SUCH_VARIABLE")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_new_password(tmp_path / "none", None)
    with pytest.raises(ConfigurationError, match="give one of them"):
        read_new_password(tmp_path / "none", "HOME")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "code"), [(["s3cret", "s3cret"], None), (["s3cret", "s3crets"], 2)])
def test_a_password_is_typed_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: list[str], code: int | None
) -> None:
    answers = iter(typed)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda _prompt, _stream: next(answers))
    if code is None:
        assert read_new_password(None, None).reveal() == "s3cret"
        return
    with pytest.raises(typer.Exit) as ended:
        read_new_password(None, None)
    assert ended.value.exit_code == code
    assert capsys.readouterr().err == "pipeline: the two passwords differ\n"
