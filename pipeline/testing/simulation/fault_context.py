"""Context shared by all faults: the cluster that they hit, the choice of a victim, and how an outsider waits.

A fault is a coroutine function of a `FaultContext`. It makes one kind of trouble, waits, and ends the trouble.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from pipeline.model import TopicPartition
from pipeline.testing.simulation.administration import Administration
from pipeline.testing.simulation.cluster import SimulatedCluster
from pipeline.testing.simulation.machine import Machine

OUTAGE_S = (0.3, 9.0)
WHOLE_TIMEOUT_S = 8.0
LOOK_S = 0.02


@dataclass(eq=False)
class FaultContext:
    """The cluster, the dice, and which faults are under way."""

    cluster: SimulatedCluster
    rng: random.Random
    clients: tuple[str, ...]
    active: int = 0
    """Faults under way."""
    is_exclusive: bool = False
    """True if no other fault may begin."""
    progress: Callable[[], Mapping[TopicPartition, int]] = dict
    """How many records of each partition were acknowledged so far, of those that are written to all the time."""
    topics: Sequence[str] = ()
    """The topics that stay."""
    problems: list[str] = field(default_factory=list)
    administration: Administration | None = None
    """The administrator at work, None if there is none."""
    doubtful_disks: dict[str, None] = field(default_factory=dict)
    """Machines whose disk refused a sync at some time: nobody knows what such a disk holds."""

    def victim(self) -> Machine:
        """Choose a machine; that of the controller, or of the leader of a partition, more often than others."""
        chance = self.rng.random()
        found: Machine | None = None
        if chance < 0.25:
            found = self.cluster.controller()
        elif chance < 0.5:
            states = list(self.cluster.states().values())
            found = self.cluster.machine(self.rng.choice(states).leader) if states else None
        return found or self.rng.choice(self.cluster.machines)

    def leader_and_another(self) -> tuple[Machine | None, Machine | None]:
        """The machine of the leader of some partition, and a machine that is not."""
        led = [state for state in self.cluster.states().values() if state.leader >= 0]
        leader = self.cluster.machine(self.rng.choice(led).leader) if led else None
        others = [machine for machine in self.cluster.machines if machine is not leader]
        return leader, self.rng.choice(others) if others else None

    async def outage(self) -> None:
        """Wait for as long as a fault lasts."""
        await trio.sleep(self.rng.uniform(*OUTAGE_S))

    async def wait_until(self, is_so: Callable[[], bool], timeout_s: float, look_s: float = LOOK_S) -> bool:
        """Look again and again, since nobody tells an outsider. Return True if it came true in time."""
        with trio.move_on_after(timeout_s):
            while not is_so():  # noqa: ASYNC110 - nobody tells
                await trio.sleep(look_s)
            return True
        return False

    def tell(self, what: str) -> None:
        """Add to the trace."""
        self.cluster.trace.add("faults", what)

    def restart(self, machine: Machine) -> None:
        """Start the broker of a machine unless it runs."""
        if not machine.is_running:
            self.cluster.start(machine)

    async def kill_and_restart(self, machine: Machine) -> None:
        """Kill the broker of a machine, and start it after a while."""
        machine.kill()
        await self.outage()
        self.restart(machine)

    def is_whole(self) -> bool:
        """True if every broker serves and every partition has all its replicas in sync."""
        serving = all(machine.is_serving for machine in self.cluster.machines)
        return serving and all(
            state.leader >= 0 and len(state.isr) == len(self.cluster.replica_ids(name))
            for name, state in self.cluster.states().items()
        )


Fault = Callable[[FaultContext], Awaitable[None]]
FaultKinds = Mapping[str, Fault]
"""Faults by name."""
