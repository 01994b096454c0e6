"""Notifications of a program's listener about the partitions of a member.

Invariant: an error of the listener is raised once, and ends the connector's block; then nothing more is notified.
"""

from collections.abc import Awaitable, Callable, Collection

from pipeline.client.connector.ownership import OwnedPartition
from pipeline.client.group.listener import RebalanceListener
from pipeline.model import TopicPartition


class Notices:
    """Notifies the listener, if there are any claims to notify of. `error` is what it raised."""

    def __init__(self, listener: RebalanceListener) -> None:
        self.error: Exception | None = None
        self._listener = listener

    async def assigned(self, claims: Collection[OwnedPartition]) -> None:
        """Notify of claims that were made. Raises what the listener raises, as the other methods do."""
        await self._notify(self._listener.partitions_assigned, claims)

    async def revoked(self, claims: Collection[OwnedPartition]) -> None:
        """Notify of claims that are about to be released."""
        await self._notify(self._listener.partitions_revoked, claims)

    async def lost(self, claims: Collection[OwnedPartition]) -> None:
        """Notify of claims that are lost."""
        await self._notify(self._listener.partitions_lost, claims)

    async def _notify(
        self, notify: Callable[[frozenset[TopicPartition]], Awaitable[None]], claims: Collection[OwnedPartition]
    ) -> None:
        if not claims:
            return
        try:
            await notify(frozenset(claim.topic_partition for claim in claims))
        except Exception as error:
            self._listener, self.error = RebalanceListener(), error
            raise
