"""ZooKeeper as brokers meet it over a network: answers take time, and connections and sessions are lost.

What the znodes promise is `MemoryZooKeeper`'s. Here each client has a connection of its own.

Invariants
  A. What one client asks is done in the order in which it was asked, and answered in that order; a watch fires before
     the client can see what it fired for.
  B. A session ends when nothing was heard of its client for the session timeout: it is cut off, stopped or dead. The
     client learns of that when it is connected again, not before.
  C. Of what was on its way when a connection broke, a beginning was done; no answer comes. Reads are repeated, writes
     raise CoordinationLostError.
"""

import math
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import trio

from pipeline.coordination.interface import ANY_VERSION, SessionId
from pipeline.errors import CoordinationError, CoordinationLostError, CoordinationUnavailableError
from pipeline.testing.faulty_files import Crash
from pipeline.testing.memory_zookeeper import MemoryClient
from pipeline.testing.simulation.partition_znodes import PartitionZnodes
from pipeline.testing.simulation.process import Process
from pipeline.testing.simulation.schedule import Channel, Schedule
from pipeline.testing.simulation.trace import Trace
from pipeline.testing.znodes import Znode, Znodes

_Answer = TypeVar("_Answer")
Snapshot = Mapping[str, Any]
"""Znodes by their paths."""

FAST_S = (0.0003, 0.004)
SLOW_S = (0.02, 0.2)
SLOW = 0.03
RECONNECT_S = (0.01, 0.3)
NOTICED = 2 / 3
"""The part of the session timeout after which a client gives up a silent connection."""


@dataclass(eq=False)
class _Value(Generic[_Answer]):
    """The result of an operation."""

    value: _Answer


@dataclass(eq=False)
class _Call(Generic[_Answer]):
    """An operation under way. Without an answer once it is done, the answer was lost."""

    done: trio.Event = field(default_factory=trio.Event)
    answer: _Value[_Answer] | CoordinationError | None = None


class SimulatedZooKeeper:
    """The servers. `open_session` gives a client of them."""

    def __init__(self, schedule: Schedule, rng: random.Random, trace: Trace, name: str = "zookeeper") -> None:
        self.name = name
        self.znodes = Znodes(self._wake)
        self.partitions = PartitionZnodes(self.znodes)
        self.schedule = schedule
        self.rng = rng
        self.trace = trace
        self.live_sessions: dict[SessionId, None] = {}
        self.on_changes: Callable[[Mapping[str, bytes | None]], None] = _nothing
        """Called with the znodes that one operation has written, None for those that are gone."""
        self.on_restored: Callable[[], None] = _nothing_restored
        """Called when ZooKeeper has gone back in time."""
        self._written: dict[str, None] = {}
        self._connections: list[SimulatedConnection] = []
        self._last_session = 0

    def delay_s(self) -> float:
        """Draw the seconds that a message takes."""
        return self.rng.uniform(*(SLOW_S if self.rng.random() < SLOW else FAST_S))

    @asynccontextmanager
    async def open_session(self, process: Process, session_timeout_ms: int) -> AsyncGenerator["SimulatedConnection"]:
        """Connect a client. Its session ends with the block, or times out if the process was killed."""
        connection = SimulatedConnection(self, process, session_timeout_ms)
        self._connections.append(connection)
        try:
            connection.connect()
            yield connection
        finally:
            connection.end()

    def begin_session(self) -> SessionId:
        """Begin a session."""
        self._last_session += 1
        session = SessionId(self._last_session)
        self.live_sessions[session] = None
        return session

    def end_session(self, session: SessionId | None) -> None:
        """Remove its ephemeral znodes."""
        if session is not None and session in self.live_sessions:
            del self.live_sessions[session]
            self.znodes.remove_ephemerals(session)

    def settle(self, *, has_failed: bool = False) -> None:
        """Report what an operation that is over wrote. One that failed wrote nothing."""
        written, self._written = self._written, {}
        if written and not has_failed:
            nodes = {path: self.znodes.find_or_none(path) for path in written}
            self.on_changes({path: None if node is None else node.data for path, node in nodes.items()})

    # Going back in time

    def snapshot(self, path: str = "/") -> Snapshot:
        """All znodes below a path that belong to no session, and the znode itself."""
        return {
            name: node for name, node in self.znodes.by_path.items() if node.owner is None and _is_below(name, path)
        }

    def contents(self, *paths: str) -> Mapping[str, bytes]:
        """Return the data of the znodes directly below these paths."""
        children = [f"{path}/{name}" for path in paths for name in self.znodes.children(path)]
        return {name: node.data for name in children if (node := self.znodes.find_or_none(name)) is not None}

    def lose(self, path: str) -> None:
        """Have a znode vanish, and all below it, as if somebody had removed them by hand."""
        for name in sorted(self.snapshot(path), reverse=True):
            self.znodes.delete(name, ANY_VERSION)
        self.settle()

    def put_back(self, znodes: Snapshot) -> None:
        """Have znodes that vanished come back as they were, with their versions."""
        for name in sorted(znodes):
            self.znodes.create(name, b"", None, sequential=False, make_parents=True)
        self.znodes.by_path.update(znodes)
        self.settle()

    def tamper(self, path: str, znode: Any | None) -> None:
        """Have a znode vanish (None) or be another one, as if somebody did that by hand, who tells nobody.

        Nothing is reported: whatever follows is judged by what was there before.
        """
        self.znodes.delete(path, ANY_VERSION)
        if znode is not None:
            self.znodes.create(path, b"", None, sequential=False, make_parents=True)
            self.znodes.by_path[path] = znode
        self._written.clear()

    def go_back(self, znodes: Snapshot) -> None:
        """Go back to a snapshot, or to nothing, as servers that lost their disks do. All sessions end."""
        for session in list(self.live_sessions):
            self.end_session(session)
        changed = {**self.znodes.by_path, **znodes}
        self.znodes.by_path = {
            "/": Znode(),
            **{
                path: replace(node, children=_children_in(path, node.children, znodes)) for path, node in znodes.items()
            },
        }
        self._written.clear()
        self.on_restored()
        self._notify(changed)
        for connection in list(self._connections):
            connection.lose_connection()

    def remove(self, connection: "SimulatedConnection") -> None:
        """Remove a connection, whose client watches nothing any more."""
        if connection in self._connections:
            self._connections.remove(connection)

    def _wake(self, path: str, *parents: str) -> None:
        self._written[path] = None
        self._notify((path, *parents))

    def _notify(self, paths: Iterable[str]) -> None:
        for connection in self._connections:
            connection.notify(tuple(paths))


class SimulatedConnection:
    """The connection of a client in a process, and the session that it keeps."""

    def __init__(self, server: SimulatedZooKeeper, process: Process, session_timeout_ms: int) -> None:
        self.client = MemoryClient(server.znodes, self, session_timeout_ms)
        self._zookeeper = server
        self._process = process
        self.session_timeout_s = session_timeout_ms / 1000
        self._up = Channel(server.schedule, server.delay_s)
        self._down = Channel(server.schedule, server.delay_s)
        self._calls: dict[_Call[Any], None] = {}
        self._writes = 0
        self._is_cut = False
        self._silences = 0
        """How often the servers stopped or began again to hear of this client."""
        self.is_dead = False

    @property
    def is_writing(self) -> bool:
        """True if a write waits for its answer."""
        return self._writes > 0

    # Faults

    def cut(self) -> None:
        """Cut the network in both directions."""
        if self._is_cut or self.is_dead:
            return
        self._is_cut = True
        self._up.cut()
        self._down.cut()
        self._begin_silence()
        silence = self._silences
        self._zookeeper.schedule.after(self.session_timeout_s * NOTICED, lambda: self._notice(silence))

    def heal(self) -> None:
        """Heal the network."""
        if self._is_cut:
            self._is_cut = False
            self._up.heal()
            self._down.heal()
            self._end_silence()

    def stopped(self) -> None:
        """The process is stopped: nothing is heard of it."""
        self._begin_silence()

    def went_on(self) -> None:
        """The process goes on."""
        if not self._is_cut:
            self._end_silence()

    def lose_connection(self) -> None:
        """The connection breaks; another one is made soon."""
        if not self.is_dead and self.client.history.is_connected:
            self._break()
            self._reconnect_soon()

    def expire_session(self) -> None:
        """The servers drop the session; the client hears of that when it is connected again."""
        if not self.is_dead:
            self._zookeeper.end_session(self.client.session)
            self.lose_connection()

    def kill(self) -> None:
        """The process is dead. Its session times out."""
        self.is_dead = True
        self._up.drop(self._zookeeper.rng.randint(0, len(self._up)))
        self._down.drop()
        self._zookeeper.remove(self)
        self._begin_silence()

    # The connection

    def connect(self) -> None:
        """The first connection."""
        self._reconnect_soon()

    def end(self) -> None:
        """Close the session, unless the process is dead."""
        if not self.is_dead:
            self.is_dead = True
            self._zookeeper.remove(self)
            self._zookeeper.end_session(self.client.session)

    def _begin_silence(self) -> None:
        self._silences += 1
        silence, session = self._silences, self.client.session

        def time_out() -> None:
            if self._silences == silence and session in self._zookeeper.live_sessions:
                self._zookeeper.trace.add(self._zookeeper.name, f"session of {self._process.name} has timed out")
                self._zookeeper.end_session(session)

        self._zookeeper.schedule.after(self.session_timeout_s, time_out)

    def _end_silence(self) -> None:
        self._silences += 1
        if self.is_dead:
            return
        if not self.client.history.is_connected:
            self._reconnect_soon()
        elif self.client.session not in self._zookeeper.live_sessions:
            delay_s = self._zookeeper.rng.uniform(*RECONNECT_S)
            self._zookeeper.schedule.after(delay_s, self.lose_connection)

    def _notice(self, silence: int) -> None:
        if self._silences == silence and not self._process.is_stopped and not self.is_dead:
            self._break()

    def _break(self) -> None:
        rng = self._zookeeper.rng
        self._up.drop(rng.randint(0, len(self._up)))
        self._down.drop()
        self.client.history.suspended()
        calls, self._calls = self._calls, {}
        for call in calls:
            call.done.set()

    def _reconnect_soon(self) -> None:
        self._zookeeper.schedule.after(self._zookeeper.rng.uniform(*RECONNECT_S), self._reconnect)

    def _reconnect(self) -> None:
        if self.is_dead or self.client.history.is_connected:
            return
        if self._is_cut or self._process.is_stopped:
            return  # the end of the silence connects
        is_alive = self.client.session is not None and self.client.session in self._zookeeper.live_sessions
        session = (
            self.client.session if is_alive and self.client.session is not None else self._zookeeper.begin_session()
        )
        self._zookeeper.trace.add(self._process.name, f"zookeeper session {session}{'' if is_alive else ' is new'}")
        self.client.become_connected(session)

    def notify(self, paths: Sequence[str]) -> None:
        """Wake the watches of znodes that may have changed, once the client hears of that."""
        if self.client.history.is_connected and not self.is_dead:
            self._down.send(lambda: self.client.wake(paths))

    # Operations

    async def read(
        self, client: MemoryClient, path: str, act: Callable[[], _Answer], *, waits_for_ever: bool
    ) -> _Answer:
        """Carry out an operation, and repeat one whose answer was lost."""
        timeout_s = math.inf if waits_for_ever else client.operation_timeout_s
        deadline = trio.current_time() + timeout_s
        while True:
            call = await self._ask(path, act, deadline)
            if call.answer is not None:
                return _answer_of(call)
            if trio.current_time() >= deadline:
                raise CoordinationUnavailableError(path, "no answer in time; nothing was changed")

    async def write(self, client: MemoryClient, path: str, act: Callable[[], _Answer]) -> _Answer:
        """Carry out an operation. Raises CoordinationLostError if the answer was lost."""
        self._writes += 1
        try:
            call = await self._ask(path, act, trio.current_time() + client.operation_timeout_s)
        finally:
            self._writes -= 1
        if call.answer is None:
            raise CoordinationLostError(path, "connection lost: read it back to see whether it was done")
        return _answer_of(call)

    async def _ask(self, path: str, act: Callable[[], _Answer], deadline: float) -> _Call[_Answer]:
        await trio.lowlevel.checkpoint()
        if not self.client.history.is_connected:
            with trio.move_on_at(deadline):
                await self.client.history.wait_connected()
        if self.is_dead:
            raise Crash
        if not self.client.history.is_connected:
            raise CoordinationUnavailableError(path, "no answer in time; nothing was changed")
        call, session = _Call[_Answer](), self.client.session
        self._calls[call] = None
        self._up.send(lambda: self._perform(call, act, session))
        try:
            with trio.move_on_at(deadline):
                await call.done.wait()
        finally:
            self._calls.pop(call, None)
        return call

    def _perform(self, call: _Call[_Answer], act: Callable[[], _Answer], session: SessionId | None) -> None:
        """Carry out an operation at the servers."""
        if session not in self._zookeeper.live_sessions:
            return
        answer: _Value[_Answer] | CoordinationError
        try:
            answer = _Value(act())
        except CoordinationError as error:
            answer = error
        self._zookeeper.settle(has_failed=isinstance(answer, CoordinationError))
        self._down.send(lambda: self._answered(call, answer))

    def _answered(self, call: _Call[_Answer], answer: _Value[_Answer] | CoordinationError) -> None:
        call.answer = answer
        call.done.set()


def _is_below(name: str, path: str) -> bool:
    """True if the znode is the one at a path, or below it."""
    return path in (name, "/") or name.startswith(f"{path}/")


def _children_in(path: str, children: Iterable[str], znodes: Snapshot) -> frozenset[str]:
    """The children that a snapshot has, too: it lacks those that belonged to a session."""
    parent = "" if path == "/" else path
    return frozenset(child for child in children if f"{parent}/{child}" in znodes)


def _nothing_restored() -> None:
    """Ignore the report."""


def _nothing(_znodes: Mapping[str, bytes | None]) -> None:
    """Ignore the report."""


def _answer_of(call: _Call[_Answer]) -> _Answer:
    answer = call.answer
    assert answer is not None
    if isinstance(answer, CoordinationError):
        raise answer
    return answer.value
