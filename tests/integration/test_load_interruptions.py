"""Commands that start Spark, interrupted at any moment: they end at once and silently, and no JVM is left."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic
from tests.support.marked_processes import MARK, marked

pytestmark = pytest.mark.long

DEADLINE_S = 120
SEED = 14


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with LocalCluster(tmp_path_factory.mktemp("local")) as local:
        topic = LoadedTopic(local.bootstrap, tmp_path_factory.mktemp("lake").as_uri())
        topic.produce(300)
        yield topic


def arguments(command: Any, topic: Any) -> list[str]:
    if command == "run":
        settings = ("--set", "value.format=binary", "--topic", topic.name)
        return ["run", "--bootstrap", topic.bootstrap, "--root", topic.root, *settings]
    return ["sql", f"SELECT count(*) FROM `{topic.name}`", "--topic", topic.name, "--root", topic.root]


@contextlib.contextmanager
def started(command: Any, topic: Any) -> Iterator[Any]:
    """The command in a session of its own, as from a terminal, and the mark of all processes that come of it."""
    mark = str(random.randrange(10**12))
    environment = os.environ | {MARK: mark}
    line = [sys.executable, "-m", "pipeline", "load", *arguments(command, topic)]
    with subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            yield process, mark
        finally:
            for left in marked(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)


def has_gateway(process: Any, mark: Any) -> bool:
    """Whether the JVM is starting or there, to which PySpark connects."""
    assert process.poll() is None, process.stdout.read().decode()
    return any("org.apache.spark.deploy.SparkSubmit" in line for line in marked(mark).values())


def interrupt(process: Any, mark: Any, number: Any, to_group: Any, is_done: Any = lambda said: False) -> None:
    """The command ends in time by the signal, silently, or has done its work before."""
    (os.killpg if to_group else os.kill)(process.pid, number)
    said, _ = process.communicate(timeout=DEADLINE_S)  # its stdout is closed: nobody holds it any more
    assert process.returncode in {128 + number, -number, 0}
    if process.returncode == 0 or said:
        assert is_done(said), said
        assert b"Traceback" not in said
    wait_until(lambda: not marked(mark), f"left: {marked(mark)}")


@pytest.mark.parametrize(
    ("command", "number", "to_group"),
    [
        ("run", signal.SIGINT, True),
        pytest.param("run", signal.SIGTERM, False),
        pytest.param("sql", signal.SIGINT, False),
        pytest.param("sql", signal.SIGTERM, True),
    ],
)
def test_a_signal_while_the_jvm_starts(topic: Any, command: Any, number: Any, to_group: Any) -> None:
    if command == "sql":
        commit_something(topic)
    topic.produce(10)
    with started(command, topic) as (process, mark):
        wait_until(lambda: has_gateway(process, mark), "no JVM was started")
        interrupt(process, mark, number, to_group)


def test_a_signal_while_spark_stops(topic: Any) -> None:
    topic.produce(10)
    before = len(topic.manifests())
    with started("run", topic) as (process, mark):
        wait_until(lambda: len(topic.manifests()) > before, "nothing was committed")
        interrupt(process, mark, signal.SIGINT, True, is_done=lambda said: True)
    topic.check_exact()


def commit_something(topic: Any) -> None:
    if not topic.manifests():
        subprocess.run(
            [sys.executable, "-m", "pipeline", "load", *arguments("run", topic)], check=True, timeout=DEADLINE_S
        )


@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=pytest.mark.timeout(1800))])
def test_a_signal_at_any_moment(topic: Any, rounds: Any) -> None:
    moments = random.Random(SEED)
    for _ in range(rounds):
        commit_something(topic)
        topic.produce(10)
        before, command = len(topic.manifests()), moments.choice(["run", "sql"])

        def is_done(said: bytes, command: str = command, before: int = before) -> bool:
            return bool(said) if command == "sql" else len(topic.manifests()) > before

        with started(command, topic) as (process, mark):
            try:
                process.wait(moments.uniform(0.3, 9))
            except subprocess.TimeoutExpired:
                number, to_group = moments.choice([signal.SIGINT, signal.SIGTERM]), moments.random() < 0.5
                interrupt(process, mark, number, to_group, is_done)
            wait_until(lambda mark=mark: not marked(mark), f"left: {marked(mark)}")
        topic.check_exact()


def test_a_killed_driver_leaves_no_jvm(topic: Any) -> None:
    topic.produce(10)
    with started("run", topic) as (process, mark):
        wait_until(lambda: has_gateway(process, mark), "no JVM was started")
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        wait_until(lambda: not marked(mark), f"left: {marked(mark)}")


def test_what_an_interrupted_load_leaves_is_no_data(topic: Any) -> None:
    topic.produce(10)
    files, root = open_filesystem(topic.root)
    before = len(files.list_files(f"{root}/{topic.name}/_runs"))
    with started("run", topic) as (process, mark):
        wait_until(lambda: len(files.list_files(f"{root}/{topic.name}/_runs")) > before, "no run began")
        interrupt(process, mark, signal.SIGINT, True)
    topic.check_exact()
    subprocess.run([sys.executable, "-m", "pipeline", "load", *arguments("run", topic)], check=True, timeout=DEADLINE_S)
    assert topic.check_exact() == topic.produced
