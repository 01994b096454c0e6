"""Applies the view of the cluster to this broker's replicas: opens, gives roles, reconfigures, closes.

Invariants:

- The view is applied only between `resume` and `pause`: leaders in the view count only while this broker is a member of
  the cluster, and has claimed new leader epochs of what it led in an earlier life.
- One change at a time; each applies what the view says at that moment, so many changes of one partition become one.
- `view.applied` has what is done. A replica whose log dir does not answer is left out; the state that the view has
  when the log dir answers is applied to it.
- A replica whose log this broker cannot vouch for has left the ISR before it is opened (`lost_replicas`).
- A replica that is assigned elsewhere, or whose topic is gone, is closed. `strays` decides what becomes of its log,
  while roles are changed.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import trio

from pipeline.broker.cluster.view import ClusterView, PartitionView, TopicView
from pipeline.broker.replicas.logs import AssignedPartition
from pipeline.broker.replicas.lost_replicas import LostReplicas
from pipeline.broker.replicas.replicas import Replicas
from pipeline.broker.settings.topic import TopicSettings
from pipeline.diagnostics import get_logger
from pipeline.model import BrokerId, TopicPartition
from pipeline.net.signals import Wakeup

logger = get_logger(__name__)


@dataclass(slots=True)
class _Followed:
    """Settings and states that were applied to this broker's replicas of one topic."""

    topic_id: uuid.UUID
    settings: TopicSettings
    partitions: dict[int, PartitionView] = field(default_factory=dict)


class ReplicaAssigner:
    """The task that applies the view to the replicas of this broker."""

    def __init__(self, view: ClusterView, replicas: Replicas, lost_replicas: LostReplicas, own_id: BrokerId) -> None:
        self._view = view
        self._replicas = replicas
        self._lost_replicas = lost_replicas
        self._own_id = own_id
        self._changes = view.changes()
        self._followed: dict[str, _Followed] = {}
        self._postponed: set[str] = set()
        """Topics with partitions whose log dir did not answer."""
        self._is_active = False
        self._resumed = Wakeup()
        self._applying = trio.Lock()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_again)
            while True:
                await self._resumed.wait()
                await self._changes.wait()
                await self._apply()

    async def _look_again(self) -> None:
        """Have partitions assigned again if their log dir did not answer the last time, until cancelled."""
        while True:
            await self._replicas.wait_for_answers()
            async with self._applying:  # an assignment under way may be about to postpone what has been answered
                if self._postponed:
                    self._changes.note(*self._postponed)

    async def resume(self) -> None:
        """Return once the view is applied. From then on each change of it is applied, too."""
        self._is_active = True
        self._resumed.set()
        await self._apply()
        self._replicas.strays_changed.set()

    async def pause(self) -> None:
        """Give up all leaderships at once, and ignore the view until `resume`."""
        self._is_active = False
        self._resumed.clear()
        self._replicas.resign_all()
        async with self._applying:  # an `_apply` under way may have made new leaders
            self._replicas.resign_all()
            for followed in self._followed.values():
                followed.partitions = dict.fromkeys(followed.partitions, _UNKNOWN)
            self._changes.note(*self._followed)

    async def _apply(self) -> None:
        async with self._applying:
            if not self._is_active:
                return
            names = self._changes.take()
            had_lost = await self._lost_replicas.leave_returned(names)
            topics = {name: self._view.topic(name) for name in names}
            left = [partition for name, topic in topics.items() for partition in self._forget_what_left(name, topic)]
            if left:
                logger.info("replicas_left", count=len(left), first=str(left[0]))
                await self._replicas.close(left)
            assigned = [item for topic in topics.values() if topic is not None for item in self._changed(topic)]
            self._postponed.difference_update(names)
            if assigned:
                before = {item.topic_partition: self._applied(item.topic_partition) for item in assigned}
                postponed = set(await self._replicas.assign(assigned))
                for item in assigned:
                    followed = self._followed[item.topic_partition.topic]
                    applied = _UNKNOWN if item.topic_partition in postponed else item.view
                    followed.partitions[item.topic_partition.partition] = applied
                self._postponed.update(name.topic for name in postponed)
                self._report_unclean([item for item in assigned if item.topic_partition not in postponed], before)
            if had_lost:
                self._replicas.strays_changed.set()  # the opened logs are no strays any more
            for name, topic in topics.items():
                self._view.set_applied(name, topic)

    def _forget_what_left(self, name: str, topic: TopicView | None) -> Sequence[TopicPartition]:
        """Forget and return the partitions that are assigned elsewhere now, or whose topic is gone."""
        followed = self._followed.get(name)
        if followed is None:
            return ()
        staying: Mapping[int, PartitionView] = {}
        if topic is not None and topic.topic_id == followed.topic_id:
            staying = self._own(topic)
        left = sorted(followed.partitions.keys() - staying.keys())
        for index in left:
            del followed.partitions[index]
        if not followed.partitions:
            del self._followed[name]
        return [TopicPartition(name, index) for index in left]

    def _changed(self, topic: TopicView) -> Sequence[AssignedPartition]:
        """Return the partitions whose state in the view is not applied yet."""
        own = self._own(topic)
        if not own:
            return []
        followed = self._followed.get(topic.name)
        if followed is None:
            followed = self._followed[topic.name] = _Followed(topic.topic_id, topic.settings)
        elif followed.settings != topic.settings:
            followed.settings = topic.settings
            self._replicas.reconfigure(topic.name, sorted(followed.partitions), topic.settings)
        return [
            AssignedPartition(
                topic_partition=TopicPartition(topic.name, index),
                topic_id=topic.topic_id,
                settings=topic.settings,
                view=view,
            )
            for index, view in own.items()
            if followed.partitions.get(index) != view
        ]

    def _own(self, topic: TopicView) -> Mapping[int, PartitionView]:
        return {index: view for index, view in topic.partitions.items() if self._own_id in view.replicas}

    def _applied(self, topic_partition: TopicPartition) -> PartitionView:
        return self._followed[topic_partition.topic].partitions.get(topic_partition.partition, _UNKNOWN)

    def _report_unclean(
        self, assigned: Sequence[AssignedPartition], before: Mapping[TopicPartition, PartitionView]
    ) -> None:
        """Log each leadership that began although this replica may lack acknowledged records.

        Only between successive states: between others this replica may well have joined the ISR.
        """
        for item in assigned:
            known, name = before[item.topic_partition], item.topic_partition
            is_new = item.view.leader == self._own_id != known.leader
            # The next state after a known one (-1: there was none) shows the ISR at the election.
            if (
                is_new
                and item.view.state_version == known.state_version + 1 > 0
                and self._own_id not in known.isr
                and name in self._replicas.partitions
            ):
                end = self._replicas.partitions[name].log.log_end_offset
                logger.warning(
                    "unclean_leadership_begun", topic_partition=str(name), epoch=item.view.leader_epoch, end_offset=end
                )


_UNKNOWN = PartitionView(replicas=())
