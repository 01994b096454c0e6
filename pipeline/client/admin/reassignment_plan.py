"""Balanced placement of a cluster's replicas, reached with few moves. Pure.

Invariants of a plan: every partition keeps its number of replicas, on distinct allowed brokers, in as many racks as
possible (if all these brokers have racks). A replica moves only to leave a broker that is not allowed, to reach another
rack, or to balance the numbers of replicas: per topic first, then in total. Preferred leaders are balanced at the end,
which costs no move.

Plans have the format of kafka-reassign-partitions, so each tool applies the plans of the other.
"""

import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from pipeline.errors import ConfigurationError
from pipeline.model import BrokerId, TopicPartition

Placement = Mapping[TopicPartition, Sequence[BrokerId]]
Racks = Mapping[BrokerId, str | None]
"""The allowed brokers and their racks."""

_ANY_LOG_DIR = "any"


def plan_reassignment(current: Placement, racks: Racks) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Return the new replicas of the partitions that should change, the preferred leader first.

    Raises ConfigurationError if there are fewer brokers than a partition has replicas.
    """
    planner = _Planner(current, racks)
    planner.fill()
    planner.balance()
    planner.balance_leaders()
    return {
        topic_partition: tuple(replicas)
        for topic_partition, replicas in sorted(planner.placed.items())
        if tuple(replicas) != tuple(current[topic_partition])
    }


class _Planner:
    """Replicas while they are placed, and their number per broker."""

    def __init__(self, current: Placement, racks: Racks) -> None:
        self._current = current
        is_rack_aware = all(rack is not None for rack in racks.values())
        self._racks = {broker: rack if is_rack_aware else None for broker, rack in racks.items()}
        self._rack_count = len(set(self._racks.values()))
        self._brokers = sorted(racks)
        self.placed: dict[TopicPartition, list[BrokerId]] = {}
        self._total: Counter[BrokerId] = Counter()
        self._of_topic: dict[str, Counter[BrokerId]] = {}
        for topic_partition, replicas in sorted(current.items()):
            if len(replicas) > len(racks):
                raise ConfigurationError(
                    "--brokers", f"names {len(racks)} brokers, but {topic_partition} has {len(replicas)} replicas"
                )
            self.placed[topic_partition] = []
            self._of_topic.setdefault(topic_partition.topic, Counter())

    def fill(self) -> None:
        """Keep replicas where they can stay, and give every partition its full number of replicas."""
        for topic_partition, replicas in sorted(self._current.items()):
            wanted_racks = min(len(replicas), self._rack_count)
            spare = len(replicas) - wanted_racks
            for replica in replicas:
                if replica not in self._racks:
                    continue
                if self._racks[replica] in self._racks_of(topic_partition):
                    if self._racks[replica] is not None and not spare:
                        continue
                    spare -= 1
                self._add(topic_partition, replica, len(self.placed[topic_partition]))
        for topic_partition, replicas in sorted(self._current.items()):
            for place, former in enumerate(replicas):
                if former not in self.placed[topic_partition]:
                    self._add(
                        topic_partition, self._best_for(topic_partition), min(place, len(self.placed[topic_partition]))
                    )

    def balance(self) -> None:
        """Move replicas from loaded brokers to less loaded ones until no move improves the balance."""
        has_moved = True
        while has_moved:
            has_moved = False
            for topic_partition, replicas in self.placed.items():
                move = self._find_move(topic_partition)
                if move is not None:
                    source, target = move
                    place = replicas.index(source)
                    self._remove(topic_partition, source)
                    self._add(topic_partition, target, place)
                    has_moved = True

    def _find_move(self, topic_partition: TopicPartition) -> tuple[BrokerId, BrokerId] | None:
        """Return the next move, as (from broker, to broker); None if no move improves the balance, so moves end."""
        replicas, of_topic, total = self.placed[topic_partition], self._of_topic[topic_partition.topic], self._total
        targets = sorted(self._brokers, key=lambda broker: (of_topic[broker], total[broker], broker))
        for source in sorted(replicas, key=lambda broker: -total[broker]):
            for target in targets:
                more_of_topic, more = of_topic[source] - of_topic[target], total[source] - total[target]
                is_better = more_of_topic >= 2 or (more_of_topic >= 1 and more >= 2)
                if is_better and target not in replicas and self._keeps_racks(topic_partition, source, target):
                    return source, target
        return None

    def balance_leaders(self) -> None:
        """Make every broker the preferred leader of equally many partitions, as far as the replicas allow."""
        while (path := self._path_to_fewer_leaders()) is not None:
            for topic_partition, leader in path:
                replicas = self.placed[topic_partition]
                replicas.remove(leader)
                replicas.insert(0, leader)

    def _path_to_fewer_leaders(self) -> list[tuple[TopicPartition, BrokerId]] | None:
        """Return changes of leaders along a path from a broker that leads at least two more than the last one."""
        led: dict[BrokerId, list[TopicPartition]] = {broker: [] for broker in self._brokers}
        for topic_partition, replicas in self.placed.items():
            led[replicas[0]].append(topic_partition)
        leads = {broker: len(partitions) for broker, partitions in led.items()}
        for source in sorted(self._brokers, key=lambda broker: (-leads[broker], broker)):
            came_by: dict[BrokerId, list[tuple[TopicPartition, BrokerId]]] = {source: []}
            waiting = deque([source])
            while waiting:
                broker = waiting.popleft()
                if leads[source] - leads[broker] >= 2:
                    return came_by[broker]
                for topic_partition in led[broker]:
                    for other in self.placed[topic_partition][1:]:
                        if other not in came_by:
                            came_by[other] = [*came_by[broker], (topic_partition, other)]
                            waiting.append(other)
        return None

    def _best_for(self, topic_partition: TopicPartition) -> BrokerId:
        replicas, used, of_topic = (
            self.placed[topic_partition],
            self._racks_of(topic_partition),
            self._of_topic[topic_partition.topic],
        )
        return min(
            (broker for broker in self._brokers if broker not in replicas),
            key=lambda broker: (self._racks[broker] in used, of_topic[broker], self._total[broker], broker),
        )

    def _keeps_racks(self, topic_partition: TopicPartition, source: BrokerId, target: BrokerId) -> bool:
        after = {self._racks[broker] for broker in self.placed[topic_partition] if broker != source} | {
            self._racks[target]
        }
        return len(after) >= len(self._racks_of(topic_partition))

    def _racks_of(self, topic_partition: TopicPartition) -> set[str | None]:
        return {self._racks[broker] for broker in self.placed[topic_partition]}

    def _add(self, topic_partition: TopicPartition, broker: BrokerId, place: int) -> None:
        self.placed[topic_partition].insert(place, broker)
        self._total[broker] += 1
        self._of_topic[topic_partition.topic][broker] += 1

    def _remove(self, topic_partition: TopicPartition, broker: BrokerId) -> None:
        self.placed[topic_partition].remove(broker)
        self._total[broker] -= 1
        self._of_topic[topic_partition.topic][broker] -= 1


class _PartitionJson(BaseModel):
    topic: str
    partition: int = Field(ge=0)
    replicas: list[BrokerId] = Field(min_length=1)
    log_dirs: list[str] = []


class _PlanJson(BaseModel):
    version: int = Field(default=1, ge=1, le=1)
    partitions: list[_PartitionJson]


def plan_to_json(plan: Placement) -> dict[str, Any]:
    """Return a plan in the JSON of kafka-reassign-partitions."""
    return {
        "version": 1,
        "partitions": [
            {"topic": topic_partition.topic, "partition": topic_partition.partition, "replicas": list(replicas)}
            for topic_partition, replicas in sorted(plan.items())
        ],
    }


def parse_plan(text: str) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Parse a plan of `plan_to_json` or of Kafka's tool. Raises ValueError with a sentence."""
    try:
        fields = _PlanJson.model_validate(json.loads(text))
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else "is no object with version and partitions") from error
    plan: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for item in fields.partitions:
        topic_partition = TopicPartition(item.topic, item.partition)
        if topic_partition in plan:
            raise ValueError(f"{topic_partition} is named twice")
        if len(set(item.replicas)) < len(item.replicas):
            raise ValueError(f"{topic_partition} names a broker twice")
        if any(path != _ANY_LOG_DIR for path in item.log_dirs):
            raise ValueError(f"{topic_partition} names a log dir; brokers choose these by themselves")
        plan[topic_partition] = tuple(item.replicas)
    return plan
