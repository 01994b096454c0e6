"""A machine of the cluster: a host, a disk, and the broker that runs there, again and again.

A broker ends in four ways: cleanly; killed, when what it wrote stays in the memory of the machine; by the power, when
only what it synced is certain to be there; and by itself, for want of a disk. It is started again after a while.
"""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.replication.observer import LogObserver
from pipeline.broker.server import BrokerHandle, run_broker
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, HostPort
from pipeline.testing.faulty_files import Crash, FaultyFiles
from pipeline.testing.simulation.inside import Inside
from pipeline.testing.simulation.joined_observers import JoinedObservers
from pipeline.testing.simulation.network import SimulatedNetwork
from pipeline.testing.simulation.process import PROCESS, Process
from pipeline.testing.simulation.schedule import true_time_ms
from pipeline.testing.simulation.trace import Trace
from pipeline.testing.simulation.zookeeper import SimulatedConnection, SimulatedZooKeeper

PORT = 9092
RETRY_S = 1.0


class Companion(Protocol):
    """Part of a broker's process that is no part of the broker, for one life: the audit's counter."""

    @property
    def observer(self) -> LogObserver:
        """Observer of the broker's logs."""

    async def run(self) -> None:
        """Work from the moment when the broker serves until cancelled."""


class Machine:
    """`start` has its broker run in the nursery given."""

    def __init__(
        self,
        broker_id: int,
        directory: Path,
        settings: Mapping[str, Any],
        *,
        zookeeper: SimulatedZooKeeper,
        network: SimulatedNetwork,
        inside: Inside,
        trace: Trace,
        seed: str,
        cluster: str,
    ) -> None:
        self.id = BrokerId(broker_id)
        self.name = f"{cluster}-{broker_id}"
        self.host = network.host(self.name)
        self.handle: BrokerHandle | None = None
        self.connection: SimulatedConnection | None = None
        self.process = Process(self.name, is_alive=False)
        self._random = random.Random(f"{self.name} {seed}")
        self.companion: Callable[[Machine], Companion] | None = None
        """Makes the companion of a life."""
        self._boots = 0
        self._zookeeper = zookeeper
        self._inside = inside
        self.disk = self._boot()
        self._trace = trace
        self._lives = 0
        self._skew_ms = self._random.randint(-200, 200)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._ended.set()
        self.config = BrokerConfig.from_settings(
            {
                "broker.id": broker_id,
                "listeners": f"PLAINTEXT://{self.name}:{PORT}",
                "log.dirs": str(directory / self.name),
                "zookeeper.connect": "simulated:2181",
                **settings,
            }
        )

    @property
    def address(self) -> HostPort:
        """Address at which clients find the broker."""
        return HostPort(self.name, PORT)

    @property
    def is_serving(self) -> bool:
        """True if the broker has come up."""
        return self.process.is_alive and self.handle is not None

    @property
    def is_running(self) -> bool:
        """True if there is a process, or will be by itself."""
        return not self._ended.is_set() and not self._scope.cancel_called

    @property
    def has_failed_disk(self) -> bool:
        """True if the broker reports a failed disk, or met one at its start, which may fail a single log."""
        says_so = self.handle is not None and self.handle.disk_trouble() is not None
        return says_so or self.disk.has_refused_a_sync

    def clock(self) -> int:
        """The wall clock of this machine: a little wrong, or very wrong."""
        return true_time_ms() + self._skew_ms

    # Faults

    def step_clock(self, step_ms: int) -> None:
        """Set the wall clock on or back, as a correction by NTP or a move to another host does."""
        self._trace.add(self.name, f"CLOCK STEPS {step_ms} ms")
        self._skew_ms += step_ms
        self.process.clock_error_s = self._skew_ms / 1000

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock forward, or (below 0) back."""
        self._trace.add(self.name, f"CLOCK {by_ms:+} ms")
        self._skew_ms += by_ms

    def kill(self) -> None:
        """End the process at once; the machine goes on."""
        if self.process.is_alive:
            self._trace.add(self.name, "KILLED")
            self._die()
            self.disk = self.disk.end_process()

    def lose_power(self) -> None:
        """End the process and lose what was not synced."""
        if self.process.is_alive:
            self._trace.add(self.name, "LOST POWER")
            self._die(tells_peers=False)
        self.disk.end_process()
        self.disk.lose_power()
        self._inside.lost_power(self.id)
        self.disk = self._boot()

    def _boot(self) -> FaultyFiles:
        """The disk as a machine sees it that has just got power."""
        self._boots += 1
        disk = FaultyFiles(self._inside.files(self.id), self._random)
        disk.boot = f"{self.name} boot {self._boots}"
        return disk

    def stop(self) -> None:
        """Ask the process to end."""
        self._trace.add(self.name, "STOP")
        self._scope.cancel()

    def pause(self) -> None:
        """Stop the process as SIGSTOP does."""
        if self.process.is_alive and not self.process.is_stopped:
            self._trace.add(self.name, "PAUSED")
            self.process.stop()
            if self.connection is not None:
                self.connection.stopped()

    def go_on(self) -> None:
        """End a pause."""
        if self.process.is_stopped:
            self._trace.add(self.name, "GOES ON")
            self.process.go_on()
            if self.connection is not None:
                self.connection.went_on()

    def _die(self, *, tells_peers: bool = True) -> None:
        """Nothing that the process does from now on has an effect."""
        self.process.is_alive = False
        self.handle = None
        if self.connection is not None:
            self.connection.kill()
        self.host.end_process(tells_peers=tells_peers)
        self._scope.cancel()
        if self.process.is_stopped:
            self.process.go_on()

    # Lives

    async def run_until_stopped(self) -> None:
        """Run the broker, again if the disk has refused; return when it was stopped, killed, or lost its power."""
        await self._ended.wait()
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        try:
            with self._scope:
                while True:
                    await self._live()
                    await trio.sleep(RETRY_S)
        finally:
            self._ended.set()

    async def _live(self) -> None:
        """Run one life of the broker."""
        self._lives += 1
        process = self.process = Process(self.name, clock_error_s=self._skew_ms / 1000)
        self.host.has_power = True
        self.disk.on_crash = self.kill
        self._trace.add(self.name, f"STARTS, life {self._lives}")
        try:
            await self._run(process)
        except PipelineError as error:
            self._trace.add(self.name, f"gives up: {error}")
        except Crash:
            pass
        except BaseExceptionGroup as group:
            self._explain(process, group)
        except trio.Cancelled:
            raise
        except Exception as error:
            self._trace.unexpected(self.name, "the broker ended", error)
        finally:
            if process.is_alive:
                process.is_alive = False
                self.handle = None
                self.host.end_process(tells_peers=True)
                self.disk = self.disk.end_process()

    def _explain(self, process: Process, group: BaseExceptionGroup[BaseException]) -> None:
        """Reduce several errors to what they mean."""
        cancelled, others = group.split(trio.Cancelled)
        _, others = others.split(Crash) if others is not None else (None, None)
        if others is not None:
            _, unexpected = others.split(PipelineError)
            if unexpected is not None and process.is_alive:
                self._trace.unexpected(self.name, "the broker ended", unexpected)
            else:
                self._trace.add(self.name, f"gives up: {others!r}")
        if cancelled is not None:
            raise cancelled

    async def _run(self, process: Process) -> None:
        token = PROCESS.set(process)
        try:
            async with self._zookeeper.open_session(process, self.config.zookeeper_session_timeout_ms) as connection:
                self.connection = connection
                broker = partial(
                    run_broker,
                    self.config,
                    connection.client,
                    clock=self.clock,
                    rng=random.Random(f"{self.name} {self._lives} {self._random.random()}"),
                    metrics=CollectorRegistry(),
                    files=self.disk,
                    network=self.host,
                )
                observer = self._inside.observer(self.id, self._lives)
                if self.companion is None:
                    await broker(observer=observer, task_status=_Started(self))
                else:
                    await self._run_both(broker, observer, self.companion(self))
        finally:
            with suppress(ValueError):
                PROCESS.reset(token)

    async def _run_both(self, broker: Callable[..., Any], observer: LogObserver, companion: Companion) -> None:
        serving = trio.Event()

        async def run_companion() -> None:
            await serving.wait()
            await companion.run()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_companion)
            observers = JoinedObservers((observer, companion.observer))
            await broker(observer=observers, task_status=_Started(self, serving))
            nursery.cancel_scope.cancel()

    def came_up(self, handle: BrokerHandle) -> None:
        """The broker serves."""
        if self.process.is_alive:
            self._trace.add(self.name, "serves")
            self.handle = handle
            self._inside.serves(self.id, self.process, handle.replicas.partitions)


class _Started:
    """Tells a machine that its broker serves."""

    def __init__(self, machine: Machine, serving: trio.Event | None = None) -> None:
        self._machine = machine
        self._serving = serving

    def started(self, value: Any = None) -> None:
        """Called by the broker."""
        self._machine.came_up(value)
        if self._serving is not None:
            self._serving.set()
