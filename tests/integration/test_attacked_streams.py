"""Streams whose driver, workers, planner and brokers are killed within micro batches: each record is copied once."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from pipeline.testing.local_cluster import LocalCluster
from tests.integration.test_spark_sink import read_all
from tests.support.marked_processes import MARK, marked

DRIVER = Path(__file__).parent / "programs" / "attacked_streams.py"
DEADLINE_S = 400
WAVE = 600
SEED = 14


class Attack:
    """Two streams that copy a topic, and what is done to them."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.produced = 0
        self.mark = f"attack-{folder}"
        self.random = random.Random(SEED)
        self.driver: Any = None
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topics = [NewTopic(name, 2, 3, config={"min.insync.replicas": "2"}) for name in ("source", "copy")]
        for created in admin.create_topics(topics).values():
            created.result(120)

    def start(self) -> None:
        command = [sys.executable, str(DRIVER), self.cluster.bootstrap, "source", "copy", str(self.folder)]
        with (self.folder / "driver.log").open("ab") as log:
            environment = os.environ | {MARK: self.mark}
            self.driver = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def log(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")

    def produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "all", "enable.idempotence": True})
        for number in range(self.produced, self.produced + WAVE):
            producer.produce("source", b"v%d" % number, b"k%d" % number)
            producer.poll(0)
        assert producer.flush(180) == 0
        self.produced += WAVE

    def batches(self) -> int:
        """Number of micro batches that were planned."""
        return sum(len(list(path.glob("[0-9]*"))) for path in self.folder.glob("*-checkpoint/offsets"))

    def until_batches(self, more: int) -> None:
        """Wait until so many micro batches were planned, as far as there are records."""
        wanted, deadline = self.batches() + more, time.monotonic() + DEADLINE_S
        while self.batches() < wanted:
            assert time.monotonic() < deadline, self.log()[-3000:]
            assert self.driver.poll() is None, self.log()[-3000:]
            time.sleep(0.02)

    def kill(self, part: str) -> int:
        """Kill the processes whose command line has a text, and return their number."""
        found = [pid for pid, line in marked(self.mark).items() if part in line]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def until_killed(self, part: str) -> None:
        """Wait for such a process, and kill it."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.kill(part):
            assert time.monotonic() < deadline, self.log()[-3000:]
            assert self.driver.poll() is None, self.log()[-3000:]
            time.sleep(0.02)

    def kill_driver(self) -> None:
        self.driver.kill()
        self.driver.wait()
        deadline = time.monotonic() + DEADLINE_S
        while marked(self.mark):
            assert time.monotonic() < deadline, marked(self.mark)
            time.sleep(0.1)

    def finish(self) -> None:
        (self.folder / "stop").touch()
        assert self.driver.wait(DEADLINE_S) == 0, self.log()[-3000:]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_streams_copy_each_record_once_whatever_is_killed(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", brokers=3, settings={"offsets.topic.replication.factor": 3}) as cluster:
        attack = Attack(cluster, tmp_path)
        try:
            attack.produce()
            attack.start()
            attack.until_batches(2)
            attack.kill("pyspark.daemon")  # all Python workers, and those that write
            attack.produce()
            attack.until_batches(1)
            attack.kill("python_streaming_source_runner")  # it plans
            attack.until_killed("python_streaming_sink_runner")  # it notes the end of a micro batch of the sink
            attack.produce()
            cluster.kill(f"broker-{attack.random.randint(1, 3)}")
            attack.until_batches(1)
            attack.kill_driver()
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            admin.create_partitions([NewPartitions("source", 3)])["source"].result(120)
            attack.start()
            attack.produce()
            attack.until_batches(1)
            attack.finish()
        finally:
            attack.kill("")
        expected = Counter(b"v%d" % number for number in range(attack.produced))
        copied = Counter(message.value() for message in read_all(cluster.bootstrap, "copy"))
    files = committed_files(tmp_path / "files")
    rows = pyarrow.dataset.dataset(files, format="parquet").to_table(columns=["value"])
    assert Counter(rows.column("value").to_pylist()) == expected
    assert copied == expected


def committed_files(folder: Path) -> list[str]:
    """Files that Spark's file sink has committed, by its log."""
    entries: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / "_spark_metadata").glob("[0-9]*"), key=lambda path: int(path.name.split(".")[0])):
        for line in path.read_text().splitlines()[1:]:
            entry = json.loads(line)
            entries[entry["path"]] = entry
    return [path.removeprefix("file://") for path, entry in entries.items() if entry["action"] == "add"]
