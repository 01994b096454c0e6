"""Loads of many topics by one Spark application: a commit for each, failures that stop no other, exit codes."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import NetworkError
from pipeline.hadoop.commit.publication import CommitConflictError
from pipeline.hadoop.load import many
from pipeline.hadoop.load.config import LoadsConfig
from pipeline.hadoop.load.job import BadRecordError
from pipeline.hadoop.load.many import plan_loads
from pipeline.protocol.errors import KafkaError
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic

TIMEOUT_S = 200


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with LocalCluster(tmp_path_factory.mktemp("local"), registry=True) as running:
        yield running


def run_loads(spark: Any, loads: Any) -> Any:
    return many.run_loads(spark, loads, clock=now_ms)


def now_ms() -> Any:
    return time.time_ns() // 1_000_000


def config(local: Any, root: Any, topics: Any, by_topic: Any = None, **settings: Any) -> LoadsConfig:
    given = {
        "bootstrap.servers": local.bootstrap,
        "root": root,
        "value.format": "binary",
        "topics.include": "|".join(topic.name for topic in topics),
    }
    return LoadsConfig.from_settings(given | settings, by_topic or {})


@pytest.fixture
def topics(local: Any, tmp_path: Path) -> Any:
    return [LoadedTopic(local.bootstrap, tmp_path.as_uri()) for _ in range(4)]


def no_spark() -> Any:
    raise AssertionError("Spark was started, although nothing is new")


def test_each_topic_has_a_commit_and_a_bad_one_stops_no_other(spark: Any, local: Any, topics: Any) -> None:
    *good, bad = topics
    for number, topic in enumerate(topics):
        topic.produce(100 * (number + 1))
    in_avro = {"value.format": "avro", "schema.registry.url": local.registry}
    loads = config(local, good[0].root, topics, {bad.name: in_avro, good[1].name: {"format": "avro"}})
    results = run_loads(spark, loads)
    assert [result.topic for result in results] == sorted(topic.name for topic in topics)
    by_name = {result.topic: result for result in results}
    assert isinstance(by_name[bad.name].error, BadRecordError)
    assert by_name[bad.name].lag == 400
    for topic in good:
        assert by_name[topic.name].result.records == topic.produced
        assert topic.check_exact() == topic.produced
    assert bad.manifests() == []
    assert {manifest.format for manifest in good[1].manifests()} == {"avro"}
    good[2].produce(50)
    loads = config(local, good[0].root, good, {good[1].name: {"format": "avro"}})
    results = run_loads(lambda: spark, loads)
    assert [result.result.records for result in results if result.result.committed] == [50]
    assert all(not result.result.committed for result in run_loads(no_spark, loads))


def test_topics_that_cannot_be_planned_stop_no_other(spark: Any, local: Any, topics: Any) -> None:
    topics[0].produce(30)
    tables: Any = {topics[0].name: {}, "no-such-topic": {}, "no topic name": {}}
    loads = LoadsConfig.from_settings(
        {"bootstrap.servers": local.bootstrap, "root": topics[0].root, "value.format": "binary"}, tables
    )
    results = {result.topic: result for result in run_loads(spark, loads)}
    assert results[topics[0].name].result.records == 30
    assert isinstance(results["no-such-topic"].error, KafkaError)
    assert "is not a topic name" in str(results["no topic name"].error)
    assert results["no-such-topic"].lag is None


def test_without_brokers_nothing_is_planned(local: Any, topics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "PLANNING_TIMEOUT_MS", 1000)
    loads = config(local, topics[0].root, topics, **{"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(NetworkError):
        plan_loads(loads, clock=now_ms)


def test_a_conflict_alone_is_told_from_a_failure(spark: Any, local: Any, topics: Any) -> None:
    first, second, *_ = topics
    first.produce(10)
    second.produce(10)
    loads = config(local, first.root, [first, second])

    def overtaken() -> Any:
        """Another run commits between the plan and the commit of this one."""
        (other,) = run_loads(spark, config(local, first.root, [first]))
        assert other.result.committed
        return spark

    results = run_loads(overtaken, loads)
    assert [type(result.error) for result in results] == [CommitConflictError, type(None)]
    assert many.worst_of(results) is CommitConflictError
    assert first.check_exact() == second.check_exact() == 10


@pytest.mark.long
def test_the_command_shows_a_line_for_each_topic(local: Any, topics: Any, tmp_path: Path) -> None:
    good, bad, *_ = topics
    good.produce(20)
    bad.produce(20)
    file = tmp_path / "load.toml"
    file.write_text(
        f'"bootstrap.servers" = "{local.bootstrap}"\nroot = "{good.root}"\nvalue.format = "binary"\n'
        f'[topics]\ninclude = "{good.name}|{bad.name}"\n'
        f'[topics."{bad.name}"]\nvalue.format = "avro"\nschema.registry.url = "{local.registry}"\n'
    )
    metrics = tmp_path / "lake.prom"
    command = [sys.executable, "-m", "pipeline", "load", "run", "--config", str(file), "--metrics-file", str(metrics)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    shown = {line["topic"]: line for line in json.loads(done.stdout)["topics"]}
    assert (done.returncode, done.stderr) == (1, "")
    assert (shown[good.name]["commit"], shown[good.name]["records"], shown[good.name]["error"]) == (1, 20, None)
    assert "does not begin with a zero byte" in shown[bad.name]["error"]
    done = subprocess.run(
        [*command, "--topics", good.name], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    headings, line = done.stdout.splitlines()
    assert headings.split() == ["TOPIC", "COMMIT", "RECORDS", "QUARANTINED", "LOST", "FILES", "SECONDS", "ERROR"]
    assert line.split()[:3] == [good.name, "-", "0"]
    assert f'pipeline_load_records_total{{load="lake",topic="{good.name}"}} 20.0' in metrics.read_text()
    assert f'pipeline_load_failures_total{{load="lake",topic="{bad.name}"}} 1.0' in metrics.read_text()
