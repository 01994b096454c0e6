"""Verdicts on schema ids, and the cache that holds them.

Invariants:
- An id that was found valid stays valid until the registry answers otherwise. Its verdict is due for a new answer after
  `fresh_s`, but serves until that answer comes, so that a registry that is away refuses no known id.
- A refusal is forgotten after `refused_s`.
- Each of the two kinds has at most `max_size` entries; the oldest goes first.
- Threads may call `peek`; all other methods belong to the event loop.
"""

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from pipeline.broker.settings.contract import SubjectRule

SchemaKey = int | bytes
"""A schema id, or a GUID of 16 bytes."""


class RefusalReason(StrEnum):
    """Reasons to refuse a record, as metrics name them."""

    NO_ID = "no_id"
    UNKNOWN_ID = "unknown_id"
    OTHER_SUBJECT = "other_subject"
    UNUSABLE_SCHEMA = "unusable_schema"
    NO_DATUM = "no_datum"


class DatumWalk(Protocol):
    """The compiled schema of datums. Its methods run in threads."""

    def walk(self, buffer: Any, starts: Any, ends: Any, faults: Any, first: int, steps: int) -> tuple[int, int]:
        """Check datums [start, end) from row `first` on, in about so many steps, and set the fault of each (0: none).

        Return the first row that was not checked, and the steps left. Arrays are numpy's.
        """

    @property
    def too_complex(self) -> int:
        """The fault of a datum that takes too many steps."""

    def reason(self, fault: int) -> str:
        """Return the sentence for a fault."""


CompileSchema = Callable[[Sequence[str]], DatumWalk]
"""Compiles an Avro schema, the last text, whose references are the texts before it. Raises PipelineError."""


class SchemaQuestion(NamedTuple):
    """Question if a schema meets a rule; `decodes` asks for its walk, too."""

    schema: SchemaKey
    rule: SubjectRule
    decodes: bool


class ContractVerdict(NamedTuple):
    """The answer to a question: a reason to refuse records, or None; and the walk for their datums, if asked for."""

    reason: RefusalReason | None
    message: str = ""
    walk: DatumWalk | None = None


class Patience(NamedTuple):
    """The time (trio's) by which a request needs its verdicts, and the bytes that it holds until then."""

    deadline: float
    held_bytes: int


class _Kept(NamedTuple):
    verdict: ContractVerdict
    until_s: float


class VerdictCache:
    """Verdicts by question."""

    def __init__(
        self, max_size: int, *, fresh_s: float, refused_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_size = max_size
        self._fresh_s = fresh_s
        self._refused_s = refused_s
        self.clock = clock
        self._valid: dict[SchemaQuestion, _Kept] = {}
        self._refused: dict[SchemaQuestion, _Kept] = {}
        self._due: set[SchemaQuestion] = set()

    def __len__(self) -> int:
        return len(self._valid) + len(self._refused)

    def peek(self, question: SchemaQuestion) -> ContractVerdict | None:
        """Return the verdict; None if it is not known."""
        kept = self._valid.get(question)
        if kept is not None:
            if kept.until_s < self.clock():
                self._due.add(question)
            return kept.verdict
        kept = self._refused.get(question)
        return kept.verdict if kept is not None and kept.until_s > self.clock() else None

    def fresh_until(self, question: SchemaQuestion) -> float:
        """Return the time of the cache's clock until which a valid verdict needs no new answer, 0 for others."""
        kept = self._valid.get(question)
        return 0.0 if kept is None else kept.until_s

    def keep(self, question: SchemaQuestion, verdict: ContractVerdict) -> None:
        """Keep an answer of the registry, in place of the one before."""
        self._valid.pop(question, None)
        self._refused.pop(question, None)
        is_valid = verdict.reason is None
        kept = self._valid if is_valid else self._refused
        if len(kept) >= self._max_size:
            del kept[next(iter(kept))]
        kept[question] = _Kept(verdict, self.clock() + (self._fresh_s if is_valid else self._refused_s))

    def take_due(self, at_most: int) -> list[SchemaQuestion]:
        """Return questions of valid verdicts that were used although they are old; the rest comes next time."""
        used, now_s = list(self._due), self.clock()
        old = [question for question in used if (kept := self._valid.get(question)) and kept.until_s < now_s]
        self._due.difference_update(used)
        self._due.update(old[at_most:])
        return old[:at_most]
