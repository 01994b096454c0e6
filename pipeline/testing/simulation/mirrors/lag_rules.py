"""Lags as mirrors show them, against the truth that only an outsider knows.

A deposed leader of the source that does not know of its successor yet names what it knows. What was acknowledged since
it was deposed counts once the freshness bound has passed without it.

Invariants, for each partition in each status:

  1. A known lag is not below the records that were acknowledged before the freshness bound and that the replica lacks.
     So `caught_up` is never shown over a replica that lacks such records.
  2. The seconds of a lag are not below the wait of the oldest such record, but for the error of the mirror's clock.
  3. A mirror takes a replica partition for the copy that the table makes it.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from pipeline.mirror.copying.copies import SILENCE_S
from pipeline.mirror.copying.replica_ends import ROUND_S
from pipeline.model import TopicPartition
from pipeline.testing.simulation.mirrors.journals import SourceName, Table
from pipeline.testing.simulation.mirrors.logs import Explained

MAX_PROBLEMS = 5


@dataclass(eq=False)
class AcknowledgedEnd:
    """The offset behind all acknowledged records of a partition, as time goes on."""

    times: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def note(self, end: int, now: float) -> None:
        """Take note of an acknowledgement."""
        if end > self.at(now):
            self.times.append(now)
            self.ends.append(end)

    def at(self, time: float) -> int:
        """Return the end at this time."""
        index = bisect_right(self.times, time)
        return self.ends[index - 1] if index else 0

    def passed(self, offset: int) -> float:
        """Return the time at which the record at this offset was acknowledged."""
        return self.times[bisect_right(self.ends, offset)]


class Recent:
    """Values of the last seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, value: int) -> None:
        """Take note of a value."""
        self._samples.append((trio.current_time(), value))

    def values(self) -> list[int]:
        """Return the values of the window."""
        while self._samples and self._samples[0][0] < trio.current_time() - self._window_s:
            self._samples.popleft()
        return [value for _, value in self._samples]


@dataclass(eq=False)
class LagRules:
    """Judges statuses. The truth is told before by `acknowledged`, `note_source` and `note_replica`."""

    fetch_wait_s: float
    hub_timeout_s: float
    """Time that a mirror waits for an answer of the hub."""
    hub_loses_records: bool
    explained: Callable[[TopicPartition], Explained]
    """Returns the offsets of a replica that the ledger explains."""
    problems: list[str] = field(default_factory=list)
    known: int = 0
    """Number of lags that were known."""
    acknowledged: dict[SourceName, AcknowledgedEnd] = field(default_factory=dict)
    _deposed: dict[SourceName, tuple[float, float]] = field(default_factory=dict)
    """Times at which a leader was first and last seen that another one had replaced."""
    _sources: dict[SourceName, Recent] = field(default_factory=dict)
    _replicas: dict[TopicPartition, Recent] = field(default_factory=dict)

    @property
    def fresh_s(self) -> float:
        """Age of a request of the source at which the lag that its answer gives is unknown."""
        return self.fetch_wait_s + SILENCE_S

    def note_deposed(self, source: SourceName, since: float) -> None:
        """Take note of a leader that another one has replaced, and that does not know it yet."""
        now = trio.current_time()
        first, last = self._deposed.get(source, (since, now))
        self._deposed[source] = first if last >= now - self.fresh_s else since, now

    def _bound(self, source: SourceName, now: float) -> float:
        """Return the time before which a mirror must know what was acknowledged."""
        first, last = self._deposed.get(source, (now, -math.inf))
        return min(first, now - self.fresh_s) if last >= now - self.fresh_s else now - self.fresh_s

    def note_source(self, source: SourceName, end: int) -> None:
        """Take note of the end of a source that may lose records: what it lost is missing nowhere."""
        self._sources.setdefault(source, Recent(self.fresh_s)).note(end)

    def note_replica(self, replica: TopicPartition, end: int) -> None:
        """Take note of the end of a replica. An end that it lost is noticed by questions that mirrors ask regularly."""
        window_s = ROUND_S + self.hub_timeout_s + self.fresh_s if self.hub_loses_records else math.inf
        known = self._replicas.setdefault(replica, Recent(window_s))
        if self.hub_loses_records or end > max(known.values(), default=-1):
            known.note(end)

    def judge(
        self,
        mirror: str,
        document: Mapping[str, Any],
        table: Table,
        present: Collection[SourceName],
        *,
        now: float,
        clock_error_s: float,
    ) -> None:
        """Judge a status. Of topics that were deleted, those not in `present`, nothing is missing."""
        copied = {replica: source for source, replica in table.items()}
        for source in document["sources"]:
            for partition in source["partitions"]:
                place = source["name"], TopicPartition(partition["topic"], partition["partition"])
                replica = TopicPartition(partition["replica_topic"], partition["replica_partition"])
                known = {name: copy for name, copy in table.items() if name[:2] == place}
                if known and replica not in known.values():
                    self._report(f"{mirror} copies {place} to {replica}, and the table has {known}")
                name = copied.get(replica)
                if name is not None and name in present:
                    self._judge_lag(f"{mirror}: {name}", name, replica, partition, now, clock_error_s)

    def _judge_lag(
        self,
        label: str,
        name: SourceName,
        replica: TopicPartition,
        partition: Mapping[str, Any],
        now: float,
        clock_error_s: float,
    ) -> None:
        lag, acknowledged = partition["lag"], self.acknowledged.get(name)
        ends = self._replicas[replica].values() if replica in self._replicas else []
        if lag is None:
            if partition["state"] in {"caught_up", "copying"}:
                self._report(f"{label} is {partition['state']}, and its lag is unknown")
            return
        self.known += 1
        theirs = self._sources[name].values() if name in self._sources else None
        is_old = (
            self.hub_loses_records and partition["state"] != "caught_up"
        )  # from the last position that the hub told
        if acknowledged is None or not ends or theirs == [] or is_old:
            return
        missing = self.explained(replica).behind(max(ends))
        truth = min([acknowledged.at(self._bound(name, now)), *(theirs or [])]) - missing
        if lag < truth:
            self._report(f"{label} has a lag of {lag}, and lacked {truth} {self.fresh_s:g} s ago: {dict(partition)}")
        seconds = partition["lag_seconds"]
        if truth <= 0 or seconds is None or name in self._sources:
            return
        waited_s = now - acknowledged.passed(missing)
        if seconds < waited_s - clock_error_s:
            self._report(
                f"{label} has waited for {seconds} s; the oldest record waits for {waited_s}: {dict(partition)}"
            )

    def _report(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
