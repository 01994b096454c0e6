"""A simulated mirror process: the real mirror service on a host of its own, which is killed, stopped and paused.

What its HTTP server would do is left out: the outsider reads the status and requests things by calls. A process that
is killed or paused answers none.
"""

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial
from typing import Any

import trio
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.errors import NetworkError, PipelineError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.copy_observer import CopyObserver
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.service import MirrorService
from pipeline.model import HostPort
from pipeline.net.transport import Transport
from pipeline.testing.simulation.network import SimulatedNetwork
from pipeline.testing.simulation.process import PROCESS, Process
from pipeline.testing.simulation.schedule import true_time_ms
from pipeline.testing.simulation.trace import Trace
from pipeline.testing.simulation.zookeeper import SimulatedConnection, SimulatedZooKeeper

CLIENT_ID = "pipeline-mirror"


class SimulatedMirror:
    """A mirror and its host. `run_until_stopped` runs one life of it."""

    def __init__(
        self,
        name: str,
        config: MirrorConfig,
        hub: Sequence[HostPort],
        *,
        network: SimulatedNetwork,
        trace: Trace,
        seed: str,
        zookeeper: SimulatedZooKeeper | None = None,
    ) -> None:
        """`zookeeper`: that of the hub, if the mirror shares its work with others."""
        self.name = name
        self.host = network.host(name)
        self.process = Process(name, is_alive=False)
        self.service: MirrorService | None = None
        self.connection: SimulatedConnection | None = None
        """Connection to ZooKeeper, if the mirror has a group."""
        self.counting: Callable[[SimulatedMirror, Cluster], AbstractAsyncContextManager[CopyObserver]] | None = None
        """Counts the copies of a life, and reports them to the hub."""
        self.began_at = 0.0
        """Time at which the present process began."""
        self.expired_at = -math.inf
        """Time at which ZooKeeper dropped the session of a process that was alive and connected."""
        self._zookeeper = zookeeper
        self._config = config
        self._hub = tuple(hub)
        self._trace = trace
        self._random = random.Random(f"{name} {seed}")
        self._skew_ms = self._random.randint(-200, 200)
        self._lives = 0
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._ended.set()
        self._nursery: trio.Nursery | None = None

    @property
    def is_running(self) -> bool:
        """True if there is a process, or will be by itself."""
        return not self._ended.is_set() and not self._scope.cancel_called

    @property
    def answering(self) -> MirrorService | None:
        """The service, if the process would answer a request now."""
        is_ending = self._scope.cancel_called
        return self.service if self.process.is_alive and not self.process.is_stopped and not is_ending else None

    def clock(self) -> int:
        """Return the wall clock of this host, which is a little wrong, or very wrong."""
        return true_time_ms() + self._skew_ms

    @property
    def clock_error_s(self) -> float:
        """Error of the wall clock in seconds."""
        return abs(self._skew_ms) / 1000

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock forward, or (below 0) back."""
        self._trace.add(self.name, f"CLOCK {by_ms:+} ms")
        self._skew_ms += by_ms

    def kill(self) -> None:
        """End the process at once."""
        if self.process.is_alive:
            self._trace.add(self.name, "KILLED")
            self.process.is_alive = False
            self.service = None
            if self.connection is not None:
                self.connection.kill()
            self.host.end_process(tells_peers=True)
            self._scope.cancel()
            if self.process.is_stopped:
                self.process.go_on()

    def stop(self) -> None:
        """Ask the process to end, as SIGTERM does."""
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

    def request(
        self,
        what: str,
        act: Callable[[MirrorService], Awaitable[Any]],
        answered: Callable[[Any], None] = lambda _answer: None,
    ) -> bool:
        """Have the mirror act as at a request of its HTTP server. Return False if the process would not answer.

        `answered` is called with the answer, and never if the request fails or the process dies.
        """
        if self.answering is None or self._nursery is None:
            return False
        self._trace.add(self.name, what)
        self._nursery.start_soon(self._act, self.process, what, partial(act, self.answering), answered)
        return True

    async def _act(
        self, process: Process, what: str, act: Callable[[], Awaitable[Any]], answered: Callable[[Any], None]
    ) -> None:
        PROCESS.set(process)  # of this task alone, which an outsider has started
        try:
            answer = await act()
        except PipelineError as error:
            self._trace.add(self.name, f"{what}: {error}")
        else:
            answered(answer)

    async def run_until_stopped(self) -> None:
        """Run one life; return when it was stopped or killed. Return at once if another start came first.

        The life before may take a while to unwind, and several starts may wait for that.
        """
        before = self._ended
        await before.wait()
        if self._ended is not before:
            return
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self._lives += 1
        process = self.process = Process(self.name)
        self.began_at, self.connection = trio.current_time(), None
        self.host.has_power = True
        self._trace.add(self.name, f"STARTS, life {self._lives}")
        try:
            with self._scope:
                await self._live(process)
        except trio.Cancelled:
            raise
        except Exception as error:
            if process.is_alive:
                self._trace.unexpected(self.name, "the mirror ended", error)
        finally:
            if process.is_alive:
                process.is_alive = False
                self.host.end_process(tells_peers=True)
            self.service = self._nursery = None
            self._ended.set()

    def _connect(self, brokers: tuple[HostPort, ...], process: Process) -> AbstractAsyncContextManager[Cluster]:
        async def connect(address: HostPort) -> Transport:
            if not process.is_alive:
                raise NetworkError("the process has ended")
            return await self.host.connect(address)

        return open_cluster(ClientConfig(bootstrap=brokers, client_id=CLIENT_ID), connect=connect)

    async def _live(self, process: Process) -> None:
        token = PROCESS.set(process)
        try:
            async with AsyncExitStack() as stack:
                hub = await stack.enter_async_context(self._connect(self._hub, process))
                if self._zookeeper is not None:
                    session = self._zookeeper.open_session(process, self._config.zookeeper_session_timeout_ms)
                    self.connection = await stack.enter_async_context(session)
                observer = None
                if self.counting is not None:
                    observer = await stack.enter_async_context(self.counting(self, hub))
                service = MirrorService(
                    self._config,
                    lambda source: self._connect(source.bootstrap, process),
                    hub,
                    clock=self.clock,
                    rng=random.Random(f"{self.name} {self._lives} {self._random.random()}"),
                    metrics=MirrorMetrics(CollectorRegistry()),
                    coordination=None if self.connection is None else self.connection.client,
                    observer=observer,
                )
                async with trio.open_nursery() as nursery:
                    await nursery.start(service.run)
                    self.service, self._nursery = service, nursery
        finally:
            with suppress(ValueError):
                PROCESS.reset(token)
