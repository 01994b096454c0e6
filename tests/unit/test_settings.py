"""Settings are refused with the name of the key and what to do."""

from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from pipeline.cli.terminal.settings import parse_assignments, read_settings, write_settings
from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.settings import Address, Addresses, SettingsModel, flatten, parse_address


class Example(SettingsModel):
    """A service with four settings, of which two depend on each other."""

    service: ClassVar[str] = "example"
    listen: Address = Field(alias="http.listen")
    bootstrap: Addresses = Field(default=(), alias="bootstrap.servers")
    linger_ms: int = Field(default=5, alias="linger.ms", ge=0, le=1000)
    peers: tuple[dict[str, str], ...] = Field(default=(), alias="peers")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.linger_ms == 13:
            raise ValueError("linger.ms must not be 13, which brings bad luck")
        if self.linger_ms == 14:
            raise ValueError("nobody at http.listen likes linger.ms=14")
        if self.linger_ms == 15:
            raise ValueError("they do not go together")
        return self


def test_values_are_read_by_their_dotted_names() -> None:
    config = Example.from_settings({"http.listen": "[::1]:80", "bootstrap.servers": "a:1, b:2", "linger.ms": "7"})
    assert config.listen == HostPort("::1", 80)
    assert config.bootstrap == (HostPort("a", 1), HostPort("b", 2))
    assert config.linger_ms == 7


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({}, "http.listen", "is missing"),
        ({"http.listen": "nowhere"}, "http.listen", "not host:port"),
        ({"http.listen": "a:70000"}, "http.listen", "not host:port"),
        ({"http.listen": 8081}, "http.listen", r"^http.listen: must be text in quotes \(given: 8081\)$"),
        ({"http.listen": "a:1", "bootstrap.servers": 9092}, "bootstrap.servers", "must be text in quotes"),
        ({"http.listen": "a:1", "bootstrap.servers": ["a:1"]}, "bootstrap.servers", "must be text in quotes"),
        ({"http.listen": "a:1", "peers": "east"}, "peers", r"^peers: must be a list \(given: 'east'\)$"),
        ({"http.listen": "a:1", "linger.ms": 2000}, "linger.ms", "must be at most 1000"),
        ({"http.listen": "a:1", "linger.m": 1}, "linger.m", "did you mean linger.ms"),
        ({"http.listen": "a:1", "linger.ms": 13}, "linger.ms", "^linger.ms: must not be 13, which brings bad luck$"),
        ({"http.listen": "a:1", "linger.ms": 14}, "http.listen, linger.ms", "likes linger.ms=14$"),
        ({"http.listen": "a:1", "linger.ms": 15}, "settings of the example", "they do not go together$"),
    ],
)
def test_errors_name_the_key(settings: Any, key: Any, reason: Any) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        Example.from_settings(settings)
    assert caught.value.key == key


def test_address_without_host_listens_everywhere() -> None:
    assert parse_address(":9092") == HostPort("", 9092)


values = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8")))
flat = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda k: "." not in k), values, max_size=5
)


@given(flat, st.lists(flat.filter(bool), min_size=1, max_size=3))
def test_settings_files_are_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, settings: Any, tables: Any
) -> None:
    path = tmp_path_factory.mktemp("settings") / "file.toml"
    written = {**settings, "tables": tables}
    write_settings(path, written)
    assert read_settings(path) == written


def test_dotted_and_nested_keys_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('broker.id = 1\n[log]\ndirs = "d"\n[[sources]]\nname = "east"\nretry.ms = 2\n', encoding="utf-8")
    assert read_settings(path) == {"broker.id": 1, "log.dirs": "d", "sources": [{"name": "east", "retry.ms": 2}]}
    assert flatten({"a": {"b": {"c": 1}}}) == {"a.b.c": 1}


def test_unreadable_files_and_assignments_are_explained(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("a = ", encoding="utf-8")
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000, encoding="utf-8")
    reasons = {"none.toml": "cannot be read"} | dict.fromkeys(("bad.toml", "binary.toml", "deep.toml"), "is not TOML")
    reasons["bad.toml"] += ".*; text needs quotes"
    for path, reason in ((tmp_path / name, reason) for name, reason in reasons.items()):
        with pytest.raises(ConfigurationError, match=reason):
            read_settings(path)
    assert parse_assignments(["a.b = 1", "c=x=y"]) == {"a.b": "1", "c": "x=y"}
    with pytest.raises(ConfigurationError, match="key=value"):
        parse_assignments(["novalue"])


def test_a_written_file_belongs_to_its_owner_alone_and_follows_no_link(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "broker.toml"
    other.write_text("untouched")
    path.symlink_to(other)
    write_settings(path, {"sasl.password": "secret"})
    assert other.read_text() == "untouched"
    assert path.stat(follow_symlinks=False).st_mode & 0o777 == 0o600
    path.chmod(0o644)
    write_settings(path, {"sasl.password": "secret"})
    assert path.stat().st_mode & 0o777 == 0o600


class Peers(SettingsModel):
    """A service with a list of tables that it needs."""

    service: ClassVar[str] = "example"
    peers: tuple[dict[str, str], ...] = Field(alias="peers")


def test_a_table_in_place_of_a_list_of_tables_is_refused_with_the_right_brackets(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text('[peers]\nname = "east"\n')
    with pytest.raises(ConfigurationError, match=r"^peers: must be a list of tables: write \[\[peers\]\]$"):
        Peers.from_settings(read_settings(path))


@pytest.mark.parametrize(
    "text",
    [
        'log.dirs = "/a"\n"log.dirs" = "/b"\n',
        '"log.dirs" = "/b"\n[log]\ndirs = "/a"\n',
        '[[live]]\nlog.dirs = "/a"\n"log.dirs" = "/b"\n',
    ],
)
def test_a_setting_that_is_written_in_two_ways_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "example.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"example\.toml: log\.dirs: is set twice"):
        read_settings(path)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Peers.from_settings({"nonsense": 1, "other": 2})
    told = str(raised.value)
    assert "peers: is missing" in told
    assert "; nonsense: is not a setting of the example" in told
    assert "; other: is not a setting of the example" in told
    with pytest.raises(ConfigurationError, match=r"; and \d+ more$"):
        Peers.from_settings({f"nonsense.{number}": 1 for number in range(50)})
