"""Addresses of clusters: options, then environment variables, then the profile."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.terminal.profiles import PROFILE_VARIABLE, read_profiles, resolve_cluster, resolve_registry
from pipeline.errors import ConfigurationError

PROFILES = """
[east]
bootstrap = "east-1:9092,east-2:9092"
registry = "http://east:8081"

[west]
zookeeper = "west:2181"

[empty]
"""


@pytest.fixture(autouse=True)
def profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("BOOTSTRAP", "ZOOKEEPER", "REGISTRY"):
        monkeypatch.delenv(f"PIPELINE_{name}", raising=False)
    monkeypatch.setenv(PROFILE_VARIABLE, "")  # what a command sets is taken back
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "pipeline" / "profiles.toml"
    path.parent.mkdir()
    path.write_text(PROFILES)
    return path


def test_options_come_first_then_the_environment_then_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROFILE_VARIABLE, "east")
    assert resolve_cluster(None, None) == ("east-1:9092,east-2:9092", None)
    assert resolve_registry() == "http://east:8081"
    monkeypatch.setenv("PIPELINE_ZOOKEEPER", "z:2181")
    monkeypatch.setenv("PIPELINE_REGISTRY", "http://other:8081")
    assert resolve_cluster(None, None) == (None, "z:2181")
    assert resolve_registry() == "http://other:8081"
    assert resolve_cluster("b:9092", None) == ("b:9092", None)
    monkeypatch.setenv("PIPELINE_BOOTSTRAP", "b:9092")
    assert resolve_cluster(None, "y:2181") == (None, "y:2181")
    with pytest.raises(ConfigurationError, match="PIPELINE_BOOTSTRAP: is set, and so is PIPELINE_ZOOKEEPER"):
        resolve_cluster(None, None)


def test_two_options_or_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="give either --bootstrap or --zookeeper, not both"):
        resolve_cluster("b:9092", "z:2181")
    with pytest.raises(ConfigurationError, match=r"--bootstrap: is missing: .* set PIPELINE_BOOTSTRAP, or choose"):
        resolve_cluster(None, None)
    monkeypatch.setenv(PROFILE_VARIABLE, "empty")
    with pytest.raises(ConfigurationError, match="profile empty: has neither bootstrap nor zookeeper"):
        resolve_cluster(None, None)
    monkeypatch.setenv(PROFILE_VARIABLE, "eats")
    with pytest.raises(ConfigurationError, match=r"profile eats: is not in .*; did you mean east\?"):
        resolve_cluster(None, None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[east]\nbotstrap = 'e:1'\n", "east.botstrap: is unknown: a profile has bootstrap, zookeeper, registry"),
        ("[east]\nbootstrap = 5\n", "east.bootstrap: must be text in quotes"),
        ("[east]\nbootstrap = 'e:1'\nzookeeper = 'e:2'\n", "east: must have either bootstrap or zookeeper"),
        ("bootstrap = 'e:1'\n", r"bootstrap: is no profile: write \[bootstrap\]"),
        ("[east\n", "is not TOML"),
    ],
)
def test_faults_of_the_file_are_named_with_its_path(profiles: Path, text: str, fault: str) -> None:
    profiles.write_text(text)
    with pytest.raises(ConfigurationError, match=rf"profiles\.toml: .*{fault}"):
        read_profiles()


def test_a_home_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/tmp/" + "x" * 300)
    with pytest.raises(ConfigurationError, match=r"profiles\.toml: cannot be read"):
        read_profiles()
    monkeypatch.setenv("XDG_CONFIG_HOME", "~nobody-of-this-name/x")
    with pytest.raises(ConfigurationError, match="HOME: is not set"):
        read_profiles()


def test_profiles_are_listed_and_shown(pipeline_command: Callable[..., Any], profiles: Path) -> None:
    code, told, _ = pipeline_command("--profile", "west", "profile", "list", "--json")
    assert code == 0
    found = json.loads(told)
    assert found["file"] == str(profiles)
    assert [(row["name"], row["used"]) for row in found["profiles"]] == [
        ("east", False),
        ("empty", False),
        ("west", True),
    ]
    code, told, _ = pipeline_command("profile", "show", "east")
    assert (code, told.split()[:6]) == (0, ["SETTING", "VALUE", "name", "east", "bootstrap", "east-1:9092,east-2:9092"])
    profiles.unlink()
    assert pipeline_command("profile", "show", "east")[0] == 2


@pytest.mark.parametrize("variable", ["PIPELINE_BOOTSTRAP", "PIPELINE_ZOOKEEPER", "PIPELINE_UNUSED"])
@pytest.mark.parametrize(
    "arguments",
    [("--profile", "west", "topic", "list"), ("topic", "list", "--profile", "west")],
)
def test_a_profile_is_chosen_before_or_after_the_verb(
    pipeline_command: Callable[..., Any],
    profiles: Path,
    arguments: tuple[str, ...],
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command with --profile never goes to the cluster of the environment."""
    monkeypatch.setenv(variable, "another")
    profiles.write_text('[west]\nbootstrap = "nonsense"\n')
    code, _, said = pipeline_command(*arguments)
    assert (code, said) == (2, "pipeline: --bootstrap: 'nonsense' is not host:port\n")


def test_a_registry_is_taken_from_the_environment(
    pipeline_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, said = pipeline_command("schema", "list")
    assert code == 2
    assert said.startswith("pipeline: --registry: is missing: give --registry URL, set PIPELINE_REGISTRY")
    monkeypatch.setenv("PIPELINE_REGISTRY", "ftp://nonsense")
    code, _, said = pipeline_command("schema", "list")
    assert code == 2
    assert "'ftp://nonsense' is not of the form http://host:port" in said
