"""Machines that lose their power, and disks that refuse a sync or are full."""

import trio

from pipeline.testing.simulation.fault_context import WHOLE_TIMEOUT_S, FaultContext, FaultKinds
from pipeline.testing.simulation.machine import Machine

LEFT_TIMEOUT_S = 40.0
LATE_S = (0.8, 2.0)
"""Less than makes a follower leave the in-sync replicas."""
MOVE_TIMEOUT_S = 6.0
MOVE_LOOK_S = 0.005


async def lose_power(context: FaultContext) -> None:
    """Only while the cluster is whole, and alone until the others know that the broker may have lost its tail."""
    machine = context.victim()
    context.is_exclusive = True
    try:
        if machine.name in context.doubtful_disks or not await context.wait_until(
            lambda: context.active == 1 and context.is_whole(), WHOLE_TIMEOUT_S
        ):
            return
        if context.rng.random() < 0.5:
            machine.disk.crash_in = context.rng.randint(1, 20)
            await trio.sleep(context.rng.uniform(0, 2))
        machine.lose_power()
        await context.outage()
        context.restart(machine)
        await context.wait_until(lambda: _has_left_or_returned(context, machine), LEFT_TIMEOUT_S)
    finally:
        context.is_exclusive = False


async def lose_power_with_late_fetches(context: FaultContext) -> None:
    """Fail the power of a follower whose fetches are late: some arrive when it is back and lacks what they told of.

    Its promises are those of `lose_power`.
    """
    context.is_exclusive = True
    network = context.cluster.network
    try:
        leader, follower = context.leader_and_another()
        if leader is None or follower is None or follower.name in context.doubtful_disks:
            return
        if not await context.wait_until(lambda: context.active == 1 and context.is_whole(), WHOLE_TIMEOUT_S):
            return
        context.tell(f"what {follower.name} sends to {leader.name} is late")
        late_s = context.rng.uniform(*LATE_S)
        network.delay(follower.name, leader.name, late_s)
        await trio.sleep(late_s + context.rng.uniform(0, 1))
        if context.is_whole():
            follower.lose_power()
            context.restart(follower)
            await context.wait_until(lambda: _has_left_or_returned(context, follower), LEFT_TIMEOUT_S)
            await trio.sleep(late_s)
        network.heal()
    finally:
        context.is_exclusive = False


async def lose_power_under_a_move(context: FaultContext) -> None:
    """Fail the power of the only replica of a partition while it is moved; all other partitions do without it."""

    def alone() -> list[Machine | None]:
        states = context.cluster.states()
        origins = {name: context.cluster.zookeeper.origin_ids(name) for name in states}
        if context.active > 1 or any(
            state.leader < 0 or not set(origins[name]) <= set(state.isr) for name, state in states.items()
        ):
            return []
        moved = {
            name: origins[name] for name in states if len(origins[name]) == 1 < len(context.cluster.replica_ids(name))
        }
        return [context.cluster.machine(origin[0]) for name, origin in moved.items() if states[name].isr == origin]

    context.is_exclusive = True
    try:
        await context.wait_until(lambda: bool(alone()), MOVE_TIMEOUT_S, MOVE_LOOK_S)
        machine = next(iter(alone()), None)
        if machine is None or machine.name in context.doubtful_disks:
            return
        context.tell(f"{machine.name} has the only replica of a partition that is moved")
        machine.lose_power()
        await context.outage()
        context.restart(machine)
        await context.wait_until(lambda: _has_left_or_returned(context, machine), LEFT_TIMEOUT_S)
    finally:
        context.is_exclusive = False


def _has_left_or_returned(context: FaultContext, machine: Machine) -> bool:
    """Return True if no partition counts on what the machine may have lost."""
    if machine.is_serving:
        return True
    return all(machine.id not in state.isr for state in context.cluster.states().values())


async def fail_sync(context: FaultContext) -> None:
    """The disk refuses to sync; the broker is replaced some time later."""
    machine = context.victim()
    context.doubtful_disks[machine.name] = None
    machine.disk.fail_sync_in = context.rng.randint(1, 5)
    context.tell(f"a sync of {machine.name} will fail")
    await context.outage()
    machine.disk.fail_sync_in = None
    if machine.has_failed_disk:
        await context.kill_and_restart(machine)


async def fail_sync_and_power(context: FaultContext) -> None:
    """Fail a sync, and then the power, of one broker that syncs before it acknowledges."""
    machine = context.victim()
    machine.disk.fail_sync_in = context.rng.randint(1, 5)
    context.tell(f"a sync of {machine.name} will fail, and then its power")
    await trio.sleep(context.rng.uniform(0.5, 3))
    machine.disk.fail_sync_in = None
    machine.lose_power()
    context.restart(machine)


async def lose_power_of_all(context: FaultContext) -> None:
    """Beyond the promise."""
    for machine in context.cluster.machines:
        machine.lose_power()
    await context.outage()
    for machine in context.cluster.machines:
        context.restart(machine)


async def lose_power_of_one(context: FaultContext) -> None:
    """Fail the power of one broker that syncs before it acknowledges; with several brokers, beyond the promise."""
    machine = context.victim()
    if context.rng.random() < 0.5:
        machine.disk.crash_in = context.rng.randint(1, 20)
        await trio.sleep(context.rng.uniform(0, 2))
    machine.lose_power()
    await context.outage()
    context.restart(machine)


async def fill_disk(context: FaultContext) -> None:
    """Let the disk of a machine take little more."""
    machine = context.victim()
    context.tell(f"the disk of {machine.name} is nearly full")
    machine.disk.capacity_bytes = machine.disk.used_bytes + context.rng.randint(0, 2000)
    await context.outage()
    machine.disk.capacity_bytes = None
    if machine.has_failed_disk:
        await context.kill_and_restart(machine)


KINDS: FaultKinds = {
    "power": lose_power,
    "power and late fetches": lose_power_with_late_fetches,
    "power under a move": lose_power_under_a_move,
    "sync": fail_sync,
    "full": fill_disk,
    "sync and power": fail_sync_and_power,
    "power of one": lose_power_of_one,
    "power of all": lose_power_of_all,
}
