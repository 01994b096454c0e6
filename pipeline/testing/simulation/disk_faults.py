"""Machines that lose their power, and disks that refuse a sync or are full."""

import trio

from pipeline.testing.simulation.fault_context import WHOLE_TIMEOUT_S, FaultContext, FaultKinds
from pipeline.testing.simulation.machine import Machine

LEFT_TIMEOUT_S = 40.0


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
    "sync": fail_sync,
    "full": fill_disk,
    "sync and power": fail_sync_and_power,
    "power of one": lose_power_of_one,
    "power of all": lose_power_of_all,
}
