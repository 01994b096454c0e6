"""Settings of `pipeline load run`: a file with tables of single topics, options, and those of Spark."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pipeline.cli.terminal.client_config import client_security, http_login
from pipeline.cli.terminal.settings import Settings, parse_assignments, read_document
from pipeline.credentials import holds_secret, names_place
from pipeline.errors import ConfigurationError
from pipeline.hadoop.iceberg.catalog_secrets import shows_secret
from pipeline.net.http.login import NO_LOGIN, HttpLogin
from pipeline.net.http.security import HttpSecurity
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity
from pipeline.settings import flatten

if TYPE_CHECKING:
    from pipeline.hadoop.load.config import LoadsConfig
    from pipeline.hadoop.load.spark_session import SparkSettings

CATALOG_PREFIX = "iceberg.catalog."
UNITS_S = {"s": 1, "m": 60, "h": 3600}


def loads_config(path: Path | None, options: Mapping[str, Any], assignments: list[str]) -> "LoadsConfig":
    """Return the settings of a run: those of the file, then `options`, then assignments. Raises ConfigurationError.

    Without settings of TLS and SASL, or of a login at registries, the file of `--client-config` counts.

    Tables of the file such as `[topics."visits"]` hold settings of one topic. An option that names topics wins over all
    that the file says of which topics to load.
    """
    from pipeline.hadoop.load.config import LoadsConfig

    settings: Settings = {}
    by_topic: dict[str, Settings] = {}
    if path is not None:
        document = read_document(path)
        topics = document.get("topics")
        if isinstance(topics, Mapping):
            by_topic = {name: flatten(table) for name, table in topics.items() if isinstance(table, Mapping)}
            document["topics"] = {name: value for name, value in topics.items() if name not in by_topic}
        settings = flatten(document)
    given = {name: value for name, value in options.items() if value is not None} | _assigned(assignments)
    for name, other in (("topic", "topics.include"), ("topics.include", "topic")):
        if name in given and other not in given:
            settings.pop(other, None)
    settings |= given
    if not any(map(ClientSecurity.has, settings)) and client_security() is not OPEN_SECURITY:
        settings["security"] = client_security()
    if not any(map(HttpLogin.has, settings)) and http_login() is not NO_LOGIN:
        settings["login"] = http_login()
    return LoadsConfig.from_settings(settings, by_topic)


def catalog_settings(path: Path | None, topic: str, assignments: list[str]) -> dict[str, str]:
    """Return the properties of the Iceberg catalog by a settings file of loads and by assignments, which win."""
    return {
        name.removeprefix(CATALOG_PREFIX): str(value)
        for name, value in _settings_of(path, topic, assignments).items()
        if name.startswith(CATALOG_PREFIX)
    }


def log_in_to_query(path: Path | None, topic: str, assignments: list[str]) -> Mapping[str, str]:
    """Have this process log in to HDFS by the keytab of these settings, if there is one.

    Returns the settings by which Spark's Java does so, too. Raises ConfigurationError.
    """
    from pipeline.hadoop.files.kerberos import KEYTAB_SETTING, PRINCIPAL_SETTING, keytab_settings

    given = _settings_of(path, topic, assignments)
    if KEYTAB_SETTING not in given:
        return {}
    keytab, principal = Path(str(given[KEYTAB_SETTING])), given.get(PRINCIPAL_SETTING)
    log_in_by_keytab(keytab, None if principal is None else str(principal))
    return keytab_settings(keytab, None if principal is None else str(principal))


def _settings_of(path: Path | None, topic: str, assignments: list[str]) -> Settings:
    given: Settings = {}
    if path is not None:
        document = read_document(path)
        topics = document.pop("topics", None)
        own = topics.get(topic) if isinstance(topics, Mapping) else None
        given = flatten(document) | (flatten(own) if isinstance(own, Mapping) else {})
    return given | _assigned(assignments)


def _assigned(assignments: list[str]) -> Settings:
    """Return the settings of `--set`. Raises ConfigurationError for a secret, which others would see."""
    secrets = {
        str(field.alias)
        for model in (ClientSecurity, HttpLogin, HttpSecurity)
        for field in model.model_fields.values()
        if holds_secret(field.annotation)
    }
    given: Settings = {**parse_assignments(assignments)}
    for key, text in given.items():
        name, _, password = text.partition(":")
        secret = password if key == "basic.auth.user.info" and not name.startswith("$") else text  # NAME:${...}
        is_shown = key in secrets and not names_place(secret)
        if key.startswith(CATALOG_PREFIX):
            is_shown = shows_secret(key.removeprefix(CATALOG_PREFIX), text)
        if is_shown:
            reason = "is a secret, and others see command lines: write it into the file of --config, or '${env:NAME}'"
            raise ConfigurationError(f"--set {key}", reason)
    return given


def log_in_by_keytab(keytab: Path | None, principal: str | None) -> Mapping[str, str]:
    """Have this process, and those that it starts, log in to HDFS by a keytab. Raises ConfigurationError.

    Returns the settings of Spark that have its workers on other machines do so, too.
    """
    if keytab is None:
        return {}
    from pipeline.hadoop.files.kerberos import keytab_environment

    environment = keytab_environment(keytab, principal)
    os.environ.update(environment)
    return {f"spark.executorEnv.{name}": value for name, value in environment.items()}


def spark_settings(master: str | None, conf: list[str], more: Mapping[str, str] | None = None) -> "SparkSettings":
    """Return the settings of Spark by the options `--master` and `--conf`, which win over `more`.

    Raises ConfigurationError.
    """
    from pipeline.hadoop.load.spark_session import SparkSettings, is_submitted

    if is_submitted() and (master is not None or conf):
        raise ConfigurationError(
            "--master and --conf", "are options of spark-submit here: give them before the program"
        )
    given = {**(more or {}), **parse_assignments(conf)}
    # Rows do not pass through the JVM of the driver, which has little to do.
    settings = SparkSettings(is_short=True, settings=given)
    return settings if master is None else SparkSettings(is_short=True, settings=given, master=master)


def parse_interval(text: str) -> float:
    """Return the seconds of `60s`, `5m` or `1h`. Raises typer.BadParameter."""
    matched = re.fullmatch(r"(\d+)([smh])", text)
    if matched is None or not 1 <= (seconds := int(matched[1]) * UNITS_S[matched[2]]) <= 7 * 24 * 3600:
        raise typer.BadParameter(f"{text!r} is not a time from 1s to 168h, such as 60s, 5m or 1h")
    return float(seconds)
