"""The idempotent producers of a log (KIP-98): the last five batches of each, to find duplicates and lost batches.

Invariants:

- A batch is new only if it continues the sequence numbers of its producer's epoch, or starts a newer epoch at 0. Of a
  producer that is not known (it was forgotten) any sequence number is taken, as in Kafka.
- An open transaction is known by its first offset, until a marker of its producer ends it; a producer with one is not
  forgotten. Nothing at or behind the first of them is stable.
- A batch has a producer if its producer id is above NO_PRODUCER_ID, as in Kafka, whoever asks.
- The state is a function of the batches of the log and the times of their append. A producer is forgotten for its
  silence alone, which is measured against the time passed in; how many there may be, `known_producers` says for all
  logs of the process.
- A batch costs the same however many producers and open transactions are known: producers that may be forgotten are
  kept in the order of their last append, open transactions in that of their first offset.

The snapshot has Kafka's format (`ProducerStateManager`, version 1), with an entry for each remembered batch instead of
the last one alone; a reader that keeps one entry per producer is left with the newest.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from crc32c import crc32c

from pipeline.errors import OutOfOrderSequenceError, StaleProducerEpochError
from pipeline.log.known_producers import KNOWN_PRODUCERS, KnownProducers
from pipeline.model import Offset
from pipeline.records.batch import MAX_SEQUENCE, NO_PRODUCER_ID, BatchHeader

BATCHES_REMEMBERED = 5

_SNAPSHOT_HEADER = struct.Struct(">hI")
_SNAPSHOT_VERSION = 1
_COUNT = struct.Struct(">i")
_BATCH = struct.Struct(">iqi")
_ENTRY = struct.Struct(">qhiqiqiq")
_NO_COORDINATOR_EPOCH = -1
_NO_TRANSACTION = -1
_NO_SEQUENCE = -1


class ProducedBatch(NamedTuple):
    """A batch of a producer, as the log holds it."""

    last_sequence: int
    last_offset: Offset
    offset_delta: int

    @property
    def first_offset(self) -> Offset:
        """Offset of its first record."""
        return Offset(self.last_offset - self.offset_delta)


_NO_BATCH = ProducedBatch(_NO_SEQUENCE, Offset(-1), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A producer as its partition knows it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_append_ms: int
    transaction_start: int
    """First offset of its open transaction, -1 if there is none."""


class EndedTransaction(NamedTuple):
    """Transaction, from its first record to its marker."""

    producer_id: int
    first_offset: Offset
    last_offset: Offset


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_append_ms: int
    transaction_start: int = _NO_TRANSACTION
    _packed: bytes = b""
    """The last batches, each as _BATCH: a third of what objects take, as there may be very many producers."""

    @property
    def batches(self) -> list[ProducedBatch]:
        return [ProducedBatch(sequence, Offset(offset), delta) for sequence, offset, delta in self._fields()]

    @property
    def next_sequence(self) -> int:
        if not self._packed:
            return 0
        sequence: int = _BATCH.unpack_from(self._packed, len(self._packed) - _BATCH.size)[0]
        return (sequence + 1) & MAX_SEQUENCE

    def find(self, last_sequence: int, offset_delta: int) -> ProducedBatch | None:
        for sequence, offset, delta in self._fields():
            if sequence == last_sequence and delta == offset_delta:
                return ProducedBatch(sequence, Offset(offset), delta)
        return None

    def remember(self, batch: ProducedBatch) -> None:
        self._packed = self._packed[(1 - BATCHES_REMEMBERED) * _BATCH.size :] + _BATCH.pack(*batch)

    def _fields(self) -> Iterator[tuple[int, int, int]]:
        return _BATCH.iter_unpack(self._packed)


class ProducerStates:
    """All producers of one log."""

    def __init__(self, *, expiration_ms: int, known: KnownProducers = KNOWN_PRODUCERS) -> None:
        self._expiration_ms = expiration_ms
        self._known = known
        self._producers: dict[int, _Producer] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Producers without an open transaction, in the order of their last append."""
        self._open: OrderedDict[int, int] = OrderedDict()
        """The first offset of each open transaction, rising."""

    def __del__(self) -> None:
        self._known.add(-len(self._producers))

    def __len__(self) -> int:
        return len(self._producers)

    def last_offsets(self) -> list[int]:
        """The last offset of each producer."""
        return [producer.batches[-1].last_offset for producer in self._producers.values() if producer.batches]

    @property
    def first_unstable_offset(self) -> Offset | None:
        """Offset at which the oldest open transaction began; None if there is none."""
        return Offset(next(iter(self._open.values()))) if self._open else None

    @property
    def ids(self) -> list[int]:
        """The ids of all known producers."""
        return list(self._producers)

    def some(self, ids: Iterable[int]) -> list[ActiveProducer]:
        """Return the known ones of these producers."""
        return self._active((name, self._producers[name]) for name in ids if name in self._producers)

    def active(self) -> list[ActiveProducer]:
        """All known producers, in the order of their last append."""
        return self._active(self._by_last_append())

    def _active(self, producers: Iterable[tuple[int, _Producer]]) -> list[ActiveProducer]:
        return [
            ActiveProducer(
                producer_id=producer_id,
                epoch=producer.epoch,
                last_sequence=producer.batches[-1].last_sequence if producer.batches else _NO_SEQUENCE,
                last_append_ms=producer.last_append_ms,
                transaction_start=producer.transaction_start,
            )
            for producer_id, producer in producers
        ]

    def _by_last_append(self) -> list[tuple[int, _Producer]]:
        found = [(name, self._producers[name]) for name in (*self._open, *self._idle)]
        return sorted(found, key=lambda item: item[1].last_append_ms)

    def check(self, headers: Sequence[BatchHeader]) -> ProducedBatch | None:
        """Return None if these batches may be appended; if all are in the log already, the first one there.

        Raises OutOfOrderSequenceError, StaleProducerEpochError, TooManyProducersError.
        """
        if len(headers) == 1:
            header = headers[0]
            if header.producer_id <= NO_PRODUCER_ID:
                return None
            if header.producer_id not in self._producers:
                self._known.check_room(header.producer_id)
            return self._check(header, None)
        duplicates = []
        ahead: dict[int, tuple[int, int]] = {}
        for header in headers:
            if header.producer_id <= NO_PRODUCER_ID:
                continue
            duplicates.append(self._check(header, ahead.get(header.producer_id)))
            ahead[header.producer_id] = (header.producer_epoch, (header.last_sequence + 1) & MAX_SEQUENCE)
        new = [producer_id for producer_id in ahead if producer_id not in self._producers]
        if new:
            self._known.check_room(new[0], len(new))
        if not any(duplicates):
            return None
        for header, duplicate in zip(headers, duplicates, strict=False):
            if duplicate is None or len(duplicates) < len(headers):
                # Some are in the log already and some are not: no client sends again what it never sent together.
                expected = self._producers[header.producer_id].next_sequence
                raise OutOfOrderSequenceError(header.producer_id, expected, header.base_sequence)
        return duplicates[0]

    def _check(self, header: BatchHeader, ahead: tuple[int, int] | None) -> ProducedBatch | None:
        """`ahead`: epoch and next sequence number after the batch before, of the same producer in the same append."""
        producer = self._producers.get(header.producer_id)
        if producer is None and ahead is None:
            return None
        if producer is not None:
            if header.producer_epoch < producer.epoch:
                raise StaleProducerEpochError(header.producer_id, producer.epoch, header.producer_epoch)
            if header.producer_epoch == producer.epoch:
                known = producer.find(header.last_sequence, header.last_offset_delta)
                if known is not None:
                    return known
            if ahead is None:
                ahead = (producer.epoch, producer.next_sequence)
        assert ahead is not None
        epoch, next_sequence = ahead
        expected = next_sequence if header.producer_epoch == epoch else 0
        if header.base_sequence != expected:
            raise OutOfOrderSequenceError(header.producer_id, expected, header.base_sequence)
        return None

    def update(self, header: BatchHeader, now_ms: int) -> None:
        """Remember an appended batch."""
        producer_id = header.producer_id
        if producer_id <= NO_PRODUCER_ID:
            return
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            if producer is None:
                self._known.add(1)
            start = _NO_TRANSACTION if producer is None else producer.transaction_start
            producer = self._producers[producer_id] = _Producer(header.producer_epoch, now_ms, start)
        producer.last_append_ms = now_ms
        if header.base_sequence >= 0:
            producer.remember(ProducedBatch(header.last_sequence, Offset(header.last_offset), header.last_offset_delta))
        if header.is_transactional and not header.is_control and producer.transaction_start == _NO_TRANSACTION:
            producer.transaction_start = self._open[producer_id] = header.base_offset
            self._idle.pop(producer_id, None)
        if producer.transaction_start == _NO_TRANSACTION:
            self._idle[producer_id] = None
            self._idle.move_to_end(producer_id)

    def end_transaction(self, marker: BatchHeader) -> EndedTransaction | None:
        """End the transaction of an appended marker's producer; None if there was none."""
        start = self._open.pop(marker.producer_id, None)
        if start is None:
            return None
        self._producers[marker.producer_id].transaction_start = _NO_TRANSACTION
        self._idle[marker.producer_id] = None
        return EndedTransaction(marker.producer_id, Offset(start), Offset(marker.last_offset))

    def forget_silent(self, now_ms: int) -> None:
        """Forget the producers that have been silent for too long.

        Not to be called while the clock may be ahead for a moment: a forgotten producer may send a batch again.
        """
        producers, before = self._producers, len(self._producers)
        while self._idle:
            oldest = next(iter(self._idle))
            silent_ms = now_ms - producers[oldest].last_append_ms
            if 0 <= silent_ms <= self._expiration_ms:
                break
            if silent_ms < 0:  # the clock was set back: else it would keep all behind it from being forgotten
                producers[oldest].last_append_ms = now_ms
                self._idle.move_to_end(oldest)
            else:
                del self._idle[oldest], producers[oldest]
        if len(producers) != before:
            self._known.add(len(producers) - before)

    def snapshot(self) -> bytes:
        """All of the state as bytes."""
        entries = [
            _ENTRY.pack(
                producer_id,
                producer.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
                producer.last_append_ms,
                _NO_COORDINATOR_EPOCH,
                producer.transaction_start,
            )
            for producer_id, producer in self._by_last_append()
            for batch in producer.batches or (_NO_BATCH,)
        ]
        body = _COUNT.pack(len(entries)) + b"".join(entries)
        return _SNAPSHOT_HEADER.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    def restore(self, content: bytes) -> None:
        """Take the state of a snapshot in place of the own. Raises ValueError for bytes that are no whole snapshot."""
        producers: dict[int, _Producer] = {}
        for producer_id, epoch, last_sequence, last_offset, offset_delta, last_append_ms, _, start in _entries(content):
            producer = producers.get(producer_id)
            if producer is None or producer.epoch != epoch:
                producer = producers[producer_id] = _Producer(epoch, last_append_ms, start)
            if last_offset >= 0:
                producer.remember(ProducedBatch(last_sequence, Offset(last_offset), offset_delta))
        self._known.add(len(producers) - len(self._producers))
        self._producers = dict(sorted(producers.items(), key=lambda item: item[1].last_append_ms))
        self._idle = OrderedDict((name, None) for name, found in self._producers.items() if found.transaction_start < 0)
        starts = {name: found.transaction_start for name, found in producers.items() if found.transaction_start >= 0}
        self._open = OrderedDict(sorted(starts.items(), key=itemgetter(1)))


def _entries(content: bytes) -> Iterable[tuple[int, int, int, int, int, int, int, int]]:
    start = _SNAPSHOT_HEADER.size
    if len(content) < start + _COUNT.size:
        raise ValueError("a producer snapshot that is cut off")
    version, crc = _SNAPSHOT_HEADER.unpack_from(content)
    if version != _SNAPSHOT_VERSION:
        raise ValueError(f"a producer snapshot of version {version}, only {_SNAPSHOT_VERSION} is known")
    if crc32c(content[start:]) != crc:
        raise ValueError("a producer snapshot with a wrong checksum")
    (count,) = _COUNT.unpack_from(content, start)
    if len(content) != start + _COUNT.size + count * _ENTRY.size:
        raise ValueError("a producer snapshot of a wrong length")
    return _ENTRY.iter_unpack(content[start + _COUNT.size :])
