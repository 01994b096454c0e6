"""The monitoring event of version 3 (paper section 4): a record of the audit topic with counts of many partitions.

Invariants, by which reports may be lost, repeated or overtaken without changing a sum:

A. A row is cumulative: all batches of its span of time up to its revision, which is an offset (tiers without lives) or
   a sequence number (tiers with lives). Of two rows of one counter, partition and span the higher revision holds.
B. A partition has rows of two kinds: of windows, and of whole hours. The row of an hour holds all windows of the hour,
   so a reader that knows hours alone needs no window. Windows of one hour length are rows of hours.
C. A counter keeps bounded numbers of hours and windows for a partition, those with the latest times. All batches of
   earlier hours are in one row, whose start is OLDER. Which row a batch is in depends on the batches alone, not on the
   order in which they were counted; so rows of two tiers that counted the same batches are equal.
D. A broker reports committed batches only. If committed records were lost nevertheless (the end of the only replica,
   an unclean election), the next leader claims its epoch: the log goes on from the offset of the claim, and rows of
   lower epochs beyond that offset are void.
E. A recreated topic is another topic: `topic_id` differs. Of tiers without lives, the topic that was reported last
   holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.events.tiers import Counter

OLDER: Final = -(2**62)
"""Start of the row of all hours that are too old to have rows of their own."""

ROW: Final = np.dtype(
    [
        ("topic", np.int32),  # index in `topics`
        ("partition", np.int32),
        ("start_ms", np.int64),  # of the window or hour, since 1970 UTC; or OLDER
        ("span_ms", np.int32),  # length of the window, or HOUR_MS
        ("revision", np.int64),
        ("leader_epoch", np.int32),  # that a leader leads in; of followers that of the last counted batch; else 0
        ("records", np.int64),
        ("bytes", np.int64),
        ("batches", np.int64),
        ("crc_sum", np.uint64),  # sum of the batches' CRC-32C
        ("content_sum", np.uint64),  # sum of a hash of each batch, without offset: `records.batch_hashes`
        ("place_sum", np.uint64),  # the same with the offset
        ("header_sum", np.uint64),  # the same without what brokers and recompression change
        ("has_sums", np.bool_),  # False if only crc_sum is known, of the sums
        ("none", np.int64),  # batches by codec; all 0 if they were not counted
        ("gzip", np.int64),
        ("snappy", np.int64),
        ("lz4", np.int64),
        ("zstd", np.int64),
        ("stamped", np.int64),  # batches with LogAppendTime
        ("first_offset", np.int64),  # lowest offset of the batches; -1 if not known
        ("last_offset", np.int64),  # highest offset
        ("marked_records", np.int64),  # of these: in batches of producers that count (`records.producer_marks`)
        ("marked_sum", np.uint64),  # content_sum of these batches
        ("uncertain_records", np.int64),  # sent by a producer, outcome unknown; not among the counts
        ("quarantined", np.int64),  # set aside by a load; not among the counts
        ("until_ms", np.int64),  # of a row OLDER: earlier hours are in it, this hour and later ones have their own rows
        ("by_record", np.bool_),  # records were counted one by one, each in the window of its own timestamp
    ]
)
"""Columns of the counts. All sums are modulo 2**64."""

POSITION: Final = np.dtype(
    [
        ("topic", np.int32),
        ("partition", np.int32),
        ("end_offset", np.int64),  # counted up to this offset
        ("start_offset", np.int64),  # log start offset; first offset of a load; -1 if not known
        ("counted_from", np.int64),  # every batch from this offset on was counted
        ("leader_epoch", np.int32),
        ("is_leader", np.bool_),
        ("lost_offsets", np.int64),  # of a load: offsets before end_offset that were gone before it read them
        ("cleaned_to", np.int64),  # of a broker: 1 + offset before which batches may be compacted; 0 if not known
    ]
)
"""Columns of the positions of the partitions that a report is about."""

Rows = NDArray[np.void]


class SkipReason(StrEnum):
    """Reasons why a load has fewer records than the topic had."""

    LOST = "lost"
    """The records were gone before the load read them: retention, DeleteRecords, compaction, or a truncated source."""
    ABORTED = "aborted"
    """The records belong to aborted transactions."""
    COMPACTED = "compacted"
    """The topic was compacted before the load read it."""


class ReportedTopic(NamedTuple):
    """A topic of a report. `topic_id` is empty if it is not known, as for producers, mirrors and loads."""

    name: str
    topic_id: str = ""


class RowClaim(NamedTuple):
    """States that `leader_epoch` of a partition begins at `start_offset` (invariant D). `topic`: index in `topics`."""

    topic: int
    partition: int
    leader_epoch: int
    start_offset: int


class SkippedOffsets(NamedTuple):
    """Offsets `first` to `last`, inclusive, in which a load has fewer records than the topic had: at most `records`.

    `start_ms` is the window whose records are missing; None if they may be of any window. `reason` is a SkipReason. A
    fact: reports may repeat it, and it holds once.
    """

    topic: int
    partition: int
    start_ms: int | None
    first: int
    last: int
    records: int
    reason: str


class LatencyCounts(NamedTuple):
    """Times in ms from a record's timestamp to its count, of one topic and window, cumulative in this process.

    `buckets` are those of `counting.latency`: (key, number of records), sorted by key. `process` distinguishes the
    processes of tiers whose counts continue each other: only counts of one process replace each other.
    """

    topic: int
    start_ms: int
    process: str
    buckets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSign:
    """Life sign of a process that counts. Each report has one, and an interval without counts is a report of it alone.

    A process that gave none for some intervals, and never said that it ended, is silent.
    """

    host: str
    started_ms: int
    interval_ms: int
    """Time between two signs of life."""
    closed_ms: int
    """All that was counted of windows that end at or before this time has been reported, and nothing more will come."""
    is_ended: bool = False
    unsent_records: int = 0
    """Records that were accepted by the process and not sent when it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountReport:
    """Record of the audit topic.

    `process` is the id of the process that reports: equal to `counter.instance` for tiers with lives, the broker id of
    a broker. `rows` has dtype ROW, `positions` dtype POSITION.
    """

    counter: Counter
    process: str
    created_ms: int
    window_ms: int
    topics: Sequence[ReportedTopic] = ()
    rows: Rows = field(default_factory=lambda: np.zeros(0, ROW))
    positions: Rows = field(default_factory=lambda: np.zeros(0, POSITION))
    claims: Sequence[RowClaim] = ()
    latencies: Sequence[LatencyCounts] = ()
    skipped: Sequence[SkippedOffsets] = ()
    life: LifeSign | None = None
    heard_ms: int | None = None
    """Time at which the report was stored, as far as its reader knows; not in the record. None if not known."""
    skew_ms: int = 0
    """Time by which the counter's clock is ahead of that, as its reader found; not in the record."""
    is_after_loss: bool = False
    """True if reports before this one are gone from the audit topic: it was recreated, or lost its end."""
    unseen: int = 0
    """Number of earlier reports of the process that it tried to read back, and could not: whether they and those before
    them are still in the audit topic is not known. 0 in a life sign means that all is known again."""
