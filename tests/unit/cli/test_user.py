"""`pipeline user create`: names that it refuses before it asks anybody."""

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("User:alice", "is a name alone, without User:"),
        ("admin\N{NO-BREAK SPACE}", "letters that Unicode has in two forms"),
        ("two\nlines", "line ends"),
    ],
)
def test_a_name_that_would_be_taken_for_another_is_refused(name: str, said: str) -> None:
    ended = CliRunner().invoke(app, ["user", "create", name, "--password-env", "HOME", "-b", "127.0.0.1:1"])
    assert ended.exit_code == 1
    assert said in str(ended.exception)
    assert str(ended.exception).startswith("USER: ")
