"""Random histories of several groups at one coordinator: clients that ask for ids and forget them, static members, slow
and failing writes, partitions that are given away and taken up again, groups that are deleted.

What must hold: a generation that the journal holds never comes again, nobody waits for ever, nothing is left under way,
and no group breaks its own rules.
"""

import contextlib
import random
from collections import Counter

import pytest
import structlog
import trio
import trio.testing

from pipeline.broker.groups.coordinator import GroupCoordinator
from pipeline.broker.groups.events import Identity, Leaver
from pipeline.broker.groups.member import names_bytes
from pipeline.broker.groups.model import LoadedGroup, MemberId
from pipeline.broker.groups.records import GroupKey, decode_group_value, decode_key
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.coordinators import MemoryJournal, ask_join, running, sync

SEEDS = range(40)
STEPS = 120
GROUPS = ("a", "b", "c")
TIMEOUTS_MS = (6_000, 30_000)
REBALANCES_MS = (-(2**31), 0, 1, 5_000, 2**31 - 1)


class History:
    """One seed's."""

    def __init__(self, seed: int, coordinator: GroupCoordinator, journal: MemoryJournal, nursery: trio.Nursery) -> None:
        self.random = random.Random(seed)
        self.coordinator, self.journal, self.nursery = coordinator, journal, nursery
        self.known: dict[str, list[str]] = {group_id: [] for group_id in GROUPS}
        self.waiting = 0
        self.highest = dict.fromkeys(GROUPS, 0)
        """The highest generation that clients were told, since the group was last forgotten."""
        self.forgotten: Counter[str] = Counter()

    async def run(self) -> None:
        kinds = ["enter", "enter", "ask_id", "heartbeat", "leave", "commit", "wait", "wait", "hand_over", "remove"]
        for _ in range(STEPS):
            self.journal.delay_s = self.random.choice([0, 0, 0.01, 3])
            self.journal.error = self.random.choice([None] * 6 + [ErrorCode.COORDINATOR_NOT_AVAILABLE])
            await getattr(self, self.random.choice(kinds))(self.random.choice(GROUPS))
            self.check()
        self.journal.error, self.journal.delay_s = None, 0
        await trio.sleep(3 * max(TIMEOUTS_MS) / 1000 + 300)

    async def enter(self, group_id: str) -> None:
        self.nursery.start_soon(self._enter, group_id)
        await trio.sleep(self.random.choice([0, 0.01]))

    async def _enter(self, group_id: str) -> None:
        """Join, come back with an id if one is given, sync; a client that may be gone at any time."""
        instance = self.random.choice([None, None, "i", "j"])
        more = {
            "session_timeout_ms": self.random.choice(TIMEOUTS_MS),
            "rebalance_timeout_ms": self.random.choice(REBALANCES_MS),
            "group_instance_id": instance,
            "must_know_id": self.random.random() < 0.5,
        }
        known = self.known[group_id]
        member_id = self.random.choice(known) if known and self.random.random() < 0.5 else ""
        self.waiting += 1
        try:
            for _ in range(2):
                least, forgotten = self.highest[group_id], self.forgotten[group_id]
                joined = ask_join(self.coordinator, group_id, member_id, **more)
                joined = joined if hasattr(joined, "error_code") else await joined
                if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED or self.random.random() < 0.2:
                    break
                member_id = joined.member_id
            if joined.error_code == ErrorCode.NONE:
                # Of two answers at one moment any may be looked at first: what was told before the question counts.
                is_same = forgotten == self.forgotten[group_id]
                assert joined.generation_id >= least or not is_same, "a generation that was told comes again"
                if is_same:
                    self.highest[group_id] = max(self.highest[group_id], joined.generation_id)
                known.append(joined.member_id)
                if self.random.random() < 0.8:
                    await sync(
                        self.coordinator, joined, group_id, {member.member_id: b"x" for member in joined.members}
                    )
        except KafkaError:
            pass
        finally:
            self.waiting -= 1

    async def ask_id(self, group_id: str) -> None:
        """And leave with it, or never come back."""
        try:
            given = ask_join(self.coordinator, group_id, must_know_id=True, session_timeout_ms=6_000)
        except KafkaError:
            return
        if getattr(given, "error_code", None) == ErrorCode.MEMBER_ID_REQUIRED and self.random.random() < 0.7:
            self.coordinator.leave(group_id, [Leaver(given.member_id)])

    async def heartbeat(self, group_id: str) -> None:
        group = self.coordinator.find(group_id)
        if group is None:
            return
        for member_id in list(group.roster.members):
            self.coordinator.heartbeat(group_id, Identity(member_id=member_id, generation=group.generation))

    async def leave(self, group_id: str) -> None:
        group = self.coordinator.find(group_id)
        members = [] if group is None else list(group.roster.members)
        leavers = [Leaver(member_id) for member_id in members if self.random.random() < 0.7]
        self.coordinator.leave(group_id, [*leavers, Leaver(MemberId(""), self.random.choice(["i", "j"]))])

    async def commit(self, group_id: str) -> None:
        with contextlib.suppress(KafkaError):
            self.coordinator.check_commit(group_id, MemberId(""), -1, None)
            self.coordinator.note_commit(group_id)

    async def wait(self, _group_id: str) -> None:
        await trio.sleep(self.random.choice([0.001, 1, 5, 20]))

    async def hand_over(self, group_id: str) -> None:
        """Another broker leads the partition for a while, then this one again, with what the journal holds."""
        partition = self.journal.partition_for(group_id)
        self.journal.refusal = ErrorCode.NOT_COORDINATOR
        self.coordinator.on_unloaded(partition)
        await trio.sleep(self.random.choice([5, 10]))
        self.journal.refusal = None
        values = {}
        for key, value in self.journal.records:
            name = decode_key(key)
            assert isinstance(name, GroupKey)
            values[name.group_id] = value
        value = values.get(group_id)
        metadata = None if value is None else decode_group_value(value)
        loaded = {} if metadata is None else {group_id: LoadedGroup(metadata=metadata)}
        self.forget(group_id, 0 if metadata is None else metadata.generation)
        self.coordinator.on_loaded(partition, loaded)

    async def remove(self, group_id: str) -> None:
        try:
            await self.coordinator.remove_group(group_id)
        except KafkaError:
            return
        self.forget(group_id, 0)

    def forget(self, group_id: str, generation: int) -> None:
        """What was told counts no more, but for what the journal holds."""
        self.forgotten[group_id] += 1
        self.highest[group_id] = generation

    def check(self) -> None:
        for entry in self.coordinator.runtime.entries:
            assert self.coordinator.find(entry.group.id) is entry.group
            assert entry.group.generation >= 0
        rosters = {group.id: group.roster.held_bytes for group in self.coordinator.groups}
        held = sum(held_bytes + names_bytes(group_id) for group_id, held_bytes in rosters.items() if held_bytes)
        assert self.coordinator.held_bytes == held


@pytest.mark.parametrize("seed", SEEDS)
async def test_generations_increase_and_requests_are_answered_in_any_history(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    with structlog.testing.capture_logs() as told:
        async with running(delay_ms=random.Random(seed).choice([0, 3000])) as (coordinator, journal, nursery):
            history = History(seed, coordinator, journal, nursery)
            await history.run()
            assert history.waiting == coordinator.runtime.waiting_requests == 0
            assert coordinator.runtime.writes_under_way == 0
            assert coordinator.held_bytes == 0
            assert not [group.id for group in coordinator.groups if group.roster.members or group.roster.pending]
    unforeseen = [line for line in told if line["event"] in {"group_broken", "group_write_broken"}]
    assert not unforeseen
