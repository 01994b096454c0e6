"""Faults aimed at the moment in which the leadership, of a partition or of the cluster, goes from one to another."""

import math

import trio

from pipeline.testing.simulation.fault_context import WHOLE_TIMEOUT_S, FaultContext, FaultKinds
from pipeline.testing.simulation.machine import Machine
from pipeline.testing.simulation.plan import MAX_REPLICAS

LATE_S = (0.2, 2.5)
STOPPED_S = 3.6
"""Nearly a session timeout."""


async def succeed(context: FaultContext) -> None:
    """A follower was away; as soon as it is in sync again, it alone is left to lead."""
    _, follower = context.leader_and_another()
    if follower is None:
        return
    follower.kill()
    await trio.sleep(context.rng.uniform(5, 7))
    others = [machine for machine in context.cluster.machines if machine is not follower]
    for machine in others:
        context.cluster.network.delay(machine.name, follower.name, context.rng.uniform(*LATE_S))
    context.restart(follower)
    await context.wait_until(lambda: _is_in_sync(context, follower), WHOLE_TIMEOUT_S)
    for machine in others:
        machine.kill()
    context.cluster.network.heal()
    await trio.sleep(context.rng.uniform(5, 7))
    for machine in others:
        context.restart(machine)


async def relapse(context: FaultContext) -> None:
    """A leader whose followers lag loses its session, leads on in another epoch, and dies."""
    leader, _ = context.leader_and_another()
    if leader is None or leader.connection is None:
        return
    late_s = context.rng.uniform(1, 2)
    for other in context.cluster.machines:
        if other is not leader:
            context.cluster.network.delay(leader.name, other.name, late_s)
    await trio.sleep(context.rng.uniform(0.5, 1.5))
    leader.connection.expire_session()
    await trio.sleep(context.rng.uniform(0.4, 1.5))
    leader.kill()
    context.cluster.network.heal()
    await trio.sleep(context.rng.uniform(5, 7))
    context.restart(leader)


async def lead_again(context: FaultContext) -> None:
    """Move the lead to a follower and back while another follower, stopped, has an older fetch on its way."""
    whole = [state for state in context.cluster.states().values() if len(state.isr) == MAX_REPLICAS]
    if not whole:
        return
    state = context.rng.choice(whole)
    names = [state.leader, *(broker for broker in state.isr if broker != state.leader)]
    leader, third, stopped = (machine for name in names if (machine := context.cluster.machine(name)) is not None)
    if stopped is context.cluster.controller():
        return
    network = context.cluster.network
    network.delay(leader.name, third.name, 2)
    network.delay(stopped.name, leader.name, STOPPED_S)
    await trio.sleep(context.rng.uniform(0.6, 1))
    stopped.pause()
    network.delay(leader.name, third.name, 0)
    with trio.move_on_after(STOPPED_S):
        await _hand_over(context, leader, third)
        await trio.sleep(context.rng.uniform(0.2, 0.6))
        await _hand_over(context, third, leader)
        await trio.sleep_forever()
    stopped.go_on()
    network.heal()


async def _hand_over(context: FaultContext, old: Machine, new: Machine) -> None:
    """Expire a session; return when `new` leads one of its partitions and `old` is in sync again."""
    led = [name for name, state in context.cluster.states().items() if state.leader == old.id]
    if old.connection is not None:
        old.connection.expire_session()

    def is_done() -> bool:
        states = context.cluster.states()
        return any(states[name].leader == new.id and old.id in states[name].isr for name in led if name in states)

    await context.wait_until(is_done, math.inf)


async def interregnum(context: FaultContext) -> None:
    """A leader dies; the controller, about to write who leads on, is cut from ZooKeeper until others have."""
    controller, (dead, _) = context.cluster.controller(), context.leader_and_another()
    if dead is None or dead.connection is None or controller in {None, dead}:
        return
    connection = controller.connection if controller is not None else None
    if connection is None:
        return
    dead.kill()
    await trio.sleep(dead.connection.session_timeout_s)
    await context.wait_until(lambda: connection.is_writing, 0.1, look_s=0.0002)
    connection.cut()
    context.restart(dead)
    await trio.sleep(connection.session_timeout_s + context.rng.uniform(1, 5))
    connection.heal()


def _is_in_sync(context: FaultContext, machine: Machine) -> bool:
    return any(machine.id in state.isr for state in context.cluster.states().values())


KINDS: FaultKinds = {
    "succession": succeed,
    "relapse": relapse,
    "return": lead_again,
    "interregnum": interregnum,
}
