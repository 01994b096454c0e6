"""The group consumer: message streams over the partitions that the coordinator's group gives this member.

Speaks the classic group protocol. `ClassicMember` knows the coordinator, `Rebalancing` moves partitions; a member of
the newer protocol (KIP-848) would take the place of `ClassicMember`.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import trio

from pipeline.client.admin.groups import CommittedOffset
from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.consumption import ConsumptionObserver, NoConsumptionObserver
from pipeline.client.consumer.fetch_plan import begin_at
from pipeline.client.group.config import GroupConfig
from pipeline.client.group.coordinator_link import CoordinatorLink
from pipeline.client.group.listener import RebalanceListener
from pipeline.client.group.member import ClassicMember
from pipeline.client.group.offsets import MemberOffsets
from pipeline.client.group.rebalancing import Rebalancing
from pipeline.client.streams.stream import MessageStream
from pipeline.client.streams.topic_filter import TopicFilter
from pipeline.errors import PipelineError
from pipeline.model import NO_LEADER_EPOCH, TopicPartition

CLOSE_S = 10.0
"""Time for the last commit and for leaving the group, when the block ends."""
CANCELLED_CLOSE_S = 1.0
"""The same when the block ends by an error or is cancelled: the cluster may be closed already."""


class GroupConsumer:
    """A member of a group. Made by `open_group_consumer`."""

    def __init__(
        self,
        cluster: Cluster,
        config: GroupConfig,
        nursery: trio.Nursery,
        listener: RebalanceListener,
        rng: Random,
        observer: ConsumptionObserver,
    ) -> None:
        self._cluster = cluster
        self._observer = observer
        self._config = config
        self._nursery = nursery
        self._link = CoordinatorLink(cluster, config.group_id)
        self._member = ClassicMember(cluster, config, self._link, rng)
        self._offsets = MemberOffsets(cluster, config, self._link, self._member)
        self._rebalancing = Rebalancing(cluster, config, self._member, self._offsets, listener, observer)
        self._working = trio.CancelScope()
        self._has_worked = trio.Event()
        self._is_shut = False
        self._has_given_up = False
        self._has_left = False
        self._leaving = trio.Lock()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions of this member."""
        return self._rebalancing.owned

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions of this member of which nothing is handed out until `resume`."""
        return frozenset().union(*(stream.paused for stream in self._rebalancing.streams.streams))

    async def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Return as many streams of each topic as are asked for, which share its partitions of this member.

        Partitions come once the group has rebalanced. Raises ConfigurationError, and KafkaError for an impossible name.
        """
        self._check_open()
        self._rebalancing.streams.check_new(topics)
        self._cluster.track(topics)
        made = {topic: await self._open_streams(count) for topic, count in topics.items()}
        for topic, streams in made.items():
            self._rebalancing.streams.add(topic, streams)
        self._note_subscription()
        return made

    async def create_message_streams_by_filter(self, topic_filter: TopicFilter, count: int = 1) -> list[MessageStream]:
        """Return streams of all topics that the filter allows, also of those that appear later.

        Topics with streams of their own, or of an earlier filter, are left out. Raises ConfigurationError.
        """
        self._check_open()
        self._rebalancing.streams.check_count(topic_filter.regex, count)
        streams = await self._open_streams(count)
        self._rebalancing.streams.add(topic_filter, streams)
        await self._rebalancing.existing.find()
        self._note_subscription()
        return streams

    async def commit_offsets(
        self,
        offsets: Mapping[TopicPartition, int | CommittedOffset] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Commit these next offsets to consume; None: all that was consumed so far, items in hand included.

        Raises CommitFailedError for partitions that the member does not have any more, or if the coordinator refuses;
        KafkaError, NetworkError or DeadlineExceededError if no coordinator answers: the commit may have happened then.
        ValueError or TypeError for what is no offset. A reader that ends its item during a shutdown may still commit.
        """
        if self._has_given_up:
            self._check_open()
        places = (
            None if offsets is None else {partition: _place(partition, offset) for partition, offset in offsets.items()}
        )
        await self._rebalancing.commit(places, self._timeout_s(timeout_s))

    async def committed(
        self, partitions: Collection[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets, None where there is none. Raises KafkaError, NetworkError,
        DeadlineExceededError.
        """
        return await self._offsets.fetch(partitions, self._timeout_s(timeout_s))

    def seek(self, topic_partition: TopicPartition, offset: int, *, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Continue a partition at another offset; what is in hand of it no longer counts.

        Raises KeyError for a partition that the member does not have.
        """
        self._rebalancing.seek(topic_partition, CommittedOffset(offset=offset, leader_epoch=leader_epoch))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`, as long as the member has them."""
        self._rebalancing.pause(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out these partitions again, from where they were paused or sought."""
        self._rebalancing.resume(partitions)

    async def shutdown(self, timeout_s: float = 0) -> None:
        """Give all partitions up, commit what was finished, leave the group, and end all streams.

        Readers may finish what they have in hand for `timeout_s`. A static member stays in the group until its session
        ends. Streams end also if the call is cancelled; another one, or the end of the block, continues it. Further
        calls do nothing.
        """
        async with self._leaving:
            if self._has_left:
                return
            self._is_shut = True
            self._working.cancel()
            try:
                await self._has_worked.wait()
                await self._rebalancing.give_up(self._rebalancing.to_give_up, timeout_s)
                self._has_given_up = True
                await self._member.leave("the consumer is shut down", self._cluster.config.request_timeout_ms / 1000)
                self._has_left = True
            finally:
                self._rebalancing.streams.end(self._member.failure)

    # Within.

    async def work(self) -> None:
        """Rebalance until the shutdown. Run by `open_group_consumer`."""
        rebalancing = self._rebalancing
        self._nursery.start_soon(self._member.keep_alive)
        try:
            with self._working:
                async with background_tasks() as nursery:
                    nursery.start_soon(rebalancing.watch_topics)
                    nursery.start_soon(rebalancing.existing.watch)
                    nursery.start_soon(rebalancing.watch_readers)
                    if self._config.enable_auto_commit:
                        nursery.start_soon(rebalancing.commit_regularly)
                    await rebalancing.run()
        finally:
            self._has_worked.set()

    def close(self) -> None:
        """Close the connections to the coordinator."""
        self._link.close()

    def _note_subscription(self) -> None:
        self._member.ask_to_rejoin("streams were created")

    def _check_open(self) -> None:
        if self._is_shut:
            raise PipelineError(f"the consumer of group {self._config.group_id} is shut down")

    def _timeout_s(self, timeout_s: float | None) -> float:
        return self._cluster.config.default_api_timeout_ms / 1000 if timeout_s is None else timeout_s

    async def _open_streams(self, count: int) -> list[MessageStream]:
        consumers: list[Consumer] = [
            await self._nursery.start(partial(_keep_consumer, self._cluster, self._config, self._observer))
            for _ in range(count)
        ]
        return [MessageStream(consumer, self._member.holds) for consumer in consumers]


async def _keep_consumer(
    cluster: Cluster, config: GroupConfig, observer: ConsumptionObserver, *, task_status: trio.TaskStatus[Consumer]
) -> None:
    async with open_consumer(cluster, config, observer=observer) as consumer:
        task_status.started(consumer)
        await trio.sleep_forever()


def _place(topic_partition: TopicPartition, offset: int | CommittedOffset) -> CommittedOffset:
    place = offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset=offset)
    begin_at(topic_partition, place.offset, last_epoch=place.leader_epoch)  # refuses what is no offset
    return place


@asynccontextmanager
async def open_group_consumer(
    cluster: Cluster,
    config: GroupConfig,
    *,
    rng: Random,
    listener: RebalanceListener | None = None,
    observer: ConsumptionObserver | None = None,
) -> AsyncIterator[GroupConsumer]:
    """Open a member of a group. The group sees it when its first streams are created.

    The end of the block is a `shutdown` that waits for no reader and takes 10 s at most, 1 s after an error or
    when cancelled. Raises what the methods of `listener` raise. `observer` is notified of batches that are fetched and
    of offsets that are committed.
    """
    async with background_tasks() as nursery:
        consumer = GroupConsumer(
            cluster, config, nursery, listener or RebalanceListener(), rng, observer or NoConsumptionObserver()
        )
        nursery.start_soon(consumer.work)
        close_s = CANCELLED_CLOSE_S
        try:
            yield consumer
            close_s = CLOSE_S
        finally:
            with trio.move_on_after(close_s, shield=True):
                await consumer.shutdown()
            consumer.close()
