"""The version that commands, logs and metrics show."""

import tomllib
from pathlib import Path

import pytest

from pipeline import version
from pipeline.cli.foreground import service_metrics
from pipeline.version import VERSION, describe_build, source_commit

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_the_version_is_that_of_the_package() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"HEAD": f"{COMMIT}\n"}, COMMIT[:12]),
        ({"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{COMMIT}\n"}, COMMIT[:12]),
        ({"HEAD": "ref: refs/heads/main\n", "packed-refs": f"# pack\n{COMMIT} refs/heads/main\n"}, COMMIT[:12]),
        ({"HEAD": "ref: refs/heads/main\n"}, None),
        ({}, None),
    ],
)
def test_the_commit_is_read_from_the_repository(tmp_path: Path, files: dict[str, str], found: str | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert source_commit(tmp_path) == found


def test_metrics_have_the_version_as_a_label() -> None:
    assert service_metrics().get_sample_value("pipeline_build_info", describe_build()) == 1


@pytest.mark.parametrize("mark", ["", "-dirty"])
def test_a_package_says_what_it_was_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    packaged = tmp_path / "COMMIT"
    packaged.write_text("0123456789abcdef" + mark)
    monkeypatch.setattr(version, "_PACKAGED", packaged)
    assert source_commit() == "0123456789ab" + mark
