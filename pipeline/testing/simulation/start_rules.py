"""The log start offset as it moves inside the brokers, and what must hold of it at each of its steps.

`watched_log_starts` wraps the functions of a log that move it, for the length of a run. Invariants, for each log while
it is open:

  1. The log start offset never goes back while the log holds records. An empty log that begins within a batch of its
     leader's goes back to the batch's first record, and on again with the batch.
  2. It is never beyond what is committed: retention and DeleteRecords take nothing that a client was not told of.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pipeline.broker.replicas import log_upkeep
from pipeline.log import truncation
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset

Moved = Callable[[UnifiedLog, Offset, Offset], None]
"""A log, its start offset before, and now."""
MOVING = ((UnifiedLog, "delete_records"), (log_upkeep, "take_expired"), (truncation, "_truncate"))


@contextmanager
def watched_log_starts(moved: Moved) -> Generator[None]:
    """Report each step of each log start offset in this process to `moved`."""
    known = [(owner, name, owner.__dict__[name]) for owner, name in MOVING]

    def watched(move: Callable[..., Any]) -> Callable[..., Any]:
        def move_and_tell(log: UnifiedLog, *args: Any, **options: Any) -> Any:
            before, is_empty = log.log_start_offset, log.log_start_offset == log.log_end_offset
            try:
                return move(log, *args, **options)
            finally:
                if log.log_start_offset > before or (log.log_start_offset < before and not is_empty):
                    moved(log, before, log.log_start_offset)

        return move_and_tell

    for owner, name, move in known:
        setattr(owner, name, watched(move))
    try:
        yield
    finally:
        for owner, name, move in known:
            setattr(owner, name, move)


@dataclass(eq=False)
class StartRules:
    """Judges; `problems` are sentences."""

    problems: list[str] = field(default_factory=list)

    def moved(self, log: str, before: Offset, now: Offset, committed: Offset | None) -> None:
        """The log of this name has moved its start. Nothing is known of what is `committed` if that is None."""
        if now < before:
            self.problems.append(f"{log}: the log start offset goes back from {before} to {now}")
        if committed is not None and now > committed:
            self.problems.append(f"{log}: log start offset {now}, and {committed} is committed")
