"""The leader of three ZooKeepers is killed: brokers go on, and topics can be made."""

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.processes import ServerProcess, ended
from pipeline.coordination.embedded import EnsembleMember, ZooKeeperProcess
from pipeline.processes import free_port
from tests.support.cluster.client import Asked
from tests.support.cluster.faults import running_client
from tests.support.cluster.observation import Observer
from tests.support.cluster.systems import OURS, ClusterProcesses, local_places, our_commands

MEMBERS = (1, 2, 3)
PARTITIONS = 3
LONGEST_STOP_S = 90.0


def ensemble(directory: Any) -> list[ZooKeeperProcess]:
    servers = {number: f"127.0.0.1:{free_port()}:{free_port()}" for number in MEMBERS}
    return [
        ZooKeeperProcess(directory / str(number), member=EnsembleMember(own_id=number, servers=servers))
        for number in MEMBERS
    ]


async def start_together(zookeepers: list[ZooKeeperProcess]) -> None:
    """One alone never answers."""
    async with trio.open_nursery() as nursery:
        for zookeeper in zookeepers:
            nursery.start_soon(zookeeper.start)


async def stop_together(zookeepers: list[ZooKeeperProcess]) -> None:
    async with trio.open_nursery() as nursery:
        for zookeeper in zookeepers:
            nursery.start_soon(zookeeper.stop)


def leads(zookeeper: ZooKeeperProcess) -> bool:
    with socket.create_connection((zookeeper.address.host, zookeeper.address.port), timeout=30) as connection:
        connection.sendall(b"srvr")
        said = b"".join(iter(lambda: connection.recv(4096), b""))
    return b"Mode: leader" in said


@pytest.mark.long
def test_brokers_go_on_without_the_leader_of_the_ensemble(tmp_path: Path) -> None:
    zookeepers = ensemble(tmp_path / "zookeeper")
    places = local_places(3)
    with ExitStack() as stack:
        stack.callback(trio.run, stop_together, zookeepers)
        trio.run(start_together, zookeepers)
        connect = ",".join(zookeeper.connect for zookeeper in zookeepers)
        commands = our_commands(tmp_path, places, connect, {"group.initial.rebalance.delay.ms": 0})
        nodes = {
            place.number: stack.enter_context(
                ended(ServerProcess(commands[place.number], place.port, tmp_path / f"{place.number}.log"))
            )
            for place in places
        }
        cluster = ClusterProcesses(OURS, nodes, {})
        cluster.start()
        observer = Observer(cluster)
        observer.create_topic("before", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        asked = Asked(bootstrap=cluster.bootstrap, topics=["before"], partitions=PARTITIONS, group="readers")
        with running_client(asked) as client:
            client.wait_until_steady()
            next(zookeeper for zookeeper in zookeepers if leads(zookeeper)).kill()
            observer.create_topic("after", [[1, 2, 3]])
            verdict = client.finish()
    assert verdict.faults == []
    assert verdict.longest_stop_s < LONGEST_STOP_S
