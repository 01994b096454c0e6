"""Connections and sessions of brokers that ZooKeeper loses."""

from pipeline.testing.simulation.fault_context import FaultContext, FaultKinds


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


KINDS: FaultKinds = {
    "zookeeper cut": cut_zookeeper,
    "zookeeper connection": lose_connection,
    "session": expire_session,
}
