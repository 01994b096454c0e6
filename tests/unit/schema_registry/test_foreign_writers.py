"""Another project's registry writes to the log at the same time: no compaction changes what the log means."""

import itertools
import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.errors import RegistryError
from pipeline.schema_registry.rules.candidates import SchemaComparison, SchemaRequest, parse_candidate
from pipeline.schema_registry.rules.deletions import delete_subject, delete_version
from pipeline.schema_registry.rules.registry import WritePlan, register
from pipeline.schema_registry.rules.setting_commands import reset_config, reset_mode, set_config, set_mode
from pipeline.schema_registry.state.events import (
    AVRO,
    SchemaWritten,
    SubjectDeleted,
    WrittenEvent,
    decode_event,
    encode_event,
    identity_of,
)
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.subject_settings import RegistryMode

Log = list[tuple[bytes, bytes | None]]

TEXTS = ('"int"', ' "int"', '"long"', '"string"', '"bytes"')
SUBJECTS = ("a", "b", "\u00e9", ":.c:a")
SCOPES = (*SUBJECTS, None, ":.c:")


def new_state() -> RegistryState:
    return RegistryState(CompatibilityLevel.NONE)


def view(state: RegistryState) -> Any:
    versions = [version for subject in SUBJECTS for version in state.versions(subject, deleted=True)]
    rows = [(one.subject, one.number, one.schema.id, one.schema.identity, one.deleted) for one in versions]
    own = [(state.settings.own_config(scope), state.settings.own_mode(scope)) for scope in SCOPES]
    ids = [state.id_of(identity_of(text, AVRO), context) for text in TEXTS for context in (".", ".c")]
    return rows, own, ids


def compacted(log: Log, end: int) -> Log:
    """Return the log when its records before `end` are compacted."""
    last = {key: index for index, (key, _) in enumerate(log[:end])}
    head = [(key, value) for index, (key, value) in enumerate(log[:end]) if last[key] == index and value is not None]
    return head + log[end:]


class Walk:
    """Random commands of this registry, and random records of another one; what is damaged is repaired."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.state = new_state()
        self.log: Log = []
        self.whole_at = [0]
        self.numbers = itertools.count()

    def put(self, key: bytes, value: bytes | None) -> None:
        self.log.append((key, value))
        self.state.apply(decode_event(key, value))

    def carry_out(self, events: tuple[WrittenEvent, ...]) -> None:
        for event in events:
            self.put(*encode_event(event))

    def step(self) -> None:
        step = self.command if self.rng.random() < 0.7 else self.foreign_record
        with suppress(RegistryError):
            step(self.rng.choice(SUBJECTS), self.rng.choice(TEXTS))
        rounds = itertools.count()
        while self.state.repairs():
            assert next(rounds) < 5
            self.carry_out(self.state.repairs())
        self.whole_at.append(len(self.log))

    def command(self, subject: str, text: str) -> None:
        rng, state = self.rng, self.state
        scope, permanent = rng.choice(SCOPES), rng.random() < 0.5
        mode = rng.choice((RegistryMode.IMPORT, RegistryMode.READWRITE))
        number = rng.choice((None, 1, 2, 3, 4))
        plans: tuple[Callable[[], WritePlan[Any]], ...] = (
            *[lambda: self.registration(subject, text)] * 4,
            lambda: delete_version(state, subject, number, permanent=permanent),
            lambda: delete_subject(state, subject, permanent=permanent),
            lambda: set_mode(state, scope, mode, force=permanent),
            lambda: reset_mode(state, scope, recursive=permanent),
            lambda: set_config(state, scope, {"level": rng.choice(list(CompatibilityLevel))}),
            lambda: reset_config(state, scope),
        )
        self.carry_out(rng.choice(plans)().events)

    def registration(self, subject: str, text: str) -> WritePlan[Any]:
        wanted = self.rng.choice((None, None, *range(1, 7)))
        candidate = parse_candidate(SchemaRequest(text=text, id=wanted))
        plan = register(self.state, subject, candidate, {})
        if isinstance(plan.answer, SchemaComparison):
            plan = register(self.state, subject, candidate, {plan.answer: []})
        return plan

    def foreign_record(self, subject: str, text: str) -> None:
        rng, number, name = self.rng, self.rng.randint(1, 4), json.dumps(subject)
        written = SchemaWritten(
            subject=subject, version=number, id=rng.randint(1, 6), text=text, deleted=rng.random() < 0.3
        )
        ours, value = encode_event(written)
        keys = (
            ours,
            f'{{"subject": {name}, "version": {number}, "magic": 1, "keytype": "SCHEMA"}}'.encode(),
            f'{{"keytype":"SCHEMA","node":{next(self.numbers)},"subject":{name},"version":{number},"magic":1}}'.encode(),
        )
        config = f'{{"subject": {name}, "magic": 0, "keytype": "CONFIG"}}'.encode()
        key = rng.choice(keys)
        records = (
            *[(key, value)] * 6,
            *[(key, None)] * 2,
            (key, b'{"id":"one"}'),
            encode_event(SubjectDeleted(subject=subject, version=number)),
            (config, b'{"compatibilityLevel":"FULL"}'),
        )
        self.put(*rng.choice(records))


def walked(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(40):
        walk.step()
        for end in (0, walk.rng.choice(walk.whole_at), len(walk.log)):
            again = new_state()
            for key, value in compacted(walk.log, end):
                again.apply(decode_event(key, value))
            assert view(again) == view(walk.state)
        if walk.rng.random() < 0.1:
            walk.log = compacted(walk.log, len(walk.log))
            walk.whole_at = [len(walk.log)]


@pytest.mark.parametrize("seed", range(10))
def test_every_compacted_log_gives_the_same_state(seed: int) -> None:
    walked(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 1_000, 100))
def test_every_compacted_log_of_many_gives_the_same_state(first: int) -> None:
    for seed in range(first, first + 100):
        walked(seed)
