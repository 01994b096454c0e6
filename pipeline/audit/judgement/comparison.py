"""Compares two neighbouring stages, cell by cell. Pure.

Stages after the live brokers keep offsets. So a stage lacks records if it has fewer although it has counted past them,
and has too many if the stage before has counted past them, too. Otherwise records are under way. Both must have been
reported for a grace: reports of two processes may overtake each other. Between producers and brokers there are no
offsets to compare; there both must have had their word.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.events.report import Rows
from pipeline.audit.judgement.cells import StageCells, Times
from pipeline.audit.judgement.verdicts import Status
from pipeline.audit.ledger.keys import Int64s
from pipeline.audit.ledger.row_table import Mask

Codes = NDArray[np.int8]
STATUSES: Final = tuple(Status)
_CODE = {status: np.int8(code) for code, status in enumerate(Status)}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def code_of(status: Status) -> np.int8:
    """Return the number of a status: a worse one is higher."""
    return _CODE[status]


class Remark(IntEnum):
    """Reason why a comparison came out as it did, for the sentence."""

    NONE = 0
    REORDERED = 1
    STAMPED = 2
    """Equal but for the broker's timestamps (LogAppendTime)."""
    FOREIGN = 3
    """The broker has records of producers that do not count."""
    UNCERTAIN = 4
    """The broker has records of which the producer does not know the outcome."""
    FOREIGN_OR_DOUBLED = 5
    """The broker has more records without a mark than producers without marks counted."""
    UNMARKED = 6
    """Difference of the records without a mark."""
    STALLED = 7
    """The replica has stopped."""
    UNCOMPARED = 8
    """As many records; their contents cannot be compared."""
    SILENT = 9
    """A counter whose word is needed is silent."""
    DOUBTFUL = 11
    """A counter does not know all of the hour."""
    MIRRORED = 12
    """The mirror copied records that are in no broker's report yet."""
    FOLDED = 13
    """A stage keeps the hour no longer apart: all hours that are older than a border were compared together."""
    COPIED = 14
    """The topic is a replica itself, or was one at the time: copies are among its records."""
    PROMOTED = 15
    """The replica was promoted, so producers may have written to it."""
    CLOCK = 16
    """The clock of brokers is wrong, so nobody can tell which of two reports is the later one."""
    EDGE = 10
    """Records were counted one by one: neighbouring hours differ, and agree in all."""


@dataclass(slots=True, kw_only=True)
class Compared:
    """Result of a comparison by cell: codes of statuses, records that differ, remarks."""

    codes: Codes
    records: Int64s
    remarks: Codes

    @classmethod
    def equal(cls, size: int) -> "Compared":
        """Return the result for cells that are all equal."""
        return cls(codes=np.zeros(size, np.int8), records=np.zeros(size, np.int64), remarks=np.zeros(size, np.int8))

    def put(self, where: Mask, status: Status, records: Int64s | int = 0, remark: Remark = Remark.NONE) -> None:
        """Set the result of some cells."""
        self.codes[where] = code_of(status)
        self.records = np.where(where, records, self.records)
        self.remarks[where] = remark

    def doubt_extra(self, where: Mask, remark: Remark) -> None:
        """Make EXTRA unknown in some cells: more records than the stage before came by another way."""
        unsure = where & (self.codes == code_of(Status.EXTRA))
        self.codes[unsure] = code_of(Status.UNKNOWN)
        self.remarks[unsure] = remark


def are_equal(before: Rows, at: Rows) -> Mask:
    """True for each pair of rows with equal counts and sums, as far as both have sums."""
    equal = before["records"] == at["records"]
    for name in ("bytes", "batches", "crc_sum"):
        equal &= before[name] == at[name]
    both = before["has_sums"] & at["has_sums"]
    equal &= ~both | (before["content_sum"] == at["content_sum"])
    result: Mask = equal
    return result


def has_passed(stage: StageCells, needed: Int64s, until_ms: Times) -> Mask:
    """True for each cell that was counted up to an offset by a report of `until_ms` or before."""
    progress = stage.progress
    now = (progress["end_offset"] >= needed) & (progress["end_ms"] <= until_ms)
    before = (progress["settled_offset"] >= needed) & (progress["settled_ms"] <= until_ms)
    result: Mask = (needed <= 0) | now | before
    return result


def compare_offsets(
    before: StageCells, at: StageCells, *, grace_ms: int, stalled_ms: int | None, mirrors: bool
) -> Compared:
    """Compare a stage with the one before it, which keeps the same offsets.

    `stalled_ms`: a stage that has reported nothing new since this time has stopped; None if no stage of this kind
    counts as stopped. `mirrors`: True if the stage may have recompressed the batches as a mirror does.
    """
    result = Compared.equal(len(before.rows))
    equal = are_equal(before.rows, at.rows)
    quarantined = at.rows["quarantined"]
    both = before.rows["has_sums"] & at.rows["has_sums"]
    moved = equal & both & (before.rows["place_sum"] != at.rows["place_sum"]) & (before.rows["records"] > 0)
    unlike = ~equal | (quarantined > 0) | moved
    if not unlike.any():
        return result
    needed, needed_of_at = before.needed_end, at.needed_end
    missing = before.rows["records"] - at.rows["records"] - quarantined
    at_passed = has_passed(at, needed, at.word_ms - grace_ms)
    spoken = at.rows["created_ms"] <= before.word_ms - grace_ms
    before_passed = has_passed(before, needed_of_at, before.word_ms - grace_ms) | spoken
    result.put(unlike, Status.PENDING, np.abs(missing))
    result.put(unlike & (missing > 0) & at_passed, Status.MISSING, missing)
    if stalled_ms is not None:
        stands = (np.maximum(at.progress["end_ms"], before.rows["created_ms"]) < stalled_ms) & (at.word_ms > stalled_ms)
        behind = at.progress["end_offset"] < needed
        result.put(unlike & (missing > 0) & behind & stands, Status.MISSING, missing, Remark.STALLED)
    result.put(unlike & (missing < 0) & before_passed, Status.EXTRA, -missing)
    same = unlike & (missing == 0) & at_passed & before_passed
    result.put(same, Status.CHANGED)
    if mirrors:
        result.put(same & are_recompressed(before.rows, at.rows, mirrors=True), Status.RECOMPRESSED)
    result.put(same & moved, Status.CHANGED, 0, Remark.REORDERED)
    result.put(same & (quarantined > 0), Status.QUARANTINED, quarantined)
    return result


def are_recompressed(before: Rows, at: Rows, *, mirrors: bool) -> Mask:
    """True for rows whose batches are the same by all that is known of them, and some came into one other codec.

    A mirror makes zstd, and keeps what has become smaller; a broker makes any codec.
    """
    before_batches = np.stack([before[name] for name in CODECS]).astype(np.int64)
    at_batches = np.stack([at[name] for name in CODECS]).astype(np.int64)
    counted = before_batches.any(axis=0) & at_batches.any(axis=0)
    alike = counted & (before["batches"] == at["batches"]) & (before["header_sum"] == at["header_sum"])
    gained = at_batches > before_batches
    one = np.count_nonzero(gained, axis=0) == 1
    result: Mask = alike & one
    if mirrors:
        result = result & gained[CODECS.index("zstd")] & (at["bytes"] < before["bytes"])
    return result


def are_stamped(before: Rows, at: Rows) -> Mask:
    """True for rows that differ by the broker's timestamps alone: the broker checked the CRCs, and wrote its own."""
    same = (at["stamped"] > 0) & (before["header_sum"] == at["header_sum"]) & (before["header_sum"] != 0)
    for name in ("records", "bytes", "batches", *CODECS):
        same &= before[name] == at[name]
    result: Mask = same
    return result


def compare_produced(
    produced: StageCells, live: StageCells, *, grace_ms: int, open_lives: Mask, silent_lives: Mask
) -> Compared:
    """Compare what producers counted with what the live brokers have.

    `open_lives`: by cell, True if a living producer of the topic has not reported all of the hour yet. `silent_lives`:
    True if a producer that may have written to the topic was silent before it closed the hour.
    """
    before, at = produced.rows, live.rows
    result = Compared.equal(len(before))
    # Brokers of version 2 counted no marks.
    has_marks = at["has_sums"] | ~live.is_present
    marked = np.where(has_marks, before["marked_records"], 0)
    unmarked = before["records"] - marked
    live_marked = np.where(has_marks, at["marked_records"], 0)
    foreign = at["records"] - live_marked
    lacks_marked, lacks_unmarked = marked - live_marked, unmarked - foreign
    settled_ms = live.word_ms - grace_ms
    spoken = np.maximum(before["created_ms"], at["created_ms"]) <= settled_ms
    stamped = are_stamped(before, at)
    alike = _are_alike(before, at, marked)
    same = (lacks_marked == 0) & ((unmarked == 0) | (lacks_unmarked == 0)) & (alike | stamped)
    result.put(same & (foreign > 0) & (unmarked == 0), Status.EXACT, 0, Remark.FOREIGN)
    result.put(same & ~alike & stamped, Status.EXACT, 0, Remark.STAMPED)
    uncertain = before["uncertain_records"]
    unlike = ~same
    missing = np.maximum(lacks_marked, 0) + np.maximum(np.where(unmarked > 0, lacks_unmarked, 0), 0)
    extra = np.maximum(-lacks_marked, 0)
    strange = (unmarked > 0) & (lacks_unmarked < 0)
    counts_agree = unlike & (missing == 0) & (extra == 0) & ~strange
    result.put(counts_agree, Status.CHANGED, 0)
    partly = counts_agree & (foreign > 0) & (unmarked == 0) & ((at["stamped"] > 0) | ~has_single_codec(before, at))
    result.put(partly, Status.RECOMPRESSED, 0, Remark.UNCOMPARED)
    result.put(counts_agree & are_recompressed(before, at, mirrors=False), Status.RECOMPRESSED)
    more = unlike & (missing == 0) & ((extra > 0) | strange)
    strangers = np.where(strange, -lacks_unmarked, 0) + extra
    result.put(more & strange & (extra == 0), Status.UNKNOWN, strangers, Remark.FOREIGN_OR_DOUBLED)
    result.put(more & (extra > 0), Status.EXTRA, strangers)
    result.put(more & (strangers <= uncertain), Status.EXPLAINED, strangers, Remark.UNCERTAIN)
    result.put(more & silent_lives & (strangers > uncertain), Status.UNKNOWN, strangers)
    lost = unlike & (missing > 0)
    result.put(lost, Status.MISSING, missing)
    result.put(lost & (lacks_marked <= 0), Status.MISSING, missing, Remark.UNMARKED)
    waits = unlike & (~spoken | (~lost & open_lives))
    result.put(waits, Status.PENDING, np.maximum(missing, strangers))
    return result


def _are_alike(before: Rows, at: Rows, marked: Int64s) -> Mask:
    """True where the sums of what can be compared agree: of batches with a mark, and of those without.

    Without sums on both sides, CRCs are compared. Producers that count record by record have neither.
    """
    both = before["has_sums"] & at["has_sums"]
    crcs = before["crc_sum"] == at["crc_sum"]
    crcs &= (before["bytes"] == at["bytes"]) & (before["batches"] == at["batches"])
    marked_alike = (marked == 0) | (before["marked_sum"] == at["marked_sum"])
    unmarked_sums = (before["content_sum"] - before["marked_sum"]) == (at["content_sum"] - at["marked_sum"])
    unmarked_alike = np.where(both, unmarked_sums, crcs | before["by_record"])
    result: Mask = marked_alike & (unmarked_alike | (before["records"] == marked))
    return result


def has_single_codec(before: Rows, at: Rows) -> Mask:
    """True where both stages have batches of the same codecs."""
    same = np.ones(len(before), np.bool_)
    for name in CODECS:
        same &= (before[name] > 0) == (at[name] > 0)
    return same
