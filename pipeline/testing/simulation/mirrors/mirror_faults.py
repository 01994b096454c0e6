"""Faults of mirrors and of their links; those of the clusters are the faults of simulated clusters."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from pipeline.testing.simulation.clock_faults import STEPS_MS
from pipeline.testing.simulation.cluster import SimulatedCluster
from pipeline.testing.simulation.fault_context import OUTAGE_S
from pipeline.testing.simulation.mirrors.mirror_process import SimulatedMirror
from pipeline.testing.simulation.network import SimulatedNetwork
from pipeline.testing.simulation.trace import Trace

CALM_S = (0.3, 4.0)
LATE_S = (0.2, 4.0)


@dataclass(eq=False)
class MirrorFaults:
    """Makes trouble for mirrors until cancelled; `heal` ends it all."""

    mirrors: Sequence[SimulatedMirror]
    sources: Sequence[SimulatedCluster]
    hub: SimulatedCluster
    network: SimulatedNetwork
    """The share of the network in which these faults cut."""
    rng: random.Random
    trace: Trace
    start: Callable[[SimulatedMirror], None]
    """Has a mirror run again."""
    kinds: tuple[str, ...]
    counts: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Make one fault after another."""
        while True:
            await trio.sleep(self.rng.uniform(*CALM_S))
            name = self.rng.choice(self.kinds)
            self.counts[f"mirror {name}"] = self.counts.get(f"mirror {name}", 0) + 1
            await KINDS[name](self)

    def heal(self) -> None:
        """Have everything work again, and every mirror run."""
        self.network.heal()
        for mirror in self.mirrors:
            mirror.go_on()
            if mirror.connection is not None:
                mirror.connection.heal()
            self.restart(mirror)

    def restart(self, mirror: SimulatedMirror) -> None:
        """Start a mirror unless it runs."""
        if not mirror.is_running:
            self.start(mirror)

    async def outage(self) -> None:
        """Wait for as long as a fault lasts."""
        await trio.sleep(self.rng.uniform(*OUTAGE_S))

    def victim(self) -> SimulatedMirror:
        """Choose a mirror."""
        return self.rng.choice(self.mirrors)


async def kill_mirror(faults: MirrorFaults) -> None:
    """Kill a mirror."""
    mirror = faults.victim()
    mirror.kill()
    await faults.outage()
    faults.restart(mirror)


async def stop_mirror(faults: MirrorFaults) -> None:
    """Ask a mirror to end."""
    mirror = faults.victim()
    mirror.go_on()
    mirror.stop()
    await faults.outage()
    faults.restart(mirror)


async def pause_mirror(faults: MirrorFaults) -> None:
    """Pause a mirror."""
    mirror = faults.victim()
    mirror.pause()
    await faults.outage()
    mirror.go_on()


async def pause_leader(faults: MirrorFaults) -> None:
    """Pause the mirror that leads the group, until others have taken over or for a moment."""
    for mirror in faults.mirrors:
        shared = None if mirror.answering is None else mirror.answering.shared
        if shared is not None and shared.group.leader == shared.group.member:
            mirror.pause()
            await faults.outage()
            mirror.go_on()
            return


async def cut_from_zookeeper(faults: MirrorFaults) -> None:
    """Cut a mirror from the hub's ZooKeeper: its session expires if that takes long."""
    mirror = faults.victim()
    if (connection := mirror.connection) is not None:
        faults.trace.add("faults", f"{mirror.name} is cut from ZooKeeper")
        connection.cut()
        await faults.outage()
        connection.heal()


async def expire_mirror_session(faults: MirrorFaults) -> None:
    """Have the session of a mirror expire while it is connected."""
    mirror = faults.victim()
    if mirror.connection is not None:
        faults.trace.add("faults", f"the session of {mirror.name} expires")
        mirror.expired_at = trio.current_time()
        mirror.connection.expire_session()
    await trio.lowlevel.checkpoint()


async def cut_from_source(faults: MirrorFaults) -> None:
    """Cut a mirror from a source, in one direction or both."""
    await _cut(faults, faults.rng.choice(faults.sources))


async def cut_from_hub(faults: MirrorFaults) -> None:
    """Cut a mirror from the hub, in one direction or both."""
    await _cut(faults, faults.hub)


async def _cut(faults: MirrorFaults, cluster: SimulatedCluster) -> None:
    mirror, ways = faults.victim(), faults.rng.choice(["there", "back", "both"])
    faults.trace.add("faults", f"{mirror.name} is cut from {cluster.name}: {ways}")
    for machine in cluster.machines:
        if ways != "back":
            faults.network.cut(mirror.name, machine.name)
        if ways != "there":
            faults.network.cut(machine.name, mirror.name)
    await faults.outage()
    faults.network.heal()


async def delay_mirror(faults: MirrorFaults) -> None:
    """Have everything take longer between a mirror and a cluster."""
    mirror, cluster = faults.victim(), faults.rng.choice([*faults.sources, faults.hub])
    late_s = faults.rng.uniform(*LATE_S)
    faults.trace.add("faults", f"{late_s:.2f} s from {cluster.name} to {mirror.name}")
    for machine in cluster.machines:
        faults.network.delay(machine.name, mirror.name, late_s)
        faults.network.delay(mirror.name, machine.name, late_s / 4)
    await faults.outage()
    faults.network.heal()


async def break_mirror_connections(faults: MirrorFaults) -> None:
    """Break connections of a mirror while requests are on their way."""
    for _ in range(faults.rng.randint(1, 5)):
        mirror = faults.victim()
        connections = list(mirror.host.connections.values())
        if connections:
            faults.trace.add("faults", f"a connection of {mirror.name} breaks")
            faults.rng.choice(connections).break_off()
        await trio.sleep(faults.rng.uniform(0, 0.5))


async def step_clock(faults: MirrorFaults) -> None:
    """Step the wall clock of a mirror."""
    faults.victim().set_clock(faults.rng.choice([-1, 1]) * faults.rng.choice(STEPS_MS))
    await trio.lowlevel.checkpoint()


KINDS: Mapping[str, Callable[[MirrorFaults], Awaitable[None]]] = {
    "kill": kill_mirror,
    "stop": stop_mirror,
    "pause": pause_mirror,
    "pause leader": pause_leader,
    "zookeeper cut": cut_from_zookeeper,
    "session": expire_mirror_session,
    "cut from source": cut_from_source,
    "cut from hub": cut_from_hub,
    "late": delay_mirror,
    "connections": break_mirror_connections,
    "clock": step_clock,
}
