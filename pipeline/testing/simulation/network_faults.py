"""Links that are cut or slow, and connections that break."""

from collections.abc import Sequence

import trio

from pipeline.testing.simulation.fault_context import FaultContext, FaultKinds

LATE_S = (0.2, 2.5)


async def partition(context: FaultContext) -> None:
    """Cut one broker from all other brokers; clients still reach all."""
    machine = context.victim()
    context.tell(f"{machine.name} is cut from the other brokers")
    for other in context.cluster.machines:
        if other is not machine:
            context.cluster.network.cut(machine.name, other.name)
            context.cluster.network.cut(other.name, machine.name)
    await context.outage()
    context.cluster.network.heal()


async def cut_one_way(context: FaultContext) -> None:
    """Cut one direction between two hosts: bytes from the first do not reach the second."""
    machine = context.victim()
    others = [other.name for other in context.cluster.machines if other is not machine]
    ends = [machine.name, context.rng.choice([*others, *context.clients])]
    context.rng.shuffle(ends)
    context.tell(f"nothing gets from {ends[0]} to {ends[1]}")
    context.cluster.network.cut(ends[0], ends[1])
    await context.outage()
    context.cluster.network.heal()


async def cut_off(context: FaultContext) -> None:
    """Cut one broker from everything."""
    await _cut_from_all(context, context.clients)


async def leave_to_clients(context: FaultContext) -> None:
    """Cut one broker from everything but clients."""
    await _cut_from_all(context, ())


async def _cut_from_all(context: FaultContext, clients: Sequence[str]) -> None:
    machine = context.victim()
    context.tell(f"{machine.name} is cut off, from {len(clients)} clients too")
    connection = machine.connection
    others = [other.name for other in context.cluster.machines if other is not machine]
    for other in [*others, *clients]:
        context.cluster.network.cut(machine.name, other)
        context.cluster.network.cut(other, machine.name)
    if connection is not None:
        connection.cut()
    await context.outage()
    context.cluster.network.heal()
    if connection is not None:
        connection.heal()


async def slow_down(context: FaultContext) -> None:
    """Brokers hear of one of them late, as do its followers."""
    machine = context.victim()
    late_s = context.rng.uniform(*LATE_S)
    context.tell(f"what {machine.name} sends to other brokers takes {late_s:.2f} s")
    for other in context.cluster.machines:
        if other is not machine and context.rng.random() < 0.7:
            context.cluster.network.delay(machine.name, other.name, late_s)
    await context.outage()
    context.cluster.network.heal()


async def break_connections(context: FaultContext) -> None:
    """Break connections of clients and brokers."""
    for _ in range(context.rng.randint(1, 5)):
        name = context.rng.choice([*context.clients, *(machine.name for machine in context.cluster.machines)])
        connections = list(context.cluster.network.host(name).connections.values())
        if connections:
            context.tell(f"a connection of {name} breaks")
            context.rng.choice(connections).break_off()
        await trio.sleep(context.rng.uniform(0, 0.5))


async def duplicate_connections(context: FaultContext) -> None:
    """Have brokers accept connections on which nobody speaks."""
    for _ in range(context.rng.randint(1, 3)):
        name = context.rng.choice(context.clients)
        context.cluster.network.host(name).duplicate_connection(context.victim().address)
    await trio.lowlevel.checkpoint()


KINDS: FaultKinds = {
    "partition": partition,
    "one way": cut_one_way,
    "alone": cut_off,
    "island": leave_to_clients,
    "slow": slow_down,
    "connections": break_connections,
    "duplicates": duplicate_connections,
}
