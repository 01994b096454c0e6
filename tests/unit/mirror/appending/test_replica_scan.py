"""Mirrors that die at any step, against a model of a broker's check of sequence numbers (`ProducerAppendInfo`)."""

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.mirror.appending.appended_offsets import IN_FLIGHT
from pipeline.mirror.appending.replica_scan import OffsetMapError, ReplicaScan
from pipeline.mirror.journals.offset_map import OffsetMapEntry, PlannedBatch, fold, open_plans, sequence_after
from pipeline.model import TopicPartition
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch import MAX_SEQUENCE, BatchHeader

MIRROR, OTHER = 4000, 17
CACHED = 5
"""Batches of a producer of which a broker knows a repetition."""


def header(offset: int, records: int, producer_id: int, sequence: int) -> BatchHeader:
    return BatchHeader(offset, 100, 0, 2, 0, 0, records - 1, 0, 0, producer_id, 0, sequence, records)


@dataclass
class Replica:
    """The log of a partition, with what was ever appended by the mirror."""

    log: list[BatchHeader] = field(default_factory=list)
    end: int = 0
    ever: list[int] = field(default_factory=list)
    """Batches of the source that the mirrors appended, by their numbers."""
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=CACHED))

    def append(self, sequence: int, records: int, number: int) -> bool:
        """True if the broker has the batch then."""
        if (sequence, records) in self.recent:
            return True
        if self.recent and sequence_after(*self.recent[-1]) != sequence:
            return False
        self.recent.append((sequence, records))
        self.ever.append(number)
        self._place(records, MIRROR, sequence)
        return True

    def append_other(self) -> None:
        self._place(2, OTHER, 0)

    def _place(self, records: int, producer_id: int, sequence: int) -> None:
        self.log.append(header(self.end, records, producer_id, sequence))
        self.end += records


class Site:
    """A source, a replica, the map's topic, and what dead mirrors have left on the way."""

    def __init__(self, random: Random, batches: int) -> None:
        self.random = random
        self.sizes = [random.randint(1, 3) for _ in range(batches)]
        self.ends = [10 * (number + 1) for number in range(batches)]
        """Offsets of the source behind each batch: more than the records, as after compaction."""
        self.replica = Replica()
        first = OffsetMapEntry(
            source="east",
            partition=TopicPartition("clicks", 0),
            topic_id=ZERO_UUID,
            replica=TopicPartition("clicks", 0),
            replica_topic_id=ZERO_UUID,
            producer_id=MIRROR,
            producer_epoch=0,
            sequence=MAX_SEQUENCE - 2,  # so that sequence numbers begin again at 0
        )
        self.records = [first]
        self.late_records: list[OffsetMapEntry] = []
        self.late_requests: list[tuple[int, int, int]] = []

    def located(self) -> OffsetMapEntry:
        known: OffsetMapEntry | None = None
        for record in self.records:
            known = fold(known, record)
        assert known is not None
        scan = ReplicaScan(known)
        for batch in self.replica.log:
            if batch.base_offset >= known.replica_offset:
                scan.add(batch)
        return scan.conclude(self.replica.end)

    def mirror(self, steps: int, planned_at_once: int) -> bool:
        """Run a mirror that dies after so many steps; True if it was done before."""
        entry = self.located()
        is_known = False
        while True:
            number = sum(end <= entry.source_offset for end in self.ends)
            if number == len(self.sizes):
                return True
            plans: list[PlannedBatch] = []
            sequence = entry.sequence
            for size, end in list(zip(self.sizes, self.ends, strict=True))[number : number + planned_at_once]:
                plans.append(PlannedBatch(sequence, size, end))
                sequence = sequence_after(sequence, size)
            entry = replace(entry, planned=tuple(dict.fromkeys((*plans, *open_plans(entry)))))
            steps -= 1
            if steps < 0:
                self.late_records.append(entry)
                return False
            self.records.append(entry)
            requests = [(plan.sequence, plan.records, number + place) for place, plan in enumerate(plans)]
            for plan, request in zip(plans, requests, strict=True):
                steps -= 1
                if steps < 0:
                    first = requests.index(request)
                    self.late_requests += requests[first : first + (IN_FLIGHT if is_known else 1)]
                    return False
                assert self.replica.append(*request)
                is_known = True
                entry = replace(
                    entry,
                    source_offset=plan.next_offset,
                    replica_offset=self.replica.end,
                    sequence=sequence_after(plan.sequence, plan.records),
                )

    def let_something_happen(self) -> None:
        happening = self.random.randrange(6)
        if happening == 0:
            self.replica.append_other()
        elif happening == 1 and self.late_requests:
            self.replica.append(*self.late_requests.pop(self.random.randrange(len(self.late_requests))))
        elif happening == 2 and self.late_records:
            self.records.append(self.late_records.pop(0))


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=12))
@settings(max_examples=80)
def test_mirrors_that_die_at_any_step_append_every_batch_once(seed: int, lives: list[tuple[int, int]]) -> None:
    site = Site(Random(seed), 20)
    for steps, planned_at_once in lives:
        site.mirror(steps, planned_at_once)
        for _ in range(site.random.randrange(4)):
            site.let_something_happen()
    assert site.mirror(1000, 4)
    for request in site.late_requests:
        site.replica.append(*request)
    site.records += site.late_records
    assert site.replica.ever == list(range(20))
    assert site.located().source_offset == site.ends[-1]


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=8))
@settings(max_examples=80)
def test_a_replica_that_lost_batches_is_continued_at_the_right_place_or_not_at_all(
    seed: int, lives: list[tuple[int, int]]
) -> None:
    """Retention, compaction, a compacted map, expired producers: no batch is doubled or left out."""
    site = Site(Random(seed), 20)
    try:
        for steps, planned_at_once in lives:
            site.mirror(steps, planned_at_once)
            site.let_something_happen()
            if site.random.random() < 0.3:
                site.replica.log = [batch for batch in site.replica.log if site.random.random() < 0.7]
            if site.random.random() < 0.3:
                del site.records[:-1]
            if site.random.random() < 0.3:  # a day later the broker has forgotten the producer
                site.replica.recent.clear()
                site.late_requests.clear()
        site.mirror(1000, 4)
    except OffsetMapError:
        assert site.replica.ever == list(range(len(site.replica.ever)))
    else:
        assert site.replica.ever == list(range(20))


def test_a_batch_of_the_producer_that_was_never_planned_is_reported() -> None:
    site = Site(Random(1), 3)
    site.replica.append(5, 1, 0)
    with pytest.raises(OffsetMapError, match="the map was lost or is outdated"):
        site.located()
