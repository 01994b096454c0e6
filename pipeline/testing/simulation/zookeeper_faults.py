"""Connections and sessions of brokers that ZooKeeper loses."""

import trio

from pipeline.testing.simulation.fault_context import FaultContext, FaultKinds

SESSIONS = (3, 6)
"""Lost one after the other: a broker joins in several times as long as each of them lives."""
SESSION_S = (0.0, 0.02)
CONNECTED_TIMEOUT_S = 1.0
CONNECTED_LOOK_S = 0.002


async def cut_zookeeper(context: FaultContext) -> None:
    """Cut a broker from ZooKeeper."""
    client = (machine := context.victim()).client
    if client is not None:
        context.tell(f"{machine.name} is cut from ZooKeeper")
        client.cut()
        await context.outage()
        client.heal()


async def lose_connection(context: FaultContext) -> None:
    """Break the connection of a broker to ZooKeeper."""
    client = (machine := context.victim()).client
    if client is not None:
        context.tell(f"{machine.name} loses its connection to ZooKeeper")
        client.lose_connection()


async def expire_session(context: FaultContext) -> None:
    """Have the session of a broker expire while it is connected."""
    client = (machine := context.victim()).client
    if client is not None:
        context.tell(f"the session of {machine.name} expires")
        client.expire_session()


async def expire_sessions(context: FaultContext) -> None:
    """Have the sessions of a broker, or of all, expire again and again before the broker has joined."""
    machines = context.cluster.machines if context.rng.random() < 0.5 else [context.victim()]
    clients = [machine.client for machine in machines if machine.client is not None]
    context.tell(f"the sessions of {', '.join(machine.name for machine in machines)} expire again and again")

    def are_connected() -> bool:
        return all(client.is_dead or client.history.is_connected for client in clients)

    for _ in range(context.rng.randint(*SESSIONS)):
        for client in clients:
            client.expire_session()
        await context.wait_until(are_connected, CONNECTED_TIMEOUT_S, CONNECTED_LOOK_S)
        await trio.sleep(context.rng.uniform(*SESSION_S))


KINDS: FaultKinds = {
    "zookeeper cut": cut_zookeeper,
    "zookeeper connection": lose_connection,
    "session": expire_session,
    "sessions": expire_sessions,
}
