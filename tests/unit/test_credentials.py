"""Secrets that never show themselves, and texts that name where a value is kept."""

import json
import logging
import pickle
from pathlib import Path

import pytest
from pydantic import Field

from pipeline.credentials import MASK, MAX_SECRET_BYTES, Secret, resolved
from pipeline.errors import ConfigurationError
from pipeline.settings import SettingsModel


class _Settings(SettingsModel):
    service = "test"

    password: Secret = Field(alias="sasl.password")
    """A password."""


def test_a_secret_is_shown_by_reveal_alone(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret("s3cret")
    logging.getLogger("test").warning("password=%s %r", secret, secret)
    shown = f"{secret} {secret!r} {secret:>20} {[secret]} {json.dumps([str(secret)])} {caplog.text}"
    assert "s3cret" not in shown
    assert secret.reveal() == "s3cret"
    assert secret == Secret("s3cret") != Secret("other")
    assert bool(secret) and not Secret("")
    assert pickle.loads(pickle.dumps(secret)) == secret


def test_settings_take_a_text_and_write_the_mask() -> None:
    settings = _Settings.from_settings({"sasl.password": "s3cret"})
    assert settings.password.reveal() == "s3cret"
    assert "s3cret" not in f"{settings} {settings.model_dump_json()}"
    assert MASK in settings.model_dump_json()


def test_errors_about_settings_do_not_show_a_secret() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        _Settings.from_settings({"sasl.password": ["s3cret"]})
    assert "s3cret" not in str(refusal.value)


def test_references_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("# comment\nuser = alice\npassword=p=w:d \n")
    (tmp_path / "token").write_text("t0ken\n")
    environ = {"DB_PASSWORD": "pw"}
    places = f"file:{tmp_path}/secrets.properties:password", f"directory:{tmp_path}:token"
    text = "${env:DB_PASSWORD}-" + "-".join(f"${{{place}}}" for place in places)
    assert resolved("sasl.password", text, environ) == "pw-p=w:d-t0ken"
    assert resolved("sasl.password", "$5{other:x}${y}", environ) == "$5{other:x}${y}"
    assert Secret.resolved("sasl.password", "${env:DB_PASSWORD}", environ) == Secret("pw")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${env:NOT_SET}", "environment variable NOT_SET"),
        ("${file:/nowhere/secrets:key}", "/nowhere/secrets, which cannot be read"),
        ("${directory:/nowhere:key}", "/nowhere/key, which cannot be read"),
        ("${file:{large}:key}", "more than"),
        ("${file:{binary}:key}", "not text"),
        ("${file:{empty}:key}", "no line key=VALUE"),
    ],
)
def test_references_to_nothing_name_setting_and_place(tmp_path: Path, text: str, said: str) -> None:
    for name, content in {"large": b"x" * (MAX_SECRET_BYTES + 1), "binary": b"\xff", "empty": b""}.items():
        (tmp_path / name).write_bytes(content)
        text = text.replace("{" + name + "}", str(tmp_path / name))
    with pytest.raises(ConfigurationError, match=said) as refusal:
        resolved("sasl.password", text, {})
    assert refusal.value.key == "sasl.password"
