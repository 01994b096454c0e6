"""Loads on a real standalone cluster of Spark: a worker dies, tasks are tried again and speculate, packed programs."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.load import submit
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic
from tests.support.spark_cluster import HOME, spark_cluster

DEADLINE_S = 200
SPECULATION = {
    "spark.driver.host": "127.0.0.1",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "1ms",
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with LocalCluster(tmp_path_factory.mktemp("local")) as running:
        yield running


@pytest.fixture
def topic(local: Any, tmp_path: Path) -> Any:
    return LoadedTopic(local.bootstrap, (tmp_path / "lake").as_uri())


def arguments(topic: Any) -> list[str]:
    sets = [f"--set={name}={value}" for name, value in topic.settings().items()]
    return [*sets, "--set=max.records.per.task=1000"]


def confs(settings: Any) -> list[str]:
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


def finish(process: Any) -> Any:
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said.decode()[-4000:]
    return said


@pytest.mark.long
def test_a_worker_killed_during_a_load_leaves_the_commit_exact(topic: Any, tmp_path: Path) -> None:
    topic.produce(40_000)
    with spark_cluster(tmp_path, workers=2) as cluster:
        command = [sys.executable, "-m", "pipeline", "load", "run", *arguments(topic), "--master", cluster.master]
        with subprocess.Popen(
            [*command, *confs(SPECULATION)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            deadline = time.monotonic() + DEADLINE_S
            while topic.files_on_disk() < 4:
                assert process.poll() is None, process.stdout.read().decode()  # type: ignore[union-attr]
                assert time.monotonic() < deadline
                time.sleep(0.01)
            cluster.kill_worker(0)
            assert topic.manifests() == []  # the worker died before the commit
            finish(process)
    assert topic.check_exact() == 40_000
    (manifest,) = topic.manifests()
    assert topic.files_on_disk() >= len(manifest.files)


@pytest.mark.long
def test_a_packed_program_by_spark_submit(topic: Any, tmp_path: Path) -> None:
    topic.produce(2_000)
    archive = tmp_path / "environment.tar.gz"
    subprocess.run([sys.executable, "-m", "pipeline", "load", "package", str(archive)], check=True, timeout=DEADLINE_S)
    settings = {
        "spark.archives": f"{archive}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
    }
    with spark_cluster(tmp_path, workers=1) as cluster:
        command = [f"{HOME}/bin/spark-submit", "--master", cluster.master, *confs(settings)]
        # No package of this installation is on the way of the executors: they have the archive alone.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
        with subprocess.Popen(
            [*command, submit.__file__, *arguments(topic)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            said = finish(process)
        unpacked = list(tmp_path.glob("worker-0/app-*/*/environment/bin/python"))
    assert unpacked
    assert f"{topic.name}: commit 1: 2000 records".encode() in said
    assert topic.check_exact() == 2_000
