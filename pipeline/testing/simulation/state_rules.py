"""The states of partitions as they are written to ZooKeeper, and what must hold from one to the next.

Invariants, as long as nobody asks for an unclean election:

  1. A leader is taken from the in-sync replicas of the state before, and is in those of its own.
  2. The leader epoch never goes back, and another leader has another epoch.
  3. A partition of which no replica is in sync stays without a leader: nobody can vouch for what was there.

The only replica of a partition leads with what is left, and stays in sync, also while it is moved. A topic that was
deleted takes its states along; the states of another topic of its name begin anew.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from pipeline.model import TopicPartition

STATE = re.compile(r"/brokers/topics/(?P<topic>[^/]+)/partitions/(?P<partition>\d+)/state")
NO_BROKER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInZooKeeper:
    """A partition's state as its znode has it."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]


@lru_cache(maxsize=1024)
def decode_state(data: bytes) -> StateInZooKeeper:
    """The state in a znode."""
    state = json.loads(data)
    return StateInZooKeeper(leader=state["leader"], leader_epoch=state["leader_epoch"], isr=tuple(state["isr"]))


@dataclass(eq=False)
class StateRules:
    """Judges each state that is written; `problems` are sentences."""

    problems: list[str] = field(default_factory=list)
    _known: dict[TopicPartition, StateInZooKeeper] = field(default_factory=dict)

    def written(
        self, name: TopicPartition, now: StateInZooKeeper | None, *, is_single: bool, has_one_origin: bool = False
    ) -> None:
        """A state was written; None: it is gone. `has_one_origin`: a single replica but for those that a move adds."""
        before = self._known.pop(name, None)
        if now is None:
            return
        self._known[name] = now
        if has_one_origin and not now.isr:
            self.problems.append(f"{name}: the only replica is not in sync: {now}")
        if before is not None:
            found = judge_states(before, now, is_single=is_single)
            self.problems += [f"{name}: {problem}: {before} was followed by {now}" for problem in found]

    def isr(self, name: TopicPartition) -> tuple[int, ...]:
        """The ISR that was written last; none if there is no state."""
        known = self._known.get(name)
        return () if known is None else known.isr

    def forget(self) -> None:
        """Forget the states seen so far: ZooKeeper holds others now."""
        self._known.clear()


def judge_states(before: StateInZooKeeper, now: StateInZooKeeper, *, is_single: bool) -> list[str]:
    """Return the faults of a partition state that follows another one. Pure."""
    found = []
    if now.leader != NO_BROKER and now.leader not in (before.leader, *before.isr) and not is_single:
        found.append("elects a replica that was not in sync")
    if now.leader != NO_BROKER and now.leader not in now.isr:
        found.append("is led by a replica that is not in sync")
    if now.leader_epoch < before.leader_epoch:
        found.append("the leader epoch goes back")
    if now.leader != before.leader and now.leader_epoch == before.leader_epoch:
        found.append("another leader in the same epoch")
    if now.isr and not before.isr and not is_single:
        found.append("somebody is in sync again where nobody was")
    return found


def states_of(paths: Mapping[str, bytes | None]) -> dict[TopicPartition, StateInZooKeeper | None]:
    """The states among these znodes; None for one that is gone."""
    found: dict[TopicPartition, StateInZooKeeper | None] = {}
    for path, data in paths.items():
        match = STATE.fullmatch(path)
        if match is not None:
            name = TopicPartition(match["topic"], int(match["partition"]))
            found[name] = None if data is None else decode_state(data)
    return found
