"""Member of a group by ZooKeeper: registers, claims its share of partitions, gives them to streams, and commits.

Invariants:

A. A stream has a partition only while this consumer owns it in ZooKeeper: it is claimed before it is given to a stream,
   and released after the stream has returned it, with nothing of it in hand. An exception is an item that its reader
   has not finished within `max_poll_interval_ms`.
B. At the end of the session, or of the registration, the streams lose all partitions before the consumer registers
   again. Before it learns of that end the lease has ended, so that nothing is handed out (`lease.py`).
C. One rebalance runs at a time. What changes during it starts another. A partition that stays with its stream is read
   on meanwhile.
D. Offsets are stored with the release, in one transaction (`ownership.py`).
E. A member that leaves removes its registration first, so that others claim what it has given up while its readers
   finish their items.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import index
from random import Random
from uuid import UUID

import trio

from pipeline.client.admin.offsets import list_offsets_once
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import OffsetReset
from pipeline.client.connector.config import ConnectorConfig
from pipeline.client.connector.connector_znodes import ConsumerGroupPaths, ConsumerRegistration, GroupStream
from pipeline.client.connector.group_registry import GroupRegistry, Registries
from pipeline.client.connector.lease import SessionLease
from pipeline.client.connector.member_registration import MemberRegistration
from pipeline.client.connector.notices import Notices
from pipeline.client.connector.ownership import Claimant, Claimed, OwnedPartition, Ownership
from pipeline.client.connector.shares import GroupView, share_of
from pipeline.client.consumer.consumption import ConsumptionObserver
from pipeline.client.group.listener import RebalanceListener
from pipeline.client.streams.stream import MessageStream, TakenBack
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.registration import Hooks
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError, PipelineError
from pipeline.model import MAX_INT64, TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.net.signals import Wakeup
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

FIND_TIMEOUT_S = 5.0
"""Time for the leaders of partitions without stored offset to answer, before other partitions have their turn."""

FindStream = Callable[[str, int], MessageStream]
"""Returns the stream of a topic and a number."""

logger = get_logger(__name__)


class ConsumerMembership:
    """A consumer of a group while `run` runs. `stream_of` finds a stream of the registration."""

    def __init__(
        self,
        cluster: Cluster,
        client: CoordinationClient,
        config: ConnectorConfig,
        consumer: str,
        registration: ConsumerRegistration,
        *,
        stream_of: FindStream,
        listener: RebalanceListener,
        rng: Random,
        observer: ConsumptionObserver,
    ) -> None:
        self.consumer = consumer
        self._paths = ConsumerGroupPaths(config.group_id)
        self._registered = MemberRegistration(client, self._paths.id(consumer), registration)
        self.lease = SessionLease(client, self._registered.path)
        self._cluster = cluster
        self._client = client
        self._config = config
        self._stream_of = stream_of
        self._notices = Notices(listener)
        self._rng = rng
        self._changed = Wakeup()
        self._registry = GroupRegistry(client, self._paths, self._changed, cluster.refresh_soon)
        self._ownership = Ownership(client, self._paths, consumer, observer)
        self._rebalance = trio.CancelScope()
        self._working = trio.CancelScope()
        self._work_ended = trio.Event()
        self._ended = trio.Event()
        self._has_left = False
        self._nursery: trio.Nursery | None = None
        self._registries = Registries(view=GroupView(consumers={}, topics={}), topic_ids={}, unreadable=frozenset())
        """The newest that was read."""
        self._releasing: set[OwnedPartition] = set()
        self._sought: dict[TopicPartition, int] = {}
        """Offsets that the listener sought for partitions that no stream has yet."""
        self._known: set[tuple[UUID, int]] = set()
        """Partitions, with topic ids, that existed when this consumer looked first for what it subscribed to."""
        self._looked_for: set[str] = set()
        """Topics, or the filter, that this consumer has looked for."""

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Take part in the group until cancelled; report started once registered. Raises NodeOwnedError."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self.lease.run)
                await nursery.start(self._registered.keep, Hooks(after=self._begin_session, lost=self._lost))
                task_status.started()
                await self._work()
                await trio.sleep_forever()
        finally:
            self.lease.end()
            self._work_ended.set()
            self._ended.set()

    async def _work(self) -> None:
        """Rebalance and commit until `leave` is called."""
        with self._working:
            async with trio.open_nursery() as nursery:
                self._registry.watch(nursery, self._registered.current)
                nursery.start_soon(self._rebalance_when_changed, nursery)
                if self._config.auto_commit_enable:
                    nursery.start_soon(self._commit_regularly)
        self._work_ended.set()

    @property
    def has_ended(self) -> bool:
        """True if this consumer has left the group, or another process has taken its name."""
        return self._ended.is_set()

    def subscribe(self, registration: ConsumerRegistration) -> None:
        """Replace the registration soon, which all members notice. Call it before the end."""
        assert self._nursery is not None
        self._registered.wanted = registration
        self._nursery.start_soon(self._registered.replace)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer owns."""
        return frozenset(self._ownership.claims)

    def seek(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Continue a partition elsewhere; return False if this consumer does not own it, or is giving it up.

        Raises ValueError or TypeError for an impossible offset.
        """
        _check_offset(topic_partition, offset)
        claim = self._ownership.claims.get(topic_partition)
        if claim is None or claim in self._releasing:
            return False
        stream = self._stream_of_claim(claim)
        if topic_partition in stream.assignment:
            stream.give({topic_partition: offset})
        else:
            self._sought[topic_partition] = offset
        return True

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """Store offsets; return the partitions that this consumer does not own.

        Raises CoordinationError; ValueError or TypeError for an impossible offset, and stores none then.
        """
        for topic_partition, offset in offsets.items():
            _check_offset(topic_partition, offset)
        in_hand = [
            (stream.item_in_hand(), stream.consumed(with_item_in_hand=True), stream.counting_item_in_hand())
            for stream in self._by_stream(self._ownership.claims.values())
        ]
        lost = await self._ownership.commit(offsets)
        for item, finished, count_as_consumed in in_hand:  # later commits and the release must not fall behind this one
            found = getattr(item, "topic_partition", None)
            if found in finished and offsets.get(found, -1) >= finished[found]:
                count_as_consumed()
        if lost:
            logger.warning("connector_partitions_lost", partitions=[str(claim.topic_partition) for claim in lost])
            await self._lose(lost)
            self._changed.set()
        return frozenset(offsets) - self.owned

    def consumed(self, *, with_item_in_hand: bool) -> dict[TopicPartition, int]:
        """Return the next offset to consume of each partition that a stream has."""
        offsets: dict[TopicPartition, int] = {}
        for stream in {self._stream_of_claim(claim) for claim in self._ownership.claims.values()}:
            offsets |= stream.consumed(with_item_in_hand=with_item_in_hand)
        return {found: offset for found, offset in offsets.items() if found in self._ownership.claims}

    async def leave(self, timeout_s: float) -> None:
        """Give up the registration and all partitions; `run` ends. Raises CoordinationError.

        Other tasks that read have `timeout_s` to finish their items. A call that failed or was cancelled may be
        repeated.
        """
        if self._nursery is None or self._has_left:
            return
        self._working.cancel()
        await self._work_ended.wait()
        self.lease.end()
        claims = [claim for claim in self._ownership.claims.values() if claim not in self._releasing]
        with unwrapped_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._unregister)
                for stream, own in self._by_stream(claims).items():
                    # Asked here, since the caller may be the reader.
                    nursery.start_soon(self._leave_stream, stream, own, timeout_s if stream.has_busy_reader else 0)
        with trio.move_on_after(timeout_s):
            while any(self._stream_of_claim(claim).has_busy_reader for claim in self._releasing):
                await self._changed.wait_and_clear()
        self._nursery.cancel_scope.cancel()
        await self._ended.wait()
        with self._while_session_lasts():
            await self._ownership.release(self._to_store(self._ownership.claims.values()))
            await self._ownership.clean_up()
        self._has_left = True

    async def _unregister(self) -> None:  # invariant E
        with self._while_session_lasts():
            await self._registered.remove()

    async def _leave_stream(self, stream: MessageStream, claims: Collection[OwnedPartition], timeout_s: float) -> None:
        """Release claims of a stream, first those of which nothing is in hand."""
        in_hand = getattr(stream.item_in_hand(), "topic_partition", None)
        waiting = [claim for claim in claims if claim.topic_partition == in_hand]
        ready = [claim for claim in claims if claim not in waiting]
        for part, wait_s in ((ready, 0.0), (waiting, timeout_s)):
            await self._take_back(stream, part, wait_s)
            with self._while_session_lasts():
                await self._release(part)

    @contextmanager
    def _while_session_lasts(self) -> Iterator[None]:
        """Stop waiting for ZooKeeper once it ends the session by itself, and with it all ownership."""
        with trio.move_on_after(self._client.session_timeout_s) as waiting:
            yield
        if waiting.cancelled_caught:
            logger.warning("connector_left_without_zookeeper", group=self._config.group_id, consumer=self.consumer)

    # Registration

    async def _begin_session(self) -> None:
        await trio.lowlevel.checkpoint()
        self._ownership.session = self._client.session_id
        self.lease.start(self._client.session_id)
        self._changed.set()

    async def _lost(self) -> None:  # invariant B
        self.lease.end()
        self._ownership.session = None
        self._rebalance.cancel()
        claims = list(self._ownership.claims.values())
        logger.warning("connector_session_lost", group=self._config.group_id, partitions=len(claims))
        await self._lose(claims)

    async def _lose(self, claims: Collection[OwnedPartition]) -> None:
        self._ownership.drop(claims)
        for stream, own in self._by_stream(claims).items():
            await stream.take_back([claim.topic_partition for claim in own], 0)
        await self._notices.lost(claims)

    # Rebalances

    async def _rebalance_when_changed(self, nursery: trio.Nursery) -> None:
        tries = 0
        while True:
            await self._changed.wait_and_clear()
            claimed = Claimed()
            with trio.CancelScope() as self._rebalance:
                try:
                    claimed = await self._rebalance_once(nursery)
                    reason = _reason_of(claimed)
                except PipelineError as error:
                    if error is self._notices.error:
                        raise
                    reason = str(error)
            if self._rebalance.cancelled_caught or not reason:
                tries = 0
                continue
            tries += 1
            log = logger.error if tries == self._config.rebalance_max_retries else logger.info
            log("connector_rebalance_repeated", group=self._config.group_id, tries=tries, reason=reason)
            await self._back_off(min(claimed.taken, default=None))
            self._changed.set()

    async def _back_off(self, conflict: TopicPartition | None) -> None:
        """Wait until the owner of a partition has gone, something changes, or the time is up."""
        backoff_s = self._config.rebalance_backoff_ms / 1000 * self._rng.uniform(0.5, 1)
        with trio.move_on_after(backoff_s):
            async with trio.open_nursery() as nursery:

                async def wait_for_release(path: str) -> None:
                    async for owner in self._client.watch_data(path):
                        if owner is None:
                            nursery.cancel_scope.cancel()

                if conflict is not None:
                    nursery.start_soon(wait_for_release, self._paths.owner(conflict))
                await self._changed.wait()
                nursery.cancel_scope.cancel()

    async def _rebalance_once(self, nursery: trio.Nursery) -> Claimed:
        """Release what is of others now, and claim what is of this consumer, as far as it is free."""
        if self._ownership.session is None:
            return Claimed()  # the next registration starts another
        await self._ownership.clean_up()
        registration = self._registered.current
        registries = self._registries = await self._registry.read(registration)
        topics = registries.view.topics if registration.topic_filter else registration.streams
        self._registry.watch_topics(nursery, topics)
        if registries.view.consumers.get(self.consumer) != registration:
            raise CoordinationError(self._paths.id(self.consumer), "is not seen yet by the server that was asked")
        share = self._share(registries)
        claims = self._ownership.claims
        leaving = [claim for claim in claims.values() if share.get(claim.topic_partition) != claim.claimant]
        await self._release_soon(set(leaving) - self._releasing)
        missing = {found: claimant for found, claimant in share.items() if found not in claims}
        claimed = await self._ownership.claim(missing, self._find_starts)
        await self._give(claimed.made)
        if leaving or claimed.made:
            counts = {"released": len(leaving), "claimed": len(claimed.made), "owned": len(claims)}
            logger.info("connector_rebalanced", group=self._config.group_id, **counts)
        return claimed

    def _share(self, registries: Registries) -> dict[TopicPartition, Claimant]:
        held = {found: claim.claimant.stream.number for found, claim in self._ownership.claims.items()}
        share = share_of(registries.view, self.consumer, held)
        registration = registries.view.consumers[self.consumer]
        if new := registration.streams.keys() - self._looked_for:
            self._looked_for |= new
            topics = registries.view.topics if registration.topic_filter else registries.view.topics.keys() & new
            self._known |= {
                (registries.topic_ids[topic], number) for topic in topics for number in registries.view.topics[topic]
            }
        return {
            found: Claimant(GroupStream(self.consumer, number), registries.topic_ids[found.topic])
            for found, number in share.items()
        }

    async def _give(self, claims: Collection[OwnedPartition]) -> None:
        """Give claimed partitions to their streams, once the listener has seen them."""
        self._sought.clear()
        await self._notices.assigned(claims)
        for claim in claims:
            if self._ownership.claims.get(claim.topic_partition) is claim:
                offset = self._sought.pop(claim.topic_partition, claim.offset)
                self._stream_of_claim(claim).give({claim.topic_partition: offset})

    async def _find_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offsets of `auto.offset.reset`. A partition that appeared since begins at its start."""
        is_latest = self._config.auto_offset_reset is OffsetReset.LATEST
        ids = self._registries.topic_ids
        known = {found for found in partitions if (ids[found.topic], found.partition) in self._known}
        positions = {found: LATEST if is_latest and found in known else EARLIEST for found in partitions}
        lane = self._cluster.new_lane("start offsets")
        try:
            found, errors = await list_offsets_once(self._cluster, positions, timeout_s=FIND_TIMEOUT_S, lane=lane)
        finally:
            self._cluster.close_lane(lane)
        for error in errors:
            logger.warning("connector_start_unknown", group=self._config.group_id, error=str(error))
        return {partition: listed.offset for partition, listed in found.items()}

    # Release

    async def _release_soon(self, leaving: Collection[OwnedPartition]) -> None:
        """Release claims, those of which a reader has an item in hand in the background once it has finished."""
        assert self._nursery is not None
        finished: list[OwnedPartition] = []
        for stream, claims in self._by_stream(leaving).items():
            in_hand = getattr(stream.item_in_hand(), "topic_partition", None)
            ready = [claim for claim in claims if claim.topic_partition != in_hand]
            for claim in claims:
                if claim not in ready:
                    self._releasing.add(claim)
                    self._nursery.start_soon(self._release_when_finished, stream, claim)
            await self._take_back(stream, ready, 0)
            finished += ready
        await self._release(finished)

    async def _release_when_finished(self, stream: MessageStream, claim: OwnedPartition) -> None:
        try:
            timeout_s = self._config.max_poll_interval_ms / 1000
            taken = await self._take_back(stream, [claim], timeout_s)
            if taken.unfinished:
                logger.warning("connector_item_unfinished", partition=str(claim.topic_partition), waited_s=timeout_s)
            await self._release([claim])
        finally:
            self._releasing.discard(claim)
        self._changed.set()

    async def _take_back(
        self, stream: MessageStream, claims: Collection[OwnedPartition], timeout_s: float
    ) -> TakenBack:
        """Take partitions back from a stream, and keep where they continue: the release may be cancelled."""
        taken = await stream.take_back([claim.topic_partition for claim in claims], timeout_s)
        for claim in claims:
            claim.consumed = taken.offsets.get(claim.topic_partition, claim.consumed)
        return taken

    async def _release(self, claims: Collection[OwnedPartition]) -> None:
        """Release claims that are not lost meanwhile. The stored offsets of a topic that was deleted are removed."""
        held = [claim for claim in claims if self._ownership.claims.get(claim.topic_partition) is claim]
        topics = self._registries
        gone = [claim for claim in held if topics.lack(claim.topic_partition.topic, claim.claimant.topic_id)]
        await self._notices.lost(gone)
        await self._ownership.release(dict.fromkeys(gone), removes_offsets=True)
        kept = [claim for claim in held if claim not in gone]
        await self._notices.revoked(kept)
        await self._ownership.release(self._to_store(kept))

    def _to_store(self, claims: Iterable[OwnedPartition]) -> dict[OwnedPartition, int | None]:
        return {claim: claim.consumed if self._config.auto_commit_enable else None for claim in claims}

    # Commits

    async def _commit_regularly(self) -> None:
        while True:
            await trio.sleep(self._config.auto_commit_interval_ms / 1000)
            try:
                await self.commit(self.consumed(with_item_in_hand=False))
            except CoordinationError as error:
                if error is self._notices.error:
                    raise
                logger.warning("connector_commit_failed", group=self._config.group_id, error=str(error))

    def _stream_of_claim(self, claim: OwnedPartition) -> MessageStream:
        return self._stream_of(claim.topic_partition.topic, claim.claimant.stream.number)

    def _by_stream(self, claims: Iterable[OwnedPartition]) -> dict[MessageStream, list[OwnedPartition]]:
        found: dict[MessageStream, list[OwnedPartition]] = {}
        for claim in claims:
            found.setdefault(self._stream_of_claim(claim), []).append(claim)
        return found


def _check_offset(topic_partition: TopicPartition, offset: int) -> None:
    """Raises ValueError or TypeError: others could not read what was stored."""
    if not 0 <= index(offset) <= MAX_INT64:
        raise ValueError(f"{topic_partition}: {offset} is not an offset")


def _reason_of(claimed: Claimed) -> str:
    """Return why partitions are not claimed yet; empty if all are."""
    reasons = {"owned by others": claimed.taken, "without leader": claimed.unstarted}
    return "; ".join(
        f"{reason}: {len(partitions)} partitions, {', '.join(map(str, partitions[:10]))}"
        for reason, partitions in reasons.items()
        if partitions
    )
