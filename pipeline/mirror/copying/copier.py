"""Copies one live cluster: fetches whole batches, and appends them to the destination at the same offsets.

Invariants:
A. The position of a partition is the replica's log end offset and nothing else. The mirror asks the destination for it
   whenever it is not certain (start, failure, overlap), and keeps it nowhere. So a mirror killed at any moment goes on
   with nothing lost and nothing doubled.
B. The destination appends a batch only at the batch's own offsets, and only to a log that ends where the mirror last
   saw it end. So two mirrors of one partition, or a retry of an append whose answer was lost, cannot double anything. A
   replica that lost its end, or was recreated, gets no gap: the mirror asks for its new end.
C. Only batches that were fetched at a partition's present position are appended. After a failure, the partition's
   batches that were fetched before it are dropped, so no gap can arise. Those of other partitions stay.
D. Offsets that the replica lacks are in the gap ledger before the first batch behind them is appended (`gaps.py`).
E. A leader epoch of the source is recorded before the first batch of the epoch is appended (`epochs.py`). So a replica
   can be compared with a source that lost its end, whenever that happened.
F. A partition that cannot be copied rests with its reason in the status, which stays until copying works again; the
   others go on.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, IsolationLevel
from pipeline.client.consumer.batch_headers import LANE as HEADERS_LANE
from pipeline.client.consumer.byte_rate import FetchLimit
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.errors import (
    PartitionFetchError,
    PartitionOffsetOutOfRangeError,
    PartitionTruncatedError,
)
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.consumer.fetcher import FETCH_LANE
from pipeline.errors import PipelineError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.append_queue import AppendQueue, Piece, PlannedAppend
from pipeline.mirror.copying.copies import Advice, PartitionCopy, SourceCopies
from pipeline.mirror.copying.copy_observer import CopyObserver
from pipeline.mirror.copying.destination import Appended, Destination, is_fenced
from pipeline.mirror.copying.gap_policy import GapCrossing
from pipeline.mirror.copying.high_watermarks import HighWatermarks
from pipeline.mirror.copying.locator import Locator
from pipeline.mirror.copying.replica_ends import ReplicaEnds
from pipeline.mirror.copying.throttles import Throttles
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.epochs import EpochEntries, SourceEpochs, added_entries, entries_before, source_epochs
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.pauses import Pauses
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.topics.flows import SourceFlows
from pipeline.model import BrokerId, Clock, TopicPartition
from pipeline.net.connection_pool import LostConnection
from pipeline.net.signals import Signal
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import read_header

POLL_TIMEOUT_S = 1.0
SLOW_S = 1.0
"""Time without an append after which a full queue is not waited for any longer."""


class SourceCopier:
    """Copies the assigned partitions of one cluster, `copies`, while `run` runs."""

    def __init__(
        self,
        name: str,
        source: Cluster,
        destination: Cluster,
        replicas: Destination,
        config: CurrentConfig,
        flows: SourceFlows,
        metrics: MirrorMetrics,
        gaps: GapJournal,
        epochs: EpochJournal,
        pauses: Pauses,
        throttles: Throttles,
        *,
        clock: Clock,
        observer: CopyObserver,
    ) -> None:
        self._observer = observer
        self.copies = SourceCopies(name, flows, metrics, config, pauses)
        self._source = source
        self._replicas = replicas
        self._config = config
        self._throttles = throttles
        self._metrics = metrics
        self._epochs = epochs
        self._crossing = GapCrossing(gaps, epochs, source, replicas, flows, config, clock=clock)
        self._locator = Locator(self.copies, self._crossing, destination, replicas)
        self._watermarks = HighWatermarks(self.copies, source, config)
        self._replica_ends = ReplicaEnds(self.copies, destination, config)
        self._destination = destination
        self._queue = AppendQueue(self._leader_of)
        self._appended = Signal()

    def _leader_of(self, replica: TopicPartition) -> BrokerId | None:
        return self._destination.view.leader_of(replica)

    def _limit_of(self, partition: TopicPartition) -> FetchLimit | None:
        if not self._throttles.has_any:
            return None
        flow = self.copies.flows.flow_of(partition.topic)
        return self._throttles.limit_of(None if flow is None else flow.name)

    async def run(self) -> None:
        """Copy until cancelled."""
        config = self._config.now
        async with (
            open_consumer(
                self._source,
                consumer_config(config, self._replicas.isolation),
                self._watermarks.note_fetched,
                self._limit_of,
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._locator.run, consumer)
            nursery.start_soon(self._watermarks.run)
            nursery.start_soon(self._replica_ends.run)
            watch = partial(self._doubt, consumer, nursery)
            nursery.start_soon(self._source.watch_losses, watch)
            while True:
                if self._config.now is not config:
                    config = self._config.now
                    consumer.configure(consumer_config(config, self._replicas.isolation))
                await self._make_room(consumer, config.fetch_max_bytes // 2)  # as much more may be polled
                await self._poll(consumer, nursery)
                self._append_more(consumer, nursery)
                while self.copies.withdrawn:
                    partition = self.copies.withdrawn.pop()
                    copy = self.copies.states.get(partition)
                    if copy is None or copy.is_rejected or copy.pause is not None:
                        consumer.remove(partition)
                        self._queue.drop([partition])
                self._appended.notify()  # void batches may have left the queue

    def _doubt(self, consumer: Consumer, nursery: trio.Nursery, lost: LostConnection) -> None:
        """Have partitions whose leader was away compared with the source: it may have been restored to an older copy.

        Called before anything is fetched from that leader again. What was fetched before is void. Partitions of which
        nothing was fetched since their comparison may have no other connection than that of the comparison.

        A broker that is there closes connections that were idle for long. One that was away has lost all of them, also
        those with requests under way; so an idle one says nothing while another fetches.
        """
        if not lost.lane.startswith(FETCH_LANE) and lost.lane != HEADERS_LANE:
            return
        if lost.was_idle and self._source.is_asked(lost.address, FETCH_LANE):
            return
        view = self._source.view
        leaders = {broker for broker, endpoint in view.brokers.items() if endpoint.address == lost.address}
        for copy in self.copies.states.values():
            if lost.lane == HEADERS_LANE and consumer.is_answered(copy.source):
                continue
            if view.leader_of(copy.source) in leaders and not copy.is_rejected:
                copy.is_confirmed = False
                copy.losses += 1
                if copy.position is not None and copy.pause is None:
                    consumer.remove(copy.source)
                    self._queue.drop([copy.source])
                    nursery.start_soon(self._locate_behind_append, copy, copy.fetch)

    async def _locate_behind_append(self, copy: PartitionCopy, fetch: int) -> None:
        """Have a partition located once the append that is under way has ended: the replica's end is certain then."""
        while self._queue.holds(copy.source):
            await self._appended.wait()
        if copy.fetch == fetch:
            self.copies.locate_again(copy)

    async def _make_room(self, consumer: Consumer, max_bytes: int) -> None:
        """Wait until the queue takes more. Partitions whose leader is slow rest, if they hold up those of others."""
        while self._queue.size_bytes >= max_bytes:
            waited_from = trio.current_time()
            with trio.move_on_after(SLOW_S):
                await self._appended.wait()
            if trio.current_time() - waited_from < SLOW_S:
                continue
            leaders = {self._leader_of(copy.assignment.replica) for copy in self.copies.states.values()}
            for leader in leaders if len(leaders) > 1 else ():
                for copy in self._queue.waiting_for(leader):
                    reason = f"waits for broker {leader} of the hub, which has not taken its batches for {SLOW_S:g} s"
                    self._rest(consumer, copy, reason, Advice.LOOK_AT_BOTH)
                    self._queue.drop([copy.source])

    async def _poll(self, consumer: Consumer, nursery: trio.Nursery) -> None:
        """Have fetched batches wait for their append. A partition that cannot be fetched rests, or is located again."""
        try:
            polled = await consumer.poll_batches(POLL_TIMEOUT_S)
        except PartitionOffsetOutOfRangeError as error:
            nursery.start_soon(self._locate_behind_appends, consumer, error.topic_partition, False)
        except PartitionTruncatedError as error:
            nursery.start_soon(self._locate_behind_appends, consumer, error.topic_partition, True)
        except PartitionFetchError as error:
            consumer.remove(error.topic_partition)
            copy = self.copies.states.get(error.topic_partition)
            if copy is not None:
                self.copies.rest(copy, str(error), advice_on(error))
        else:
            for batches in polled:
                copy = self.copies.states.get(batches.topic_partition)
                if copy is not None:  # else withdrawn meanwhile
                    self._queue.add(Piece(copy, copy.fetch, batches))

    async def _locate_behind_appends(self, consumer: Consumer, partition: TopicPartition, is_truncated: bool) -> None:
        """Have a partition located once what was fetched before is appended: the replica's end is certain then."""
        consumer.remove(partition)
        copy = self.copies.states.get(partition)
        fetch = -1 if copy is None else copy.fetch
        while self._queue.holds(partition):
            await self._appended.wait()
        if copy is not None and copy.fetch == fetch:
            copy.is_out_of_range |= not is_truncated
            copy.is_truncated |= is_truncated
            self.copies.locate_again(copy)

    def _append_more(self, consumer: Consumer, nursery: trio.Nursery) -> None:
        for planned in self._queue.begin(self._config.now.fetch_max_bytes):
            nursery.start_soon(self._append, consumer, planned, nursery)
        self._locate_astray(consumer, self._queue.take_astray())

    def _locate_astray(self, consumer: Consumer, copies: Iterable[PartitionCopy]) -> None:
        """Locate partitions whose replicas do not stand where the consumer fetches."""
        for copy in copies:
            consumer.remove(copy.source)
            self.copies.locate_again(copy)

    async def _append(self, consumer: Consumer, planned: PlannedAppend, nursery: trio.Nursery) -> None:
        """Append one piece of each partition. A partition that fails rests, or is located again."""
        found = [(piece.copy, piece.batches) for piece in planned.pieces]
        await self._record_epochs(consumer, found)
        due = [(piece.copy, piece.batches) for piece in planned.pieces if piece.is_due]  # invariant C
        self._locate_astray(consumer, [piece.copy for piece in planned.pieces if piece.is_astray])
        results = await self._replicas.append(due)
        for piece in planned.pieces:
            if piece.is_next and piece.copy.source in results:
                self._conclude(consumer, piece.copy, piece.batches, results[piece.copy.source])
        self._queue.end(planned)
        if any(piece.copy.position is None for piece in planned.pieces):  # located once nothing is under way
            self.copies.uncertain.set()
        self._appended.notify()
        self._append_more(consumer, nursery)

    async def _record_epochs(self, consumer: Consumer, found: Sequence[tuple[PartitionCopy, FetchedBatches]]) -> None:
        """Record leader epochs of the source that the replicas get with these batches. Partitions that fail rest."""
        changed: dict[TopicPartition, tuple[PartitionCopy, EpochEntries, int]] = {}
        for copy, batches in found:
            if copy.position == batches.position:
                added = added_entries(copy.epochs, batches.leader_epochs, batches.position)
                if added:
                    changed[copy.source] = copy, added, batches.next_offset
        if not changed:
            return
        rising: list[SourceEpochs] = []
        try:
            for copy, added, _ in changed.values():
                epochs = source_epochs(copy.assignment.source, added)
                if copy.epochs and added[0][0] < copy.epochs[-1][0]:  # epochs of a source that was restored began anew
                    await self._epochs.replace(epochs)
                else:
                    rising.append(epochs)
            await self._epochs.add(rising)
        except PipelineError as error:
            for copy, _, _ in changed.values():
                self._rest(consumer, copy, str(error), Advice.LOOK_AT_BOTH)
        else:
            for copy, _, end in changed.values():
                copy.epochs = entries_before(self._epochs.entries_of(copy.assignment.source), end)

    def _conclude(self, consumer: Consumer, copy: PartitionCopy, batches: FetchedBatches, result: Appended) -> None:
        if copy.is_rejected:
            return
        if result.error is None:
            offsets = batches.next_offset - batches.position
            self._metrics.count_copied(copy.assignment.source, len(batches.data), offsets)
            self._observer.copied(copy.assignment.source.cluster, batches)
            copy.position, copy.replica_end = batches.next_offset, result.replica_end
            if batches.leader_epochs:
                copy.leader_epoch = batches.leader_epochs[-1][0] if batches.leader_epochs[-1][0] >= 0 else None
            copy.trouble = None
            # The oldest of these batches, since headers after it would have to be searched: no lag is understated.
            timestamp_ms = read_header(batches.data, 0).max_timestamp
            copy.progress.note_copied(
                batches.next_offset,
                size=len(batches.data),
                offsets=offsets,
                timestamp_ms=timestamp_ms,
                now=trio.current_time(),
            )
        elif result.is_misplaced:
            consumer.remove(copy.source)
            self.copies.locate_again(copy)  # invariant B
        elif result.straddling_end is None:
            self._rest(consumer, copy, str(result.error), advice_on(result.error))
        elif self._crossing.is_accepted(copy, copy.replica_end):
            consumer.remove(copy.source)
            copy.straddling_end = result.straddling_end
            self.copies.locate_again(copy)
        else:
            reason = (
                f"a batch of the source begins before the end of the replica, {copy.replica_end}: they are not copies"
            )
            self._rest(consumer, copy, reason, Advice.REPLACE_HUB_TOPIC)

    def _rest(self, consumer: Consumer, copy: PartitionCopy, reason: str, advice: Advice) -> None:
        if self.copies.is_current(copy):
            consumer.remove(copy.source)
        self.copies.rest(copy, reason, advice)


def consumer_config(config: MirrorConfig, isolation: IsolationLevel) -> ConsumerConfig:
    """Return the settings of the consumer of a source."""
    return ConsumerConfig(
        max_bytes=config.fetch_max_bytes,
        max_partition_bytes=config.fetch_max_bytes,
        max_in_flight=config.fetch_max_in_flight,
        max_wait_ms=config.fetch_max_wait_ms,
        isolation_level=isolation,
    )


def advice_on(error: Exception) -> Advice:
    """Return the action that ends the trouble of a failed fetch or append."""
    cause = error.cause if isinstance(error, PartitionFetchError) else error
    code = cause.code if isinstance(cause, KafkaError) else None
    if code is ErrorCode.POLICY_VIOLATION:
        return Advice.REPLACE_HUB_TOPIC
    if code is ErrorCode.PRODUCER_FENCED:
        return Advice.LEAVE_PROMOTED
    if is_fenced(error):
        return Advice.JOIN_GROUP
    if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED and cause is not error:
        return Advice.ALLOW_AT_SOURCE
    return Advice.LOOK_AT_BOTH
