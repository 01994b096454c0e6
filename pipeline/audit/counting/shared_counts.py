"""A counter of records that threads share: records wait, and are put in tables many at a time. No I/O.

Invariants:
A. Threads may note records; one thread takes reports. Each record is counted once.
B. At most `WAITING_RECORDS` records wait: the thread that notes one more puts them in tables.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from pipeline.audit.counting.publisher import Counting
from pipeline.audit.events.report import CountReport

WAITING_RECORDS: Final = 65_536


class RecordOutcome(NamedTuple):
    """Outcome of a record. `offset` is -1 if it is not known."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class SharedCounts(ABC):
    """Records that wait for a counter, and the lock of the counter, which nobody else uses."""

    def __init__(self, counter: Counting) -> None:
        self._counted = counter
        self._waiting: deque[RecordOutcome] = deque()
        self._using = threading.Lock()
        """Guards the counter."""

    def note(self, record: RecordOutcome) -> None:
        """Have one record wait. The hot path: an append."""
        self._waiting.append(record)
        if len(self._waiting) >= WAITING_RECORDS:
            with self.turn():
                pass

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock, once all that waits now is counted. Threads may go on to note records."""
        with self._using:
            taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if taken:
                self.count(taken)
            yield

    @abstractmethod
    def count(self, records: Sequence[RecordOutcome]) -> None:
        """Count records; the caller has the lock."""

    @abstractmethod
    def mark(self, report: CountReport) -> None:
        """Say in the rows of a report what counts of records do not know."""

    # For the publisher.

    def take_reports(self) -> list[CountReport]:
        """See `Counting.take_reports`."""
        with self.turn():
            reports = self._counted.take_reports()
        for report in reports:
            self.mark(report)
        return reports

    def published(self, reports: Sequence[CountReport]) -> None:
        """See `Counting.published`."""
        with self._using:
            self._counted.published(reports)

    def put_back(self, reports: Sequence[CountReport]) -> None:
        """See `Counting.put_back`."""
        with self._using:
            self._counted.put_back(reports)

    def report_again(self) -> None:
        """See `Counting.report_again`."""
        with self._using:
            self._counted.report_again()
