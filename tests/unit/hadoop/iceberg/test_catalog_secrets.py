"""Secrets of an Iceberg catalog: where they may stand, and that nothing shows them."""

from pathlib import Path

import pytest

from pipeline.cli.load.settings import catalog_settings, loads_config
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.hadoop.iceberg.catalog import open_catalog
from pipeline.hadoop.iceberg.catalog_secrets import shows_secret, without_secrets
from pipeline.processes import free_port

OPTIONS = {"topic": "clicks", "root": "file:///lake", "bootstrap.servers": "h:1", "value.format": "binary"}


@pytest.mark.parametrize(
    ("name", "value", "is_shown"),
    [
        ("token", "abc", True),
        ("token", "${env:TOKEN}", False),
        ("credential", "loader:abc", True),
        ("credential", "loader:${file:/etc/pipeline/secrets:catalog}", False),
        ("credential", "${env:CLIENT}:${env:SECRET}", False),
        ("credential", "abc${env:SECRET}", True),
        ("header.Authorization", "Bearer abc", True),
        ("header.Authorization", "Bearer ${env:TOKEN}", False),
        ("s3.secret-access-key", "abc", True),
        ("s3.session-token", "abc", True),
        ("adls.sas-token.account", "abc", True),
        ("gcs.oauth2.token-expires-at", "17", False),
        ("oauth2-server-uri", "https://id.example/tokens", False),
        ("s3.access-key-id", "AKIA", False),
        ("uri", "postgresql+psycopg2://loader:abc@db.example/lake", True),
        ("uri", "postgresql+psycopg2://loader:${env:PASSWORD}@db.example/lake", False),
        ("uri", "postgresql:///lake?user=loader&password=abc", True),
        ("uri", "postgresql://loader@db.example/lake", False),
        ("uri", "thrift://metastore:9083", False),
        ("type", "rest", False),
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_its_place_is_not(name: str, value: str, is_shown: bool) -> None:
    assert shows_secret(name, value) is is_shown
    assignment = f"iceberg.catalog.{name}={value}"
    if not is_shown:
        assert catalog_settings(None, "clicks", [assignment]) == {name: value}
        assert (loads_config(None, OPTIONS, [assignment]).config_of("clicks").iceberg_catalog or {})[name] == value
        return
    for refused in (
        lambda: catalog_settings(None, "clicks", [assignment]),
        lambda: loads_config(None, OPTIONS, [assignment]),
    ):
        with pytest.raises(ConfigurationError, match="others see command lines: write it into the file") as refusal:
            refused()
        assert "abc" not in str(refusal.value)
        assert f"--set iceberg.catalog.{name}" in str(refusal.value)


def test_a_secret_may_stand_in_the_file_and_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "load.toml"
    file.write_text('iceberg.catalog.uri = "http://catalog:8181"\niceberg.catalog.token = "abc"\n')
    config = loads_config(file, OPTIONS, []).config_of("clicks")
    assert config.iceberg_catalog == {"uri": "http://catalog:8181", "token": "abc"}
    assert "abc" not in repr(config)


def test_values_are_taken_from_where_they_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets").write_text(f"place={tmp_path}/catalog.db\n")
    monkeypatch.setenv("CATALOG_TYPE", "sql")
    named = {"type": "${env:CATALOG_TYPE}", "uri": f"sqlite:///${{file:{tmp_path}/secrets:place}}"}
    assert open_catalog("file:///lake", named).list_namespaces() == []
    assert (tmp_path / "catalog.db").exists()
    with pytest.raises(ConfigurationError, match=r"iceberg\.catalog\.token.*environment variable MISSING") as missing:
        open_catalog("file:///lake", {"uri": "http://catalog:8181", "token": "${env:MISSING}"})
    assert missing.value.key == "iceberg.catalog.token"


def test_errors_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "p%40ss-word")
    for uri in ("postgresql://loader:${env:PASSWORD}@:bad:/lake", f"http://loader:p%40ss-word@127.0.0.1:{free_port()}"):
        with pytest.raises(PipelineError) as error:
            open_catalog("file:///lake", {"uri": uri})
        assert "ss-word" not in str(error.value)
    assert without_secrets("no: abc d", {"token": "abc", "type": "d"}) == "no: [hidden] d"
