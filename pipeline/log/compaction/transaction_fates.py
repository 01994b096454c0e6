"""What compaction does with the batches of transactions, which come with copied logs (KIP-98). Pure.

Invariants (Kafka's `CleanedTransactionMetadata`):

- Records of an aborted transaction go, and supersede nothing; which they are says the log's index of aborted
  transactions. Those of a committed one are records like all others.
- The entry of a transaction stays in the index for as long as a batch of it was there when a cleaning began. An entry
  without a marker would make readers of committed records pass over what their producer wrote later.
- A batch that stays without records, to hold a place, is of no transaction any more.
- A marker stays for as long as a batch of its transaction is there. Then it gets a delete horizon, and goes when that
  is over and nothing needs it: neither an entry of the index, nor a producer snapshot from which a start may read on,
  which may tell of the transaction as open.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from pipeline.log.transactions import AbortedTransaction

RECORDS: Final = 0
"""Not of a transaction, or of one that was committed, or of one that is open."""
ABORTED: Final = 1
MARKER: Final = 2
"""Or whatever else a control batch is: it stays."""
ENDED: Final = 3
"""A marker of a transaction of which nothing is left, which has its horizon and may go, or gets one."""

_FIRST_OFFSET = attrgetter("first_offset")


class TransactionFates:
    """Told of all batches of transactions of a log, from its start on, it says what becomes of each."""

    def __init__(self, aborted: Sequence[AbortedTransaction], oldest_snapshot: int | None) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in aborted:
            self._by_producer.setdefault(transaction.producer_id, []).append(transaction)
        self._needed_markers = {transaction.last_offset for transaction in aborted}
        self._oldest_snapshot = oldest_snapshot
        self._begun: set[int] = set()
        self._present: set[AbortedTransaction] = set()

    def find_aborted(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        """The aborted transaction that a record is of, if it is transactional."""
        transactions = self._by_producer.get(producer_id, [])
        number = bisect_right(transactions, offset, key=_FIRST_OFFSET) - 1
        if number >= 0 and offset <= transactions[number].last_offset:
            return transactions[number]
        return None

    def of_records(self, producer_id: int, base_offset: int) -> int:
        """A batch of transactional records comes next."""
        self._begun.add(producer_id)
        aborted = self.find_aborted(producer_id, base_offset)
        if aborted is None:
            return RECORDS
        self._present.add(aborted)
        return ABORTED

    def of_marker(self, producer_id: int, offset: int, *, has_horizon: bool) -> int:
        """The marker of a transaction comes next."""
        if producer_id in self._begun:
            self._begun.remove(producer_id)
            return MARKER
        is_needed = offset in self._needed_markers or (
            self._oldest_snapshot is not None and offset >= self._oldest_snapshot
        )
        return MARKER if is_needed and has_horizon else ENDED

    def still_present(self, aborted: Sequence[AbortedTransaction]) -> list[AbortedTransaction]:
        """Those of which a batch was told."""
        return [transaction for transaction in aborted if transaction in self._present]
