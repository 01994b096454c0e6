"""Counts of one life of a mirror or of a member of a group: batches in, reports out. Pure.

Invariants:

A. A life counts a batch once. Rows are cumulative, and their revision is a number that rises with each report.
B. Rows and position of a partition are in one record of the audit topic.
C. A position says which offsets the rows of this life are about: `counted_from` to before `end_offset`. Offsets in no
   life's position were handled by nobody, or by a life that could not report them. So a partition that goes on
   elsewhere than it ended goes on in another life, of the same process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.audit.counting.deferred_sums import DeferredSums
from pipeline.audit.counting.partition_rows import whole_partitions
from pipeline.audit.events.report import POSITION, ROW, CountReport, LifeSign, ReportedTopic, Rows
from pipeline.audit.events.tiers import Counter
from pipeline.model import TopicPartition
from pipeline.records.batch_hashes import HeaderTable


@dataclass(slots=True)
class _LifePosition:
    """A partition of a life. `number`: its partition in the sums."""

    number: int
    counted_from: int
    end_offset: int


class LifeCounts:
    """Counts of one life, `counter.instance`."""

    def __init__(self, counter: Counter, window_ms: int) -> None:
        self.counter = counter
        self._sums = DeferredSums(window_ms)
        self._positions: dict[TopicPartition, _LifePosition] = {}
        self._changed: set[TopicPartition] = set()
        self._sequence = 0

    def add(self, partition: TopicPartition, table: HeaderTable, counted_from: int, end_offset: int) -> None:
        """Count batches of a partition, of which all from `counted_from` to before `end_offset` are counted then."""
        position = self._positions.get(partition)
        if position is None:
            position = self._positions[partition] = _LifePosition(len(self._positions), counted_from, end_offset)
        self._sums.add(table, position.number)
        position.end_offset = max(position.end_offset, end_offset)
        self._changed.add(partition)

    def position(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Return `counted_from` and `end_offset` of a partition; None if the life has not counted it."""
        found = self._positions.get(partition)
        return None if found is None else (found.counted_from, found.end_offset)

    def take_reports(self, created_ms: int, life: LifeSign) -> list[CountReport]:
        """Return reports of what has changed; if nothing has, one with the life sign alone.

        Only the last one has the life sign: what it says holds once all have arrived.
        """
        self._sequence += 1
        numbers = {partition: self._positions[partition].number for partition in sorted(self._changed)}
        self._changed.clear()
        parts = list(whole_partitions(self._sums.settled.take_changed(numbers.values()), numbers)) or [{}]
        return [self._report(part, created_ms, life if part is parts[-1] else None) for part in parts]

    def report_again(self) -> None:
        """Report all counts next time: earlier reports are gone."""
        self._changed.update(self._positions)
        self._sums.settled.mark_changed(self._sums.settled.rows())

    def put_back(self, report: CountReport) -> None:
        """Take this report, which could not be published, again next time."""
        names = [topic.name for topic in report.topics]
        for topic, partition in zip(report.positions["topic"], report.positions["partition"], strict=True):
            self._changed.add(TopicPartition(names[topic], int(partition)))
        rows = report.rows.copy()
        rows["partition"] = [
            self._positions[TopicPartition(names[topic], int(partition))].number
            for topic, partition in zip(rows["topic"], rows["partition"], strict=True)
        ]
        self._sums.settled.mark_changed(rows)

    def _report(self, part: Mapping[TopicPartition, Rows], created_ms: int, life: LifeSign | None) -> CountReport:
        topics: dict[str, int] = {}
        positions = np.zeros(len(part), POSITION)
        tables: list[Rows] = [np.zeros(0, ROW)]
        for index, (partition, rows) in enumerate(part.items()):
            topic = topics.setdefault(partition.topic, len(topics))
            rows["topic"], rows["partition"], rows["revision"] = topic, partition.partition, self._sequence
            tables.append(rows)
            found = self._positions[partition]
            position = positions[index : index + 1]
            position["topic"], position["partition"] = topic, partition.partition
            position["end_offset"], position["counted_from"] = found.end_offset, found.counted_from
            position["start_offset"] = -1
        return CountReport(
            counter=self.counter,
            process=self.counter.instance,
            created_ms=created_ms,
            window_ms=self._sums.window_ms,
            topics=tuple(map(ReportedTopic, topics)),
            rows=np.concatenate(tables),
            positions=positions,
            life=life,
        )


class NumberedLives:
    """Lives of one process: a partition that goes on after a hole goes on in a higher life.

    Partitions join the newest life alone. So a life that no partition is in any more, and is not the newest, has ended.
    """

    def __init__(self, counter_of: Callable[[int], Counter], window_ms: int) -> None:
        """`counter_of` returns the counter of the life of a number, from 0 on."""
        self._counter_of = counter_of
        self._window_ms = window_ms
        self._newest = 0
        self._lives: dict[int, LifeCounts] = {0: LifeCounts(counter_of(0), window_ms)}
        self._runs: dict[TopicPartition, tuple[int, int]] = {}
        """Run of offsets that each partition is in, and its life."""

    def add(self, partition: TopicPartition, run: int, table: HeaderTable, counted_from: int, end_offset: int) -> None:
        """Count batches as `LifeCounts.add` does. `run` is a number that rises with each hole of the partition."""
        known_run, life = self._runs.get(partition, (run, self._newest))
        if known_run != run:
            if life == self._newest:
                self._newest += 1
                self._lives[self._newest] = LifeCounts(self._counter_of(self._newest), self._window_ms)
            life = self._newest
        self._runs[partition] = run, life
        self._lives[life].add(partition, table, counted_from, end_offset)

    @property
    def _present(self) -> set[int]:
        return {self._newest, *(life for _, life in list(self._runs.values()))}

    def take_reports(self, created_ms: int, life: LifeSign) -> list[CountReport]:
        """Return the reports of all lives."""
        present, ended = self._present, replace(life, is_ended=True)
        return [
            report
            for number, counts in self._lives.items()
            for report in counts.take_reports(created_ms, life if number in present else ended)
        ]

    def published(self, reports: Sequence[CountReport]) -> None:
        """Forget lives whose end was published. May be called in a thread while batches are added."""
        present = self._present
        ended = {report.counter for report in reports if report.life is not None and report.life.is_ended}
        for number in [each for each in list(self._lives) if each not in present]:
            if self._lives[number].counter in ended:
                del self._lives[number]

    def put_back(self, reports: Sequence[CountReport]) -> None:
        """Take those of these reports that are of these lives again next time."""
        by_counter = {counts.counter: counts for counts in self._lives.values()}
        for report in reports:
            if report.counter in by_counter:
                by_counter[report.counter].put_back(report)

    def report_again(self) -> None:
        """Report all counts of lives that are kept next time."""
        for counts in self._lives.values():
            counts.report_again()
