"""The example of a consumer group, run as two processes that share a topic and take over from one another."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import wait_for

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parents[2] / "examples" / "consumer_group.py"
PIPELINE = [sys.executable, "-m", "pipeline"]


@contextmanager
def running_example(bootstrap: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process, and the lines that it has printed."""
    command = [sys.executable, str(PROGRAM), bootstrap, "clicks", "readers"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines: list[str] = []
    assert process.stdout is not None
    output = process.stdout

    def note() -> None:
        for line in output:
            lines.append(line.strip())  # noqa: PERF401  # at once, for those that wait for it

    reader = Thread(target=note)
    reader.start()
    try:
        yield process, lines
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()
        output.close()


def publish(bootstrap: str, *values: str) -> None:
    given = "".join(f"{value}\n" for value in values)
    subprocess.run([*PIPELINE, "produce", "clicks", "-b", bootstrap], input=given, text=True, check=True, timeout=180)


def values_of(*outputs: list[str]) -> list[str]:
    return sorted(line.split()[2] for lines in outputs for line in list(lines) if line.startswith("clicks-"))


def test_two_processes_share_a_topic_and_one_takes_over() -> None:
    settings: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}
    with LocalCluster(settings=settings) as cluster:
        create = ["topic", "create", "clicks", "--partitions", "2", "-b", cluster.bootstrap]
        subprocess.run([*PIPELINE, *create], check=True, timeout=180, stdout=subprocess.DEVNULL)
        publish(cluster.bootstrap, "a", "b")
        with running_example(cluster.bootstrap) as (first, printed):
            wait_for("the first records", lambda: values_of(printed) == ["a", "b"])
            with running_example(cluster.bootstrap) as (_, others):
                wait_for("a partition for each", lambda: any(line.startswith("assigned") for line in others))
                first.terminate()
                assert first.wait(60) == 0
                wait_for("the whole topic", lambda: {"assigned clicks-0", "assigned clicks-1"} <= set(others))
                publish(cluster.bootstrap, "c", "d", "e")
                wait_for("the last records", lambda: values_of(printed, others) == ["a", "b", "c", "d", "e"])
