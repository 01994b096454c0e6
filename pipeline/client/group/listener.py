"""Notifications of a program about the partitions of its member of a group."""

from pipeline.model import TopicPartition


class RebalanceListener:
    """Override the methods of interest. Each is awaited, and the rebalance waits for it: be quick.

    An error that a method raises ends the group consumer's block.
    """

    async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions were added; nothing of them has been handed out yet. `seek` and `pause` may be called."""

    async def partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions are given up, and nothing more of them is handed out. `commit_offsets` takes their offsets."""

    async def partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions were lost: other members may have them by now, and no commit of them is accepted."""
