"""Where the replicas of a cluster's partitions should be, and as few moves as lead there. Pure.

Invariants of a plan: every partition keeps its number of replicas, on distinct brokers of those that may be used; a
partition has its replicas in as many racks as can be (where all these brokers have racks); no replica moves but to
leave a broker that may not be used, to come into another rack, or to make the numbers even: those of each topic first,
then those of all topics together. Being preferred leader costs no move and is made even at the end.

The form is that of Kafka's kafka-reassign-partitions, so that its plans can be applied here and ours there.
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
"""The brokers that may be used, and where they stand."""

_ANY_LOG_DIR = "any"


def plan_reassignment(current: Placement, racks: Racks) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The partitions that should be elsewhere, or led by another of their replicas first, with their new replicas.

    Raises ConfigurationError if there are fewer brokers than a partition has replicas.
    """
    planner = _Planner(current, racks)
    planner.fill()
    planner.balance()
    planner.balance_leaders()
    return {
        partition: tuple(replicas)
        for partition, replicas in sorted(planner.placed.items())
        if tuple(replicas) != tuple(current[partition])
    }


class _Planner:
    """Replicas while they are being placed, and how many each broker has."""

    def __init__(self, current: Placement, racks: Racks) -> None:
        self._current = current
        is_rack_aware = all(rack is not None for rack in racks.values())
        self._racks = {broker: rack if is_rack_aware else None for broker, rack in racks.items()}
        self._rack_count = len(set(self._racks.values()))
        self._brokers = sorted(racks)
        self.placed: dict[TopicPartition, list[BrokerId]] = {}
        self._total: Counter[BrokerId] = Counter()
        self._of_topic: dict[str, Counter[BrokerId]] = {}
        for partition, replicas in sorted(current.items()):
            if len(replicas) > len(racks):
                raise ConfigurationError(
                    "--brokers", f"names {len(racks)} brokers, but {partition} has {len(replicas)} replicas"
                )
            self.placed[partition] = []
            self._of_topic.setdefault(partition.topic, Counter())

    def fill(self) -> None:
        """Keep what can stay, and give every partition its full number of replicas."""
        for partition, replicas in sorted(self._current.items()):
            wanted_racks = min(len(replicas), self._rack_count)
            spare = len(replicas) - wanted_racks
            for replica in replicas:
                if replica not in self._racks:
                    continue
                if self._racks[replica] in self._racks_of(partition):
                    if self._racks[replica] is not None and not spare:
                        continue
                    spare -= 1
                self._add(partition, replica, len(self.placed[partition]))
        for partition, replicas in sorted(self._current.items()):
            for place, former in enumerate(replicas):
                if former not in self.placed[partition]:
                    self._add(partition, self._best_for(partition), min(place, len(self.placed[partition])))

    def balance(self) -> None:
        """Move replicas from brokers that have more to such that have fewer, for as long as that may be."""
        has_moved = True
        while has_moved:
            has_moved = False
            for partition, replicas in self.placed.items():
                move = self._find_move(partition)
                if move is not None:
                    source, target = move
                    place = replicas.index(source)
                    self._remove(partition, source)
                    self._add(partition, target, place)
                    has_moved = True

    def _find_move(self, partition: TopicPartition) -> tuple[BrokerId, BrokerId] | None:
        """Whose replica should be whose. What a move improves (see the module) falls with each, so that they end."""
        replicas, of_topic, total = self.placed[partition], self._of_topic[partition.topic], self._total
        targets = sorted(self._brokers, key=lambda broker: (of_topic[broker], total[broker], broker))
        for source in sorted(replicas, key=lambda broker: -total[broker]):
            for target in targets:
                more_of_topic, more = of_topic[source] - of_topic[target], total[source] - total[target]
                is_better = more_of_topic >= 2 or (more_of_topic >= 1 and more >= 2)
                if is_better and target not in replicas and self._keeps_racks(partition, source, target):
                    return source, target
        return None

    def balance_leaders(self) -> None:
        """Have each broker first as often as any other, as far as the replicas allow."""
        while (path := self._path_to_fewer_leaders()) is not None:
            for partition, leader in path:
                replicas = self.placed[partition]
                replicas.remove(leader)
                replicas.insert(0, leader)

    def _path_to_fewer_leaders(self) -> list[tuple[TopicPartition, BrokerId]] | None:
        """Changes of leaders that take one from a broker that leads at least two more than the last one of the path."""
        led: dict[BrokerId, list[TopicPartition]] = {broker: [] for broker in self._brokers}
        for partition, replicas in self.placed.items():
            led[replicas[0]].append(partition)
        leads = {broker: len(partitions) for broker, partitions in led.items()}
        for source in sorted(self._brokers, key=lambda broker: (-leads[broker], broker)):
            came_by: dict[BrokerId, list[tuple[TopicPartition, BrokerId]]] = {source: []}
            waiting = deque([source])
            while waiting:
                broker = waiting.popleft()
                if leads[source] - leads[broker] >= 2:
                    return came_by[broker]
                for partition in led[broker]:
                    for other in self.placed[partition][1:]:
                        if other not in came_by:
                            came_by[other] = [*came_by[broker], (partition, other)]
                            waiting.append(other)
        return None

    def _best_for(self, partition: TopicPartition) -> BrokerId:
        replicas, used, of_topic = self.placed[partition], self._racks_of(partition), self._of_topic[partition.topic]
        return min(
            (broker for broker in self._brokers if broker not in replicas),
            key=lambda broker: (self._racks[broker] in used, of_topic[broker], self._total[broker], broker),
        )

    def _keeps_racks(self, partition: TopicPartition, source: BrokerId, target: BrokerId) -> bool:
        after = {self._racks[broker] for broker in self.placed[partition] if broker != source} | {self._racks[target]}
        return len(after) >= len(self._racks_of(partition))

    def _racks_of(self, partition: TopicPartition) -> set[str | None]:
        return {self._racks[broker] for broker in self.placed[partition]}

    def _add(self, partition: TopicPartition, broker: BrokerId, place: int) -> None:
        self.placed[partition].insert(place, broker)
        self._total[broker] += 1
        self._of_topic[partition.topic][broker] += 1

    def _remove(self, partition: TopicPartition, broker: BrokerId) -> None:
        self.placed[partition].remove(broker)
        self._total[broker] -= 1
        self._of_topic[partition.topic][broker] -= 1


class _PartitionJson(BaseModel):
    topic: str
    partition: int = Field(ge=0)
    replicas: list[BrokerId] = Field(min_length=1)
    log_dirs: list[str] = []


class _PlanJson(BaseModel):
    version: int = Field(default=1, ge=1, le=1)
    partitions: list[_PartitionJson]


def plan_to_json(plan: Placement) -> dict[str, Any]:
    """As kafka-reassign-partitions reads and writes it."""
    return {
        "version": 1,
        "partitions": [
            {"topic": partition.topic, "partition": partition.partition, "replicas": list(replicas)}
            for partition, replicas in sorted(plan.items())
        ],
    }


def parse_plan(text: str) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """What `plan_to_json` or Kafka's tool made. Raises ValueError with a sentence."""
    try:
        fields = _PlanJson.model_validate(json.loads(text))
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    plan: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for item in fields.partitions:
        partition = TopicPartition(item.topic, item.partition)
        if partition in plan:
            raise ValueError(f"{partition} is named twice")
        if len(set(item.replicas)) < len(item.replicas):
            raise ValueError(f"{partition} names a broker twice")
        if any(path != _ANY_LOG_DIR for path in item.log_dirs):
            raise ValueError(f"{partition} names a log dir; brokers choose these by themselves")
        plan[partition] = tuple(item.replicas)
    return plan
