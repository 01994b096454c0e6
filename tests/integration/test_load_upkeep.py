"""Upkeep of tables that Spark loaded from real brokers: verification against the topic, and replays."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import run_load
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import FIRST_MS, MINUTE_MS, LoadedTopic


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with LocalCluster(tmp_path_factory.mktemp("local")) as running:
        yield running


def call(*arguments: str, exit_code: int = 0) -> Any:
    """The JSON that a command prints, if any."""
    command = [sys.executable, "-m", "pipeline", "load", *arguments, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == exit_code, result.stderr
    return json.loads(result.stdout) if result.stdout else None


@pytest.mark.long
@pytest.mark.parametrize("file_format", ["avro", "parquet"])
def test_x20_damage_is_found_and_an_hour_replayed_with_the_same_bytes(
    spark: Any, local: Any, tmp_path: Path, file_format: str
) -> None:
    topic = LoadedTopic(local.bootstrap, tmp_path.as_uri())
    settings = topic.settings(format=file_format)
    for _ in range(2):
        topic.produce(6000)
        run_load(spark, LoadConfig.from_settings(settings), clock=lambda: FIRST_MS)
    place = ("--topic", topic.name, "--root", topic.root)
    brokers = ("-b", local.bootstrap, "--set", "value.format=binary")
    whole = call("verify", *place, *brokers)
    assert (whole["records"], whole["compared_with_topic"], whole["differences"]) == (12_000, 12_000, [])

    file = topic.table().data_files()[0]
    path = Path(tmp_path, topic.name, file.path)
    before = path.read_bytes()
    path.write_bytes(before[:-1] + b"!")
    assert [item["path"] for item in call("verify", *place, exit_code=1)["differences"]] == [file.path]
    assert file.hour_ms is not None
    hour = datetime.fromtimestamp(file.hour_ms / 1000, UTC).strftime("%Y-%m-%dT%H")
    replayed = call("replay", *place, *brokers, "--hour", hour)
    assert replayed["same_bytes"] == replayed["files"] == replayed["removed"]
    again = next(each for each in topic.table().data_files() if each.crc32c == file.crc32c)
    assert Path(tmp_path, topic.name, again.path).read_bytes() == before
    assert topic.check_exact() == 12_000

    compacted = call("compact", *place)
    assert compacted["removed"] > compacted["files"]
    assert call("verify", *place, *brokers)["compared_with_topic"] == 12_000
    topic.produce(50)
    status = call("status", *place, "-b", local.bootstrap)
    assert [commit["operation"] for commit in status["commits"]] == ["load", "load", "replay", "compact"]
    assert status["lag"]["records"] == 50
    assert call("clean", *place, "--dry-run")["deleted"] == []
    assert call("replay", *place, *brokers, "--hour", "1999-01-01T00", exit_code=1) is None


@pytest.mark.long
@pytest.mark.parametrize("file_format", ["avro", "parquet"])
def test_loads_keep_or_change_the_format_of_folders_and_a_replay_moves_an_hour(
    spark: Any, local: Any, tmp_path: Path, file_format: str
) -> None:
    topic = LoadedTopic(local.bootstrap, tmp_path.as_uri())
    settings = topic.settings(format=file_format)
    for given, found in (({}, "hourly"), ({"path.format": "hive"}, "hive"), ({}, "hive")):
        topic.produce(3000)
        result = run_load(spark, LoadConfig.from_settings(settings | given), clock=lambda: FIRST_MS)
        assert result.manifest is not None
        assert {file.path.split("/")[0] for file in result.manifest.files} == {found}
    assert topic.check_exact() == 9000
    place = ("--topic", topic.name, "--root", topic.root)
    brokers = ("-b", local.bootstrap, "--set", "value.format=binary")
    verified = call("verify", *place, *brokers)
    assert (verified["compared_with_topic"], verified["differences"]) == (9000, [])

    old = next(file for file in topic.table().data_files() if file.path.startswith("hourly/"))
    hour = datetime.fromtimestamp((old.hour_ms or 0) / 1000, UTC).strftime("%Y-%m-%dT%H")
    replayed = call("replay", *place, *brokers, "--hour", hour)
    assert replayed["same_bytes"] == replayed["files"]
    of_hour = [file for file in topic.table().data_files() if file.hour_ms == old.hour_ms]
    assert {file.path.split("/")[0] for file in of_hour} == {"hive"}
    again = call("replay", *place, *brokers, "--hour", hour, "--set", "path.format=hourly")
    assert again["same_bytes"] == again["files"]
    assert topic.check_exact() == 9000
    assert call("verify", *place, *brokers)["compared_with_topic"] == 9000


@pytest.mark.long
def test_records_in_quarantine_are_no_difference_although_they_can_be_read_by_now(
    spark: Any, local: Any, tmp_path: Path
) -> None:
    topic = LoadedTopic(local.bootstrap, tmp_path.as_uri())
    topic.produce(300)
    # A batch that the load may not open, between records of its hour and partition.
    producer = Producer({"bootstrap.servers": local.bootstrap, "compression.type": "zstd"})
    producer.produce(topic.name, b"0" * 500_000, partition=0, timestamp=FIRST_MS + 3 * MINUTE_MS)
    assert producer.flush(60) == 0
    topic.produce(300)
    settings = topic.settings() | {"max.opened.bytes": 100_000, "on.bad.record": "quarantine"}
    result = run_load(spark, LoadConfig.from_settings(settings), clock=lambda: FIRST_MS)
    assert (result.records, result.quarantined) == (600, 1)
    place = ("--topic", topic.name, "--root", topic.root)
    plain = ("--set", "value.format=binary")
    brokers = ("-b", local.bootstrap, *plain)
    assert call("verify", *place, *brokers)["differences"] == []
    hour = datetime.fromtimestamp((FIRST_MS + 3 * MINUTE_MS) / 1000, UTC).strftime("%Y-%m-%dT%H")
    replayed = call("replay", *place, *brokers, "--hour", hour)
    assert replayed["same_bytes"] == replayed["files"]

    kept = call("quarantine", "release", *place, *plain, "--set", "max.opened.bytes=100000")
    assert (kept["released"], kept["unopened_batches"]) == (0, 1)
    released = call("quarantine", "release", *place, *plain)
    assert (released["released"], released["unopened_batches"]) == (1, 0)
    assert call("verify", *place, *brokers)["differences"] == []
    assert call("replay", *place, *brokers, "--hour", hour)["committed"]
    assert call("verify", *place, *brokers)["differences"] == []
