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

import json
import random
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

import trio

from pipeline.coordination.interface import ANY_VERSION, Operation, SessionId
from pipeline.coordination.znodes import decode_uuid
from pipeline.errors import CoordinationError, CoordinationLostError, CoordinationUnavailableError
from pipeline.model import TopicPartition
from pipeline.testing.faulty_files import Crash
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper
from pipeline.testing.simulation.process import Process
from pipeline.testing.simulation.schedule import Channel, Schedule
from pipeline.testing.simulation.state_rules import StateInZooKeeper, decode_state
from pipeline.testing.simulation.trace import Trace

_Answer = TypeVar("_Answer")
Snapshot = Mapping[str, Any]
"""Znodes by their paths."""

FAST_S = (0.0003, 0.004)
SLOW_S = (0.02, 0.2)
SLOW = 0.03
TOPICS_PATH = "/brokers/topics"
RECONNECT_S = (0.01, 0.3)
NOTICED = 2 / 3
"""The part of the session timeout after which a client gives up a silent connection."""


@dataclass(eq=False)
class _Value(Generic[_Answer]):
    """What an operation gave."""

    value: _Answer


@dataclass(eq=False)
class _Call(Generic[_Answer]):
    """An operation under way. Without an answer once it is done, the answer was lost."""

    done: trio.Event = field(default_factory=trio.Event)
    answer: _Value[_Answer] | CoordinationError | None = None


class SimulatedZooKeeper(MemoryZooKeeper):
    """The servers. `open_session` gives a client of them."""

    def __init__(self, schedule: Schedule, rng: random.Random, trace: Trace) -> None:
        super().__init__()
        self.schedule = schedule
        self.rng = rng
        self.trace = trace
        self.live_sessions: dict[SessionId, None] = {}
        self.on_changes: Callable[[Mapping[str, bytes | None]], None] = _nothing
        """Called with the znodes that one operation has written, None for those that are gone."""
        self.on_restored: Callable[[], None] = _nothing_restored
        """Called when ZooKeeper has gone back in time."""
        self._written: dict[str, None] = {}

    def delay_s(self) -> float:
        """How long a message takes."""
        return self.rng.uniform(*(SLOW_S if self.rng.random() < SLOW else FAST_S))

    @asynccontextmanager
    async def open_session(self, process: Process, session_timeout_ms: int) -> AsyncGenerator["SimulatedClient"]:
        """A client, whose session ends with the block unless its process was killed: then the session times out."""
        client = SimulatedClient(self, process, session_timeout_ms)
        self._clients.append(client)
        try:
            client.connect()
            yield client
        finally:
            client.end()

    def begin_session(self) -> SessionId:
        """A new session."""
        session = self.new_session()
        self.live_sessions[session] = None
        return session

    def end_session(self, session: SessionId | None) -> None:
        """Remove its ephemeral znodes."""
        if session is not None and session in self.live_sessions:
            del self.live_sessions[session]
            self._remove_ephemerals(session)

    def create(self, path: str, data: bytes, owner: SessionId | None, *, sequential: bool, make_parents: bool) -> str:
        created = super().create(path, data, owner, sequential=sequential, make_parents=make_parents)
        self._written[created] = None
        return created

    def set(self, path: str, data: bytes, version: int) -> int:
        written = super().set(path, data, version)
        self._written[path] = None
        return written

    def delete(self, path: str, version: int) -> None:
        super().delete(path, version)
        self._written[path] = None

    def transaction(self, operations: Sequence[Operation], session: SessionId) -> None:
        try:
            super().transaction(operations, session)
        except CoordinationError:
            self._written.clear()
            raise

    def settle(self) -> None:
        """An operation is over: report what it wrote."""
        written, self._written = self._written, {}
        if written:
            nodes = {path: self.find_or_none(path) for path in written}
            self.on_changes({path: None if node is None else node.data for path, node in nodes.items()})

    # Going back in time

    def snapshot(self, path: str = "/") -> Snapshot:
        """All znodes below a path that belong to no session, and the znode itself."""
        return {name: node for name, node in self._nodes.items() if node.owner is None and _is_below(name, path)}

    def contents(self, *paths: str) -> Mapping[str, bytes]:
        """Return the data of the znodes directly below these paths."""
        children = [f"{path}/{name}" for path in paths for name in self._children(path)]
        return {name: node.data for name in children if (node := self.find_or_none(name)) is not None}

    def lose(self, path: str) -> None:
        """Have a znode vanish, and all below it, as if somebody had removed them by hand."""
        for name in sorted(self.snapshot(path), reverse=True):
            self.delete(name, ANY_VERSION)
        self.settle()

    def put_back(self, znodes: Snapshot) -> None:
        """Have znodes that vanished come back as they were, with their versions."""
        for name in sorted(znodes):
            self.create(name, b"", None, sequential=False, make_parents=True)
        self._nodes.update(znodes)
        self.settle()

    def tamper(self, path: str, znode: Any | None) -> None:
        """Have a znode vanish (None) or be another one, as if somebody did that by hand, who tells nobody.

        Nothing is reported: whatever follows is judged by what was there before.
        """
        self.delete(path, ANY_VERSION)
        if znode is not None:
            self.create(path, b"", None, sequential=False, make_parents=True)
            self._nodes[path] = znode
        self._written.clear()

    def go_back(self, znodes: Snapshot) -> None:
        """Go back to a snapshot, or to nothing, as servers that lost their disks do. All sessions end."""
        for session in list(self.live_sessions):
            self.end_session(session)
        changed = {**self._nodes, **znodes}
        self._nodes = {
            **MemoryZooKeeper()._nodes,
            **{
                path: replace(node, children=_children_in(path, node.children, znodes)) for path, node in znodes.items()
            },
        }
        self._written.clear()
        self.on_restored()
        self._wake(*changed)
        for client in list(self._clients):
            if isinstance(client, SimulatedClient):
                client.lose_connection()

    def states(self) -> dict[TopicPartition, StateInZooKeeper]:
        """All partitions that have a state."""
        found = {}
        for topic in self._children(TOPICS_PATH):
            for number in sorted(self._children(f"{TOPICS_PATH}/{topic}/partitions"), key=int):
                node = self.find_or_none(f"{TOPICS_PATH}/{topic}/partitions/{number}/state")
                if node is not None:
                    found[TopicPartition(topic, int(number))] = decode_state(node.data)
        return found

    def state(self, topic_partition: TopicPartition) -> StateInZooKeeper | None:
        """The state of a partition, None if there is none."""
        topic, partition = topic_partition
        node = self.find_or_none(f"{TOPICS_PATH}/{topic}/partitions/{partition}/state")
        return None if node is None else decode_state(node.data)

    def partitions(self) -> list[TopicPartition]:
        """All partitions that are assigned to brokers, with a state or without."""
        found = []
        for topic in self._children(TOPICS_PATH):
            numbers = _decode_topic(self._nodes[f"{TOPICS_PATH}/{topic}"].data).get("partitions", {})
            found += [TopicPartition(topic, int(number)) for number in sorted(numbers, key=int)]
        return found

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """The id of a topic, None if there is no such topic."""
        path = f"{TOPICS_PATH}/{topic}"
        node = self.find_or_none(path)
        text = None if node is None else _decode_topic(node.data).get("topic_id")
        return None if text is None else decode_uuid(path, text)

    def replica_ids(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        """The brokers that a partition is assigned to."""
        return self._assigned(topic_partition, "partitions")

    def origin_ids(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        """The brokers that a partition is assigned to, without those that a reassignment adds."""
        adding = self._assigned(topic_partition, "adding_replicas")
        return tuple(broker for broker in self.replica_ids(topic_partition) if broker not in adding)

    def _assigned(self, topic_partition: TopicPartition, how: str) -> tuple[int, ...]:
        node = self.find_or_none(f"{TOPICS_PATH}/{topic_partition.topic}")
        assigned = _decode_topic(node.data).get(how, {}) if node is not None else {}
        return tuple(assigned.get(str(topic_partition.partition), ()))

    def _children(self, path: str) -> list[str]:
        node = self.find_or_none(path)
        return [] if node is None else sorted(node.children)

    def forget(self, client: "SimulatedClient") -> None:
        """It watches nothing any more."""
        if client in self._clients:
            self._clients.remove(client)


class SimulatedClient(MemoryClient):
    """A client in a process."""

    def __init__(self, server: SimulatedZooKeeper, process: Process, session_timeout_ms: int) -> None:
        super().__init__(server, session_timeout_ms)
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
        """Whether a write waits for its answer."""
        return self._writes > 0

    # Faults

    def cut(self) -> None:
        """Nothing gets through, in neither direction."""
        if self._is_cut or self.is_dead:
            return
        self._is_cut = True
        self._up.cut()
        self._down.cut()
        self._begin_silence()
        silence = self._silences
        self._zookeeper.schedule.after(self.session_timeout_s * NOTICED, lambda: self._notice(silence))

    def heal(self) -> None:
        """All gets through again."""
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
        if not self.is_dead and self.history.is_connected:
            self._break()
            self._reconnect_soon()

    def expire_session(self) -> None:
        """The servers drop the session; the client hears of that when it is connected again."""
        if not self.is_dead:
            self._zookeeper.end_session(self.session)
            self.lose_connection()

    def kill(self) -> None:
        """The process is dead. Its session times out."""
        self.is_dead = True
        self._up.drop(self._zookeeper.rng.randint(0, len(self._up)))
        self._down.drop()
        self._zookeeper.forget(self)
        self._begin_silence()

    # The connection

    def connect(self) -> None:
        """The first connection."""
        self._reconnect_soon()

    def end(self) -> None:
        """Close the session, unless the process is dead."""
        if not self.is_dead:
            self.is_dead = True
            self._zookeeper.forget(self)
            self._zookeeper.end_session(self.session)

    def _begin_silence(self) -> None:
        self._silences += 1
        silence, session = self._silences, self.session

        def time_out() -> None:
            if self._silences == silence and session in self._zookeeper.live_sessions:
                self._zookeeper.trace.add("zookeeper", f"session of {self._process.name} has timed out")
                self._zookeeper.end_session(session)

        self._zookeeper.schedule.after(self.session_timeout_s, time_out)

    def _end_silence(self) -> None:
        self._silences += 1
        if self.is_dead:
            return
        if not self.history.is_connected:
            self._reconnect_soon()
        elif self.session not in self._zookeeper.live_sessions:
            delay_s = self._zookeeper.rng.uniform(*RECONNECT_S)
            self._zookeeper.schedule.after(delay_s, self.lose_connection)

    def _notice(self, silence: int) -> None:
        if self._silences == silence and not self._process.is_stopped and not self.is_dead:
            self._break()

    def _break(self) -> None:
        rng = self._zookeeper.rng
        self._up.drop(rng.randint(0, len(self._up)))
        self._down.drop()
        self.history.suspended()
        calls, self._calls = self._calls, {}
        for call in calls:
            call.done.set()

    def _reconnect_soon(self) -> None:
        self._zookeeper.schedule.after(self._zookeeper.rng.uniform(*RECONNECT_S), self._reconnect)

    def _reconnect(self) -> None:
        if self.is_dead or self.history.is_connected:
            return
        if self._is_cut or self._process.is_stopped:
            return  # the end of the silence connects
        is_alive = self.session is not None and self.session in self._zookeeper.live_sessions
        session = self.session if is_alive and self.session is not None else self._zookeeper.begin_session()
        self._zookeeper.trace.add(self._process.name, f"zookeeper session {session}{'' if is_alive else ' is new'}")
        self.become_connected(session)

    def wake(self, paths: Sequence[str]) -> None:
        if self.history.is_connected and not self.is_dead:
            self._down.send(lambda: super(SimulatedClient, self).wake(paths))

    # Operations

    async def _watched_read(self, path: str) -> Any:
        return await self._read(path, lambda: self._zookeeper.find_or_none(path), patiently=True)

    async def _read(self, path: str, act: Callable[[], _Answer], *, patiently: bool = False) -> _Answer:
        timeout_s = float("inf") if patiently else self._operation_timeout_s
        deadline = trio.current_time() + timeout_s
        while True:
            call = await self._ask(path, act, deadline)
            if call.answer is not None:
                return _answer_of(call)
            if trio.current_time() >= deadline:
                raise CoordinationUnavailableError(path, "no answer in time; nothing was changed")

    async def _write(self, path: str, act: Callable[[], _Answer]) -> _Answer:
        self._writes += 1
        try:
            call = await self._ask(path, act, trio.current_time() + self._operation_timeout_s)
        finally:
            self._writes -= 1
        if call.answer is None:
            raise CoordinationLostError(path, "connection lost: read it back to see whether it was done")
        return _answer_of(call)

    async def _ask(self, path: str, act: Callable[[], _Answer], deadline: float) -> _Call[_Answer]:
        await trio.lowlevel.checkpoint()
        if not self.history.is_connected:
            with trio.move_on_at(deadline):
                await self.history.wait_connected()
        if self.is_dead:
            raise Crash
        if not self.history.is_connected:
            raise CoordinationUnavailableError(path, "no answer in time; nothing was changed")
        call, session = _Call[_Answer](), self.session
        self._calls[call] = None
        self._up.send(lambda: self._perform(call, act, session))
        try:
            with trio.move_on_at(deadline):
                await call.done.wait()
        finally:
            self._calls.pop(call, None)
        return call

    def _perform(self, call: _Call[_Answer], act: Callable[[], _Answer], session: SessionId | None) -> None:
        """At the servers."""
        if session not in self._zookeeper.live_sessions:
            return
        answer: _Value[_Answer] | CoordinationError
        try:
            answer = _Value(act())
        except CoordinationError as error:
            answer = error
        self._zookeeper.settle()
        self._down.send(lambda: self._answered(call, answer))

    def _answered(self, call: _Call[_Answer], answer: _Value[_Answer] | CoordinationError) -> None:
        call.answer = answer
        call.done.set()


@lru_cache(maxsize=1024)
def _decode_topic(data: bytes) -> Mapping[str, Any]:
    """Return the content of a topic's znode, which nobody changes."""
    decoded: Mapping[str, Any] = json.loads(data)
    return decoded


def _is_below(name: str, path: str) -> bool:
    """True if the znode is the one at a path, or below it."""
    return path in (name, "/") or name.startswith(f"{path}/")


def _children_in(path: str, children: Iterable[str], znodes: Snapshot) -> frozenset[str]:
    """The children that a snapshot has, too: it lacks those that belonged to a session."""
    parent = "" if path == "/" else path
    return frozenset(child for child in children if f"{parent}/{child}" in znodes)


def _nothing_restored() -> None:
    """Nobody wants to know."""


def _nothing(_znodes: Mapping[str, bytes | None]) -> None:
    """Nobody wants to know."""


def _answer_of(call: _Call[_Answer]) -> _Answer:
    answer = call.answer
    assert answer is not None
    if isinstance(answer, CoordinationError):
        raise answer
    return answer.value
