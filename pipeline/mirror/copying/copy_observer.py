"""Observer of copies: what a mirror has copied, source by source."""

from typing import Protocol

from pipeline.client.consumer.fetch_plan import FetchedBatches


class CopyObserver(Protocol):
    """Notified on the event loop. No method raises or waits."""

    def copied(self, source: str, batches: FetchedBatches) -> None:
        """Take note of batches of a source, as they were fetched, that the hub has acknowledged.

        Batches of a partition follow each other, except behind a gap, behind copies whose acknowledgement was lost, and
        behind those of another process.
        """


class NoCopyObserver:
    """Takes note of nothing."""

    def copied(self, source: str, batches: FetchedBatches) -> None:
        """Do nothing."""
