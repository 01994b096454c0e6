"""Offsets that many tasks ask for, each for one partition: those asked for at the same time leave in one request."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from pipeline.client.admin.offsets import ListedOffset, list_offsets, list_offsets_at
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.net.nurseries import unwrapped_errors


@dataclass(slots=True, eq=False)
class _Request:
    """A request that is about to leave, or was sent."""

    wanted: set[TopicPartition] = field(default_factory=set)
    found: Mapping[TopicPartition, ListedOffset] = field(default_factory=dict)
    ended: trio.Event = field(default_factory=trio.Event)


class GatheredOffsets:
    """Offsets of the partitions of one cluster.

    Invariant: an offset is asked for after the call that returns it. What a request of several partitions leaves
    without answer is asked for once more, for each partition alone.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._gathering: dict[tuple[BrokerId, int], _Request] = {}
        """Requests that have not left yet, by leader and position."""

    async def offset_of(self, topic_partition: TopicPartition, position: int, *, timeout_s: float) -> int:
        """Return the partition's offset of a position as `list_offsets` does. Raises as `list_offsets`."""
        deadline = trio.current_time() + timeout_s
        leader = self._cluster.view.leader_of(topic_partition)
        if leader is not None:
            with trio.move_on_at(deadline):
                request = await self._ask(leader, topic_partition, position, timeout_s)
                if topic_partition in request.found:
                    return request.found[topic_partition].offset
        left_s = max(0.0, deadline - trio.current_time())
        listed = await list_offsets(self._cluster, {topic_partition: position}, timeout_s=left_s)
        return listed[topic_partition].offset

    async def _ask(
        self, leader: BrokerId, topic_partition: TopicPartition, position: int, timeout_s: float
    ) -> _Request:
        """Have a partition in a request, and wait until that has ended."""
        request = self._gathering.get((leader, position))
        if request is not None:
            request.wanted.add(topic_partition)
            await request.ended.wait()
            return request
        request = self._gathering[leader, position] = _Request({topic_partition})
        try:
            await trio.lowlevel.checkpoint()  # all tasks that can run now join
            wanted = dict.fromkeys(request.wanted, position)
            del self._gathering[leader, position]
            with unwrapped_errors():
                request.found = await list_offsets_at(self._cluster, leader, wanted, timeout_s=timeout_s, lane="")
        except PipelineError:
            pass  # `offset_of` asks again, and raises
        finally:
            if self._gathering.get((leader, position)) is request:
                del self._gathering[leader, position]
            request.ended.set()
        return request
