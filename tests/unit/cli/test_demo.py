"""The demo touches no directory that is not its own, and none that another demo is using."""

import pytest
import typer

from pipeline.cli.demo import MARKER, demo
from pipeline.cli.files import held_alone
from pipeline.errors import ConfigurationError


def test_a_directory_with_other_things_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("all of it", encoding="utf-8")
    with pytest.raises(typer.Exit) as caught:
        demo(tmp_path)
    assert caught.value.exit_code == 2
    assert "name another --dir" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "all of it"


def test_a_demo_that_is_running_keeps_its_directory(tmp_path):
    (tmp_path / MARKER).touch()
    (tmp_path / "east").mkdir()
    with held_alone(tmp_path), pytest.raises(ConfigurationError, match="in use by process"):
        demo(tmp_path)
    assert (tmp_path / "east").is_dir()
