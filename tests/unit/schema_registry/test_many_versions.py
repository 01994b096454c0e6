"""Subjects of many versions: no step of work on them holds up other requests."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.rules import deletions
from pipeline.schema_registry.rules.deletions import MAX_REMOVED, delete_subject, left_to_remove, remove_versions
from pipeline.schema_registry.rules.registry import WritePlan
from pipeline.schema_registry.rules.setting_commands import set_config
from pipeline.schema_registry.state import state as registry_state
from pipeline.schema_registry.state.events import Ignored, SchemaWritten, encode_event
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.work.schema_work import SchemaWork
from pipeline.schema_registry.writing import log_follower
from pipeline.schema_registry.writing.journal import Record
from pipeline.schema_registry.writing.log_follower import LogFollower
from pipeline.testing.memory_journal import MemoryJournal


def version(number: int, *, deleted: bool = False) -> SchemaWritten:
    text = f'{{"type":"fixed","name":"F","size":{number}}}'
    return SchemaWritten(subject="s", version=number, id=number, text=text, deleted=deleted)


class CountingJournal(MemoryJournal):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def append(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        self.sizes.append(len(records))
        return await super().append(records, stamp)


async def test_a_subject_is_deleted_permanently_by_writes_of_a_bounded_size(open_registry: Callable[..., Any]) -> None:
    journal = CountingJournal()
    numbers = list(range(1, 2 * MAX_REMOVED + 2))
    for number in numbers:
        journal.put(*encode_event(version(number, deleted=True)))
    async with open_registry(journal) as http:
        answer = await http.delete("/subjects/s?permanent=true")
        assert (answer.status_code, answer.json()) == (200, numbers)
        assert (await http.get("/subjects?deleted=true")).json() == []
        assert (await http.delete("/subjects/s?permanent=true")).status_code == 404
        answer = await http.post("/subjects/s/versions", json={"schema": '"int"'})
        assert answer.json()["id"] == numbers[-1] + 1
    assert MAX_REMOVED <= max(journal.sizes) <= MAX_REMOVED + 10


def carry_out(state: RegistryState, plan: WritePlan[Any]) -> Any:
    for event in plan.events:
        assert state.apply(event) is None
    return plan.answer


def test_a_deletion_in_parts_leaves_what_was_written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "MAX_REMOVED", 2)
    for is_written in (False, True):
        state = RegistryState(CompatibilityLevel.NONE)
        for number in range(1, 8):
            state.apply(version(number, deleted=True))
        carry_out(state, set_config(state, "s", {"level": CompatibilityLevel.FULL}))
        numbers = carry_out(state, delete_subject(state, "s", permanent=True))
        assert numbers == list(range(1, 8))
        assert [found.number for found in state.versions("s", deleted=True)] == [1, 2, 3, 4, 5]
        parts = list(left_to_remove(numbers))
        assert parts == [[4, 5], [2, 3], [1]]
        carry_out(state, remove_versions(state, "s", parts[0]))
        if is_written:
            state.apply(version(2))
            state.apply(version(6))
        assert remove_versions(state, "s", parts[0]).events == ()
        for part in parts[1:]:
            assert state.settings.own_config("s") is not None
            carry_out(state, remove_versions(state, "s", part))
        assert [found.number for found in state.versions("s", deleted=True)] == ([2, 6] if is_written else [])
        assert (state.settings.own_config("s") is not None) == is_written


def test_many_versions_are_repaired_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_state, "MAX_REPAIRS", 2)
    state = RegistryState(CompatibilityLevel.NONE)
    for number in range(1, 6):
        state.apply(version(number))
        state.apply(Ignored("unreadable", ("s", number)))
    repaired = []
    while repairs := state.repairs():
        assert len(repairs) <= 2
        repaired += [event.version for event in repairs]
        for event in repairs:
            state.apply(event)
    assert repaired == [1, 2, 3, 4, 5]


async def test_others_have_their_turn_while_a_page_of_the_log_is_applied(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "TURN_S", 0)
    journal = MemoryJournal()
    state = RegistryState(CompatibilityLevel.NONE)
    follower = LogFollower(journal, state, SchemaWork().events, metrics=CollectorRegistry())
    await nursery.start(follower.run)
    seen = set()
    for number in range(1, 101):
        journal.put(*encode_event(version(number)))
    with trio.fail_after(30):
        while state.schema_count < 100:
            seen.add(state.schema_count)
            await trio.lowlevel.checkpoint()
    assert len(seen) > 50
