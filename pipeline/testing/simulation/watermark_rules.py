"""The high watermark as it moves inside the brokers, and what must hold of it at each of its steps.

`watched_high_watermarks` replaces the attribute of a replica by a property for the length of a run, so that no step is
missed. `WatermarkRules` judges each step, and looks again whenever a state was written or a broker begins to serve.

Invariants, for each partition of each topic id:

  1. The high watermark of a leader never goes back.
  2. A high watermark is never beyond the end of its own log.
  3. A leader advances its high watermark only to what min.insync.replicas replicas have, or had when their machines
     lost their power just now; a leader of fewer replicas to what all of them have.
  4. A broker that serves, and that ZooKeeper has in the ISR, has everything below any leader's high watermark so far.
  5. When the leader that ZooKeeper has advances its high watermark, the last record below it is of the same leader
     epoch in the log of each such broker: then all before it is equal, too.

A partition with one replica in sync may lose its tail with the power: what it had is forgotten then.
"""

import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pipeline.broker.replication.partition import Partition
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.observation import ObservedPartition

Moved = Callable[[Partition, Offset, Offset], None]
"""A replica, its high watermark before, and now."""
Place = tuple[TopicPartition, uuid.UUID | None]
"""A partition of a topic, and the topic's id."""


@contextmanager
def watched_high_watermarks(moved: Moved) -> Generator[None]:
    """Have each step of each high watermark in this process told."""
    owner: Any = Partition
    slot = owner.__dict__["high_watermark"]

    def read(partition: Partition) -> Offset:
        offset: Offset = slot.__get__(partition)
        return offset

    def write(partition: Partition, offset: Offset) -> None:
        try:
            before = read(partition)
        except AttributeError:  # the partition is being made
            before = offset
        slot.__set__(partition, offset)
        if before != offset:
            moved(partition, before, offset)

    owner.high_watermark = property(read, write)
    try:
        yield
    finally:
        owner.high_watermark = slot


@dataclass(eq=False)
class WatermarkRules:
    """Judges; `problems` are sentences. `min_isr` is what the topics ask for."""

    min_isr: int
    problems: list[str] = field(default_factory=list)
    _committed: dict[Place, Offset] = field(default_factory=dict)
    _replicas: dict[Place, dict[BrokerId, ObservedPartition]] = field(default_factory=dict)
    """The newest life of each replica. Of a process that was killed it is the last one: the machine has its files."""
    _had: dict[Place, dict[BrokerId, Offset]] = field(default_factory=dict)
    """The end of a replica when its machine lost its power: a fetch that tells of it may still be on its way."""

    def loaded(self, broker: BrokerId, partition: ObservedPartition) -> None:
        """A broker has opened a replica."""
        self._replicas.setdefault(place_of(partition), {})[broker] = partition
        self._had.get(place_of(partition), {}).pop(broker, None)

    def moved(self, partition: Partition, before: Offset, now: Offset, assigned: int) -> None:
        """A replica has moved its high watermark. So many are `assigned`, without those that a reassignment adds: a
        leader hears late of these.
        """
        name = f"{partition.topic_partition} on broker {partition.own_id}"
        if now > partition.log.log_end_offset:
            self.problems.append(f"{name}: high watermark {now} beyond the log end {partition.log.log_end_offset}")
        if not partition.is_leader:
            return
        if now < before:
            self.problems.append(f"{name}: the leader's high watermark goes back from {before} to {now}")
        place = place_of(partition)
        known = dict(self._had.get(place, {}))
        known.update((broker, replica.log.log_end_offset) for broker, replica in self._replicas.get(place, {}).items())
        holders = sum(end >= now for end in known.values())
        if holders < min(self.min_isr, assigned):
            self.problems.append(f"{name}: high watermark {now}, which {holders} replicas have: ends {known}")
        self._committed[place] = max(now, self._committed.get(place, now))

    def check_same(self, leader: Partition, replica: Partition, now: Offset) -> None:
        """A leader has moved its high watermark; the replica is in sync, and its broker serves."""
        if replica.log.failure is not None or not replica.log.log_start_offset < now <= leader.log.log_end_offset:
            return
        last = Offset(now - 1)
        epochs = leader.log.snapshot.epochs.epoch_at(last), replica.log.snapshot.epochs.epoch_at(last)
        if replica.log.log_end_offset < now or epochs[0] != epochs[1]:
            self.problems.append(
                f"{leader.topic_partition}: high watermark {now} of broker {leader.own_id}; broker {replica.own_id} is "
                f"in sync, ends at {replica.log.log_end_offset}, and the leader epochs at {last} are {epochs}"
            )

    def lost_power(self, broker: BrokerId, isrs: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        """Note what this broker held, which may be lost, and forget what it alone vouched for."""
        for place, replicas in self._replicas.items():
            lost = replicas.pop(broker, None)
            if lost is not None:
                self._had.setdefault(place, {})[broker] = lost.log.log_end_offset
            if isrs.get(place[0]) == (broker,):
                self._committed.pop(place, None)

    def left_alone(self, topic_partition: TopicPartition, broker: BrokerId) -> None:
        """Note that a reassignment has left a partition to one broker. If its machine has lost its power, before the
        controller could know, its log alone counts for what is left. Kafka loses the same records: there, too, no
        replica flushes what it has copied before it joins the ISR and the reassignment ends.
        """
        for place, had in self._had.items():
            if place[0] == topic_partition and broker in had:
                self._committed.pop(place, None)

    def committed(self, place: Place) -> Offset | None:
        """The highest offset that a leader's high watermark had, None if none has moved."""
        return self._committed.get(place)

    def check_in_sync(self, topic_partition: TopicPartition, partition: Partition) -> None:
        """A broker that serves is in the ISR, with this replica."""
        least = self._committed.get(place_of(partition))
        end = partition.log.log_end_offset
        if least is not None and end < least and partition.log.failure is None:
            self.problems.append(
                f"{topic_partition}: broker {partition.own_id} is in sync, and ends at {end}; {least} was committed"
            )


def place_of(partition: ObservedPartition) -> Place:
    """The partition and the topic id of a replica."""
    return partition.topic_partition, partition.log.topic_id
