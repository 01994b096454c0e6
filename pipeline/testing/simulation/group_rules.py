"""Rules for the answers that members of consumer groups receive. Pure: times are passed in.

Invariants, for each group:

  1. Its generation never goes back while a member of it lives: one that was told within its session timeout, by an
     answer to a sync or heartbeat, that it is a member, and did not leave since. A generation that nobody has synced
     is written nowhere: another coordinator does not know it, and a deposed one may still have members join.
  2. A partition has one owner in one generation.
  3. A committed offset never goes back unless somebody commits a lower one.

A member knows when it asked. What it is told late is judged by what was known when it asked.
"""

from dataclasses import dataclass, field

from pipeline.model import Offset, TopicPartition

NO_GENERATION = -1


@dataclass(slots=True)
class _Life:
    generation: int
    until_s: float
    """When its session ends if it is not heard of again, at the earliest."""


@dataclass(eq=False)
class GroupRules:
    """Judges one group; `problems` are sentences. Members go by the names of their clients."""

    name: str
    session_timeout_s: float
    problems: list[str] = field(default_factory=list)
    committed: dict[TopicPartition, Offset] = field(default_factory=dict)
    _lives: dict[str, _Life] = field(default_factory=dict)
    _owners: dict[tuple[int, TopicPartition], str] = field(default_factory=dict)
    _newest: int = NO_GENERATION

    def least_generation(self, now_s: float) -> int:
        """The newest generation of a member that lives; to be asked for when a request is sent."""
        generations = [life.generation for life in self._lives.values() if life.until_s > now_s]
        return max(generations, default=NO_GENERATION)

    def is_member(self, member: str, generation: int, *, asked_s: float) -> None:
        """A member asked then, and was told that it is one of this generation."""
        life = self._lives.get(member)
        until_s = asked_s + self.session_timeout_s
        if life is None or life.until_s <= asked_s or life.generation <= generation:
            self._lives[member] = _Life(generation, until_s)

    def synced(self, member: str, generation: int, *, least: int, now_s: float) -> None:
        """A member has synced. `least` is the newest generation that lived when it asked to join, and does so still."""
        alive = min(least, self.least_generation(now_s))
        if generation < alive:
            self.problems.append(f"{self.name}: {member} syncs generation {generation}, while {alive} lives")
        if generation < self._newest and alive == NO_GENERATION:
            self._owners.clear()
        self._newest = generation

    def left(self, member: str) -> None:
        """A member leaves, or goes away."""
        self._lives.pop(member, None)

    def owns(self, member: str, generation: int, partitions: tuple[TopicPartition, ...]) -> None:
        """A member was given these partitions."""
        for partition in partitions:
            owner = self._owners.setdefault((generation, partition), member)
            if owner != member:
                self.problems.append(
                    f"{self.name}: {partition} has two owners in generation {generation}: {owner}, {member}"
                )

    def committing(self, partition: TopicPartition, offset: Offset) -> None:
        """A member commits; nobody knows yet whether that is done."""
        if offset < self.committed.get(partition, offset):
            self.committed[partition] = offset

    def has_committed(self, partition: TopicPartition, offset: Offset) -> None:
        """A commit succeeded."""
        self.committed[partition] = offset

    def fetched(self, member: str, partition: TopicPartition, least: Offset, found: Offset) -> None:
        """A member was told what is committed; when it asked, that was at least `least`."""
        if found < least:
            self.problems.append(f"{self.name}: {partition} was committed at {least}; {member} finds {found}")
