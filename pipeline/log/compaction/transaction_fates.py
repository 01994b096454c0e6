"""Decides what compaction does with batches of transactions, which come with copied logs (KIP-98). Pure.

Invariants (Kafka's `CleanedTransactionMetadata`):

- Records of an aborted transaction are removed, and supersede nothing; the log's index of aborted transactions tells
  which records these are. Records of a committed transaction are like all others.
- The index keeps the entry of a transaction if a batch of it was there when a cleaning began. An entry without a marker
  would make readers of committed records skip later records of the producer.
- A batch that stays without records, to hold a place, belongs to no transaction any more.
- A marker stays as long as a batch of its transaction does. Then it gets a delete horizon, and is removed after that
  once nothing needs it: no entry of the index, and no producer snapshot that may have the transaction as open.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from pipeline.log.transactions import AbortedTransaction

RECORDS: Final = 0
"""A batch of no transaction, or of a committed or open one."""
ABORTED: Final = 1
MARKER: Final = 2
"""A marker, or another control batch: it stays."""
ENDED: Final = 3
"""A marker whose transaction has no batches left: it gets a delete horizon, or may go after it."""

_FIRST_OFFSET = attrgetter("first_offset")


class TransactionFates:
    """Decides on each batch of a transaction; the caller passes all of a log, from its start on."""

    def __init__(self, aborted: Sequence[AbortedTransaction], oldest_snapshot: int | None) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in aborted:
            self._by_producer.setdefault(transaction.producer_id, []).append(transaction)
        self._needed_markers = {transaction.last_offset for transaction in aborted}
        self._oldest_snapshot = oldest_snapshot
        self._begun: set[int] = set()
        self._present: set[AbortedTransaction] = set()

    def find_aborted(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        """The aborted transaction of a transactional record, None if it was not aborted."""
        transactions = self._by_producer.get(producer_id, [])
        number = bisect_right(transactions, offset, key=_FIRST_OFFSET) - 1
        if number >= 0 and offset <= transactions[number].last_offset:
            return transactions[number]
        return None

    def of_records(self, producer_id: int, base_offset: int) -> int:
        """The fate of the next batch of transactional records."""
        self._begun.add(producer_id)
        aborted = self.find_aborted(producer_id, base_offset)
        if aborted is None:
            return RECORDS
        self._present.add(aborted)
        return ABORTED

    def of_marker(self, producer_id: int, offset: int, *, has_horizon: bool) -> int:
        """The fate of the next marker."""
        if producer_id in self._begun:
            self._begun.remove(producer_id)
            return MARKER
        is_needed = offset in self._needed_markers or (
            self._oldest_snapshot is not None and offset >= self._oldest_snapshot
        )
        return MARKER if is_needed and has_horizon else ENDED

    def still_present(self, aborted: Sequence[AbortedTransaction]) -> list[AbortedTransaction]:
        """The transactions of which a batch was passed."""
        return [transaction for transaction in aborted if transaction in self._present]
