"""Processes that die, stop or are paused, and come back."""

import trio

from pipeline.testing.simulation.fault_context import FaultContext, FaultKinds


async def kill(context: FaultContext) -> None:
    """Kill a broker."""
    await context.kill_and_restart(context.victim())


async def crash(context: FaultContext) -> None:
    """Killed at one of the next changes of its disk, which may be carried out in part."""
    machine = context.victim()
    machine.disk.crash_in = context.rng.randint(1, 40)
    await context.outage()
    machine.disk.crash_in = None
    context.restart(machine)


async def kill_all(context: FaultContext) -> None:
    """Kill all brokers; they come back one after another."""
    for machine in context.cluster.machines:
        machine.kill()
    for machine in context.rng.sample(context.cluster.machines, len(context.cluster.machines)):
        await trio.sleep(context.rng.uniform(0, 4))
        context.restart(machine)


async def stop(context: FaultContext) -> None:
    """Ask a broker to end, as SIGTERM does."""
    machine = context.victim()
    machine.go_on()
    machine.stop()
    await context.outage()
    context.restart(machine)


async def pause(context: FaultContext) -> None:
    """Stop a process, as SIGSTOP does, for a while."""
    machine = context.victim()
    machine.pause()
    await context.outage()
    machine.go_on()


async def bounce(context: FaultContext) -> None:
    """Killed again before it has come up, or soon after."""
    machine = context.victim()
    for _ in range(context.rng.randint(2, 4)):
        machine.kill()
        context.restart(machine)
        await trio.sleep(context.rng.uniform(0.05, 2))


KINDS: FaultKinds = {
    "kill": kill,
    "crash": crash,
    "kill all": kill_all,
    "stop": stop,
    "pause": pause,
    "bounce": bounce,
}
