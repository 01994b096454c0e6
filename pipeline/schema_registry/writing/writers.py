"""Election and fencing of the registry that writes, by the log alone. Pure: only `Fence.judge` changes a fence.

A registry becomes the writer by a claim: a record with an epoch above all that the log has, and the writer's name.
Every record that a writer appends bears its stamp, epoch and name, in a header. Records without stamp come from other
registries than this project's; the state alone judges them.

Invariants, for every reader of a log:

A. Of claims with one epoch the first in the log counts. A claim below the highest epoch never counts.
B. A stamped record counts only if no claim of a higher epoch, and none of another writer with its epoch, stands before
   it. So what a replaced writer appends late counts for nobody.
C. Every claim has a stamp and thus a key of its own, also one that is tried again, and compaction keeps it where it
   stands, so that a compacted log gives the same verdicts. Only a claim that fenced nothing may be deleted, after a
   later one (`needless_claims`).
D. A fenced record would take the place of the record before it with its key at a compaction. `damaged_keys` names these
   keys until a record that counts is written to them again.
E. An epoch is at most MAX_STEP above the highest before it, so that no record can use them up; one that is further
   above is not an epoch at all. Real ones rise by one.

The key of a claim is a NOOP with further attributes, which other registries skip, and which their own NOOP records,
having another key, never replace.
"""

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

STAMP_HEADER: Final = "registry.writer"
MAX_STEP: Final = 1 << 32
_URL: Final = re.compile(r"https?://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")
_CLAIM_PREFIX: Final = b'{"keytype":"NOOP","magic":0,"epoch":'


@dataclass(frozen=True, slots=True)
class Stamp:
    """Epoch and name of a writer. Every claim has another name."""

    epoch: int
    writer: str

    def encode(self) -> bytes:
        """Return the value of a record's header."""
        return f"{self.epoch} {self.writer}".encode()


@dataclass(frozen=True, slots=True)
class WriterClaim:
    """A claim to be the writer. `url` is where others forward writes to, empty if unknown."""

    stamp: Stamp
    url: str


class FenceVerdict(Enum):
    """Judgement of a record by the fence."""

    COUNTS = "counts"
    """A record that the state judges."""
    CLAIM = "claim"
    """A claim that counts, or the deletion of one, without effect on the state."""
    FENCED = "fenced"
    """A record or claim of a replaced writer."""


def parse_stamp(value: bytes | None) -> Stamp | None:
    """Parse the value of the header; None for a record without one, or with one that no writer of ours wrote."""
    epoch, _, writer = (value or b"").partition(b" ")
    if not epoch.isdigit() or len(epoch) > 18 or not writer.isalnum():
        return None
    return Stamp(int(epoch), writer.decode()) if int(epoch) else None


def claim_key(stamp: Stamp) -> bytes:
    """Return the key of a writer's claim."""
    key = {"keytype": "NOOP", "magic": 0, "epoch": stamp.epoch, "writer": stamp.writer}
    return json.dumps(key, separators=(",", ":")).encode()


def encode_claim(claim: WriterClaim) -> tuple[bytes, bytes]:
    """Return key and value of a claim's record."""
    return claim_key(claim.stamp), json.dumps({"url": claim.url}, separators=(",", ":")).encode()


def is_claim_key(key: bytes) -> bool:
    """Return True for the key of a claim, or of a deleted claim."""
    return key.startswith(_CLAIM_PREFIX)


def decode_claim(key: bytes | None, value: bytes | None) -> WriterClaim | None:
    """Return the claim of a record; None for another record, a deleted claim or one that is unreadable.

    A URL at which nothing can listen is left out, so that nobody forwards to it.
    """
    if key is None or value is None or not is_claim_key(key):
        return None
    try:
        fields, content = json.loads(key), json.loads(value)
        stamp = parse_stamp(f"{fields['epoch']} {fields['writer']}".encode())
        url = str(content["url"])
        return None if stamp is None else WriterClaim(stamp, url if _URL.fullmatch(url) else "")
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


class Fence:
    """The writer, after a prefix of the log."""

    def __init__(self) -> None:
        self.current: WriterClaim | None = None
        """The claim that counts. Its URL is empty if only records of the writer were seen."""
        self.damaged_keys: dict[bytes, None] = {}
        """Keys whose last record is fenced (invariant D)."""
        self._claims: dict[bytes, bool] = {}
        """Keys of claims that counted, in order, and whether they fenced a record or another claim."""
        self._seen: set[Stamp] = set()

    @property
    def epoch(self) -> int:
        """Highest epoch seen, 0 before the first claim."""
        return 0 if self.current is None else self.current.stamp.epoch

    def has_seen(self, stamp: Stamp) -> bool:
        """Return True if a claim or a record with this stamp has counted."""
        return stamp in self._seen

    def judge(self, key: bytes | None, value: bytes | None, stamp: Stamp | None) -> FenceVerdict:
        """Judge the next record of the log."""
        if key is not None and is_claim_key(key):
            if value is None:
                self._claims.pop(key, None)
            return self._judge_claim(decode_claim(key, value))
        if stamp is not None and self._is_epoch(stamp) and not self._admits(stamp):
            self._note_fenced()
            if key is not None:
                self.damaged_keys[key] = None
            return FenceVerdict.FENCED
        if key is not None:
            self.damaged_keys.pop(key, None)
        return FenceVerdict.COUNTS

    def _judge_claim(self, claim: WriterClaim | None) -> FenceVerdict:
        if claim is None or not self._is_epoch(claim.stamp):
            return FenceVerdict.CLAIM
        if claim.stamp.epoch <= self.epoch:  # invariant A
            self._note_fenced()
            return FenceVerdict.FENCED
        self.current = claim
        self._seen.add(claim.stamp)
        self._claims[claim_key(claim.stamp)] = False
        return FenceVerdict.CLAIM

    def _is_epoch(self, stamp: Stamp) -> bool:
        return stamp.epoch <= self.epoch + MAX_STEP  # invariant E

    def _admits(self, stamp: Stamp) -> bool:
        """Invariant B. A stamp above all claims is that of a writer whose claim was deleted (invariant C)."""
        if stamp.epoch > self.epoch:
            self.current = WriterClaim(stamp, "")
            self._seen.add(stamp)
        return self.current is not None and stamp == self.current.stamp

    def _note_fenced(self) -> None:
        assert self.current is not None
        self._claims[claim_key(self.current.stamp)] = True

    def needless_claims(self) -> list[bytes]:
        """Return the keys of claims before the current one without which the log gives the same verdicts.

        The writer of the current claim may delete them. Claims that a deleted one had fenced would count, so that one
        that fenced anything stays, and all once epochs have risen by steps that no registry makes (invariant E).
        """
        if self.epoch > MAX_STEP:
            return []
        current = None if self.current is None else claim_key(self.current.stamp)
        return [key for key, has_fenced in self._claims.items() if not has_fenced and key != current]
