"""Brokers leave and join, and one gets an empty disk or another address, while clients run: no client sees an error."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.processes import free_port
from tests.support.cluster.client import Asked
from tests.support.cluster.faults import running_client
from tests.support.cluster.observation import OFFSETS_TOPIC, Observer, wait_until
from tests.support.cluster.systems import PROGRAM, ClusterProcesses, local_places, our_cluster, with_warnings

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 10,
    "zookeeper.session.timeout.ms": 3000,
}
TOPICS = [f"moved-{number}" for number in range(4)]
PARTITIONS = 6
REPLICAS = 3
RECORDS_PER_S = 500
COMMAND_DEADLINE_S = 180
THROTTLE_BYTES_PER_S = 20_000_000


def pipeline(cluster: ClusterProcesses, *arguments: str) -> str:
    """Return what a command printed that had to end with 0."""
    command = [*PROGRAM, *arguments, "-b", cluster.bootstrap]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def move_to(cluster: ClusterProcesses, brokers: Sequence[int], plan: Path) -> None:
    """Have these brokers, and no others, hold all partitions, as docs/operations.md says."""
    plan.write_text(pipeline(cluster, "cluster", "reassign", "plan", "--brokers", ",".join(map(str, brokers))))
    throttle = ("--throttle", str(THROTTLE_BYTES_PER_S))
    pipeline(cluster, "cluster", "reassign", "apply", str(plan), *throttle, "--wait")


def replicas_held(cluster: ClusterProcesses) -> dict[int, int]:
    """Return the number of replicas by broker that runs."""
    found: dict[str, Any] = json.loads(pipeline(cluster, "cluster", "describe", "--json"))
    return {each["id"]: each["replicas"] for each in found["brokers"]}


def is_alive(cluster: ClusterProcesses, broker: int) -> bool:
    """True if a broker is registered, as the others say. The command fails while it is, and does not answer."""
    command = [*PROGRAM, "cluster", "describe", "--json", "-b", cluster.bootstrap]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S)
    (found,) = [each for each in json.loads(done.stdout)["brokers"] if each["id"] == broker]
    return bool(found["alive"])


@contextmanager
def under_load(directory: Path, brokers: int) -> Iterator[tuple[ClusterProcesses, Observer]]:
    """A cluster with clients that run until the block ends, and were told of no error then."""
    with with_warnings(directory), our_cluster(directory, local_places(brokers), SETTINGS) as cluster:
        cluster.start()
        observer = Observer(cluster)
        observer.create_topics(TOPICS, PARTITIONS, REPLICAS)
        asked = Asked(
            bootstrap=cluster.bootstrap,
            topics=TOPICS,
            partitions=PARTITIONS,
            group="changes",
            records_per_s=RECORDS_PER_S,
        )
        with running_client(asked) as client:
            client.wait_until_steady()
            yield cluster, observer
            verdict = client.finish()
        assert verdict.faults == []
        print(f"{verdict.acknowledged} records, none failed, lost or doubled;")
        print(f"longest wait for an acknowledgement {verdict.longest_wait_s:.1f} s")


@pytest.mark.long
def test_a_cluster_shrinks_and_grows_while_clients_run(tmp_path: Path) -> None:
    with under_load(tmp_path, brokers=4) as (cluster, observer):
        plan = tmp_path / "plan.json"
        move_to(cluster, [1, 2, 3], plan)
        assert replicas_held(cluster)[4] == 0
        cluster.nodes[4].stop()
        shutil.rmtree(cluster.directories[4])
        assert sorted(replicas_held(cluster)) == [1, 2, 3]
        cluster.nodes[4].launch()
        cluster.nodes[4].wait_for_port()
        move_to(cluster, [1, 2, 3, 4], plan)
        held = replicas_held(cluster)
        assert max(held.values()) - min(held.values()) <= 1, held
        observer.wait_until_in_sync([*TOPICS, OFFSETS_TOPIC])


@pytest.mark.long
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["with an empty disk", "on another host"])
def test_a_broker_is_replaced_while_clients_run(tmp_path: Path, *, is_elsewhere: bool) -> None:
    """It is killed, and starts with its id and empty log dirs; on another host it has another address, too."""
    with under_load(tmp_path, brokers=3) as (cluster, observer):
        node = cluster.nodes[2]
        node.kill()
        shutil.rmtree(cluster.directories[2])
        if is_elsewhere:
            settings, address = tmp_path / "2.toml", f"{node.host}:{node.port}"
            node.port = free_port()
            settings.write_text(settings.read_text().replace(address, f"{node.host}:{node.port}"))
        wait_until("the session of the killed broker ends", lambda: not is_alive(cluster, 2))
        node.launch()
        node.wait_for_port()
        observer.wait_until_in_sync([*TOPICS, OFFSETS_TOPIC])
