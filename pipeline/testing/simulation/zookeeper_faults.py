"""Connections and sessions of brokers that ZooKeeper loses."""

import trio

from pipeline.coordination.interface import ANY_VERSION
from pipeline.coordination.znodes import broker_epoch_path
from pipeline.testing.simulation.fault_context import FaultContext, FaultKinds

SESSIONS = (3, 6)
"""Lost one after the other: a broker joins in several times as long as each of them lives."""
SESSION_S = (0.0, 0.02)
CONNECTED_TIMEOUT_S = 1.0
CONNECTED_LOOK_S = 0.002


async def cut_zookeeper(context: FaultContext) -> None:
    """Cut a broker from ZooKeeper."""
    connection = (machine := context.victim()).connection
    if connection is not None:
        context.tell(f"{machine.name} is cut from ZooKeeper")
        connection.cut()
        await context.outage()
        connection.heal()


async def lose_connection(context: FaultContext) -> None:
    """Break the connection of a broker to ZooKeeper."""
    connection = (machine := context.victim()).connection
    if connection is not None:
        context.tell(f"{machine.name} loses its connection to ZooKeeper")
        connection.lose_connection()


async def expire_session(context: FaultContext) -> None:
    """Have the session of a broker expire while it is connected."""
    connection = (machine := context.victim()).connection
    if connection is not None:
        context.tell(f"the session of {machine.name} expires")
        connection.expire_session()


async def expire_sessions(context: FaultContext) -> None:
    """Have the sessions of a broker, or of all, expire again and again before the broker has joined."""
    machines = context.cluster.machines if context.rng.random() < 0.5 else [context.victim()]
    connections = [machine.connection for machine in machines if machine.connection is not None]
    context.tell(f"the sessions of {', '.join(machine.name for machine in machines)} expire again and again")

    def are_connected() -> bool:
        return all(connection.is_dead or connection.client.history.is_connected for connection in connections)

    for _ in range(context.rng.randint(*SESSIONS)):
        for connection in connections:
            connection.expire_session()
        await context.wait_until(are_connected, CONNECTED_TIMEOUT_S, CONNECTED_LOOK_S)
        await trio.sleep(context.rng.uniform(*SESSION_S))


async def change_epoch(context: FaultContext) -> None:
    """Have the epoch of a broker be another one, or gone, as by hand or by another broker of the same id."""
    zookeeper, machine = context.cluster.zookeeper, context.victim()
    path = broker_epoch_path(machine.id)
    if zookeeper.znodes.find_or_none(path) is not None:
        is_removed = context.rng.random() < 0.5
        context.tell(f"the epoch of {machine.name} {'vanishes' if is_removed else 'is raised'}")
        if is_removed:
            zookeeper.tamper(path, None)
        else:
            zookeeper.znodes.set(path, b"", ANY_VERSION)
            zookeeper.settle()


KINDS: FaultKinds = {
    "zookeeper cut": cut_zookeeper,
    "zookeeper connection": lose_connection,
    "session": expire_session,
    "sessions": expire_sessions,
    "broker epoch": change_epoch,
}
