"""A destination of any kind of Kafka broker, which gives the batches of its replicas its own offsets.

Invariants: those of `offset_map.py`, and

A. The broker's check of sequence numbers decides what is appended: a batch gets in only directly behind the batch
   before, whoever sends it and however late. So a retry, a request of a killed mirror that is still under way, and a
   second mirror of the same partition cannot double, drop or reorder anything.
B. Brokers forget the sequence numbers of a producer that is silent for long (`producer.id.expiration.ms`, a day). So a
   replica whose place was confirmed long ago is located again before the next append; a mirror that was stopped for
   days and continues sends nothing old.
C. As brokers accept any sequence number of a producer that they do not know, the first batch after a replica was
   located is sent alone: none may overtake it.
D. A destination that knows other sequence numbers than its log shows has lost records: nothing more is appended.
E. The map is read after the end of a replica: what another mirror has appended below that end was planned before.
F. Batches are for the topic that was located, by its id. One that was created again under its name gets none of them.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from uuid import UUID

import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, IsolationLevel
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.producer.produce_plan import ProduceVerdict, verdict_of
from pipeline.client.producer.raw_produce import RawProduced, raw_produce
from pipeline.diagnostics import get_logger
from pipeline.errors import CorruptBatchError, DeadlineExceededError, PipelineError
from pipeline.mirror.appending.replica_scan import OffsetMapError, ReplicaScan, way_out_of
from pipeline.mirror.appending.rewriting import OutgoingBatch, outgoing_batches
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.copying.destination import Appended, ReplicaHaltedError, ReplicaPlace
from pipeline.mirror.copying.divergence import LastBatches
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.offset_map import (
    OFFSET_MAP_TOPIC,
    OffsetMapEntry,
    PlannedBatch,
    open_plans,
    sequence_after,
)
from pipeline.mirror.journals.offset_map_journal import OffsetMapJournal
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.batch import BatchHeader, iterate_headers

PLANS_OF_ONE_RECORD = 1000
IN_FLIGHT = 5
"""Batches of a replica under way at once: brokers recognise the repetition of as many."""
CHECKPOINT_S = 1.0
"""Time after which the place of a replica that gets nothing more is recorded, so that a restart need not search it."""
CONFIRMED_FOR_S = 6 * 3600.0
"""Time for which a confirmed place counts (invariant B): far below the default of `producer.id.expiration.ms`."""
LATE_S = 120.0
"""Time after which no request of a dead mirror is under way any more, longer than brokers hold requests by default."""
SCAN_BYTES = 4 * 1024 * 1024
TRANSACTION_TIMEOUT_MS = 60_000
_ADVICE = {
    ErrorCode.MESSAGE_TOO_LARGE: "raise max.message.bytes of the replica topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "raise max.message.bytes of the replica topic",
    ErrorCode.INVALID_TIMESTAMP: "raise message.timestamp.after.max.ms of the replica topic: records lie in the future",
    ErrorCode.INVALID_RECORD: "if the replica topic is compacted, all records need keys: set its cleanup.policy",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "permit Write on the replica topic to this mirror",
}

logger = get_logger(__name__)


class ReplicaRefusedError(PipelineError):
    """The destination does not take a batch; the message says what to do."""


@dataclass(slots=True)
class _Replica:
    """State of a located replica. `entry` is what the map would say now."""

    entry: OffsetMapEntry
    recorded: OffsetMapEntry
    confirmed_at: float
    end: int
    is_known: bool = False
    """True once the destination has appended a batch, and so knows the sequence numbers (invariant C)."""


@dataclass(slots=True, eq=False)
class _Append:
    """Batches of one replica that are being appended."""

    copy: PartitionCopy
    replica: _Replica
    fetched: FetchedBatches
    left: deque[OutgoingBatch] = field(default_factory=deque)
    planned: deque[PlannedBatch] = field(default_factory=deque)
    """Plans of the first of `left` that are in the map."""
    result: Appended | None = None

    @property
    def in_flight(self) -> int:
        """Number of planned batches that may be under way at once."""
        return min(len(self.planned), IN_FLIGHT if self.replica.is_known else 1)

    def rewritten(self, place: int) -> bytearray:
        """Return the bytes of the planned batch at this place."""
        entry = self.replica.entry
        return self.left[place].rewritten(entry.producer_id, entry.producer_epoch, self.planned[place].sequence)


class AppendedOffsets:
    """The replicas of all sources in one destination."""

    isolation = IsolationLevel.READ_COMMITTED

    def __init__(self, destination: Cluster, offset_map: OffsetMapJournal, config: CurrentConfig) -> None:
        self._destination = destination
        self._map = offset_map
        self._config = config
        self._replicas: dict[TopicPartition, _Replica] = {}
        self._refused: dict[TopicPartition, int] = {}
        """Sequence numbers that the destination refused since the last success, by replica."""
        self._conflicts: dict[TopicPartition, float] = {}
        """Times at which plans of a mirror before were first found to differ from what the source has now."""
        self._identity: tuple[int, int] | None = None
        self._identifying = trio.Lock()

    async def open(self) -> None:
        """Read the offset map. Raises as `OffsetMapJournal.open`."""
        await self._map.open()

    async def run(self) -> None:
        """Record the places of replicas that get nothing more, until cancelled."""
        while True:
            await trio.sleep(CHECKPOINT_S)
            quiet_since = trio.current_time() - CHECKPOINT_S
            due = [
                replica
                for replica in self._replicas.values()
                if replica.recorded.planned and replica.confirmed_at <= quiet_since and not replica.entry.planned
            ]
            try:
                for first in range(0, len(due), PLANS_OF_ONE_RECORD):
                    await self._record_places(due[first : first + PLANS_OF_ONE_RECORD])
                await self._map.mend()
            except PipelineError as error:
                logger.info("checkpoint_failed", error=str(error))

    async def _record_places(self, replicas: Sequence[_Replica]) -> None:
        entries = [replica.entry for replica in replicas]
        await self._map.record(entries)
        for replica, entry in zip(replicas, entries, strict=True):
            if replica.entry is entry:
                replica.recorded = entry

    async def locate(self, copy: PartitionCopy) -> ReplicaPlace:
        """Return the offset of the source behind the replica's last batch, by the map and the replica's own log.

        Raises ReplicaHaltedError if both do not tell, and as `list_offsets`.
        """
        try:
            return await self._located(copy)
        except OffsetMapError as error:
            raise ReplicaHaltedError(str(error)) from error

    async def _located(self, copy: PartitionCopy) -> ReplicaPlace:
        target = copy.assignment.replica
        self._replicas.pop(target, None)
        end = await self._bound(target, LATEST)
        await self._map.read_on()  # invariant E
        topic_id = (await self._destination.topic(target.topic, timeout_s=self._config.timeout_s)).id
        entry = self._map.entry_of(copy.assignment.source)
        if entry is None or not entry.is_of(copy.assignment.source, target, topic_id):
            entry = await self._begin(copy, topic_id, end)
        if end < entry.replica_offset:
            end = await self._grown_to(entry)
        if end > entry.replica_offset:
            entry = await self._scanned(entry, end)
        if self._refused.get(target) == entry.sequence:
            raise OffsetMapError(
                f"the destination refuses sequence number {entry.sequence} of {target}, which follows by its log: it "
                f"lost records that it had acknowledged. {way_out_of(entry)}"
            )
        if target in self._conflicts and trio.current_time() - self._conflicts[target] > LATE_S:
            entry = replace(entry, planned=())
        self._replicas[target] = _Replica(entry, entry, trio.current_time(), end)
        return ReplicaPlace(source_offset=entry.source_offset, replica_end=end)

    async def append(self, due: Sequence[tuple[PartitionCopy, FetchedBatches]]) -> Mapping[TopicPartition, Appended]:
        """Append batch after batch of each replica, for Kafka accepts one of a partition in each request.

        What will be sent is recorded first (invariant A of `offset_map.py`).
        """
        works = [_Append(copy, self._replicas[copy.assignment.replica], fetched) for copy, fetched in due]
        for work in works:
            self._prepare(work)
            await trio.lowlevel.checkpoint()
        while busy := [work for work in works if work.result is None]:
            await self._plan(busy)
            while sending := [work for work in busy if work.planned and work.result is None]:
                await self._send(sending)
            for work in busy:
                if work.result is None and not work.left:
                    entry = replace(work.replica.entry, source_offset=work.fetched.next_offset)
                    work.replica.entry = replace(entry, planned=open_plans(entry))
                    work.result = Appended(replica_end=work.replica.end)
        return {work.copy.source: work.result for work in works if work.result is not None}

    async def last_header(self, _copy: PartitionCopy, _end: int, /) -> BatchHeader | None:
        """Return none: batches of source and replica have other offsets, and other checksums."""
        return None

    async def last_batches(self, _source: Cluster, _copy: PartitionCopy, _end: int, /) -> LastBatches:
        """Return no batches: those of source and replica have other offsets, and other checksums."""
        return LastBatches(replica=None, source=None)

    def _prepare(self, work: _Append) -> None:
        """Make the batches to append, or the error."""
        if trio.current_time() - work.replica.confirmed_at > CONFIRMED_FOR_S:
            work.result = Appended(error=OffsetMapError("located long ago"), is_misplaced=True)
            return
        try:
            work.left = deque(outgoing_batches(work.fetched))
        except CorruptBatchError as error:
            work.result = Appended(error=error)

    async def _plan(self, works: Sequence[_Append]) -> None:
        """Record the next batches of each replica, with plans of before that may still be under way."""
        planning = []
        for work in works:
            entry = work.replica.entry
            sequence = entry.sequence
            for batch in islice(work.left, PLANS_OF_ONE_RECORD):
                work.planned.append(PlannedBatch(sequence, batch.records, batch.next_offset))
                sequence = sequence_after(sequence, batch.records)
            if self._contradicts(work):
                reason = "the source was compacted after a mirror had sent batches of it, which may still be under way"
                error = ReplicaRefusedError(f"{reason}: waits for {LATE_S:.0f} s until they cannot be")
                work.result = Appended(error=error)
            elif work.planned:
                planned = tuple(dict.fromkeys((*work.planned, *open_plans(entry))))
                work.replica.entry = replace(entry, planned=planned)
                planning.append(work)
        if not planning:
            return
        try:
            await self._map.record(work.replica.entry for work in planning)
        except PipelineError as error:
            for work in planning:
                work.result = Appended(error=error)
        else:
            for work in planning:
                work.replica.recorded = work.replica.entry

    def _contradicts(self, work: _Append) -> bool:
        """True if a batch would have the sequence numbers of another one that a mirror before may have sent."""
        before = {(batch.sequence, batch.records): batch for batch in work.replica.entry.planned}
        target = work.copy.assignment.replica
        if all(before.get((batch.sequence, batch.records), batch) == batch for batch in work.planned):
            return False
        self._conflicts.setdefault(target, trio.current_time())
        return True

    async def _send(self, works: Sequence[_Append]) -> None:
        """Send the next planned batches of each replica, some at once and in order, and take note of the results."""
        for work in works:
            target = work.copy.assignment.replica
            found = self._destination.view.topics.get(target.topic)
            if found is not None and found.id != work.replica.entry.replica_topic_id:  # invariant F
                error = ReplicaRefusedError(f"{target.topic} was deleted and created again at the destination")
                work.result = Appended(error=error, is_misplaced=True)
        works = [work for work in works if work.result is None]
        rounds = [
            {work: work.rewritten(place) for work in works if place < work.in_flight} for place in range(IN_FLIGHT)
        ]
        rounds = [batches for batches in rounds if batches]
        turns = [trio.Event() for _ in rounds]
        results: dict[int, Mapping[TopicPartition, RawProduced]] = {}

        async def send(place: int) -> None:
            await turns[place].wait()
            if place + 1 < len(turns):
                turns[place + 1].set()  # that task runs when this one waits: behind it at each connection
            results[place] = await raw_produce(
                self._destination,
                {work.copy.assignment.replica: batch for work, batch in rounds[place].items()},
                keep_offsets=False,
                is_repeatable=True,
                topic_ids={work.copy.assignment.replica.topic: work.replica.entry.replica_topic_id for work in works},
                timeout_s=self._config.timeout_s,
            )

        async with trio.open_nursery() as nursery:
            for place in range(len(rounds)):
                nursery.start_soon(send, place)
            if turns:
                turns[0].set()
        for place, batches in enumerate(rounds):
            for work in batches:
                if work.result is None:
                    self._conclude(work, results[place][work.copy.assignment.replica], is_first=place == 0)

    def _conclude(self, work: _Append, result: RawProduced, *, is_first: bool) -> None:
        """Take note of a batch's result. `is_first`: no other batch of the replica was under way before this one."""
        target, replica = work.copy.assignment.replica, work.replica
        if result.error is not None:
            work.result = self._failed(work, result.error, is_first=is_first)
            return
        if 0 <= result.base_offset < replica.end:  # a repetition; or a topic that was created again took the batch
            error = ReplicaRefusedError(f"{target} has the batch at offset {result.base_offset} already")
            work.result = Appended(error=error, is_misplaced=True)
            return
        batch, planned = work.left.popleft(), work.planned.popleft()
        replica.confirmed_at, replica.is_known = trio.current_time(), True
        if result.base_offset >= 0:
            replica.end = max(replica.end, result.base_offset + batch.records)
        replica.entry = replace(
            replica.entry,
            source_offset=planned.next_offset,
            replica_offset=replica.end,
            sequence=sequence_after(planned.sequence, planned.records),
        )
        self._refused.pop(target, None)
        self._conflicts.pop(target, None)

    def _failed(self, work: _Append, error: PipelineError, *, is_first: bool) -> Appended:
        target = work.copy.assignment.replica
        code = error.code if isinstance(error, KafkaError) else None
        if code is not None and verdict_of(code) is ProduceVerdict.IDENTITY_REFUSED:
            if is_first:
                self._refused[target] = work.planned[0].sequence
            return Appended(error=error, is_misplaced=True)
        if code in _ADVICE:
            return Appended(error=ReplicaRefusedError(f"{error}; {_ADVICE[code]}"))
        return Appended(error=error, is_misplaced=code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER)

    async def _begin(self, copy: PartitionCopy, topic_id: UUID, end: int) -> OffsetMapEntry:
        """Enter an empty replica in the map. Raises OffsetMapError for one with records, which may be copies."""
        source, target = copy.assignment.source, copy.assignment.replica
        if end > 0:
            raise OffsetMapError(
                f"{target} has records, and the offset map has no entry of it: the map was lost, or the topic was made "
                f"by somebody else. Restore {OFFSET_MAP_TOPIC}, or delete the topic {target.topic} of the destination "
                "to have it copied again, or give the replica another name (replica.topic of a flow)"
            )
        producer_id, producer_epoch = await self._take_identity()
        entry = OffsetMapEntry(
            source=source.cluster,
            partition=source.partition,
            topic_id=source.topic_id,
            replica=target,
            replica_topic_id=topic_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        found = await self._map.begin(entry)
        if not found.is_of(source, target, topic_id):
            raise ReplicaRefusedError(f"another mirror has just recorded an older copy of {source.partition}")
        return found

    async def _take_identity(self) -> tuple[int, int]:
        """Return the producer id and epoch of all replicas that this mirror begins. Raises PipelineError."""
        async with self._identifying:
            if self._identity is None:
                request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
                response: InitProducerIdResponse = await self._destination.request_any(
                    request, timeout_s=self._config.timeout_s
                )
                if response.error_code != ErrorCode.NONE:
                    raise KafkaError(response.error_code, "InitProducerId")
                self._identity = response.producer_id, response.producer_epoch
            return self._identity

    async def _grown_to(self, entry: OffsetMapEntry) -> int:
        """Return the place of an entry that another mirror has recorded since the end of the replica was read.

        Raises OffsetMapError if the replica still ends before that place.
        """
        end = await self._bound(entry.replica, LATEST)
        if end < entry.replica_offset:
            raise OffsetMapError(
                f"{entry.replica} ends at offset {end}, before {entry.replica_offset}: the destination lost records "
                f"that it had acknowledged. {way_out_of(entry)}"
            )
        return entry.replica_offset

    async def _scanned(self, entry: OffsetMapEntry, end: int) -> OffsetMapEntry:
        """Return the entry as of now, by the batches of the replica behind the entry's place."""
        scan = ReplicaScan(entry)
        if not entry.planned:
            return scan.conclude(end)
        start = max(entry.replica_offset, await self._bound(entry.replica, EARLIEST))
        config = ConsumerConfig(max_bytes=SCAN_BYTES, max_partition_bytes=SCAN_BYTES)
        async with open_consumer(self._destination, config) as consumer:
            consumer.assign({entry.replica: start})
            while start < end:
                polled = await consumer.poll_batches(self._config.timeout_s)
                if not polled:
                    reason = f"could not be read to its end within {self._config.timeout_s:.0f} s"
                    raise DeadlineExceededError(f"{entry.replica} {reason}")
                for batches in polled:
                    for _, header in iterate_headers(batches.data):
                        if header.base_offset < end:  # what came later may be planned in the map since it was read
                            scan.add(header)
                    start = batches.next_offset
        return scan.conclude(end)

    async def _bound(self, partition: TopicPartition, position: int) -> int:
        await self._destination.topic(partition.topic, timeout_s=self._config.timeout_s)
        listed = await list_offsets(self._destination, {partition: position}, timeout_s=self._config.timeout_s)
        return listed[partition].offset
