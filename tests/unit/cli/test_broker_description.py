from typing import Any

from pipeline.cli.broker_description import is_in_trouble


def described(*, error: str | None = None, dir_error: str | None = None) -> dict[str, Any]:
    sound: dict[str, Any] = {"id": 1, "error": None, "log_dirs": [{"path": "/d", "error": None}]}
    other: dict[str, Any] = {"id": 2, "error": error}
    if error is None:
        other["log_dirs"] = [{"path": "/d", "error": None}, {"path": "/e", "error": dir_error}]
    return {"brokers": [sound, other]}


def test_brokers_that_are_well_are_no_trouble() -> None:
    assert not is_in_trouble(described())


def test_a_broker_that_does_not_answer_is_trouble() -> None:
    assert is_in_trouble(described(error="connection refused"))


def test_a_log_dir_that_failed_is_trouble() -> None:
    assert is_in_trouble(described(dir_error="KAFKA_STORAGE_ERROR"))
