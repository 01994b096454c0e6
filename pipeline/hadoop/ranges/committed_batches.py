"""Leaves the batches of aborted transactions out of fetched ones (KIP-98). Pure.

A broker that is asked for committed records names the aborted transactions that overlap its answer, each by producer
id and first offset. A transaction ends with its marker, a control batch of its producer. So the batches of a producer
from the first offset up to the next control batch are aborted; no record is opened.
"""

from collections import deque

from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.records.batch import BatchHeader, iterate_headers


def committed_data(batches: FetchedBatches) -> memoryview:
    """Return the fetched batches without those of `batches.aborted`. Control batches stay."""
    waiting = deque(sorted(batches.aborted, key=lambda transaction: transaction[1]))
    aborted: set[int] = set()
    kept = []
    for position, header in iterate_headers(batches.data):
        while waiting and waiting[0][1] <= header.last_offset:
            aborted.add(waiting.popleft()[0])
        if not _is_aborted(header, aborted):
            kept.append(batches.data[position : position + header.size_bytes])
        if header.is_control:
            aborted.discard(header.producer_id)
    return memoryview(b"".join(kept))


def _is_aborted(header: BatchHeader, aborted: set[int]) -> bool:
    return header.is_transactional and not header.is_control and header.producer_id in aborted
