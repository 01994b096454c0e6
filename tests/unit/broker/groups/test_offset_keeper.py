"""Offsets that expire and groups that are removed, over a journal that is a list."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from pipeline.broker.groups.model import LoadedGroup, MemberId, OffsetAndMetadata
from pipeline.broker.groups.offset_keeper import FORGOTTEN_BYTES, STRANGERS_SHARE, OffsetKeeper
from pipeline.broker.groups.offsets import Standing
from pipeline.broker.groups.records import OffsetKey, decode_key
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.model import Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.loop_steps import measured_steps

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
RETENTION_MS = 100
MAX_STEP_S = 0.2
YEAR_MS = 365 * 24 * 3600 * 1000


def committed(offset: int, at_ms: int = 1000) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset=Offset(offset), commit_timestamp_ms=at_ms)


@dataclass
class ListedJournal:
    """Writes to a list; `gate` can be shut."""

    written: list[tuple[str, list[tuple[bytes, bytes | None]]]] = field(default_factory=list)
    refusal: KafkaError | None = None
    gate: trio.Event | None = None
    waiting: "list[ListedWrite]" = field(default_factory=list)

    def partition_for(self, group_id: str) -> int:
        return len(group_id) % 2

    def check(self, group_id: str) -> None:
        if group_id == "elsewhere":
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    async def write(self, group_id: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        await self.begin(group_id, records).wait()

    def begin(
        self,
        group_id: str,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        ended: Callable[[KafkaError | None], None] | None = None,
    ) -> "ListedWrite":
        write = ListedWrite(self, group_id, records, ended)
        self.waiting.append(write)
        if self.gate is None:
            self.end_all()
        return write

    def end_all(self) -> None:
        while self.waiting:
            self.waiting.pop(0).end()

    @property
    def tombstones(self) -> set[tuple[str, TopicPartition]]:
        keys = [decode_key(key) for _, records in self.written for key, value in records if value is None]
        return {(key.group_id, key.topic_partition) for key in keys if isinstance(key, OffsetKey)}


@dataclass
class ListedWrite:
    """A write whose place is taken."""

    journal: ListedJournal
    group_id: str
    records: Sequence[tuple[bytes, bytes | None]]
    ended: Callable[[KafkaError | None], None] | None
    error: KafkaError | None = None

    def end(self) -> None:
        self.error = self.journal.refusal
        if self.error is None:
            self.journal.written.append((self.group_id, list(self.records)))
        if self.ended is not None:
            self.ended(self.error)

    async def wait(self) -> None:
        if self.journal.gate is not None:
            await self.journal.gate.wait()
            self.journal.end_all()
        if self.error is not None:
            raise self.error


@dataclass
class Groups:
    """Groups that stand as they are told."""

    standings: dict[str, Standing] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    @property
    def group_ids(self) -> Collection[str]:
        return list(self.standings)

    def check_commit(
        self, group_id: str, member_id: MemberId, generation_id: int, group_instance_id: str | None
    ) -> None:
        """All may."""

    def standing(self, group_id: str) -> Standing | None:
        return self.standings.get(group_id)

    async def remove_group(self, group_id: str) -> None:
        self.removed.append(group_id)
        del self.standings[group_id]


@dataclass
class Rig:
    journal: ListedJournal
    groups: Groups
    keeper: OffsetKeeper
    now_ms: int = 1000


@pytest.fixture
def rig() -> Rig:
    return make_rig()


def make_rig(kept_bytes: int = 1 << 30) -> Rig:
    journal, groups = ListedJournal(), Groups()
    kept = KeptMemory(kept_bytes)
    keeper = OffsetKeeper(journal, groups, lambda: made.now_ms, kept, retention_ms=RETENTION_MS)
    made: Rig = Rig(journal, groups, keeper)
    keeper.on_loaded(0, {"even": LoadedGroup(offsets={A: committed(1)})})
    keeper.on_loaded(1, {"odd": LoadedGroup(offsets={A: committed(2), B: committed(3)}), "empty": LoadedGroup()})
    return made


async def test_commits_are_visible_once_they_are_written(rig: Rig) -> None:
    rig.journal.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.keeper.commit("odd", {A: committed(9)}).wait)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.keeper.of_group("odd")[A].offset == 2
        rig.journal.gate.set()
    assert rig.keeper.of_group("odd")[A].offset == 9


async def test_a_refused_commit_changes_nothing(rig: Rig) -> None:
    rig.journal.refusal = KafkaError(ErrorCode.NOT_COORDINATOR)
    with pytest.raises(KafkaError):
        await rig.keeper.commit("odd", {A: committed(9)}).wait()
    assert rig.keeper.of_group("odd")[A].offset == 2
    rig.journal.refusal = None
    rig.now_ms = 5000
    await rig.keeper.expire()
    assert rig.keeper.of_group("odd") == {}


async def test_groups_elsewhere_are_refused(rig: Rig) -> None:
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        rig.keeper.of_group("elsewhere")
    with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
        rig.keeper.commit("elsewhere", {A: committed(1)})


async def test_expired_offsets_get_tombstones_and_the_group_too(rig: Rig) -> None:
    rig.groups.standings = {
        "even": Standing(),
        "odd": Standing(has_members=True, read_topics=frozenset("b")),
        "empty": Standing(empty_since_ms=1000),
    }
    rig.now_ms = 1099
    await rig.keeper.expire()
    assert (rig.journal.tombstones, rig.groups.removed) == (set(), ["empty"])
    rig.now_ms = 1100
    await rig.keeper.expire()
    assert rig.journal.tombstones == {("even", A), ("odd", A)}
    assert rig.groups.removed == ["empty", "even"]
    assert rig.keeper.of_group("odd") == {B: committed(3)}


async def test_a_commit_under_way_is_not_undone(rig: Rig) -> None:
    rig.groups.standings = {"even": Standing()}
    rig.journal.gate = trio.Event()
    rig.now_ms = 2000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.keeper.commit("even", {A: committed(9, 2000)}).wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(rig.keeper.expire)
        await trio.testing.wait_all_tasks_blocked()
        rig.journal.gate.set()
    assert rig.keeper.of_group("even") == {A: committed(9, 2000)}
    assert ("even", A) not in rig.journal.tombstones
    assert not rig.groups.removed


async def test_the_next_check_expires_offsets_that_could_not_be_expired(rig: Rig) -> None:
    rig.now_ms = 2000
    rig.journal.refusal = KafkaError(ErrorCode.NOT_COORDINATOR)
    await rig.keeper.expire()
    assert rig.keeper.of_group("even")
    rig.journal.refusal = None
    await rig.keeper.expire()
    assert not rig.keeper.of_group("even")


@asynccontextmanager
async def forgetting(rig: Rig) -> AsyncIterator[None]:
    """Carry out what `forget_topic` has begun, up to the end of the context."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.keeper.forget_for_ever)
        yield
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_the_offsets_of_a_topic_are_deleted_with_the_topic(rig: Rig) -> None:
    async with forgetting(rig):
        rig.keeper.forget_topic("a")
    assert rig.journal.tombstones == {("even", A), ("odd", A)}
    assert rig.keeper.of_group("odd") == {B: committed(3)}


async def test_the_offsets_of_a_topic_that_is_made_anew_at_once_stay(rig: Rig) -> None:
    rig.journal.gate = trio.Event()
    rig.keeper.commit("even", {A: committed(5)})
    rig.keeper.forget_topic("a")
    pending = rig.keeper.commit("odd", {A: committed(9)})
    async with forgetting(rig):
        rig.journal.gate.set()
        await pending.wait()
    assert rig.keeper.of_group("even") == {}
    assert rig.keeper.of_group("odd") == {A: committed(9), B: committed(3)}


async def test_commits_for_a_recreated_topic_survive_the_late_news_of_its_deletion(rig: Rig) -> None:
    rig.keeper.on_loaded(1, {"odd": LoadedGroup(offsets={A: committed(5, at_ms=2001), B: committed(3)})})
    rig.keeper.on_loaded(0, {"even": LoadedGroup(offsets={A: committed(1, at_ms=1999)})})
    async with forgetting(rig):
        rig.keeper.forget_topic("a", 2000)
    assert rig.keeper.of_group("odd") == {A: committed(5, at_ms=2001), B: committed(3)}
    assert rig.keeper.of_group("even") == {}


async def test_commits_under_way_survive_the_late_news_of_a_deletion(rig: Rig) -> None:
    rig.journal.gate = trio.Event()
    pending = rig.keeper.commit("even", {A: committed(5, at_ms=2001)})
    async with forgetting(rig):
        rig.keeper.forget_topic("a", 2000)
        await trio.testing.wait_all_tasks_blocked()
        rig.journal.gate.set()
        await pending.wait()
    assert rig.keeper.of_group("even") == {A: committed(5, at_ms=2001)}


async def test_the_offsets_of_a_topic_that_was_made_and_deleted_once_more_go(rig: Rig) -> None:
    """Also if its second life began and ended while those of the first were being removed."""
    rig.journal.gate = trio.Event()
    async with forgetting(rig):
        rig.keeper.forget_topic("a")
        await trio.testing.wait_all_tasks_blocked()
        rig.keeper.commit("odd", {A: committed(9)})
        rig.keeper.forget_topic("a")
        rig.keeper.commit("even", {A: committed(7)})
        rig.journal.gate.set()
    assert rig.keeper.of_group("even") == {A: committed(7)}
    assert rig.keeper.of_group("odd") == {B: committed(3)}


@pytest.mark.long
async def test_very_many_offsets_of_a_topic_go_in_slices(rig: Rig) -> None:
    """Of very many groups, of a group with very many, and of one whose name takes much room."""
    many = {f"group-{number:05d}": LoadedGroup(offsets={A: committed(1)}) for number in range(40_000)}
    many["odd"] = LoadedGroup(offsets={TopicPartition("a", index): committed(1) for index in range(20_000)})
    long_name = "n" * 30_001
    many[long_name] = LoadedGroup(offsets={TopicPartition("a", index): committed(1) for index in range(10)})
    rig.keeper.on_loaded(1, many)
    with measured_steps() as steps:
        async with forgetting(rig):
            rig.keeper.forget_topic("a")
    assert list(rig.keeper.committed()) == []
    assert max(sum(len(key) for key, _ in records) for _, records in rig.journal.written) < 2 * FORGOTTEN_BYTES
    assert steps.longest_s < MAX_STEP_S


async def test_offsets_that_another_broker_keeps_by_now_are_left_to_it(rig: Rig) -> None:
    rig.journal.gate = trio.Event()
    rig.keeper.on_loaded(0, {f"{number:04d}": LoadedGroup(offsets={A: committed(1)}) for number in range(5_000)})
    async with forgetting(rig):
        rig.keeper.forget_topic("a")
        await trio.testing.wait_all_tasks_blocked()
        rig.keeper.on_unloaded(0)
        rig.keeper.on_loaded(0, {"even": LoadedGroup(offsets={A: committed(4)})})
        rig.journal.gate.set()
    assert rig.keeper.of_group("even") == {A: committed(4)}
    assert rig.keeper.of_group("odd") == {B: committed(3)}


async def test_a_group_is_deleted_with_what_is_just_being_committed(rig: Rig) -> None:
    rig.journal.gate = trio.Event()
    rig.keeper.commit("odd", {TopicPartition("new", 0): committed(5)})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.keeper.delete, "odd")
        await trio.testing.wait_all_tasks_blocked()
        rig.journal.gate.set()
    assert rig.keeper.of_group("odd") == {}


async def test_a_commit_that_nobody_waits_for_is_written(rig: Rig) -> None:
    rig.keeper.commit("odd", {A: committed(9)})
    assert rig.keeper.of_group("odd")[A].offset == 9
    rig.now_ms = 5000
    await rig.keeper.expire()
    assert rig.keeper.of_group("odd") == {}


async def test_some_or_all_offsets_of_a_group_are_deleted(rig: Rig) -> None:
    await rig.keeper.delete("odd", [B])
    assert rig.keeper.of_group("odd") == {A: committed(2)}
    await rig.keeper.commit("odd", {B: committed(4)}).wait()
    await rig.keeper.delete("odd")
    assert rig.keeper.of_group("odd") == {}


async def test_offsets_are_expired_at_each_interval(rig: Rig, autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.keeper.expire_for_ever, 600_000)
        rig.now_ms = 5000
        await trio.sleep(599)
        assert rig.keeper.of_group("even")
        await trio.sleep(2)
        assert not rig.keeper.of_group("even")
        nursery.cancel_scope.cancel()


async def test_a_clock_that_is_wrong_for_a_moment_lets_no_offset_expire(rig: Rig, autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.keeper.expire_for_ever, 10_000)
        await trio.sleep(9)
        rig.now_ms += YEAR_MS
        await trio.sleep(2)
        rig.now_ms -= YEAR_MS
        await trio.sleep(20)
        assert rig.keeper.of_group("odd").keys() == {A, B}
        rig.now_ms += YEAR_MS
        await trio.sleep(20)
        assert rig.keeper.of_group("odd") == {}
        nursery.cancel_scope.cancel()


async def test_commits_too_large_for_the_journal_are_refused_and_not_under_way(rig: Rig) -> None:
    """A group id, or a note, that no record of the journal has room for."""
    for group_id, change in (("g" * 40_000, {A: committed(1)}), ("g", {A: committed(2**63)})):
        with pytest.raises(KafkaError) as refused:
            rig.keeper.commit(group_id, change)
        assert refused.value.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert rig.keeper.under_way == 0


async def test_a_write_that_does_not_begin_leaves_nothing_under_way(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever kept it from beginning."""

    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.journal, "begin", break_down)
    with pytest.raises(ZeroDivisionError):
        rig.keeper.commit("g", {A: committed(1)})
    assert rig.keeper.under_way == 0


async def test_offsets_that_are_being_written_count() -> None:
    rig = make_rig(40_000)
    rig.journal.gate = trio.Event()
    note = OffsetAndMetadata(offset=Offset(1), metadata="x" * 15_000, commit_timestamp_ms=1000)
    pending = rig.keeper.commit("odd", {A: note})
    with pytest.raises(KafkaError, match="No room"):
        rig.keeper.commit("even", {A: note})
    rig.journal.gate.set()
    await pending.wait()
    rig.keeper.commit("odd", {A: note})


async def test_offsets_are_refused_when_there_is_no_room_and_those_of_groups_without_members_first() -> None:
    def with_note(size: int) -> OffsetAndMetadata:
        return OffsetAndMetadata(offset=Offset(1), metadata="x" * size, commit_timestamp_ms=1000)

    at_first = make_rig().keeper.held_bytes
    assert at_first > 0
    rig = make_rig(int((at_first + 24_000) / STRANGERS_SHARE) + 1)
    groups = [f"group {number}" for number in range(100)]
    refused = 0
    for group_id in groups:
        try:
            rig.keeper.commit(group_id, {A: with_note(4000)})
        except KafkaError as error:
            assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            refused += 1
    assert refused == 97
    assert at_first + 20_000 < rig.keeper.held_bytes <= at_first + 24_000
    rig.keeper.commit(groups[0], {A: with_note(4000)})  # takes no more than it had
    rig.groups.standings["joined"] = Standing(has_members=True)
    rig.keeper.commit("joined", {A: with_note(4000)})
    with pytest.raises(KafkaError, match="No room"):
        rig.keeper.commit("joined", {B: with_note(10_000)})
    for group_id in [*groups, "joined"]:
        await rig.keeper.delete(group_id)
    assert rig.keeper.held_bytes == at_first
    rig.keeper.on_unloaded(0)
    rig.keeper.on_unloaded(1)
    assert rig.keeper.held_bytes == 0
