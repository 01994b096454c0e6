"""Reads the audit topics of all clusters into one ledger, from their beginning, whenever the service starts.

Owns the ledger and the progress of each cluster. A collector that is killed reads the same events again, and comes to
the same counts; if it has snapshots, only those after the newest one. Counts of old hours are on a shelf that dies with
the process. Events are opened on
the event loop, decoded and applied in threads, one portion of a cluster at a time; the consumer's buffer bounds what
waits.

Invariants:

A. Whoever reads or changes the ledger holds `turn`.
B. If an audit topic was recreated or truncated, everything is read again into a new ledger (`generation` changes), as
   a restart would. The loss has a name for as long as this process lives.
C. A snapshot has the events before the positions of its states, and no others: it is taken while nothing is applied.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

import trio

from pipeline.audit.collecting.decoding import DecodedEvents, decode_portion
from pipeline.audit.collecting.reading import ReadingState, instant
from pipeline.audit.collecting.snapshots import Snapshot, SnapshotError, SnapshotFolder
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.audit.judgement.verdicts import EventLoss, Witness
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.shelving import Shelf
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.errors import (
    PartitionBatchError,
    PartitionFetchError,
    PartitionOffsetOutOfRangeError,
    PartitionTruncatedError,
)
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.consumer.opening import open_payload
from pipeline.diagnostics import get_logger
from pipeline.errors import CorruptBatchError, PipelineError
from pipeline.model import Clock, TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.records.batch import BatchHeader, iterate_headers
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.records.opening import open_uncharged

EVENTS: Final = TopicPartition(AUDIT_TOPIC, 0)
POLL_TIMEOUT_S: Final = 1.0
FIRST_ANSWER_TIMEOUT_S: Final = 2.0
"""Shorter than ANSWER_TIMEOUT_S, so that a cluster that is away at the start is soon reported."""
ANSWER_TIMEOUT_S: Final = 5.0
SNAPSHOT_S: Final = 300.0
"""Time between two snapshots."""
PORTION_BYTES: Final = 1 << 20
"""Bytes of opened events that are decoded at a time."""
CONSUMER: Final = ConsumerConfig(max_bytes=2 << 20, max_partition_bytes=1 << 20)
"""Little is fetched ahead: reading waits for decoding, and what waits of each cluster is in memory."""

logger = get_logger(__name__)


class EventCollector:
    """Keeps the ledger up to date with the audit topics of all clusters."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        retry_backoff_s: float,
        clock: Clock,
        open_shelf: Callable[[], Shelf | None] = lambda: None,
        snapshots: SnapshotFolder | None = None,
    ) -> None:
        self._open_shelf = open_shelf
        self._snapshots = snapshots
        self.ledger = Ledger(shelf=open_shelf())
        self.generation = 0
        """Number of ledgers before this one (invariant B)."""
        self.turn = trio.Lock()
        self.states = {name: ReadingState(name) for name in clusters}
        self._clusters = clusters
        self._retry_backoff_s = retry_backoff_s
        self._clock = clock
        self._reading = trio.CancelScope()

    @property
    def read_to_ms(self) -> dict[str, int]:
        """Time for which all events were read, of each cluster that was ever read to its end."""
        return {name: state.read_to_ms for name, state in self.states.items() if state.read_to_ms is not None}

    @property
    def losses(self) -> list[EventLoss]:
        """Losses of events of all clusters."""
        return [loss for state in self.states.values() for loss in state.losses.values()]

    @property
    def clocks(self) -> list[Witness]:
        """Clusters whose clocks differ from that of the collector."""
        return [state.clock.witness for state in self.states.values() if state.clock.witness is not None]

    async def run(self) -> None:
        """Read until cancelled. A cluster that is away does not delay the others."""
        if self._snapshots is not None:
            await self._continue(self._snapshots)
        while True:
            with trio.CancelScope() as self._reading:
                async with trio.open_nursery() as nursery:
                    if self._snapshots is not None:
                        nursery.start_soon(self._keep_snapshots, self._snapshots)
                    for name, cluster in self._clusters.items():
                        nursery.start_soon(self._read, name, cluster)
            if not self._reading.cancelled_caught:
                return  # there are no clusters

    async def _continue(self, snapshots: SnapshotFolder) -> None:
        """Go on from the newest snapshot, if there is one."""
        async with self.turn:
            known = await trio.to_thread.run_sync(snapshots.load, self._open_shelf(), set(self._clusters))
            if known is not None:
                self.ledger, self.states = known.ledger, dict(known.states)
                self.generation += 1

    async def _keep_snapshots(self, snapshots: SnapshotFolder) -> None:
        while True:
            await trio.sleep(SNAPSHOT_S)
            async with self.turn:  # no portion is half applied
                states = {name: state.to_continue() for name, state in self.states.items()}
                try:
                    await trio.to_thread.run_sync(snapshots.save, Snapshot(self.ledger, states))
                except SnapshotError as error:
                    logger.warning("audit_snapshot_not_written", error=str(error))

    async def _read(self, name: str, cluster: Cluster) -> None:
        state = self.states[name]
        timeout_s = FIRST_ANSWER_TIMEOUT_S
        while True:
            asked_ms = self._clock()
            try:
                with unwrapped_errors():  # errors beside a cancellation, or of several tasks
                    await cluster.topic(AUDIT_TOPIC, timeout_s=timeout_s)
                    await self._read_topic(cluster, state)
            except PipelineError as error:
                is_unknown = isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if state.topic_id is None and state.position == 0 and is_unknown:  # created with the first event
                    state.ends_at(0, asked_ms)
                else:
                    state.fail("its topic _audit was deleted" if is_unknown else str(error))
                    logger.warning("audit_topic_not_readable", cluster=name, error=str(error))
                await trio.sleep(self._retry_backoff_s)
            timeout_s = ANSWER_TIMEOUT_S

    async def _read_topic(self, cluster: Cluster, state: ReadingState) -> None:
        async with open_consumer(cluster, CONSUMER) as consumer:
            consumer.add(EVENTS, state.position, state.topic_id, leader_epoch=state.leader_epoch)
            while True:
                try:
                    await self._poll(cluster, consumer, state)
                except PartitionOffsetOutOfRangeError as error:
                    if error.requested > error.log_end_offset:
                        await self._start_again(state, "was truncated")
                    self._pass_over(consumer, state, error.log_start_offset)
                except PartitionBatchError as error:
                    logger.warning("audit_batch_skipped", cluster=state.cluster, error=str(error))
                    self._pass_over(consumer, state, error.next_offset)
                except PartitionTruncatedError:
                    await self._start_again(state, "was truncated")
                except PartitionFetchError as error:
                    cause = error.cause
                    if isinstance(cause, KafkaError) and cause.code is ErrorCode.INCONSISTENT_TOPIC_ID:
                        await self._start_again(state, "was replaced")
                    raise error.cause if isinstance(cause, PipelineError) else error from error

    def _pass_over(self, consumer: Consumer, state: ReadingState, offset: int) -> None:
        """Continue at an offset; the events before it cannot be read."""
        state.lacks(state.position, offset)
        state.moves_to(offset)
        state.leader_epoch = None  # of an event that nobody has read
        consumer.add(EVENTS, offset, state.topic_id)

    async def _start_again(self, state: ReadingState, what: str) -> NoReturn:
        """Read everything from the beginning into a new ledger (invariant B). Ends all tasks that read."""
        now_ms = self._clock()
        state.loses(f"it {what} at {instant(now_ms)}", now_ms, kind=what)
        logger.warning("audit_topic_replaced", cluster=state.cluster, what=what)
        if self._snapshots is not None:
            self._snapshots.forget()
        self.ledger = Ledger(shelf=self._open_shelf())  # answers may still read the shelf of the ledger before
        self.generation += 1
        for name, known in self.states.items():
            kept = {kind: loss for kind, loss in known.losses.items() if kind != "gap"}  # gaps are found again
            self.states[name] = ReadingState(name, losses=kept)
        self._reading.cancel()
        await trio.sleep_forever()
        raise AssertionError("cancelled")

    async def _poll(self, cluster: Cluster, consumer: Consumer, state: ReadingState) -> None:
        for batches in await consumer.poll_batches(POLL_TIMEOUT_S):
            state.topic_id = consumer.topic_id(EVENTS)
            await self._take(state, batches)
        # A request of its own: the consumer waits silently for a broker that is away.
        asked_ms = self._clock()
        listed = await list_offsets(cluster, {EVENTS: LATEST}, timeout_s=ANSWER_TIMEOUT_S)
        state.ends_at(listed[EVENTS].offset, asked_ms)

    async def _take(self, state: ReadingState, batches: FetchedBatches) -> None:
        """Apply fetched batches in portions."""
        portion: list[tuple[BatchHeader, bytes]] = []
        size = 0
        for place, header in iterate_headers(batches.data):
            if header.next_offset <= state.position:
                continue
            try:
                payload = open_uncharged(batches.data, place, header, MIN_OPENED_BYTES)
                if payload is None:
                    await self._apply(state, portion)
                    portion, size = [], 0
                    charge, payload = await open_payload(batches.data, place, header, MIN_OPENED_BYTES)
                    with charge:
                        await self._apply(state, [(header, payload)])
                    continue
            except CorruptBatchError as error:
                await self._apply(state, portion)
                portion, size = [], 0
                logger.warning("audit_batch_skipped", cluster=state.cluster, error=str(error))
                state.lacks(state.position, header.next_offset)
                state.moves_past(header)
                continue
            portion.append((header, payload))
            size += len(payload)
            if size >= PORTION_BYTES:
                await self._apply(state, portion)
                portion, size = [], 0
        await self._apply(state, portion)

    async def _apply(self, state: ReadingState, portion: Sequence[tuple[BatchHeader, bytes]]) -> None:
        """Decode a portion and apply its events, both in a thread, and note the new position."""
        if not portion:
            return
        now_ms = self._clock()
        opened = [
            (header, payload, state.clock.stored_at(header, now_ms, state.read_to_ms))
            for header, payload in portion
            if not header.is_control
        ]
        decoded = await trio.to_thread.run_sync(decode_portion, opened, state.position)
        async with self.turn:
            await trio.to_thread.run_sync(partial(_apply_events, self.ledger, decoded))
        if decoded.error is not None:
            state.unreadable += decoded.unreadable
            logger.warning(
                "audit_records_skipped",
                cluster=state.cluster,
                records=decoded.unreadable,
                offset=portion[0][0].base_offset,
                error=decoded.error,
            )
        for cluster, written_ms in decoded.losses:
            if cluster == state.cluster:
                state.told_of_loss(written_ms, self._clock())
        for cluster, process, unseen, created_ms, written_ms in decoded.sights:
            if cluster == state.cluster:
                state.told_of_sight(process, unseen, created_ms, written_ms, self._clock())
        damaged = dict(decoded.damaged)
        for header, _ in portion:
            if header.base_offset in damaged:
                state.lacks(state.position, header.next_offset)
            else:
                state.follow([header], state.position, self._clock())
            state.moves_past(header)
        state.has_applied()


def _apply_events(ledger: Ledger, decoded: DecodedEvents) -> None:
    reports: list[CountReport] = []
    for event in decoded.events:
        if isinstance(event, CountReport):
            reports.append(event)
        else:
            ledger.apply_all(reports)
            reports = []
            ledger.apply_older(event)
    ledger.apply_all(reports)
    ledger.shelve()
