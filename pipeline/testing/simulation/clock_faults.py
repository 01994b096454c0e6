"""Wall clocks that step, back and forth, on one machine or on all.

Rule: nothing but the times of records depends on wall clocks. While one broker alone is missing, the others take writes
as soon as they know that, whatever their clocks say.
"""

import trio

from pipeline.model import TopicPartition
from pipeline.testing.simulation.fault_context import WHOLE_TIMEOUT_S, FaultContext, FaultKinds
from pipeline.testing.simulation.machine import Machine

STEPS_MS = (500, 5_000, 60_000, 600_000)
TAKES_WRITES_S = 15.0
"""A session ends after 4 s, a silent follower is left out after 3 s, and a client waits 4 s for an answer."""


async def step(context: FaultContext) -> None:
    """Step some clocks."""
    for machine in context.rng.sample(context.cluster.machines, context.rng.randint(1, len(context.cluster.machines))):
        _step(context, machine)
    await trio.lowlevel.checkpoint()


async def step_and_miss_one(context: FaultContext) -> None:
    """Step the clock of a leader; then a follower falls silent, to brokers alone, and nothing else goes wrong."""
    context.is_exclusive = True
    try:
        if not await context.wait_until(lambda: context.active == 1 and context.is_whole(), WHOLE_TIMEOUT_S):
            return
        leader, silent = context.leader_and_another()
        if leader is None or silent is None:
            return
        _step(context, leader)
        others = [machine.name for machine in context.cluster.machines if machine is not silent]
        for other in others:
            context.cluster.network.cut(silent.name, other)
            context.cluster.network.cut(other, silent.name)
        context.tell(f"{silent.name} is silent")
        with trio.CancelScope(shield=True):
            await _expect_writes(context, silent)
        context.cluster.network.heal()
    finally:
        context.is_exclusive = False


async def _expect_writes(context: FaultContext, silent: Machine) -> None:
    """Demand that a record of each partition is acknowledged that the silent broker does not lead, or comes to lead."""
    before, led_by_silent = context.progress(), dict[TopicPartition, None]()

    def late() -> list[str]:
        led_by_silent.update(
            {name: None for name, state in context.cluster.states().items() if state.leader == silent.id}
        )
        now = context.progress()
        return [str(name) for name in before if name not in led_by_silent and now[name] == before[name]]

    if not await context.wait_until(lambda: not late(), TAKES_WRITES_S):
        context.problems.append(
            f"{silent.name} alone is silent, and after {TAKES_WRITES_S:g} s no write to {', '.join(late())} is taken"
        )


def _step(context: FaultContext, machine: Machine) -> None:
    machine.step_clock(context.rng.choice([-1, 1]) * context.rng.choice(STEPS_MS))


KINDS: FaultKinds = {"clocks": step, "clock and silence": step_and_miss_one}
