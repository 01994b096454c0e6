"""Applies events to groups, and performs the actions that the groups decide: answers, timers and writes.

Invariants: a group writes in the order of its decisions, one write at a time. One task serves all timers, and one each
group that is writing. A member costs one entry in the heap of timers, and a heartbeat does not touch the heap.

A client that disconnects while its request waits changes nothing, as in Kafka: its join stays until its session ends.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import trio

from pipeline.broker.groups.entries import GroupEntries, GroupEntry, Job
from pipeline.broker.groups.events import (
    Action,
    CoordinatorResult,
    Join,
    Purpose,
    Reply,
    Sync,
    Timer,
    WaiterId,
    Write,
    WriteResult,
)
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.lifecycle import load
from pipeline.broker.groups.model import GroupLog, GroupMetadataValue, GroupState, Records
from pipeline.broker.groups.records import encode_group_key, encode_group_value
from pipeline.broker.groups.timers import Timers
from pipeline.broker.groups.transitions import UNLOAD, WRITTEN, React, Reactions, fire
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import Clock
from pipeline.net.signals import Outcome
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.join_group import JoinGroupResponse
from pipeline.protocol.messages.sync_group import SyncGroupResponse

MAX_AT_ONCE = 100
"""Timers that fire, or groups that are unloaded, before other tasks have their turn."""

logger = get_logger(__name__)

E = TypeVar("E")
Request = TypeVar("Request", Join, Sync)
Response = TypeVar("Response", JoinGroupResponse, SyncGroupResponse)


@dataclass(slots=True)
class _Waiter:
    """A pending request. If `answered` is set and `response` is None, the group was dropped."""

    group_id: str
    answered: trio.Event = field(default_factory=trio.Event)
    response: JoinGroupResponse | SyncGroupResponse | None = None


@dataclass(slots=True)
class CoordinatorRuntime:
    """Runs the groups in `entries`. Requests are answered, unless refused, only while `run` runs."""

    journal: GroupLog
    entries: GroupEntries
    clock: Clock
    rebalances: int = 0
    """Completed rebalances: all members got their assignments."""
    timers: Timers = field(init=False)
    _waiters: dict[WaiterId, _Waiter] = field(default_factory=dict)
    _nursery: trio.Nursery | None = None

    def __post_init__(self) -> None:
        self.timers = Timers(self.entries)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fire timers and write to the journal, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for entry in self.entries:
                self._start_writing(entry)
            task_status.started()
            try:
                await self._fire_when_due()
            finally:
                self._nursery = None

    @property
    def waiting_requests(self) -> int:
        """Joins and syncs that wait for other members."""
        return len(self._waiters)

    @property
    def writes_under_way(self) -> int:
        """Writes of groups that have not ended."""
        return sum(len(entry.jobs) + entry.is_writing for entry in self.entries)

    # Events

    def perform(self, entry: GroupEntry, react: React[E], event: E) -> CoordinatorResult:
        """Apply an event to a group, and perform the actions that the group decides."""
        before = entry.group.state
        now_ms = _now_ms()
        try:
            result = react(entry.group, event, now_ms)
        except Exception:
            logger.exception("group_broken", group=entry.group.id, state=str(before), generation=entry.group.generation)
            result = self._start_anew(entry, now_ms)
        after = entry.group.state
        if after is not before:
            entry.since_ms = self.clock()
            self.rebalances += after is GroupState.STABLE and before is GroupState.COMPLETING
            logger.debug("group_state", group=entry.group.id, state=str(after), generation=entry.group.generation)
        for action in result.actions:
            self._act(entry, action)
        self.entries.count(entry)
        if entry.is_void:
            self.entries.remove(entry)
        return result

    def ask(
        self, entry: GroupEntry, reactions: Reactions[Request], request: Request, kind: type[Response]
    ) -> Response | Awaitable[Response]:
        """Apply a request that may wait for other members. Raises KafkaError."""
        waiter = self._waiters[request.waiter] = _Waiter(entry.group.id)
        error = self.perform(entry, reactions.react, request).error
        if error is not ErrorCode.NONE:
            self._waiters.pop(request.waiter, None)
            raise KafkaError(error)
        if isinstance(waiter.response, kind):
            return waiter.response
        return self._wait(request.waiter, waiter, kind)

    def unload(self, partition: int) -> int:
        """Drop the groups of a partition and return how many. Their members are soon sent to the next coordinator."""
        entries = self.entries.remove_partition(partition)
        if entries and self._nursery is not None:
            self._nursery.start_soon(self._unload, entries)
        return len(entries)

    async def _unload(self, entries: Sequence[GroupEntry]) -> None:
        for number, entry in enumerate(entries, 1):
            self.perform(entry, UNLOAD.react, None)
            if number % MAX_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    async def _fire_when_due(self) -> None:
        while True:
            for entry, timer in self.timers.due(_now_ms(), MAX_AT_ONCE):
                self.perform(entry, fire, timer)
            await self.timers.wait()
            await trio.lowlevel.checkpoint()

    def _start_anew(self, entry: GroupEntry, now_ms: int) -> CoordinatorResult:
        """Replace a group that broke its own rules by an empty one, which its members join again.

        The generation and the offsets stay. Writes that the group had decided are still made, in order.
        """
        broken = entry.group
        entry.group = Group(broken.id, broken.limits)
        known = GroupMetadataValue(protocol_type=broken.protocol_type or "", generation=broken.generation)
        load(entry.group, known, now_ms)
        for waiter in self._waiters.values():
            if waiter.group_id == broken.id:
                waiter.answered.set()
        return CoordinatorResult(error=ErrorCode.NOT_COORDINATOR)

    def _act(self, entry: GroupEntry, action: Action) -> None:
        match action:
            case Reply(waiter=waiter_id, response=response):
                waiter = self._waiters.pop(waiter_id, None)
                if waiter is not None:  # else the client has gone
                    waiter.response = response
                    waiter.answered.set()
            case Timer():
                self.timers.set(entry, action)
            case Write(value=value, purpose=purpose):
                since_ms = -1 if entry.since_ms is None else entry.since_ms
                group_id, value = entry.group.id, replace(value, state_since_ms=since_ms)
                entry.has_records = True
                job = Job(
                    lambda: [(encode_group_key(group_id), encode_group_value(value))],
                    partial(self._end_write, entry, purpose),
                )
                self._submit(entry, job)

    async def _wait(self, waiter_id: WaiterId, waiter: _Waiter, kind: type[Response]) -> Response:
        try:
            await waiter.answered.wait()
        finally:
            self._waiters.pop(waiter_id, None)
        if waiter.response is None:
            return kind(error_code=ErrorCode.NOT_COORDINATOR)
        if not isinstance(waiter.response, kind):
            raise TypeError(f"a {type(waiter.response).__name__} for a {kind.__name__}")
        return waiter.response

    # Writes

    async def write(self, entry: GroupEntry, records: Records) -> None:
        """Write records after the writes that the group has decided already. Raises KafkaError."""
        outcome = Outcome()
        self._submit(entry, Job(lambda: records, lambda error: outcome.end(KafkaError(error) if error else None)))
        await outcome.wait()

    def _submit(self, entry: GroupEntry, job: Job) -> None:
        entry.jobs.append(job)
        self._start_writing(entry)

    def _start_writing(self, entry: GroupEntry) -> None:
        if self._nursery is not None and entry.jobs and not entry.is_writing:
            entry.is_writing = True
            self._nursery.start_soon(self._write_jobs, entry)

    async def _write_jobs(self, entry: GroupEntry) -> None:
        while entry.jobs:
            job = entry.jobs.popleft()
            job.ended(await self._outcome_of(entry, job))
        entry.is_writing = False

    async def _outcome_of(self, entry: GroupEntry, job: Job) -> ErrorCode:
        """Make a write and return its outcome. A value that cannot be encoded fails this write alone."""
        if not self.entries.holds(entry):  # the next coordinator may have written meanwhile
            return ErrorCode.NOT_COORDINATOR
        try:
            await self.journal.write(entry.group.id, job.records())
        except KafkaError as failure:
            too_large = failure.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            return ErrorCode.UNKNOWN_SERVER_ERROR if too_large else failure.code
        except PipelineError as failure:
            logger.error("group_cannot_be_written", group=entry.group.id, error=str(failure))
            return ErrorCode.UNKNOWN_SERVER_ERROR
        except Exception:
            logger.exception("group_write_broken", group=entry.group.id)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    def _end_write(self, entry: GroupEntry, purpose: Purpose, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            logger.warning("group_not_written", group=entry.group.id, error=error.name)
        self.perform(entry, WRITTEN.react, WriteResult(purpose, error))


def _now_ms() -> int:
    """Return the milliseconds of trio's clock, which measures sessions: it never goes back."""
    return round(trio.current_time() * 1000)
