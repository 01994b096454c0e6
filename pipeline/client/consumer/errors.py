"""Errors of a consumer about a single partition. The partition stays assigned but pauses until a seek."""

from pipeline.errors import CorruptBatchError, OffsetOutOfRangeError, PipelineError
from pipeline.model import TopicPartition


class PartitionOffsetOutOfRangeError(OffsetOutOfRangeError):
    """A partition's position is outside of its log."""

    def __init__(self, topic_partition: TopicPartition, requested: int, log_start_offset: int, log_end_offset: int):
        super().__init__(requested, log_start_offset, log_end_offset)
        self.topic_partition = topic_partition

    def __str__(self) -> str:
        """Return the message, with the partition."""
        return f"{self.topic_partition}: {super().__str__()}"


class PartitionFetchError(PipelineError):
    """A partition cannot be fetched, and a retry would not help."""

    def __init__(self, topic_partition: TopicPartition, cause: Exception) -> None:
        super().__init__(f"{topic_partition}: {cause}")
        self.topic_partition = topic_partition
        self.cause = cause


class PartitionTruncatedError(PartitionFetchError):
    """The leader's log lost its end (an unclean election, a power loss), below the position (KIP-320).

    `offset` is the position. `end_offset` is the end of `diverging_epoch`, the newest leader epoch that the log has of
    those up to the epoch of the last record that was read: from `end_offset` on the log holds other records, or none.
    Both are -1 if the leader knows no epoch as high as that: the logs are to be compared, or read anew.
    """

    def __init__(self, topic_partition: TopicPartition, offset: int, diverging_epoch: int, end_offset: int) -> None:
        if end_offset < 0:
            reason = (
                f"the leader knows no leader epoch as high as that of the last record that was read, before {offset}: "
                "its log, or the cluster's ZooKeeper, is older than this position. Compare the records, or seek"
            )
        else:
            reason = (
                f"the leader's log was truncated to {end_offset}, below the position {offset}: records from "
                f"{end_offset} on that were read before no longer exist there. To read what replaced them, seek to "
                f"{end_offset}"
            )
        super().__init__(topic_partition, PipelineError(reason))
        self.offset = offset
        self.diverging_epoch = diverging_epoch
        self.end_offset = end_offset


class PartitionBatchError(PartitionFetchError):
    """A batch cannot be opened. `Consumer.skip_batch` continues after the batch.

    `offset` is the first offset that was not returned, `next_offset` the one after the batch. `batch` has the bytes of
    a batch that `poll_batches` refused, if the broker sent a whole one.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        cause: CorruptBatchError,
        offset: int,
        next_offset: int,
        batch: memoryview | None = None,
    ) -> None:
        super().__init__(topic_partition, cause)
        self.offset = offset
        self.next_offset = next_offset
        self.batch = batch

    def __str__(self) -> str:
        """Return the message, with the way to continue."""
        return f"{super().__str__()}. To skip the batch, continue at offset {self.next_offset} (`skip_batch`)"
