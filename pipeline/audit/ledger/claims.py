"""Claims of leader epochs: reports of records that were lost since are void (invariant D of events/report.py). Pure."""

from bisect import insort
from collections.abc import Iterable

import numpy as np

from pipeline.audit.ledger.keys import Int64s
from pipeline.audit.ledger.row_table import Mask


class Claims:
    """Claims of one series of brokers: for each key those that void more than all others, rising in both numbers."""

    def __init__(self) -> None:
        self._claims: dict[int, list[tuple[int, int]]] = {}

    def add(self, claims: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Take in claims (key, leader epoch, start offset); return those that say more than what was known."""
        new = []
        for key, epoch, start_offset in claims:
            known = self._claims.get(key, [])
            if _voids(known, epoch - 1, start_offset + 1):
                continue
            kept = [each for each in known if each[0] > epoch or each[1] < start_offset]
            insort(kept, (epoch, start_offset))
            self._claims[key] = kept
            new.append((key, epoch, start_offset))
        return new

    def are_void(self, keys: Int64s, epochs: Int64s, revisions: Int64s) -> Mask:
        """True for each report of which a leader of a later epoch went on from an offset below its revision."""
        void = np.zeros(len(keys), np.bool_)
        if not self._claims:
            return void
        reports = zip(keys.tolist(), epochs.tolist(), revisions.tolist(), strict=True)
        for number, (key, epoch, revision) in enumerate(reports):
            known = self._claims.get(key)
            if known and known[-1][0] > epoch:
                void[number] = _voids(known, epoch, revision)
        return void

    def lowest_start(self, key: int, leader_epoch: int) -> int | None:
        """Return the lowest offset at which a later epoch of a key began; None if none is known."""
        return min((start for epoch, start in self._claims.get(key, ()) if epoch > leader_epoch), default=None)


def _voids(claims: list[tuple[int, int]], leader_epoch: int, revision: int) -> bool:
    for epoch, start_offset in reversed(claims):
        if epoch <= leader_epoch:
            return False
        if start_offset < revision:
            return True
    return False
