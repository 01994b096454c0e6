"""The rebalances of a member: gives partitions up, joins, starts what it is assigned, and commits in between.

Invariants:
- Nothing of a partition is handed out any more when the member joins without it, or leaves.
- A partition's first offset is fetched after the member got it, so that it includes the former member's last commit.
- Commits of a member follow one another, and one for a partition is sent only in the tenure in which its offset was
  read (`_tenures`): a partition that came back since is not set back.
"""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import trio

from pipeline.client.admin.groups import CommittedOffset
from pipeline.client.admin.offsets import list_offsets_once
from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import OffsetReset
from pipeline.client.consumer.consumer_protocol import NO_GENERATION, MemberSubscription, encode_subscription
from pipeline.client.consumer.consumption import ConsumptionObserver
from pipeline.client.consumer.fetch_plan import begin_at
from pipeline.client.group.assignors.members import Assigned, JoinedMember
from pipeline.client.group.assignors.strategies import STRATEGIES
from pipeline.client.group.config import GroupConfig
from pipeline.client.group.errors import CommitFailedError, NoCommittedOffsetError
from pipeline.client.group.existing_topics import ExistingTopics
from pipeline.client.group.listener import RebalanceListener
from pipeline.client.group.member import ClassicMember
from pipeline.client.group.offsets import MemberOffsets
from pipeline.client.group.shared_streams import Places, SharedStreams
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.messages.join_group import JoinGroupRequestProtocol
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

logger = get_logger(__name__)

LANE = "group positions"
MISSING_S = 1.0
"""Time between looks for topics of the group that do not exist."""
_SHARE_OF_REBALANCE = 0.8
"""Part of the rebalance timeout for which readers may finish what they have in hand."""


class Rebalancing:
    """Moves partitions between the group and a member's streams."""

    def __init__(
        self,
        cluster: Cluster,
        config: GroupConfig,
        member: ClassicMember,
        offsets: MemberOffsets,
        listener: RebalanceListener,
        observer: ConsumptionObserver,
    ) -> None:
        self._observer = observer
        self._cluster = cluster
        self._config = config
        self._member = member
        self._offsets = offsets
        self._listener = listener
        self.streams = SharedStreams()
        self.existing = ExistingTopics(cluster, config.group_id, self._compare_topics)
        self._joined_topics: frozenset[str] = frozenset()
        self._joined_again_for: frozenset[str] = frozenset()
        self._counts: dict[str, int] | None = None
        """Numbers of partitions that this member, as leader, has shared out; and the topics that it looked for."""
        self._group_topics: frozenset[str] = frozenset()
        self._last: tuple[frozenset[TopicPartition], int] = frozenset(), NO_GENERATION
        self._starting: dict[TopicPartition, CommittedOffset | None] = {}
        """Partitions that no stream has yet; the offset if the program has sought one."""
        self._starts_paused: set[TopicPartition] = set()
        self._giving_up: dict[TopicPartition, CommittedOffset] = {}
        self._tenures: dict[TopicPartition, int] = {}
        self._committing = trio.Lock()
        self._committed: dict[TopicPartition, int] = {}
        self._is_overdue = False

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions of the member."""
        return self.streams.assignment() | self._starting.keys()

    @property
    def to_give_up(self) -> frozenset[TopicPartition]:
        """The partitions of the member, and those that it was giving up when its task was cancelled."""
        return self.owned | self.streams.leaving() | self._giving_up.keys()

    async def run(self) -> None:
        """Rebalance again and again, until the member fails or the task is cancelled."""
        while self._member.failure is None:
            if self._must_leave():
                await self._leave()
            if self._member.is_lost:
                await self._lose()
            if self._must_leave() or not self.streams.streams:
                await self._member.news.wait_and_clear()
                continue
            topics = self.streams.selected(self.existing.names)
            is_kept = self._config.is_cooperative
            await self.give_up({owned for owned in self.owned if not is_kept or owned.topic not in topics})
            if self._member.is_lost:
                continue
            assigned = await self._member.rejoin(self._protocols(topics), self._assign)
            if assigned is not None:
                await self._apply(topics, self._check_subscribed(assigned, frozenset(topics)))
                self._compare_topics()  # what has changed during the join
                await self._serve()
        await self._lose()
        self.streams.end(self._member.failure)

    def _check_subscribed(self, assigned: Sequence[TopicPartition], topics: frozenset[str]) -> Sequence[TopicPartition]:
        """Return the partitions of subscribed topics, and join again, once for each subscription, if there are others.

        A coordinator gives a static member that comes back its share of before (KIP-814), whatever it subscribes to.
        """
        subscribed = [each for each in assigned if each.topic in topics]
        if len(subscribed) < len(assigned) and self._joined_again_for != topics:
            self._joined_again_for = topics
            self._member.ask_to_rejoin("the share of before has topics that are not subscribed to")
        return subscribed

    async def _serve(self) -> None:
        """Start partitions until the member must join again, has lost its partitions or has failed."""
        member = self._member
        async with background_tasks() as nursery:
            nursery.start_soon(self._start_all)
            while not (member.must_rejoin or member.is_lost or self._must_leave() or member.failure is not None):
                await member.news.wait_and_clear()

    def _must_leave(self) -> bool:
        """Return True while a reader takes too long. A static member stays, and sends no heartbeats."""
        return self._is_overdue and not self._member.is_static

    async def _leave(self) -> None:
        reason = "a reader took longer than max.poll.interval.ms"
        if self._member.id:
            await self._member.leave(reason, self._cluster.config.request_timeout_ms / 1000)
            self._member.lose(reason)

    def _protocols(self, topics: Collection[str]) -> list[JoinGroupRequestProtocol]:
        protocols = []
        for name in self._config.partition_assignment_strategy:
            strategy = STRATEGIES[name]
            subscription = MemberSubscription(
                topics=tuple(topics),
                user_data=strategy.user_data(*self._last),
                owned=tuple(self.owned) if strategy.is_cooperative else (),
                generation=self._member.generation,
            )
            protocols.append(JoinGroupRequestProtocol(name=name, metadata=encode_subscription(subscription)))
        return protocols

    async def _assign(self, strategy: str, members: Sequence[JoinedMember]) -> Assigned:
        """Share the partitions of all members' topics out, as the group's leader."""
        topics = frozenset(topic for member in members for topic in member.subscription.topics)
        self._cluster.track(topics)
        if not all(map(self._cluster.view.knows, topics)):
            await self._cluster.refresh()
        self._group_topics, self._counts = topics, self._count(topics)
        # In a thread: thousands of partitions may take seconds, and heartbeats must not wait for that.
        return await trio.to_thread.run_sync(STRATEGIES[strategy].assign, self._counts, members)

    def _count(self, topics: Collection[str]) -> dict[str, int]:
        known = self._cluster.view.topics
        return {topic: len(known[topic].partitions) for topic in topics if topic in known}

    async def _apply(self, topics: frozenset[str], assigned: Collection[TopicPartition]) -> None:
        """Give up what is not assigned any more, and prepare what is new."""
        self._joined_topics = topics
        new = frozenset(owned for owned in assigned if owned.topic in topics)
        self._last = new, self._member.generation
        if revoked := self.owned - new:
            await self.give_up(revoked)
            if self._member.generation != self._last[1]:
                return
            self._member.ask_to_rejoin("partitions were given up, and other members wait for them")
        added = new - self.owned
        for topic_partition in added:
            self._starting[topic_partition] = None
            self._tenures[topic_partition] = self._member.generation
        await self._listener.partitions_assigned(added)

    async def give_up(self, partitions: Collection[TopicPartition], timeout_s: float | None = None) -> None:
        """Hand out nothing more of these partitions, commit what was finished, and have the program take note.

        Readers may finish what they have in hand for `timeout_s`.
        """
        given_up = frozenset(partitions) & self.to_give_up
        if not given_up:
            return
        if timeout_s is None:
            timeout_s = self._config.max_poll_interval_ms / 1000 * _SHARE_OF_REBALANCE
        topic_ids = self.streams.topic_ids()
        places = await self.streams.take_back(given_up, timeout_s)
        self._giving_up |= self._of_same_topics(places, topic_ids)
        for topic_partition in given_up:
            self._starting.pop(topic_partition, None)
        if self._member.is_lost or self._member.failure is not None:
            await self._lose()
            return
        if self._config.enable_auto_commit:
            await self.commit_finished()
        await self._listener.partitions_revoked(given_up)
        self._forget(given_up)

    async def _lose(self) -> None:
        """Hand out nothing more of any partition, without a commit: the member was removed from its group."""
        lost = self.to_give_up
        await self.streams.take_back(lost, 0)
        self._forget(lost)
        self._member.begin_anew()
        if lost:
            await self._listener.partitions_lost(lost)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        for topic_partition in partitions:
            self._starting.pop(topic_partition, None)
            self._giving_up.pop(topic_partition, None)
            self._tenures.pop(topic_partition, None)
            self._committed.pop(topic_partition, None)
        self._starts_paused.difference_update(partitions)
        self._observer.given_up(partitions)

    async def _start_all(self) -> None:
        """Find the first offset of each partition that is not with a stream yet, and give it to one."""
        failures = 0
        while self._starting:
            try:
                await self._start_known()
            except PipelineError as error:
                logger.warning("group_positions_unknown", group=self._config.group_id, error=str(error))
            if self._starting:
                failures += 1
                await self._cluster.back_off(failures, float("inf"))

    async def _start_known(self) -> None:
        timeout_s = self._cluster.config.request_timeout_ms / 1000
        existing = await self._find_existing(timeout_s)
        wanted = [each for each, place in self._starting.items() if place is None and each in existing]
        fetched = await self._offsets.fetch(wanted, timeout_s) if wanted else {}
        missing = [topic_partition for topic_partition, place in fetched.items() if place is None]
        begun = await self._reset(missing, timeout_s) if missing else {}
        places: dict[TopicPartition, CommittedOffset] = {}
        for topic_partition, sought in list(self._starting.items()):
            if topic_partition not in existing:
                continue
            committed = fetched.get(topic_partition)
            place = sought or committed or begun.get(topic_partition)
            if place is not None:
                places[topic_partition] = place
                del self._starting[topic_partition]
            if place is committed and committed is not None:
                self._committed[topic_partition] = committed.offset
        await self.streams.give(places, paused=self._starts_paused & places.keys())
        self._starts_paused -= places.keys()

    async def _find_existing(self, timeout_s: float) -> frozenset[TopicPartition]:
        """Return the partitions to start that exist. Others hold up nothing: the leader may know more than this member,
        or less, if a topic was deleted.
        """
        await self._offsets.find_topics({topic for topic, _ in self._starting}, timeout_s)
        exists = self._cluster.view.partition_of
        if any(exists(topic_partition) is None for topic_partition in self._starting):
            await self._cluster.refresh(timeout_s=timeout_s)
            exists = self._cluster.view.partition_of
        return frozenset(each for each in self._starting if exists(each) is not None)

    async def _reset(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return where partitions begin for which the group has committed nothing, as far as their leaders answer."""
        reset = self._config.auto_offset_reset
        unsought = [topic_partition for topic_partition in partitions if self._starting.get(topic_partition) is None]
        if reset is OffsetReset.NONE:
            if unsought:
                self._member.fail(NoCommittedOffsetError(unsought))
            return {}
        position = EARLIEST if reset is OffsetReset.EARLIEST else LATEST
        found, errors = await list_offsets_once(
            self._cluster,
            dict.fromkeys(partitions, position),
            timeout_s=timeout_s,
            lane=LANE,
            isolation_level=self._config.isolation_level,
        )
        if errors:
            logger.warning("group_positions_unknown", group=self._config.group_id, error=str(errors[0]))
        return {topic_partition: CommittedOffset(offset=listed.offset) for topic_partition, listed in found.items()}

    # Commits.

    def _consumed(self, *, with_item_in_hand: bool = False) -> dict[TopicPartition, CommittedOffset]:
        places = self.streams.consumed(with_item_in_hand=with_item_in_hand)
        return {**self._of_same_topics(places, self.streams.topic_ids()), **self._giving_up}

    def _of_same_topics(self, places: Places, topic_ids: Mapping[TopicPartition, UUID | None]) -> Places:
        """Leave out partitions whose topic was deleted since, perhaps recreated: their offsets mean nothing there."""
        topics = self._cluster.view.topics
        found = {}
        for topic_partition, place in places.items():
            topic_id, topic = topic_ids.get(topic_partition), topics.get(topic_partition.topic)
            if topic_id is None or (topic is not None and topic.id == topic_id):
                found[topic_partition] = place
        return found

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset] | None, timeout_s: float) -> None:
        """Commit these offsets; None: all that were consumed, items in hand included. Raises as `MemberOffsets.commit`.

        While the group rebalances, the commit waits, and fails for partitions that moved.
        """
        deadline = trio.current_time() + timeout_s
        async with self._committing:
            wanted = self._consumed(with_item_in_hand=True) if offsets is None else dict(offsets)
            counting = [stream.counting_item_in_hand() for stream in self.streams.streams] if offsets is None else []
            tenures = {topic_partition: self._tenures.get(topic_partition) for topic_partition in wanted}
            if others := [topic_partition for topic_partition, tenure in tenures.items() if tenure is None]:
                raise CommitFailedError("the member does not have these partitions", others)
            failures = 0
            while wanted and not await self._offsets.commit(wanted, deadline - trio.current_time()):
                failures += 1
                with trio.move_on_at(deadline):
                    if self._member.is_joining:
                        await self._member.settled.wait()
                moved = [partition for partition, tenure in tenures.items() if self._tenures.get(partition) != tenure]
                if moved or not await self._cluster.back_off(failures, deadline):
                    raise CommitFailedError("the group rebalanced meanwhile", moved or wanted)
            self._committed |= (stored := _offsets_of(wanted))
            self._observer.committed(stored)
            for count in counting:
                count()

    async def commit_finished(self) -> None:
        """Commit the offsets of finished items that are not committed yet. A failure is logged."""
        async with self._committing:
            changed = {
                topic_partition: place
                for topic_partition, place in self._consumed().items()
                if self._committed.get(topic_partition) != place.offset
            }
            if not changed or self._member.generation == NO_GENERATION:
                return
            try:
                timeout_s = self._cluster.config.request_timeout_ms / 1000
                if await self._offsets.commit(changed, timeout_s):
                    self._committed |= (stored := _offsets_of(changed))
                    self._observer.committed(stored)
            except PipelineError as error:
                logger.warning("group_commit_failed", group=self._config.group_id, error=str(error))

    async def commit_regularly(self) -> None:
        """Commit in the background, until cancelled."""
        while True:
            await trio.sleep(self._config.auto_commit_interval_ms / 1000)
            await self.commit_finished()

    # What the program moves.

    def seek(self, topic_partition: TopicPartition, place: CommittedOffset) -> None:
        """Continue a partition at another offset. Raises KeyError for a partition that the member does not have,
        ValueError or TypeError for what is no offset or leader epoch.
        """
        begin_at(topic_partition, place.offset, last_epoch=place.leader_epoch)
        if topic_partition in self._starting:
            self._starting[topic_partition] = place
            return
        stream = self.streams.stream_of(topic_partition)
        if stream is None:
            raise KeyError(f"{topic_partition} is not assigned")
        stream.give({topic_partition: place.offset}, {topic_partition: place.leader_epoch})

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`, as long as the member has them."""
        self._starts_paused |= self._starting.keys() & set(partitions)
        for stream in self.streams.streams:
            stream.pause(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out these partitions again."""
        self._starts_paused.difference_update(partitions)
        for stream in self.streams.streams:
            stream.resume(partitions)

    # What changes around the member.

    async def watch_topics(self) -> None:
        """Join again when topics appear, vanish or get more partitions, until cancelled.

        As leader, look every `MISSING_S` for topics of the group that do not exist.
        """
        while True:
            self._compare_topics()
            with trio.move_on_after(MISSING_S) as waiting:
                await self._cluster.wait_for_new_view()
            is_complete = self._group_topics <= self._cluster.view.topics.keys()
            if waiting.cancelled_caught and self._member.is_leader and not is_complete:
                self._cluster.refresh_soon()

    def _compare_topics(self) -> None:
        member = self._member
        if member.generation == NO_GENERATION or member.is_joining:
            return
        if self.streams.selected(self.existing.names) != self._joined_topics:
            member.ask_to_rejoin("the topics that are subscribed to have changed")
        elif member.is_leader and self._counts is not None and self._count(self._group_topics) != self._counts:
            member.ask_to_rejoin("partitions of topics of the group have changed")

    async def watch_readers(self) -> None:
        """Notice readers of partitions that take too long for an item, until cancelled."""
        limit_s = self._config.max_poll_interval_ms / 1000
        since: dict[int, tuple[object, float]] = {}
        overdue: set[int] = set()
        while True:
            await trio.sleep(min(1.0, limit_s / 10))
            now = trio.current_time()
            for number, stream in enumerate(self.streams.streams):
                item = stream.item_in_hand()
                if item is None or since.get(number, (None, now))[0] is not item:
                    overdue.discard(number)
                    since[number] = item, now
                elif now - since[number][1] >= limit_s and stream.assignment:
                    overdue.add(number)
            if bool(overdue) != self._is_overdue:
                self._is_overdue = bool(overdue)
                self._member.is_suspended = self._is_overdue and self._member.is_static
                self._member.news.set()
                log = logger.warning if overdue else logger.info
                log("group_readers", group=self._config.group_id, too_slow=len(overdue), limit_s=limit_s)


def _offsets_of(places: Places) -> dict[TopicPartition, int]:
    return {topic_partition: place.offset for topic_partition, place in places.items()}
