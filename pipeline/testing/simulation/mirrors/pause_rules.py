"""Pauses, and what must hold of them.

Invariant: a mirror begins no append of a partition that is paused. A pause is in force in the process that has answered
the request, and in each process that began after the answer. Other processes follow later.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import trio

from pipeline.mirror.journals.pauses import PauseScope
from pipeline.model import TopicPartition
from pipeline.testing.simulation.process import Process

MAX_PROBLEMS = 5


@dataclass(eq=False)
class PauseRules:
    """Judges each append as it begins."""

    problems: list[str] = field(default_factory=list)
    is_over: bool = False
    """True if all pauses are being ended, so that none is in force for certain."""
    _answered: dict[PauseScope, tuple[float, list[Process]]] = field(default_factory=dict)
    """Time of the first answer to requests for each pause, and the processes in which the pause is in force."""

    @property
    def scopes(self) -> list[PauseScope]:
        """Pauses that are in force for certain."""
        return list(self._answered)

    def answered(self, scopes: Iterable[PauseScope], process: Process) -> None:
        """Take note of the answer to a request for pauses."""
        for scope in () if self.is_over else scopes:
            self._answered.setdefault(scope, (trio.current_time(), []))[1].append(process)

    def ends(self, scope: PauseScope) -> None:
        """Take note of a request that ends a pause, and the pauses of single partitions if it names their topic."""
        for known in self.scopes:
            if known == scope or (scope.partition is None and known.topic and known.topic == scope.topic):
                del self._answered[known]

    def end_all(self) -> None:
        """Take note that all pauses are being ended."""
        self.is_over = True
        self._answered.clear()

    def append_begins(self, process: Process, began_at: float, source: str, partition: TopicPartition) -> None:
        """Judge an append that a process begins, which itself began at a time."""
        for scope, (answered_at, processes) in self._answered.items():
            is_known = process in processes or began_at > answered_at
            if is_known and covers(scope, source, partition) and len(self.problems) < MAX_PROBLEMS:
                self.problems.append(f"{process.name} appends {partition} of {source}, and {scope} is paused")


def covers(scope: PauseScope, source: str, partition: TopicPartition) -> bool:
    """Return True if a pause holds a source partition. The flow of a source bears its name."""
    if scope.flow is not None:
        return scope.flow == source
    return (
        scope.source == source
        and scope.topic in (None, partition.topic)
        and scope.partition in (None, partition.partition)
    )
