"""Writes committed offsets of a source's groups to the hub: compares, notes in the journal, commits.

`offset_plan.py` decides; its invariants A to C hold here, too. Further:
D. A commit is sent only after this order: the group had no members at the hub, its offsets there were fetched, and the
   journal was read and holds the mark of the commit. So a mirror killed at any moment recognises its own commits, and
   only a group that joins, commits and leaves within these few requests can be overwritten. The hub's coordinator
   refuses the commit while the group has members. No commit is sent more than OUTDATED_AFTER_S after the first of the
   requests: a process that was stopped in between finds groups and promoted topics in another state.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from pipeline.client.admin.groups import DEAD, EMPTY, CommittedOffset
from pipeline.client.admin.many_groups import (
    Offsets,
    commit_without_member,
    describe_states,
    fetch_offsets_of,
    find_coordinators,
)
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.errors import PipelineError
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.failover.promotion import promotions_of
from pipeline.mirror.groups.offset_journal import GroupOffsetJournal
from pipeline.mirror.groups.offset_plan import (
    GroupPlan,
    MarksKey,
    commits_of,
    encode_marks,
    marks_after,
    plan_group,
)
from pipeline.mirror.journals.table import Assignment
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

MAX_COMMITS_AT_ONCE = 16
MAX_ERRORS = 5
OUTDATED_AFTER_S = 10.0
"""Age of a comparison with the hub after which it decides nothing any more. It takes less than a second."""
MEMBERLESS = frozenset({EMPTY, DEAD, ""})
_HAS_MEMBERS = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})

SourceOffsets = Mapping[TopicPartition, CommittedOffset]
"""Committed offsets of the source, by replica partition."""


@dataclass(slots=True)
class CopiedGroup:
    """Outcome of the last comparison of a group with the hub."""

    fingerprint: int
    """Hash of the source's offsets that were compared."""
    count: int
    """Number of all offsets at the source."""
    is_settled: bool = False
    """True if nothing has to be done before the source's offsets change, or the next full round."""
    waiting: int = 0
    """Offsets that the replica has not reached."""
    has_members: bool = False
    """True if the group has members at the hub."""
    moved_on: Sequence[TopicPartition] = ()
    """Partitions whose offset at the hub was committed by somebody else."""

    def leave_to_members(self) -> None:
        """Note that the group has members at the hub. A full round looks at the group again."""
        self.has_members, self.is_settled, self.waiting, self.moved_on = True, True, 0, ()


@dataclass(slots=True)
class GroupRound:
    """State of a round over all groups of a source."""

    is_full: bool
    """True if unchanged groups are compared, too."""
    is_listed: bool = True
    """True unless a broker of the source, or ZooKeeper, did not list its groups."""
    taken: set[str] = field(default_factory=set)
    """Groups that were listed: a group that moves between two coordinators may be listed twice."""
    assignments: Mapping[TopicPartition, Assignment] = field(default_factory=dict)
    """Entries of the table by source partition when the round began."""
    silent: set[BrokerId] = field(default_factory=set)
    """Brokers of the hub that did not answer in this round, and are asked again in the next."""
    errors: list[str] = field(default_factory=list)

    def note(self, error: object) -> None:
        """Keep an error for the status."""
        if str(error) not in self.errors and len(self.errors) < MAX_ERRORS:
            self.errors.append(str(error))


class GroupOffsetWriter:
    """Writes the groups of one source. `copies` are the source's partitions, as their copier has them."""

    def __init__(
        self,
        source: str,
        destination: Cluster,
        copies: Mapping[TopicPartition, PartitionCopy],
        journal: GroupOffsetJournal,
        metrics: MirrorMetrics,
        *,
        timeout_s: float,
    ) -> None:
        self.copied = 0
        """Offsets that were written since the start."""
        self._source = source
        self._destination = destination
        self._copies = copies
        self._journal = journal
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._coordinators: dict[str, BrokerId] = {}
        self._committing = trio.CapacityLimiter(MAX_COMMITS_AT_ONCE)

    async def write(
        self, wanted: Mapping[str, SourceOffsets], states: Mapping[str, CopiedGroup], current: GroupRound
    ) -> None:
        """Bring groups of the hub up to date, as far as possible now, and note the outcome in their states.

        Raises PipelineError if no broker of the hub answers. Other errors are noted.
        """
        begun_at = trio.current_time()
        topics = {each.topic for offsets in wanted.values() for each in offsets}
        promoted = await promotions_of(self._destination, topics, timeout_s=self._timeout_s)
        copied = {
            group: {each: one for each, one in offsets.items() if each.topic not in promoted}
            for group, offsets in wanted.items()
        }
        shares: dict[BrokerId, dict[str, SourceOffsets]] = {}
        for group, coordinator in (await self._find_coordinators(copied, current)).items():
            if coordinator not in current.silent:
                shares.setdefault(coordinator, {})[group] = copied[group]

        async def write_share(coordinator: BrokerId, share: Mapping[str, SourceOffsets]) -> None:
            try:
                await self._write_share(coordinator, share, states, current, begun_at)
            except PipelineError as error:
                self._fail(coordinator, share, error, current)

        async with trio.open_nursery() as nursery:
            for coordinator, share in shares.items():
                nursery.start_soon(write_share, coordinator, share)

    async def forget(self, groups: Sequence[str], current: GroupRound) -> None:
        """Remove the marks of groups that the source no longer has, once their offsets are gone from the hub, too."""
        for group, coordinator in (await self._find_coordinators(groups, current)).items():
            marks = self._journal.marks_of(self._source, group)
            there = await self._fetch(
                coordinator,
                {group: [TopicPartition(topic, number) for topic, of_topic in marks.items() for number in of_topic]},
                current,
            )
            if group in there and not any(there[group].values()):
                await self._journal.append(
                    [(MarksKey(source=self._source, group=group, topic=topic), None) for topic in marks]
                )

    async def _find_coordinators(self, groups: Iterable[str], current: GroupRound) -> dict[str, BrokerId]:
        """Return the coordinators that are known or found. Raises NetworkError."""
        wanted = list(groups)
        unknown = [group for group in wanted if group not in self._coordinators]
        if unknown:
            found = await find_coordinators(self._destination, unknown, timeout_s=self._timeout_s)
            for group, coordinator in found.items():
                if isinstance(coordinator, KafkaError):
                    current.note(coordinator)
                else:
                    self._coordinators[group] = coordinator
        return {group: self._coordinators[group] for group in wanted if group in self._coordinators}

    def _fail(self, coordinator: BrokerId, groups: Iterable[str], error: PipelineError, current: GroupRound) -> None:
        """Note an error of groups, which are tried again in the next round at their coordinator of that time."""
        current.note(error)
        if isinstance(error, UNREACHABLE):
            current.silent.add(coordinator)
        for group in groups:
            self._coordinators.pop(group, None)
        self._destination.refresh_soon()

    async def _write_share(
        self,
        coordinator: BrokerId,
        share: Mapping[str, SourceOffsets],
        states: Mapping[str, CopiedGroup],
        current: GroupRound,
        begun_at: float,
    ) -> None:
        """Write groups of one coordinator, in the order of invariant D. Raises PipelineError."""
        described = await describe_states(self._destination, coordinator, list(share), timeout_s=self._timeout_s)
        memberless: dict[str, list[TopicPartition]] = {}
        for group, standing in described.items():
            if isinstance(standing, KafkaError):
                self._fail(coordinator, [group], standing, current)
                continue
            states[group].has_members = False
            if standing not in MEMBERLESS:
                states[group].leave_to_members()
            else:
                memberless[group] = [each for each in share[group] if each.topic in self._destination.view.topics]
        there = await self._fetch(coordinator, memberless, current)
        await self._journal.read_on()
        plans = self._plan({group: share[group] for group in there}, there, states, current)
        await self._journal.append([record for _, records in plans.values() for record in records])
        async with trio.open_nursery() as nursery:
            for group, (plan, _) in plans.items():
                nursery.start_soon(self._commit, coordinator, group, plan, states[group], current, begun_at)

    async def _fetch(
        self, coordinator: BrokerId, wanted: Mapping[str, Sequence[TopicPartition]], current: GroupRound
    ) -> dict[str, Offsets]:
        """Return the hub's offsets of each group that its coordinator answered for. Raises PipelineError."""
        if not wanted:
            return {}
        names = {topic.id: topic.name for topic in self._destination.view.topics.values()}
        answered = await fetch_offsets_of(
            self._destination,
            coordinator,
            wanted,
            lambda name, topic_id: name or names.get(topic_id),
            timeout_s=self._timeout_s,
        )
        found: dict[str, Offsets] = {}
        for group, offsets in answered.items():
            if isinstance(offsets, KafkaError):
                self._fail(coordinator, [group], offsets, current)
            else:
                found[group] = offsets
        return found

    def _plan(
        self,
        share: Mapping[str, SourceOffsets],
        there: Mapping[str, Offsets],
        states: Mapping[str, CopiedGroup],
        current: GroupRound,
    ) -> dict[str, tuple[GroupPlan, list[tuple[MarksKey, bytes | None]]]]:
        """Return the plan of each group, with the journal records that must come before its commits."""
        ends = {
            copy.assignment.replica: copy.replica_end
            for copy in self._copies.values()
            if copy.is_elsewhere or (copy.position is not None and not copy.is_rejected)
        }
        plans = {}
        for group, offsets in share.items():
            marks = self._journal.marks_of(self._source, group)
            plan = plan_group(offsets, there[group], marks, ends)
            states[group].waiting, states[group].moved_on = len(plan.waiting), plan.moved_on
            try:
                records: list[tuple[MarksKey, bytes | None]] = [
                    (MarksKey(source=self._source, group=group, topic=topic), encode_marks(after))
                    for topic, after in marks_after(plan.writes, there[group], marks).items()
                    if after != marks.get(topic)
                ]
            except PipelineError as error:
                current.note(f"group {group}: {error}")
                continue
            plans[group] = plan, records
        return plans

    async def _commit(
        self,
        coordinator: BrokerId,
        group: str,
        plan: GroupPlan,
        state: CopiedGroup,
        current: GroupRound,
        begun_at: float,
    ) -> None:
        """Commit what the plan, which began at `begun_at`, says, and conclude the group's round."""
        is_done = not plan.waiting
        for part in commits_of(plan.writes):
            try:
                async with self._committing:
                    if trio.current_time() - begun_at > OUTDATED_AFTER_S:  # invariant D
                        current.note(f"groups were compared with the hub more than {OUTDATED_AFTER_S:g} s ago")
                        is_done = False
                        break
                    codes = await commit_without_member(
                        self._destination, coordinator, group, part, timeout_s=self._timeout_s
                    )
            except PipelineError as error:
                self._fail(coordinator, [group], error, current)
                is_done = False
                break
            written = sum(codes.get(each) is ErrorCode.NONE for each in part)
            self.copied += written
            self._metrics.count_group_offsets(self._source, written)
            if written == len(part):
                continue
            is_done = False
            refusals = {code for code in codes.values() if code is not ErrorCode.NONE}
            if refusals & _HAS_MEMBERS:
                state.leave_to_members()
                return
            for code in refusals or {ErrorCode.UNKNOWN_SERVER_ERROR}:
                self._fail(coordinator, [group], KafkaError(code, f"commit of group {group} at the hub"), current)
        state.is_settled = is_done
