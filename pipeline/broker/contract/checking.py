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
from typing import NamedTuple

import numpy as np

from pipeline.broker.contract.frames import FrameReader, Rows
from pipeline.broker.contract.verdicts import ContractVerdict, DatumWalk, RefusalReason, SchemaQuestion
from pipeline.broker.settings.contract import SubjectRule
from pipeline.records.batch import HEADER_SIZE, BatchHeader
from pipeline.records.compression import Codec, ReadableBuffer
from pipeline.records.kernels import Bytes
from pipeline.records.opening import attempts
from pipeline.records.turns import Steps

MAX_RECORDS_NAMED = 100
MAX_ASKED = 64
"""Questions that one look at a batch collects, before they are asked."""
FREE_STEPS = 1_000_000
STEPS_PER_BYTE = 16
STEPS_OF_A_TURN = 500_000
"""Steps of a walk before other work has a turn: some milliseconds."""

Peek = Callable[[SchemaQuestion], ContractVerdict | None]


class SideRule(NamedTuple):
    """Rule for one side of a topic's records; `side` is its number in the columns."""

    side: int
    name: str
    rule: SubjectRule
    decodes: bool


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
    sides: Sequence[SideRule],
    peek: Peek,
    reader: FrameReader,
    findings: Findings,
) -> Steps[None]:
    """Add what a batch holds to the findings; stop early if these are enough. Raises CorruptBatchError."""
    steps = FREE_STEPS + STEPS_PER_BYTE * len(payload)
    wanted = sum(1 << side.side for side in sides)
    for first in reader.chunks(payload, header, wanted):
        for side in sides:
            number = side.side
            bare = reader.rows_without_id(number)
            if bare is not None:
                findings.refuse(first, bare, RefusalReason.NO_ID, f"The {side.name} bears no schema id.")
            for place, schema in enumerate(reader.schemas(number)):
                question = SchemaQuestion(schema, side.rule, side.decodes)
                verdict = peek(question)
                if verdict is None:
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


def look_at(
    payload: ReadableBuffer, header: BatchHeader, sides: Sequence[SideRule], peek: Peek, reader: FrameReader
) -> Findings:
    """Return what a batch holds, in one step: for small batches. Raises CorruptBatchError."""
    findings = Findings()
    for _ in check_payload(payload, header, sides, peek, reader, findings):
        pass
    return findings


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
    sides: Sequence[SideRule],
    peek: Peek,
    max_opened_bytes: int,
) -> Steps[Findings]:
    """Return what one batch holds; a compressed batch is opened within a charge. Raises CorruptBatchError."""
    findings, reader = Findings(), FrameReader()
    if header.codec is Codec.NONE:
        yield from check_payload(batch[HEADER_SIZE:], header, sides, peek, reader, findings)
        return findings
    for attempt in attempts(batch, 0, header, max_opened_bytes):
        with attempt.ask() as charge:
            yield charge
            payload = attempt.open(charge)
            if payload is not None:
                yield from check_payload(payload, header, sides, peek, reader, findings)
                return findings
    raise AssertionError("the last attempt opens the batch or raises")
