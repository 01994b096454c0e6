"""Mirrors that share the partitions as a group, and what must hold of their assignments and claims.

Invariants:

  1. The number of an assignment rises with each one that is published, and all its parts exist by then.
  2. A unit that gets another holder, or a first one, gets an epoch above all epochs that the group ever had. A unit
     that stays keeps its epoch.
  3. Once a copier has been told that its claim of a replica counts, the leader appends no batch of an older copier. A
     leader that another one has replaced may: its followers do not take such a batch.
  4. One member at a time does what no broker guards, unless ZooKeeper dropped a session early.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import trio

from pipeline.broker.replication.partition import Partition
from pipeline.model import TopicPartition
from pipeline.testing.simulation.mirrors.mirror_process import SimulatedMirror
from pipeline.testing.simulation.state_rules import StateInZooKeeper
from pipeline.testing.simulation.zookeeper import SimulatedZooKeeper

GROUP = "mirror"
SESSION_S = 3.0
ASSIGNMENT = f"/mirrors/{GROUP}/assignment"
MAX_PROBLEMS = 5
Unit = tuple[str, str, int]
"""Source, topic and partition."""
Holder = tuple[str, int]
"""Member and copier epoch."""


@dataclass(eq=False)
class MirrorGroupRules:
    """Judges each assignment that is published, and each append to a replica."""

    zookeeper: SimulatedZooKeeper
    state_of: Callable[[TopicPartition], StateInZooKeeper | None]
    """Returns the state of a replica partition as ZooKeeper has it."""
    problems: list[str] = field(default_factory=list)
    _number: int = -1
    _held: dict[Unit, Holder] = field(default_factory=dict)
    _highest: int = -1
    _claimed: dict[TopicPartition, int] = field(default_factory=dict)
    _checked: dict[Partition, int] = field(default_factory=dict)
    """Copier epoch of the request that each partition was last checked for."""

    def __post_init__(self) -> None:
        others = self.zookeeper.on_changes

        def changed(znodes: Mapping[str, bytes | None]) -> None:
            others(znodes)
            if data := znodes.get(ASSIGNMENT):
                self._published(json.loads(data))

        self.zookeeper.on_changes = changed

    # Assignments

    def _published(self, head: Mapping[str, object]) -> None:
        number, parts = head["number"], head["parts"]
        assert isinstance(number, int) and isinstance(parts, list)
        if number <= self._number:
            self._report(f"assignment {number} follows assignment {self._number}")
        nodes = {part: self.zookeeper.znodes.find_or_none(f"{ASSIGNMENT}/{part}") for part in parts}
        missing = [part for part, node in nodes.items() if node is None]
        if missing:
            self._report(f"assignment {number} lacks its parts {missing}")
        rows = [row for node in nodes.values() if node is not None for row in json.loads(node.data)["rows"]]
        found = {
            (source, topic, partition): (member, epoch)
            for source, topic, member, epoch, partitions in rows
            for partition in partitions
        }
        self._number = number
        self.judge(found)

    def judge(self, found: Mapping[Unit, Holder]) -> None:
        """Judge the holders of an assignment that follows those before."""
        for unit, (member, epoch) in found.items():
            before = self._held.get(unit)
            if before is not None and before[0] == member:
                if before[1] != epoch:
                    self._report(f"{unit} stays with {member}, whose epoch changes from {before[1]} to {epoch}")
            elif epoch <= self._highest:
                self._report(f"{unit} moves from {before} to {member}, epoch {epoch}; the group had {self._highest}")
        self._held = dict(found)
        self._highest = max([self._highest, *(epoch for _, epoch in found.values())])

    # Claims

    def claimed(self, replica: TopicPartition, epoch: int) -> None:
        """Take note that a copier was told that its claim counts."""
        self._claimed[replica] = max(epoch, self._claimed.get(replica, -1))

    def checked(self, partition: Partition, epoch: int) -> None:
        """Take note of the copier epoch of the batches that are appended next, if they are."""
        self._checked[partition] = epoch

    def appended(self, partition: Partition) -> None:
        """Judge an append of a leader."""
        name = partition.topic_partition
        state, epoch, claimed = self.state_of(name), self._checked.get(partition, -1), self._claimed.get(name, -1)
        leads = state is not None and (state.leader, state.leader_epoch) == (partition.own_id, partition.leader_epoch)
        if leads and epoch < claimed:
            self._report(f"{name}: copier {epoch} appends, after copier {claimed} was told that it may")

    # Duties

    def look(self, mirrors: Iterable[SimulatedMirror], sources: Iterable[str]) -> None:
        """Judge who does the work that no broker guards."""
        answering = [(mirror, mirror.answering.shared) for mirror in mirrors if mirror.answering is not None]
        if any(mirror.expired_at >= trio.current_time() - SESSION_S for mirror, _ in answering):
            return
        for source in sources:
            found = [mirror.name for mirror, shared in answering if shared and shared.group.has_duties_of(source)]
            if len(found) > 1:
                self._report(f"{', '.join(found)} do the work of {source} at the same time")

    def _report(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
