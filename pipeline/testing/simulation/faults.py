"""What goes wrong in a run: chosen by the seed, healed after a while.

Faults stay inside what is promised for replication factor 3, min.insync.replicas 2, no unclean elections
(docs/testing.md): any number of processes may be killed, stopped, paused or cut off, at once and again and again, for
what they wrote stays in the memory of their machines. A machine loses its power, and with it what was not synced, only
when every partition has all its replicas in sync, and nothing else goes wrong until it has left the in-sync replicas.
A machine whose disk once failed to sync keeps its power: nobody knows what such a disk holds.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from pipeline.testing.simulation.cluster import SimulatedCluster
from pipeline.testing.simulation.machine import Machine

CALM_S = (0.3, 4.0)
"""Between two faults of one source."""
OUTAGE_S = (0.3, 9.0)
LEFT_TIMEOUT_S = 40.0
WHOLE_TIMEOUT_S = 8.0
LATE_S = (0.2, 2.5)
STOPPED_S = 3.6
"""Nearly a session timeout."""
FOR_SEVERAL = (
    "kill",
    "crash",
    "kill all",
    "stop",
    "pause",
    "power",
    "sync",
    "full",
    "zookeeper cut",
    "zookeeper connection",
    "session",
    "partition",
    "one way",
    "alone",
    "island",
    "slow",
    "bounce",
    "succession",
    "relapse",
    "return",
    "interregnum",
    "connections",
    "duplicates",
)


@dataclass(eq=False)
class Faults:
    """Makes trouble until cancelled; `heal` ends it all."""

    cluster: SimulatedCluster
    rng: random.Random
    clients: tuple[str, ...]
    chosen: tuple[str, ...] = ()
    """The kinds there are; with none, all that are right for several brokers, or some of these."""
    active: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    _exclusive: bool = False
    _doubtful_disks: dict[str, None] = field(default_factory=dict)

    async def run(self) -> None:
        """One thing after another."""
        kinds = self._kinds()
        names = list(self.chosen or FOR_SEVERAL)
        favourites = self.rng.sample(names, 4) if not self.chosen and self.rng.random() < 0.5 else names
        while True:
            await trio.sleep(self.rng.uniform(*CALM_S))
            if self._exclusive:
                continue
            name = self.rng.choice(favourites)
            self.counts[name] = self.counts.get(name, 0) + 1
            self.active += 1
            try:
                await kinds[name]()
            finally:
                self.active -= 1

    def _kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "kill": self._kill,
            "crash": self._crash,
            "kill all": self._kill_all,
            "stop": self._stop,
            "pause": self._pause,
            "power": self._lose_power,
            "sync": self._fail_sync,
            "full": self._fill_disk,
            "zookeeper cut": self._cut_zookeeper,
            "zookeeper connection": self._lose_connection,
            "session": self._expire_session,
            "partition": self._partition,
            "one way": self._cut_one_way,
            "alone": self._cut_off,
            "island": self._leave_to_clients,
            "slow": self._slow_down,
            "bounce": self._bounce,
            "succession": self._succeed,
            "relapse": self._relapse,
            "return": self._return,
            "interregnum": self._interregnum,
            "connections": self._break_connections,
            "duplicates": self._duplicate_connections,
            "sync and power": self._fail_sync_and_power,
            "power of one": self._lose_power_of_one,
            "power of all": self._lose_power_of_all,
        }

    def heal(self) -> None:
        """Have everything work again, and every broker run."""
        self.cluster.network.heal()
        for machine in self.cluster.machines:
            machine.disk.capacity_bytes = None
            machine.disk.crash_in = machine.disk.fail_sync_in = None
            machine.go_on()
            if machine.client is not None:
                machine.client.heal()
            if machine.has_failed_disk:
                machine.kill()
            if not machine.is_running:
                self.cluster.start(machine)

    # Whom it meets

    def _victim(self) -> Machine:
        """Some broker; the controller, or the leader of a partition, more often than others."""
        chance = self.rng.random()
        found: Machine | None = None
        if chance < 0.25:
            found = self.cluster.controller()
        elif chance < 0.5:
            states = list(self.cluster.states().values())
            found = self.cluster.machine(self.rng.choice(states).leader) if states else None
        return found or self.rng.choice(self.cluster.machines)

    async def _outage(self) -> None:
        await trio.sleep(self.rng.uniform(*OUTAGE_S))

    def _tell(self, what: str) -> None:
        self.cluster.trace.add("faults", what)

    # Processes

    async def _kill(self) -> None:
        await self._kill_and_restart(self._victim())

    async def _kill_and_restart(self, machine: Machine) -> None:
        machine.kill()
        await self._outage()
        self._restart(machine)

    def _restart(self, machine: Machine) -> None:
        if not machine.is_running:
            self.cluster.start(machine)

    async def _crash(self) -> None:
        """Killed at one of the next changes of its disk, which may be carried out in part."""
        machine = self._victim()
        machine.disk.crash_in = self.rng.randint(1, 40)
        await self._outage()
        machine.disk.crash_in = None
        self._restart(machine)

    async def _kill_all(self) -> None:
        for machine in self.cluster.machines:
            machine.kill()
        for machine in self.rng.sample(self.cluster.machines, len(self.cluster.machines)):
            await trio.sleep(self.rng.uniform(0, 4))
            self._restart(machine)

    async def _stop(self) -> None:
        machine = self._victim()
        machine.go_on()
        machine.stop()
        await self._outage()
        self._restart(machine)

    async def _pause(self) -> None:
        machine = self._victim()
        machine.pause()
        await self._outage()
        machine.go_on()

    async def _bounce(self) -> None:
        """Killed again before it has come up, or soon after."""
        machine = self._victim()
        for _ in range(self.rng.randint(2, 4)):
            machine.kill()
            self._restart(machine)
            await trio.sleep(self.rng.uniform(0.05, 2))

    async def _succeed(self) -> None:
        """A follower was away; as soon as it is in sync again, it alone is left to lead."""
        _, follower = self._leader_and_another()
        if follower is None:
            return
        follower.kill()
        await trio.sleep(self.rng.uniform(5, 7))
        others = [machine for machine in self.cluster.machines if machine is not follower]
        for machine in others:
            self.cluster.network.delay(machine.name, follower.name, self.rng.uniform(*LATE_S))
        self._restart(follower)
        with trio.move_on_after(WHOLE_TIMEOUT_S):
            while not self._is_in_sync(follower):  # noqa: ASYNC110 - nobody tells an outsider
                await trio.sleep(0.02)
        for machine in others:
            machine.kill()
        self.cluster.network.heal()
        await trio.sleep(self.rng.uniform(5, 7))
        for machine in others:
            self._restart(machine)

    async def _relapse(self) -> None:
        """A leader whose followers lag loses its session, leads on in another epoch, and dies."""
        leader, _ = self._leader_and_another()
        if leader is None or leader.client is None:
            return
        late_s = self.rng.uniform(1, 2)
        for other in self.cluster.machines:
            if other is not leader:
                self.cluster.network.delay(leader.name, other.name, late_s)
        await trio.sleep(self.rng.uniform(0.5, 1.5))
        leader.client.expire_session()
        await trio.sleep(self.rng.uniform(0.4, 1.5))
        leader.kill()
        self.cluster.network.heal()
        await trio.sleep(self.rng.uniform(5, 7))
        self._restart(leader)

    async def _return(self) -> None:
        """The lead goes to a follower and back while another, stopped, has a fetch on its way that is of before."""
        whole = [state for state in self.cluster.states().values() if len(state.isr) == len(self.cluster.machines) > 2]
        if not whole:
            return
        state = self.rng.choice(whole)
        names = [state.leader, *(broker for broker in state.isr if broker != state.leader)]
        leader, third, stopped = (machine for name in names if (machine := self.cluster.machine(name)) is not None)
        if stopped is self.cluster.controller():
            return
        network = self.cluster.network
        network.delay(leader.name, third.name, 2)
        network.delay(stopped.name, leader.name, STOPPED_S)
        await trio.sleep(self.rng.uniform(0.6, 1))
        stopped.pause()
        network.delay(leader.name, third.name, 0)
        with trio.move_on_after(STOPPED_S):
            await self._hand_over(leader, third)
            await trio.sleep(self.rng.uniform(0.2, 0.6))
            await self._hand_over(third, leader)
            await trio.sleep_forever()
        stopped.go_on()
        network.heal()

    async def _hand_over(self, old: Machine, new: Machine) -> None:
        """A session expires; return when the other one leads something of it, the old leader in sync again."""
        led = [name for name, state in self.cluster.states().items() if state.leader == old.id]
        if old.client is not None:
            old.client.expire_session()
        while not any(  # noqa: ASYNC110 - nobody tells an outsider
            state.leader == new.id and old.id in state.isr
            for name, state in self.cluster.states().items()
            if name in led
        ):
            await trio.sleep(0.02)

    async def _interregnum(self) -> None:
        """A leader dies; the controller, about to write who leads on, is cut from ZooKeeper until others have."""
        controller, (dead, _) = self.cluster.controller(), self._leader_and_another()
        if dead is None or dead.client is None or controller in {None, dead}:
            return
        client = controller.client if controller is not None else None
        if client is None:
            return
        dead.kill()
        await trio.sleep(dead.client.session_timeout_s)
        with trio.move_on_after(0.1):
            while not client.is_writing:  # noqa: ASYNC110 - nobody tells an outsider
                await trio.sleep(0.0002)
        client.cut()
        self._restart(dead)
        await trio.sleep(client.session_timeout_s + self.rng.uniform(1, 5))
        client.heal()

    def _leader_and_another(self) -> tuple[Machine | None, Machine | None]:
        """The leader of some partition, and a broker that is not."""
        led = [state for state in self.cluster.states().values() if state.leader >= 0]
        leader = self.cluster.machine(self.rng.choice(led).leader) if led else None
        others = [machine for machine in self.cluster.machines if machine is not leader]
        return leader, self.rng.choice(others) if others else None

    def _is_in_sync(self, machine: Machine) -> bool:
        return any(machine.id in state.isr for state in self.cluster.states().values())

    # Disks

    async def _lose_power(self) -> None:
        """Only while the cluster is whole, and alone until the others know that the broker may have lost its tail."""
        machine = self._victim()
        self._exclusive = True
        try:
            with trio.move_on_after(WHOLE_TIMEOUT_S):
                while self.active > 1 or not self._is_whole():  # noqa: ASYNC110 - nobody tells an outsider
                    await trio.sleep(0.1)
            if self.active > 1 or machine.name in self._doubtful_disks or not self._is_whole():
                return
            if self.rng.random() < 0.5:
                machine.disk.crash_in = self.rng.randint(1, 20)
                await trio.sleep(self.rng.uniform(0, 2))
            machine.lose_power()
            await self._outage()
            self._restart(machine)
            with trio.move_on_after(LEFT_TIMEOUT_S):
                while not self._has_left_or_returned(machine):  # noqa: ASYNC110 - nobody tells an outsider
                    await trio.sleep(0.1)
        finally:
            self._exclusive = False

    def _is_whole(self) -> bool:
        count = len(self.cluster.machines)
        states = self.cluster.states()
        serving = all(machine.is_serving for machine in self.cluster.machines)
        return serving and all(len(state.isr) == min(count, 3) for state in states.values())

    def _has_left_or_returned(self, machine: Machine) -> bool:
        """Whether no partition counts on what the machine may have lost."""
        if machine.is_serving:
            return True
        return all(machine.id not in state.isr for state in self.cluster.states().values())

    async def _fail_sync(self) -> None:
        """The disk refuses to sync; the broker is replaced some time later."""
        machine = self._victim()
        self._doubtful_disks[machine.name] = None
        machine.disk.fail_sync_in = self.rng.randint(1, 5)
        self._tell(f"a sync of {machine.name} will fail")
        await self._outage()
        machine.disk.fail_sync_in = None
        if machine.has_failed_disk:
            await self._kill_and_restart(machine)

    async def _fail_sync_and_power(self) -> None:
        """For one broker that syncs before it acknowledges: what a sync refused is lost soon after."""
        machine = self._victim()
        machine.disk.fail_sync_in = self.rng.randint(1, 5)
        self._tell(f"a sync of {machine.name} will fail, and then its power")
        await trio.sleep(self.rng.uniform(0.5, 3))
        machine.disk.fail_sync_in = None
        machine.lose_power()
        self._restart(machine)

    async def _lose_power_of_all(self) -> None:
        """Beyond the promise."""
        for machine in self.cluster.machines:
            machine.lose_power()
        await self._outage()
        for machine in self.cluster.machines:
            self._restart(machine)

    async def _lose_power_of_one(self) -> None:
        """For one broker that syncs before it acknowledges; with several, beyond the promise."""
        machine = self._victim()
        if self.rng.random() < 0.5:
            machine.disk.crash_in = self.rng.randint(1, 20)
            await trio.sleep(self.rng.uniform(0, 2))
        machine.lose_power()
        await self._outage()
        self._restart(machine)

    async def _fill_disk(self) -> None:
        machine = self._victim()
        self._tell(f"the disk of {machine.name} is nearly full")
        machine.disk.capacity_bytes = machine.disk.used_bytes + self.rng.randint(0, 2000)
        await self._outage()
        machine.disk.capacity_bytes = None
        if machine.has_failed_disk:
            await self._kill_and_restart(machine)

    # ZooKeeper

    async def _cut_zookeeper(self) -> None:
        client = (machine := self._victim()).client
        if client is not None:
            self._tell(f"{machine.name} is cut from ZooKeeper")
            client.cut()
            await self._outage()
            client.heal()

    async def _lose_connection(self) -> None:
        client = (machine := self._victim()).client
        if client is not None:
            self._tell(f"{machine.name} loses its connection to ZooKeeper")
            client.lose_connection()

    async def _expire_session(self) -> None:
        client = (machine := self._victim()).client
        if client is not None:
            self._tell(f"the session of {machine.name} expires")
            client.expire_session()

    # The network

    async def _partition(self) -> None:
        """One broker sees no other; clients see all."""
        machine = self._victim()
        self._tell(f"{machine.name} is cut from the other brokers")
        for other in self.cluster.machines:
            if other is not machine:
                self.cluster.network.cut(machine.name, other.name)
                self.cluster.network.cut(other.name, machine.name)
        await self._outage()
        self.cluster.network.heal()

    async def _cut_one_way(self) -> None:
        """What one host sends to another does not arrive."""
        machine = self._victim()
        others = [other.name for other in self.cluster.machines if other is not machine]
        ends = [machine.name, self.rng.choice([*others, *self.clients])]
        self.rng.shuffle(ends)
        self._tell(f"nothing gets from {ends[0]} to {ends[1]}")
        self.cluster.network.cut(ends[0], ends[1])
        await self._outage()
        self.cluster.network.heal()

    async def _cut_off(self) -> None:
        """One broker is cut from everything."""
        await self._cut_from_all(self.clients)

    async def _leave_to_clients(self) -> None:
        """One broker is cut from everything but clients."""
        await self._cut_from_all(())

    async def _cut_from_all(self, clients: Sequence[str]) -> None:
        machine = self._victim()
        self._tell(f"{machine.name} is cut off, from {len(clients)} clients too")
        client = machine.client
        others = [other.name for other in self.cluster.machines if other is not machine]
        for other in [*others, *clients]:
            self.cluster.network.cut(machine.name, other)
            self.cluster.network.cut(other, machine.name)
        if client is not None:
            client.cut()
        await self._outage()
        self.cluster.network.heal()
        if client is not None:
            client.heal()

    async def _slow_down(self) -> None:
        """Brokers hear of one of them late, as do its followers."""
        machine = self._victim()
        late_s = self.rng.uniform(*LATE_S)
        self._tell(f"what {machine.name} sends to other brokers takes {late_s:.2f} s")
        for other in self.cluster.machines:
            if other is not machine and self.rng.random() < 0.7:
                self.cluster.network.delay(machine.name, other.name, late_s)
        await self._outage()
        self.cluster.network.heal()

    async def _break_connections(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            name = self.rng.choice([*self.clients, *(machine.name for machine in self.cluster.machines)])
            connections = list(self.cluster.network.host(name).connections.values())
            if connections:
                self._tell(f"a connection of {name} breaks")
                self.rng.choice(connections).break_off()
            await trio.sleep(self.rng.uniform(0, 0.5))

    async def _duplicate_connections(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            name = self.rng.choice(self.clients)
            self.cluster.network.host(name).duplicate_connection(self._victim().address)
        await trio.lowlevel.checkpoint()
