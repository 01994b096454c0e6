"""Check of one batch against the contract of its topic, in steps that give other work its turn.

Invariants:
- No object per record: ids come as columns, and only invalid records, at most MAX_RECORDS_NAMED, are named.
- Memory: one opened batch, charged before it is opened; a chunk of records takes the same arrays whatever it holds.
- Walks of datums take at most FREE_STEPS and STEPS_PER_BYTE for each byte of the payload, for a whole batch.

Heavy imports (numba, numpy): for brokers with `confluent.schema.registry.url` alone.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from pipeline.broker.contract.frames import READ_IN_LOOP, FrameReader, Rows
from pipeline.broker.contract.verdicts import (
    ContractVerdict,
    DatumWalk,
    RefusalReason,
    SchemaKey,
    SchemaQuestion,
    VerdictCache,
)
from pipeline.broker.settings.contract import Contract, SubjectRule
from pipeline.records.batch import HEADER_SIZE, BatchHeader, read_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec, ReadableBuffer
from pipeline.records.frame_kernels import KEY, NO_ID, VALUE
from pipeline.records.kernels import Bytes
from pipeline.records.opening import attempts
from pipeline.records.turns import Steps

MAX_RECORDS_NAMED = 100
MAX_ASKED = 16
"""Questions that one look at a batch collects, before they are asked."""
MAX_CHUNKS_NOW = 16
"""Chunks of a batch that are looked at on the event loop: with very many ids they are short, and many."""
FREE_STEPS = 1_000_000
STEPS_PER_BYTE = 16
STEPS_OF_A_TURN = 500_000
"""Steps of a walk before other work has a turn: some milliseconds."""

MAX_KNOWN = 1000
"""Ids of a topic that are known without a look into the cache."""

Peek = Callable[[SchemaQuestion], ContractVerdict | None]


class SideRule(NamedTuple):
    """Rule for one side of a topic's records; `side` is its number in the columns."""

    side: int
    name: str
    rule: SubjectRule
    decodes: bool


@dataclass(frozen=True, slots=True, eq=False)
class ContractPlan:
    """A topic's contract as rules of its sides; `wanted`: their bits.

    `known_until`: times until which the ids of a side (its number, the id) are valid without a look into the cache.
    """

    contract: Contract
    topic: str
    sides: Sequence[SideRule]
    wanted: int
    decodes: bool
    known_until: dict[tuple[int, SchemaKey], float] = field(default_factory=dict)

    @classmethod
    def of(cls, contract: Contract, topic: str) -> Self:
        """Return the plan for a topic."""
        demands = ((KEY, "key", contract.key), (VALUE, "value", contract.value))
        sides = [
            SideRule(side, name, demand.rule(topic, name), demand.decodes)
            for side, name, demand in demands
            if demand is not None
        ]
        wanted = sum(1 << side.side for side in sides)
        return cls(contract, topic, sides, wanted, any(side.decodes for side in sides))


@dataclass(slots=True)
class Findings:
    """Invalid records by index, with a sentence each; counts by reason; questions without an answer; known ids."""

    faults: list[tuple[int, str]] = field(default_factory=list)
    refused: Counter[RefusalReason] = field(default_factory=Counter)
    missing: dict[SchemaQuestion, None] = field(default_factory=dict)
    hits: int = 0

    @property
    def is_enough(self) -> bool:
        """True if nothing more needs to be found in this look."""
        return len(self.faults) >= MAX_RECORDS_NAMED or len(self.missing) >= MAX_ASKED

    def refuse(self, first: int, rows: Rows, reason: RefusalReason, message: str) -> None:
        """Add invalid records: rows of the chunk that begins with record `first`."""
        self.refused[reason] += len(rows)
        room = MAX_RECORDS_NAMED - len(self.faults)
        self.faults += [(first + row, message) for row in rows[:room].tolist()]


def check_payload(
    payload: ReadableBuffer,
    header: BatchHeader,
    plan: ContractPlan,
    peek: Peek,
    reader: FrameReader,
    findings: Findings,
) -> Steps[None]:
    """Add what a batch holds to the findings; stop early if these are enough. Raises CorruptBatchError."""
    steps = FREE_STEPS + STEPS_PER_BYTE * len(payload)
    for first in reader.chunks(payload, header, plan.wanted):
        for side in plan.sides:
            number = side.side
            if reader.lacks_ids(number):
                bare = reader.rows_of(number, NO_ID)
                findings.refuse(first, bare, RefusalReason.NO_ID, f"The {side.name} bears no schema id.")
            for place, schema in enumerate(reader.schemas(number)):
                question = SchemaQuestion(schema, side.rule, side.decodes)
                verdict = peek(question)
                if verdict is None:
                    if len(findings.missing) < MAX_ASKED:
                        findings.missing[question] = None
                    continue
                findings.hits += 1
                if verdict.reason is not None:
                    findings.refuse(first, reader.rows_of(number, place), verdict.reason, verdict.message)
                elif verdict.walk is not None and not findings.missing:
                    rows = reader.rows_of(number, place)
                    faults, steps = yield from _walk_rows(reader, number, rows, verdict.walk, steps)
                    _refuse_datums(findings, first, rows, faults, side, verdict.walk)
        if findings.is_enough:
            return
        yield None


def _walk_rows(reader: FrameReader, side: int, rows: Rows, walk: DatumWalk, steps: int) -> Steps[tuple[Bytes, int]]:
    """Return the fault of each row's datum, and the steps that are left for the batch."""
    starts, ends = (column[side, rows].astype(np.int64) for column in (reader.starts, reader.ends))
    faults = np.zeros(len(rows), dtype=np.uint8)
    row = 0
    while row < len(rows):
        if steps <= 0:
            faults[row:] = walk.too_complex
            break
        turn = min(steps, STEPS_OF_A_TURN)
        row, left = walk.walk(reader.buffer, starts, ends, faults, row, turn)
        steps -= turn - left
        yield None
    return faults, steps


def _refuse_datums(findings: Findings, first: int, rows: Rows, faults: Bytes, side: SideRule, walk: DatumWalk) -> None:
    for fault in np.unique(faults[faults != 0]).tolist():
        message = f"The {side.name} is no datum of its schema: {walk.reason(fault)}."
        findings.refuse(first, rows[faults == fault], RefusalReason.NO_DATUM, message)


def check_batch(
    batch: memoryview,
    header: BatchHeader,
    plan: ContractPlan,
    peek: Peek,
    max_opened_bytes: int,
) -> Steps[Findings]:
    """Return what one batch holds; a compressed batch is opened within a charge. Raises CorruptBatchError."""
    findings, reader = Findings(), FrameReader()
    if header.codec is Codec.NONE:
        yield from check_payload(batch[HEADER_SIZE:], header, plan, peek, reader, findings)
        return findings
    for attempt in attempts(batch, 0, header, max_opened_bytes):
        with attempt.ask() as charge:
            yield charge
            payload = attempt.open(charge)
            if payload is not None:
                yield from check_payload(payload, header, plan, peek, reader, findings)
                return findings
    raise AssertionError("the last attempt opens the batch or raises")


class LoopChecks:
    """Checks of small batches in the thread of the event loop, one at a time and without a wait."""

    def __init__(self, cache: VerdictCache) -> None:
        self._cache = cache
        self._reader = FrameReader(READ_IN_LOOP)
        builder = BatchBuilder(Codec.NONE, 1024)
        builder.append(None, b"\0\0\0\0\1", (), 0)
        batch = builder.build()
        for reader in (self._reader, FrameReader()):  # compiles, or loads what was compiled
            for _ in reader.chunks(batch[HEADER_SIZE:], read_header(batch), 1 << VALUE):
                pass

    def has_known_ids(self, payload: ReadableBuffer, header: BatchHeader, plan: ContractPlan) -> bool:
        """True if all records bear ids that `look_at` has seen lately. Raises CorruptBatchError.

        Most batches need no more: `look_at` takes several times as long.
        """
        reader, known_until, now_s = self._reader, plan.known_until, self._cache.clock()
        for number, _ in enumerate(reader.chunks(payload, header, plan.wanted)):
            if number == MAX_CHUNKS_NOW:
                return False
            for side in plan.sides:
                if reader.lacks_ids(side.side):
                    return False
                for schema in reader.schemas(side.side):
                    if known_until.get((side.side, schema), 0.0) < now_s:
                        return False
        return True

    def look_at(self, payload: ReadableBuffer, header: BatchHeader, plan: ContractPlan) -> Findings | None:
        """Return what a batch holds, None if the look takes too long. Raises CorruptBatchError."""
        findings = Findings()
        steps = check_payload(payload, header, plan, self._cache.peek, self._reader, findings)
        for number, _ in enumerate(steps, 1):
            if number == MAX_CHUNKS_NOW:
                return None
        if not findings.faults and not findings.missing:
            self._note_known(plan)
        return findings

    def _note_known(self, plan: ContractPlan) -> None:
        if len(plan.known_until) >= MAX_KNOWN:
            plan.known_until.clear()
        for side in plan.sides:
            for schema in self._reader.schemas(side.side):
                question = SchemaQuestion(schema, side.rule, side.decodes)
                plan.known_until[side.side, schema] = self._cache.fresh_until(question)
