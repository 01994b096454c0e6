"""Faults of a run: chosen by the seed, healed after a while.

Faults stay inside what is promised for replication factor 3, min.insync.replicas 2, no unclean elections
(docs/testing.md): any number of processes may be killed, stopped, paused or cut off, at once and again and again, for
what they wrote stays in the memory of their machines. A machine loses its power, and with it what was not synced, only
when every partition has all its replicas in sync, and nothing else goes wrong until it has left the in-sync replicas.
Two lose it at once if every partition has an in-sync replica elsewhere, but for one whose deletion is certain.
A machine whose disk once failed to sync keeps its power: nobody knows what such a disk holds.
"""

from dataclasses import dataclass, field

import trio

from pipeline.testing.simulation import (
    clock_faults,
    disk_faults,
    lead_faults,
    network_faults,
    process_faults,
    travel_faults,
    zookeeper_faults,
)
from pipeline.testing.simulation.fault_context import FaultContext, FaultKinds

CALM_S = (0.3, 4.0)
"""Between two faults of one source."""
KINDS: FaultKinds = {
    **process_faults.KINDS,
    **lead_faults.KINDS,
    **disk_faults.KINDS,
    **zookeeper_faults.KINDS,
    **network_faults.KINDS,
    **clock_faults.KINDS,
    **travel_faults.KINDS,
}
NEVER_BY_ITSELF = (
    "sync and power",
    "power of one",
    "power of all",
    "sessions",
    "broker epoch",
    *travel_faults.KINDS,
)
"""Faults that a plan must ask for: several brokers do not promise to survive them, or few seeds are for them."""
FOR_SEVERAL = tuple(name for name in KINDS if name not in NEVER_BY_ITSELF)
BESIDE_AN_ADMINISTRATOR = tuple(disk_faults.ADMINISTERED_KINDS)
"""Faults that need an administrator."""


@dataclass(eq=False)
class Faults:
    """Makes trouble until cancelled; `heal` ends it all."""

    context: FaultContext
    chosen: tuple[str, ...] = ()
    """The kinds there are; with none, all that are right for several brokers, or some of these."""
    counts: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Make one fault after another."""
        context = self.context
        absent = BESIDE_AN_ADMINISTRATOR if context.administration is None else ()
        names = [name for name in self.chosen or FOR_SEVERAL if name not in absent]
        favourites = context.rng.sample(names, 4) if not self.chosen and context.rng.random() < 0.5 else names
        while True:
            await trio.sleep(context.rng.uniform(*CALM_S))
            if context.is_exclusive:
                continue
            name = context.rng.choice(favourites)
            self.counts[name] = self.counts.get(name, 0) + 1
            context.active += 1
            try:
                await KINDS[name](context)
            finally:
                context.active -= 1

    def heal(self) -> None:
        """Have everything work again, and every broker run."""
        cluster = self.context.cluster
        cluster.network.heal()
        for machine in cluster.machines:
            machine.disk.capacity_bytes = None
            machine.disk.crash_in = machine.disk.fail_sync_in = None
            machine.go_on()
            if machine.connection is not None:
                machine.connection.heal()
            if machine.has_failed_disk:
                machine.kill()
            self.context.restart(machine)
