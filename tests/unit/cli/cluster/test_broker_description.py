import json
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.cluster import broker_description
from pipeline.cli.cluster.broker_description import troubles
from pipeline.cli.main import app


def log_dir(path: str, error: str | None = None, lack_of_room: str | None = None) -> dict[str, Any]:
    return {"path": path, "error": error, "lack_of_room": lack_of_room}


def described(*, error: str | None = None, dir_error: str | None = None) -> dict[str, Any]:
    sound: dict[str, Any] = {"id": 1, "error": None, "log_dirs": [log_dir("/d")]}
    other: dict[str, Any] = {"id": 2, "error": error}
    if error is None:
        other["log_dirs"] = [log_dir("/d"), log_dir("/e", dir_error)]
    return {"brokers": [sound, other]}


def test_brokers_that_are_well_are_no_trouble() -> None:
    assert troubles(described()) == []


def test_a_broker_that_does_not_answer_is_trouble() -> None:
    assert troubles(described(error="connection refused")) == ["broker 2 does not answer: connection refused"]


def test_a_log_dir_that_failed_is_trouble() -> None:
    assert troubles(described(dir_error="KAFKA_STORAGE_ERROR")) == [
        "log dir /e of broker 2 failed: KAFKA_STORAGE_ERROR"
    ]


def test_the_reason_of_exit_code_1_is_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    told = described(error="timed out")

    async def describe(*_: object) -> dict[str, Any]:
        return told

    monkeypatch.setattr(broker_description, "gather_brokers", describe)
    done = CliRunner().invoke(app, ["broker", "describe", "--json", "-b", "127.0.0.1:1"])
    assert (done.exit_code, json.loads(done.stdout)) == (1, told)
    assert done.stderr == "pipeline: broker 2 does not answer: timed out\n"
