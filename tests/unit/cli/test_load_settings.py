"""Which topics a run loads, and with which settings."""

import os
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline.cli.load.settings import loads_config, log_in_by_keytab, log_in_to_query, parse_interval, spark_settings
from pipeline.errors import ConfigurationError

COMMON = """
"bootstrap.servers" = "hub-1:9092"
root = "/lake"
value.format = "binary"
"""
SELECTED = """
[topics]
include = "visits|clicks.*"
parallel = 3
"""
TABLES = """
[topics."visits"]
format = "avro"
[topics."clicks.web"]
value.format = "avro"
schema.registry.url = "http://registry:8081"
"""


def read(tmp_path: Path, text: Any, assignments: Any = (), **options: Any) -> Any:
    file = tmp_path / "load.toml"
    file.write_text(text)
    return loads_config(file, options, list(assignments))


def test_topics_by_expression_with_settings_of_their_own(tmp_path: Path) -> None:
    loads = read(tmp_path, COMMON + SELECTED + TABLES)
    chosen = [name for name in ("visits", "visits2", "clicks", "clicks.web", "_audit") if loads.selects(name)]
    assert chosen == ["visits", "clicks", "clicks.web"]
    assert (loads.selection.parallel, list(loads.named)) == (3, [])
    assert loads.config_of("visits").format == "avro"
    assert loads.config_of("clicks").format == "parquet"
    assert loads.config_of("clicks.web").registry == ("http://registry:8081",)


def test_names_that_begin_with_an_underscore_match_nothing(tmp_path: Path) -> None:
    loads = read(tmp_path, COMMON, **{"topics.include": ".*"})
    assert loads.selects("visits")
    assert not loads.selects("_schemas")
    assert read(tmp_path, COMMON, topic="_audit").named == {"_audit"}


def test_tables_name_the_topics_where_nothing_else_does(tmp_path: Path) -> None:
    assert set(read(tmp_path, COMMON + TABLES).named) == {"visits", "clicks.web"}


def test_options_win_over_the_file(tmp_path: Path) -> None:
    one = read(tmp_path, COMMON + SELECTED + TABLES, topic="visits")
    assert set(one.named) == {"visits"}
    assert not one.selects("clicks")
    assert one.config_of("visits").format == "avro"
    many = read(tmp_path, COMMON + 'topic = "visits"\n', **{"topics.include": "c.*"})
    assert (set(many.named), many.selects("clicks")) == (set(), True)
    assert read(tmp_path, COMMON + SELECTED, ["topics.parallel=9"]).selection.parallel == 9


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        (COMMON, "topic", "is missing: give --topic"),
        (COMMON + SELECTED + 'colour = "red"\n', "topics.colour", "is not a setting"),
        (COMMON + 'colour = "red"\n' + SELECTED, "colour", "is not a setting"),
        (COMMON + '[topics."visits"]\nformat = "orc"\n', 'topics."visits".format', "must be"),
        (COMMON + '[topics."visits"]\ntopic = "other"\n', 'topics."visits".topic', "is the same for all topics"),
        (COMMON + '[topics]\ninclude = "("\n', "topics.include", "is not a regular expression"),
        (COMMON + '[topics]\ninclude = ""\n', "topics.include", "must have at least 1 character"),
        (COMMON + "topic = 'visits'\n" + SELECTED, "topic", "is given beside topics.include"),
        ("root = '/lake'\n" + SELECTED, "bootstrap.servers", "is missing"),
        (COMMON + '[topics."visits"]\nvalue.format = "avro"\n', "schema.registry.url", "is missing"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: Any, key: Any, reason: Any) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        read(tmp_path, text)
    assert caught.value.key == key


def test_settings_of_spark() -> None:
    assert spark_settings(None, []).spark_settings()["spark.master"] == "local[2,3]"
    masters = {"local": "local[1,3]", "local[*]": "local[*,3]", "local[4,7]": "local[4,7]", "yarn": "yarn"}
    for master, taken in masters.items():
        assert spark_settings(master, []).spark_settings()["spark.master"] == taken
    remote = spark_settings("spark://master:7077", ["spark.executor.memory=2g", "spark.driver.memory=3g"])
    settings = remote.spark_settings()
    assert settings["spark.executor.memory"] == "2g"
    assert settings["spark.driver.memory"] == "3g"
    assert "spark.driver.host" not in settings


def test_settings_of_a_submitted_application_are_those_of_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    for master, conf in (("yarn", []), (None, ["spark.executor.memory=2g"])):
        with pytest.raises(ConfigurationError, match="are options of spark-submit here"):
            spark_settings(master, conf)
    assert spark_settings(None, [])


def test_intervals() -> None:
    assert [parse_interval(text) for text in ("60s", "5m", "1h")] == [60, 300, 3600]
    for text in ("", "60", "0s", "1d", "999h", "-5s", "1.5m"):
        with pytest.raises(typer.BadParameter):
            parse_interval(text)


def test_a_keytab_reaches_processes_here_and_on_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", "")
    monkeypatch.setenv("KRB5CCNAME", "")
    keytab = tmp_path / "k"
    entry = b"\0\1" + b"\0\5REALM" + b"\0\6loader" + bytes(20)
    keytab.write_bytes(b"\5\2" + len(entry).to_bytes(4, "big") + entry)
    assert log_in_by_keytab(None, None) == {}
    more = log_in_by_keytab(keytab, "loader@REALM")
    assert os.environ["KRB5_CLIENT_KTNAME"] == f"FILE:{keytab}"
    file = tmp_path / "load.toml"
    file.write_text(f'spark.kerberos.keytab = "{keytab}"\n')
    assert log_in_to_query(None, "t", []) == {}
    for path, given in ((file, []), (None, [f"spark.kerberos.keytab={keytab}"])):
        found = log_in_to_query(path, "t", given)
        assert found == {"spark.kerberos.keytab": str(keytab), "spark.kerberos.principal": "loader@REALM"}
    with pytest.raises(ConfigurationError, match="the first principal"):
        log_in_to_query(file, "t", ["spark.kerberos.principal=other"])
    settings = spark_settings("local[1]", ["spark.executorEnv.KRB5CCNAME=DIR:/t"], more).spark_settings()
    assert settings["spark.executorEnv.KRB5_CLIENT_KTNAME"] == f"FILE:{keytab}"
    assert settings["spark.executorEnv.KRB5CCNAME"] == "DIR:/t"


@pytest.mark.parametrize("key", ["sasl.password", "ssl.key.password", "basic.auth.user.info", "http.ssl.key.password"])
def test_a_secret_is_not_taken_from_the_command_line(key: str) -> None:
    with pytest.raises(ConfigurationError, match="others see command lines") as refusal:
        loads_config(None, {"topic": "t"}, [f"{key}=hidden-1"])
    assert "hidden-1" not in str(refusal.value)


def test_the_place_of_a_secret_is_taken_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICES", "hidden-1")
    options = {"topic": "t", "root": "/r", "bootstrap.servers": "h:1"}
    given = ["security.protocol=SASL_PLAINTEXT", "sasl.username=alice", "sasl.password=${env:ALICES}"]
    given += ["basic.auth.user.info=alice:${env:ALICES}", "value.format=binary"]
    security = loads_config(None, options, given).security
    assert security.password is not None
    assert security.password.reveal() == "hidden-1"
