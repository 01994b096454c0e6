"""The groups that this broker coordinates: requests come in, timers fire, writes go out. `Group` decides, this acts.

Invariants: A group is here exactly while its partition of the journal is led here and loaded. What a group has written
is written in the order in which it decided it: one write at a time for each group. There is one task for all timers and
one for each group that is writing; a member costs an entry in a heap, and a heartbeat does not even touch that.

A client that goes away while its request waits changes nothing, as in Kafka: its join holds until its time is over.
"""

import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TypeVar

import structlog
import trio

from pipeline.broker.groups.entries import Entries, Entry, Job, Record
from pipeline.broker.groups.events import (
    UNKNOWN_MEMBER,
    Action,
    Answer,
    Identity,
    Join,
    Leaver,
    Purpose,
    Result,
    Sync,
    Timer,
    WaiterId,
    Write,
    WriteResult,
)
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.member import MEMBER_BYTES, names_bytes, protocols_bytes
from pipeline.broker.groups.model import Generation, GroupLog, GroupMetadataValue, LoadedGroup, MemberId
from pipeline.broker.groups.offsets import Standing
from pipeline.broker.groups.rebalance import GroupLimits
from pipeline.broker.groups.records import encode_group_key, encode_group_value
from pipeline.broker.groups.timers import Timers
from pipeline.broker.groups.transitions import State
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.errors import PipelineError
from pipeline.model import Clock
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.join_group import JoinGroupResponse
from pipeline.protocol.messages.sync_group import SyncGroupResponse

MAX_AT_ONCE = 100
"""So many timers are fired, or groups put down, before others have their turn."""
MAX_ID_PREFIX = 249
"""Characters of a client id or instance id in a member id: as long as Kafka's own clients let an instance id be."""

logger = structlog.get_logger()

Response = TypeVar("Response", JoinGroupResponse, SyncGroupResponse)


@dataclass(slots=True)
class _Waiter:
    """A request that waits. Answered without a response: its group was put down."""

    group_id: str
    answered: trio.Event = field(default_factory=trio.Event)
    response: JoinGroupResponse | SyncGroupResponse | None = None


@dataclass(slots=True)
class Coordinator:
    """The groups of this broker. `run` must be running for anything but refusals to be answered."""

    journal: GroupLog
    limits: GroupLimits
    clock: Clock
    random: random.Random
    kept: KeptMemory
    rebalances: int = 0
    """Rebalances that came to an end: everybody got their part."""
    _entries: Entries = field(default_factory=Entries)
    _waiters: dict[WaiterId, _Waiter] = field(default_factory=dict)
    _timers: Timers = field(init=False)
    _numbers: "count[int]" = field(default_factory=count)
    _nursery: trio.Nursery | None = None
    _most_bytes: Callable[[], int] = field(init=False)

    def __post_init__(self) -> None:
        self._timers = Timers(self._entries)
        self._most_bytes = self.kept.add_use("members", lambda: self._entries.held_bytes)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fire timers and write what groups decide, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for entry in self._entries:
                self._start_writing(entry)
            task_status.started()
            try:
                await self._fire_when_due()
            finally:
                self._nursery = None

    # Requests. Each raises KafkaError if the group is not coordinated here now.

    def join(self, group_id: str, request: Join) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
        """Answers when the group is complete, or at once."""
        self.journal.check(group_id)
        entry = self._find(group_id)
        self._check_room(group_id, entry, request)
        if entry is None:
            if request.member_id != UNKNOWN_MEMBER:
                return JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id)
            entry = self._add(group_id)
        _refuse_if_removed(entry)
        return self._ask(entry, partial(entry.group.join, request), request.waiter, JoinGroupResponse)

    def sync(self, group_id: str, request: Sync) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
        """Answers when the leader has given everybody their part, or at once."""
        self.journal.check(group_id)
        entry = self._find(group_id)
        if entry is None:
            return SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        return self._ask(entry, partial(entry.group.sync, request), request.waiter, SyncGroupResponse)

    def heartbeat(self, group_id: str, sender: Identity) -> ErrorCode:
        """Whether the member is still one, and of this generation."""
        self.journal.check(group_id)
        entry = self._find(group_id)
        if entry is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return self._perform(entry, partial(entry.group.heartbeat, sender)).error

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> Sequence[ErrorCode]:
        """An error for each of those who are to leave."""
        self.journal.check(group_id)
        entry = self._find(group_id)
        if entry is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers)
        result = self._perform(entry, partial(entry.group.leave, leavers))
        if result.error is not ErrorCode.NONE:
            raise KafkaError(result.error)
        return result.member_errors

    def check_commit(
        self, group_id: str, member_id: MemberId, generation_id: int, group_instance_id: str | None
    ) -> None:
        """Raise KafkaError unless this member may commit for the group now. Keeps its session alive."""
        self.journal.check(group_id)
        entry = self._find(group_id)
        if entry is None:
            if generation_id >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            return
        _refuse_if_removed(entry)
        sender = Identity(
            member_id=member_id, group_instance_id=group_instance_id, generation=Generation(generation_id)
        )
        error = self._perform(entry, partial(entry.group.commit, sender)).error
        if error is not ErrorCode.NONE:
            raise KafkaError(error)

    def note_commit(self, group_id: str) -> None:
        """Keep the group, whose offsets are being written. One that nobody joins comes into being by its first commit.

        A commit that is refused leaves no group behind: anybody can make up very many names.
        """
        entry = self._find(group_id)
        if entry is None:
            entry = self._add(group_id)
        entry.has_records = True

    def new_waiter(self) -> WaiterId:
        """A name for a request that may have to wait."""
        return WaiterId(next(self._numbers))

    def new_member_id(self, prefix: str) -> MemberId:
        """An id that no other member ever had. Kafka's are made of the client id or instance id and a random uuid."""
        return MemberId(f"{prefix[:MAX_ID_PREFIX]}-{uuid.UUID(int=self.random.getrandbits(128), version=4)}")

    # What others ask about groups

    @property
    def groups(self) -> Collection[Group]:
        """All groups here, as they stand now."""
        return [entry.group for entry in self._entries]

    @property
    def group_ids(self) -> Collection[str]:
        """The ids of all groups here."""
        return [entry.group.id for entry in self._entries]

    def find(self, group_id: str) -> Group | None:
        """A group, as it stands now. Raises KafkaError if it is not coordinated here."""
        self.journal.check(group_id)
        entry = self._find(group_id)
        return None if entry is None else entry.group

    def standing(self, group_id: str) -> Standing | None:
        """How a group stands with regard to its offsets; None if there is no such group."""
        entry = self._find(group_id)
        if entry is None:
            return None
        group = entry.group
        was_joined = group.state is State.EMPTY and group.protocol_type is not None
        return Standing(
            has_members=group.state is not State.EMPTY,
            read_topics=group.subscribed_topics if group.state is State.STABLE else None,
            empty_since_ms=entry.since_ms if was_joined else None,
        )

    @property
    def held_bytes(self) -> int:
        """About what the members of all groups take in memory."""
        return self._entries.held_bytes

    @property
    def waiting_requests(self) -> int:
        """Joins and syncs that wait for others."""
        return len(self._waiters)

    @property
    def writes_under_way(self) -> int:
        """Writes of groups that have not ended."""
        return sum(len(entry.jobs) + entry.is_writing for entry in self._entries)

    def count_by_state(self) -> Mapping[State, int]:
        """How many groups are in each state."""
        counts = Counter(entry.group.state for entry in self._entries)
        return {state: counts[state] for state in State}

    async def remove_group(self, group_id: str, first: Callable[[str], Awaitable[None]] | None = None) -> None:
        """Forget a group that nobody is in, after `first` has removed what belongs to it. Raises KafkaError.

        Meanwhile nobody joins or commits; if it fails, the group is as it was, without what `first` has removed.
        """
        self.journal.check(group_id)
        entry = self._find(group_id)
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
        self._entries.remove(entry)

    # What the journal tells

    def on_loaded(self, partition: int, groups: Mapping[str, LoadedGroup]) -> None:
        """Take over some of the groups of a partition that this broker leads from now on."""
        for group_id, loaded in groups.items():
            entry = self._add(group_id, partition)
            entry.has_records = True
            metadata = loaded.metadata
            if metadata is not None:
                self._perform(entry, partial(entry.group.load, metadata))
                if entry.group.state is not State.PREPARING:
                    entry.since_ms = metadata.state_since_ms if metadata.state_since_ms >= 0 else None
        if groups:
            logger.info("groups_loaded", partition=partition, groups=len(groups))

    def on_unloaded(self, partition: int) -> None:
        """Hand over the groups of this partition to another broker. Waiting members are soon told to look for it."""
        gone = self._entries.remove_partition(partition)
        if gone:
            logger.info("groups_unloaded", partition=partition, groups=len(gone))
        if gone and self._nursery is not None:
            self._nursery.start_soon(self._unload, gone)

    async def _unload(self, gone: Sequence[Entry]) -> None:
        for number, entry in enumerate(gone, 1):
            self._perform(entry, entry.group.unload)
            if number % MAX_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    # How it is done

    def _check_room(self, group_id: str, entry: Entry | None, request: Join) -> None:
        """Raise KafkaError if the member would take more memory than there is for all groups together."""
        member = None if entry is None else entry.group.roster.members.get(request.member_id)
        more = protocols_bytes(request.protocols)
        if member is None:
            more += MEMBER_BYTES + names_bytes(group_id, request.client_id, request.group_instance_id)
        else:
            more -= protocols_bytes(member.protocols)
        if more > 0 and self._entries.held_bytes + more > self._most_bytes():
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _find(self, group_id: str) -> Entry | None:
        return self._entries.find(group_id, self.journal.partition_for(group_id))

    def _add(self, group_id: str, partition: int | None = None) -> Entry:
        if partition is None:
            partition = self.journal.partition_for(group_id)
        entry = Entry(Group(group_id, self.limits), partition)
        self._entries.add(entry)
        return entry

    def _perform(self, entry: Entry, event: Callable[[int], Result], *, now_ms: int | None = None) -> Result:
        """Have something happen to a group, and do what is to be done about it."""
        before = entry.group.state
        now_ms = _now_ms() if now_ms is None else now_ms
        try:
            result = event(now_ms)
        except Exception:
            logger.exception("group_broken", group=entry.group.id, state=str(before), generation=entry.group.generation)
            result = self._start_anew(entry, now_ms)
        after = entry.group.state
        if after is not before:
            entry.since_ms = self.clock()
            self.rebalances += after is State.STABLE and before is State.COMPLETING
            logger.debug("group_state", group=entry.group.id, state=str(after), generation=entry.group.generation)
        for action in result.actions:
            self._act(entry, action)
        self._entries.count(entry)
        if entry.is_void:
            self._entries.remove(entry)
        return result

    def _start_anew(self, entry: Entry, now_ms: int) -> Result:
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

    def _act(self, entry: Entry, action: Action) -> None:
        match action:
            case Answer(waiter=waiter_id, response=response):
                waiter = self._waiters.pop(waiter_id, None)
                if waiter is not None:
                    waiter.response = response
                    waiter.answered.set()
            case Timer():
                self._timers.set(entry, action)
            case Write(value=value, purpose=purpose):
                since_ms = -1 if entry.since_ms is None else entry.since_ms
                records = partial(_records_of, entry.group.id, replace(value, state_since_ms=since_ms))
                entry.has_records = True
                self._submit(entry, Job(records, partial(self._end_write, entry, purpose)))

    def _end_write(self, entry: Entry, purpose: Purpose, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            logger.warning("group_not_written", group=entry.group.id, error=error.name)
        self._perform(entry, partial(entry.group.written, WriteResult(purpose, error)))

    def _ask(
        self, entry: Entry, event: Callable[[int], Result], waiter_id: WaiterId, kind: type[Response]
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

    async def _fire_when_due(self) -> None:
        while True:
            for at_ms, entry, timer in self._timers.due(_now_ms(), MAX_AT_ONCE):
                self._perform(entry, partial(entry.group.fire, timer), now_ms=max(_now_ms(), at_ms))
            await self._timers.wait()
            await trio.lowlevel.checkpoint()

    def _submit(self, entry: Entry, job: Job) -> None:
        entry.jobs.append(job)
        self._start_writing(entry)

    def _start_writing(self, entry: Entry) -> None:
        if self._nursery is not None and entry.jobs and not entry.is_writing:
            entry.is_writing = True
            self._nursery.start_soon(self._write_jobs, entry)

    async def _write_jobs(self, entry: Entry) -> None:
        while entry.jobs:
            job = entry.jobs.popleft()
            job.ended(await self._outcome_of(entry, job))
        entry.is_writing = False

    async def _outcome_of(self, entry: Entry, job: Job) -> ErrorCode:
        """Carry out a write and return its outcome. A value that cannot be written fails the write, not the broker."""
        if not self._entries.holds(entry):
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

    async def _write(self, entry: Entry, records: Sequence[Record]) -> None:
        """Write after what the group has decided already. Raises KafkaError."""
        ended = trio.Event()
        errors: list[ErrorCode] = []

        def end(error: ErrorCode) -> None:
            errors.append(error)
            ended.set()

        self._submit(entry, Job(lambda: records, end))
        await ended.wait()
        if errors[0] is not ErrorCode.NONE:
            raise KafkaError(errors[0])


def _records_of(group_id: str, value: GroupMetadataValue) -> Sequence[Record]:
    """Raises ProtocolError if the journal has no room for a value."""
    return [(encode_group_key(group_id), encode_group_value(value))]


def _refuse_if_removed(entry: Entry) -> None:
    if entry.is_being_removed:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _now_ms() -> int:
    """Milliseconds of trio's clock, which sessions are measured by: it never goes back."""
    return round(trio.current_time() * 1000)
