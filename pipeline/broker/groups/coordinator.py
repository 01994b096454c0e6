"""The groups that this broker coordinates: requests come in, alarms go off, writes go out. `Group` decides, this acts.

Invariants: A group is here exactly while its partition of the journal is led here and loaded. What a group has written
is written in the order in which it decided it: one write at a time for each group. There is one task for all alarms and
one for each group that is writing; a member costs an entry in a heap, and a heartbeat does not even touch that.

A client that goes away while its request waits changes nothing, as in Kafka: its join holds until its time is over.
"""

import heapq
import random
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TypeVar

import structlog
import trio

from pipeline.broker.groups.events import (
    UNKNOWN_MEMBER,
    Action,
    Alarm,
    Answer,
    Identity,
    Join,
    Leaver,
    Purpose,
    Result,
    Sync,
    WaiterId,
    Write,
    Written,
)
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.model import Generation, GroupMetadataValue, Journal, LoadedGroup, MemberId
from pipeline.broker.groups.offsets import Standing
from pipeline.broker.groups.rebalance import GroupLimits
from pipeline.broker.groups.records import encode_group_key, encode_group_value
from pipeline.broker.groups.transitions import State
from pipeline.model import Clock
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.join_group import JoinGroupResponse
from pipeline.protocol.messages.sync_group import SyncGroupResponse

MAX_ALARMS_AT_ONCE = 100
MIN_ALARMS = 1000

log = structlog.get_logger()

Response = TypeVar("Response", JoinGroupResponse, SyncGroupResponse)
Record = tuple[bytes, bytes | None]


@dataclass(slots=True)
class _Waiter:
    """A request that waits. Answered without a response: its group was put down."""

    group_id: str
    answered: trio.Event = field(default_factory=trio.Event)
    response: JoinGroupResponse | SyncGroupResponse | None = None


@dataclass(slots=True)
class _Job:
    """A write, and what to do when it has ended."""

    records: Sequence[Record]
    ended: Callable[[ErrorCode], None]


@dataclass(slots=True)
class _Entry:
    """A group as it is kept here. `since_ms`: wall clock, when it came into its state; None if nobody knows."""

    group: Group
    since_ms: int | None
    has_records: bool
    """Whether something of the group is in the journal, its offsets included."""
    jobs: deque[_Job] = field(default_factory=deque)
    is_writing: bool = False
    is_being_removed: bool = False
    """Nobody joins or commits meanwhile: what they would write might go with the group."""


@dataclass(slots=True)
class Coordinator:
    """The groups of this broker. `run` must be running for anything but refusals to be answered."""

    journal: Journal
    limits: GroupLimits
    clock: Clock
    random: random.Random
    rebalances: int = 0
    """Rebalances that came to an end: everybody got their part."""
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _waiters: dict[WaiterId, _Waiter] = field(default_factory=dict)
    _alarms: list[tuple[int, int, _Entry, Alarm]] = field(default_factory=list)
    _most_alarms: int = MIN_ALARMS
    """So many are held before those that mean nothing any more are looked for."""
    _numbers: "count[int]" = field(default_factory=count)
    _wake: trio.Event = field(default_factory=trio.Event)
    _nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ring alarms and write what groups decide, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for entry in self._entries.values():
                self._start_writing(entry)
            task_status.started()
            try:
                await self._ring_when_due()
            finally:
                self._nursery = None

    # Requests. Each raises KafkaError if the group is not coordinated here now.

    def join(self, group_id: str, request: Join) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
        """Answers when the group is complete, or at once."""
        self.journal.check(group_id)
        entry = self._entries.get(group_id)
        if entry is None:
            if request.member_id != UNKNOWN_MEMBER:
                return JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id)
            entry = self._add(group_id)
        _refuse_if_removed(entry)
        return self._ask(entry, partial(entry.group.join, request), request.waiter, JoinGroupResponse)

    def sync(self, group_id: str, request: Sync) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
        """Answers when the leader has given everybody their part, or at once."""
        self.journal.check(group_id)
        entry = self._entries.get(group_id)
        if entry is None:
            return SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        return self._ask(entry, partial(entry.group.sync, request), request.waiter, SyncGroupResponse)

    def heartbeat(self, group_id: str, sender: Identity) -> ErrorCode:
        """Whether the member is still one, and of this generation."""
        self.journal.check(group_id)
        entry = self._entries.get(group_id)
        if entry is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return self._perform(entry, partial(entry.group.heartbeat, sender)).error

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> Sequence[ErrorCode]:
        """An error for each of those who are to leave."""
        self.journal.check(group_id)
        entry = self._entries.get(group_id)
        if entry is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers)
        result = self._perform(entry, partial(entry.group.leave, leavers))
        if result.error is not ErrorCode.NONE:
            raise KafkaError(result.error)
        return result.member_errors

    def check_commit(
        self, group_id: str, member_id: MemberId, generation_id: int, group_instance_id: str | None
    ) -> None:
        """Raise KafkaError unless this member may commit for the group now. Keeps its session alive.

        A group that nobody joins comes into being by its first commit.
        """
        self.journal.check(group_id)
        entry = self._entries.get(group_id)
        if entry is None:
            if generation_id >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            entry = self._add(group_id)
        _refuse_if_removed(entry)
        sender = Identity(
            member_id=member_id, group_instance_id=group_instance_id, generation=Generation(generation_id)
        )
        entry.has_records = True
        error = self._perform(entry, partial(entry.group.commit, sender)).error
        if error is not ErrorCode.NONE:
            raise KafkaError(error)

    def new_waiter(self) -> WaiterId:
        """A name for a request that may have to wait."""
        return WaiterId(next(self._numbers))

    def new_member_id(self, prefix: str) -> MemberId:
        """An id that no other member ever had. Kafka's are made of the client id or instance id and a random uuid."""
        return MemberId(f"{prefix}-{uuid.UUID(int=self.random.getrandbits(128), version=4)}")

    # What others ask about groups

    @property
    def groups(self) -> Collection[Group]:
        """All groups here, as they stand now."""
        return [entry.group for entry in self._entries.values()]

    def find(self, group_id: str) -> Group | None:
        """A group, as it stands now. Raises KafkaError if it is not coordinated here."""
        self.journal.check(group_id)
        entry = self._entries.get(group_id)
        return None if entry is None else entry.group

    def standing(self, group_id: str) -> Standing | None:
        """How a group stands with regard to its offsets; None if there is no such group."""
        entry = self._entries.get(group_id)
        if entry is None:
            return None
        group = entry.group
        was_joined = group.state is State.EMPTY and group.protocol_type is not None
        return Standing(
            has_members=group.state is not State.EMPTY,
            read_topics=group.subscribed_topics if group.state is State.STABLE else None,
            empty_since_ms=entry.since_ms if was_joined else None,
        )

    def count_by_state(self) -> Mapping[State, int]:
        """How many groups are in each state."""
        counts = Counter(entry.group.state for entry in self._entries.values())
        return {state: counts[state] for state in State}

    async def remove_group(self, group_id: str, first: Callable[[str], Awaitable[None]] | None = None) -> None:
        """Forget a group that nobody is in, after `first` has removed what belongs to it. Raises KafkaError.

        Meanwhile nobody joins or commits; if it fails, the group is as it was, without what `first` has removed.
        """
        self.journal.check(group_id)
        entry = self._entries.get(group_id)
        if entry is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if entry.group.state is not State.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        _refuse_if_removed(entry)
        entry.is_being_removed = True
        try:
            if first is not None:
                await first(group_id)
            await self._write(entry, [(encode_group_key(group_id), None)])
            error = self._perform(entry, entry.group.remove).error
        finally:
            entry.is_being_removed = False
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        if self._entries.get(group_id) is entry:
            del self._entries[group_id]

    # What the journal tells

    def on_loaded(self, partition: int, groups: Mapping[str, LoadedGroup]) -> None:
        """The groups of a partition that is led here from now on."""
        for group_id, loaded in groups.items():
            entry = self._add(group_id)
            entry.has_records = True
            metadata = loaded.metadata
            if metadata is not None:
                self._perform(entry, partial(entry.group.load, metadata))
                if entry.group.state is not State.PREPARING:
                    entry.since_ms = metadata.state_since_ms if metadata.state_since_ms >= 0 else None
        if groups:
            log.info("groups_loaded", partition=partition, groups=len(groups))

    def on_unloaded(self, partition: int) -> None:
        """The groups of this partition are another broker's. Whoever waits is told to look for it."""
        gone = [group_id for group_id in self._entries if self.journal.partition_for(group_id) == partition]
        for group_id in gone:
            entry = self._entries.pop(group_id)
            self._perform(entry, entry.group.unload)
        if gone:
            log.info("groups_unloaded", partition=partition, groups=len(gone))

    # How it is done

    def _add(self, group_id: str) -> _Entry:
        entry = _Entry(Group(group_id, self.limits), since_ms=None, has_records=False)
        self._entries[group_id] = entry
        return entry

    def _perform(self, entry: _Entry, event: Callable[[int], Result], *, now_ms: int | None = None) -> Result:
        """Have something happen to a group, and do what is to be done about it."""
        before = entry.group.state
        now_ms = _now_ms() if now_ms is None else now_ms
        try:
            result = event(now_ms)
        except Exception:
            log.exception("group_broken", group=entry.group.id, state=str(before), generation=entry.group.generation)
            result = self._start_anew(entry, now_ms)
        after = entry.group.state
        if after is not before:
            entry.since_ms = self.clock()
            self.rebalances += after is State.STABLE and before is State.COMPLETING
            log.debug("group_state", group=entry.group.id, state=str(after), generation=entry.group.generation)
        for action in result.actions:
            self._act(entry, action)
        if self._is_void(entry):
            self._entries.pop(entry.group.id, None)
        return result

    def _start_anew(self, entry: _Entry, now_ms: int) -> Result:
        """A group that broke its own rules is put down, not the broker: its members find it empty, and come back.

        Its generation and its offsets stay; what it had decided to write is still written, in order.
        """
        broken = entry.group
        entry.group = Group(broken.id, self.limits)
        known = GroupMetadataValue(protocol_type=broken.protocol_type or "", generation=broken.generation)
        entry.group.load(known, now_ms)
        for waiter in self._waiters.values():
            if waiter.group_id == broken.id:
                waiter.answered.set()
        return Result(error=ErrorCode.NOT_COORDINATOR)

    def _act(self, entry: _Entry, action: Action) -> None:
        match action:
            case Answer(waiter=waiter_id, response=response):
                waiter = self._waiters.pop(waiter_id, None)
                if waiter is not None:
                    waiter.response = response
                    waiter.answered.set()
            case Alarm(at_ms=at_ms):
                if not self._alarms or at_ms < self._alarms[0][0]:
                    self._wake.set()
                heapq.heappush(self._alarms, (at_ms, next(self._numbers), entry, action))
                if len(self._alarms) > self._most_alarms:
                    self._forget_alarms()
            case Write(value=value, purpose=purpose):
                since_ms = -1 if entry.since_ms is None else entry.since_ms
                record = encode_group_value(replace(value, state_since_ms=since_ms))
                entry.has_records = True
                self._submit(
                    entry,
                    [(encode_group_key(entry.group.id), record)],
                    partial(self._end_write, entry, purpose),
                )

    def _end_write(self, entry: _Entry, purpose: Purpose, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            log.warning("group_not_written", group=entry.group.id, error=error.name)
        self._perform(entry, partial(entry.group.written, Written(purpose, error)))

    def _is_void(self, entry: _Entry) -> bool:
        """Whether nothing is known of the group that is worth keeping: it was asked for, and nobody came."""
        group = entry.group
        return (
            group.state is State.EMPTY
            and not entry.has_records
            and not entry.is_being_removed
            and not group.roster.pending
        )

    def _ask(
        self, entry: _Entry, event: Callable[[int], Result], waiter_id: WaiterId, kind: type[Response]
    ) -> Response | Awaitable[Response]:
        waiter = self._waiters[waiter_id] = _Waiter(entry.group.id)
        error = self._perform(entry, event).error
        if error is not ErrorCode.NONE:
            self._waiters.pop(waiter_id, None)
            raise KafkaError(error)
        if isinstance(waiter.response, kind):
            return waiter.response
        return self._wait(waiter_id, waiter, kind)

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

    async def _ring_when_due(self) -> None:
        while True:
            self._wake = trio.Event()
            self._ring_alarms()
            due_s = self._alarms[0][0] / 1000 if self._alarms else float("inf")
            with trio.move_on_at(due_s):
                await self._wake.wait()
            await trio.lowlevel.checkpoint()

    def _forget_alarms(self) -> None:
        """Leave out those that mean nothing any more; they may lie weeks ahead, and hold their groups."""
        self._alarms = [
            alarm
            for alarm in self._alarms
            if self._entries.get(alarm[2].group.id) is alarm[2] and alarm[2].group.awaits(alarm[3])
        ]
        heapq.heapify(self._alarms)
        self._most_alarms = max(MIN_ALARMS, 2 * len(self._alarms))

    def _ring_alarms(self) -> None:
        """Ring those that are due, not too many at a time."""
        now_ms = _now_ms()
        for _ in range(MAX_ALARMS_AT_ONCE):
            if not self._alarms or self._alarms[0][0] > now_ms:
                return
            at_ms, _number, entry, alarm = heapq.heappop(self._alarms)
            self._perform(entry, partial(entry.group.ring, alarm), now_ms=max(now_ms, at_ms))

    def _submit(self, entry: _Entry, records: Sequence[Record], ended: Callable[[ErrorCode], None]) -> None:
        entry.jobs.append(_Job(records, ended))
        self._start_writing(entry)

    def _start_writing(self, entry: _Entry) -> None:
        if self._nursery is not None and entry.jobs and not entry.is_writing:
            entry.is_writing = True
            self._nursery.start_soon(self._write_jobs, entry)

    async def _write_jobs(self, entry: _Entry) -> None:
        while entry.jobs:
            job = entry.jobs.popleft()
            try:
                await self.journal.write(entry.group.id, job.records)
                error = ErrorCode.NONE
            except KafkaError as failure:
                too_large = failure.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
                error = ErrorCode.UNKNOWN_SERVER_ERROR if too_large else failure.code
            job.ended(error)
        entry.is_writing = False

    async def _write(self, entry: _Entry, records: Sequence[Record]) -> None:
        """Write after what the group has decided already. Raises KafkaError."""
        ended = trio.Event()
        errors: list[ErrorCode] = []

        def end(error: ErrorCode) -> None:
            errors.append(error)
            ended.set()

        self._submit(entry, records, end)
        await ended.wait()
        if errors[0] is not ErrorCode.NONE:
            raise KafkaError(errors[0])


def _refuse_if_removed(entry: _Entry) -> None:
    if entry.is_being_removed:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _now_ms() -> int:
    """Milliseconds of trio's clock, which sessions are measured by: it never goes back."""
    return round(trio.current_time() * 1000)
