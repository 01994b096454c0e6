"""Keytabs: the first principal is the one that logs in. The keytab here was written by MIT's kadmin."""

import base64
from pathlib import Path

import pytest

from pipeline.errors import ConfigurationError
from pipeline.hadoop.files.kerberos import keytab_environment
from pipeline.hadoop.load.config import LoadConfig, LoadsConfig

KEYTAB = base64.b64decode(
    "BQIAAABKAAEADVBJUEVMSU5FLlRFU1QABmxvYWRlcgAAAAFrCM+SAQASACCUvsRfzIwCW51B4rlTM4M+etLq9ZoVCAmPfD1e7UKd"
    "QgAAAAEAAAA6AAEADVBJUEVMSU5FLlRFU1QABmxvYWRlcgAAAAFrCM+SAQARABCrqwMU53AfWfIh9VdSm2pHAAAAAQAAAFMAAgAN"
    "UElQRUxJTkUuVEVTVAAEaGRmcwAJbG9jYWxob3N0AAAAAWsIz5IBABIAIJxRPDeSIlHiP2MetGtQkUFVodaWt9S8wKSeVnATrlBk"
    "AAAAAQAAAEMAAgANUElQRUxJTkUuVEVTVAAEaGRmcwAJbG9jYWxob3N0AAAAAWsIz5IBABEAENdZ6WSOY/lhw0aDf5aOGx8AAAAB"
)


@pytest.fixture
def keytab(tmp_path: Path) -> Path:
    path = tmp_path / "loader.keytab"
    path.write_bytes(KEYTAB)
    return path


@pytest.mark.parametrize("principal", [None, "loader", "loader@PIPELINE.TEST"])
def test_processes_log_in_by_the_keytab_and_keep_tickets_in_memory(keytab: Path, principal: str | None) -> None:
    assert keytab_environment(keytab, principal) == {
        "KRB5_CLIENT_KTNAME": f"FILE:{keytab}",
        "KRB5CCNAME": "MEMORY:pipeline",
    }


@pytest.mark.parametrize("principal", ["other", "loader@ELSEWHERE", "loader/host@PIPELINE.TEST"])
def test_a_principal_that_would_not_be_used_is_refused(keytab: Path, principal: str) -> None:
    with pytest.raises(ConfigurationError, match=r"first principal .* is loader@PIPELINE.TEST") as refusal:
        keytab_environment(keytab, principal)
    assert refusal.value.key == "spark.kerberos.principal"


def test_holes_are_passed_over(tmp_path: Path) -> None:
    hole = b"\xff\xff\xff\xfc" + bytes(4)
    (tmp_path / "holed").write_bytes(KEYTAB[:2] + hole + KEYTAB[2:])
    assert keytab_environment(tmp_path / "holed", "loader")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a keytab"),
        (b"[libdefaults]", "is not a keytab"),
        (b"\x05\x02", "no key"),
        (KEYTAB[:30], "damaged"),
    ],
)
def test_files_that_are_no_keytabs_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "k").write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        keytab_environment(tmp_path / "k", None)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        keytab_environment(tmp_path / "missing", None)


def test_the_settings_are_those_of_all_topics_and_a_principal_needs_a_keytab() -> None:
    load = {"bootstrap.servers": "h:1", "root": "/r", "value.format": "binary"}
    given = {**load, "topic": "t", "spark.kerberos.keytab": "/k", "spark.kerberos.principal": "loader"}
    config = LoadConfig.from_settings(given)
    assert (config.kerberos_keytab, config.kerberos_principal) == (Path("/k"), "loader")
    assert LoadsConfig.from_settings(given, {}).kerberos == (Path("/k"), "loader")
    with pytest.raises(ConfigurationError, match=r"spark\.kerberos\.keytab"):
        LoadConfig.from_settings({**load, "topic": "t", "spark.kerberos.principal": "loader"})
    with pytest.raises(ConfigurationError, match="same for all topics"):
        LoadsConfig.from_settings(load, {"t": {"spark.kerberos.keytab": "/k"}})
