"""Leaves the batches of aborted transactions out of fetched ones (KIP-98). Pure.

A broker that is asked for committed records names the aborted transactions that overlap its answer, each by producer
id and first offset. A transaction ends with its marker, a control batch of its producer. So the batches of a producer
from the first offset up to the next control batch are aborted; no record is opened.
"""

from collections.abc import Iterator

from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.records.batch import BatchHeader, iterate_headers


def committed_batches(batches: FetchedBatches) -> Iterator[tuple[int, BatchHeader]]:
    """Yield place and header of each fetched batch, control batches too, without those of `batches.aborted`."""
    if not batches.aborted:
        yield from iterate_headers(batches.data)
        return
    starting = sorted(batches.aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    for position, header in iterate_headers(batches.data):
        while starting and starting[-1][1] <= header.last_offset:
            aborting.add(starting.pop()[0])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborting:
            continue
        yield position, header


def aborted_batches(batches: FetchedBatches) -> Iterator[BatchHeader]:
    """Yield the headers of the fetched batches that `committed_batches` leaves out."""
    if batches.aborted:
        kept = {position for position, _ in committed_batches(batches)}
        yield from (header for position, header in iterate_headers(batches.data) if position not in kept)


def committed_data(batches: FetchedBatches) -> memoryview:
    """Return the fetched batches without those of `batches.aborted`. Control batches stay."""
    if not batches.aborted:
        return batches.data
    kept = [batches.data[start : start + header.size_bytes] for start, header in committed_batches(batches)]
    return memoryview(b"".join(kept))
