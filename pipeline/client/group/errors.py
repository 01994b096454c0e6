"""Errors of a member of a group."""

from collections.abc import Iterable

from pipeline.errors import PipelineError
from pipeline.model import TopicPartition


class CommitFailedError(PipelineError):
    """Offsets were not committed. `partitions` names those that were refused, or that the member no longer has.

    The records after the last commit are delivered again, to the partitions' new members.
    """

    def __init__(self, reason: str, partitions: Iterable[TopicPartition] = ()) -> None:
        self.partitions = frozenset(partitions)
        named = ", ".join(map(str, sorted(self.partitions)[:10]))
        super().__init__(f"the commit failed: {reason}{f' ({named})' if named else ''}")


class NoCommittedOffsetError(PipelineError):
    """Partitions have no committed offset, and `auto_offset_reset` is NONE.

    Commit offsets for them, or seek in `partitions_assigned` of the rebalance listener.
    """

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        named = ", ".join(map(str, sorted(self.partitions)[:10]))
        super().__init__(f"no committed offset, and auto.offset.reset is none: {named}")
