"""Positions of partitions in the logs of their leaders: bounds of the logs, and ends of leader epochs."""

from collections.abc import Sequence

from pipeline.client.admin.leader_epochs import EpochEnd, ask_ends_once
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import IsolationLevel, OffsetReset
from pipeline.client.consumer.errors import PartitionTruncatedError
from pipeline.client.consumer.fetch_plan import FetchState, move
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError, ProtocolError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

logger = get_logger(__name__)


async def log_bounds(cluster: Cluster, topic_partition: TopicPartition) -> tuple[int, int]:
    """Return log start offset and high watermark. Raises as `list_offsets`."""
    timeout_s = cluster.config.request_timeout_ms / 1000
    earliest = await list_offsets(cluster, {topic_partition: EARLIEST}, timeout_s=timeout_s)
    latest = await list_offsets(cluster, {topic_partition: LATEST}, timeout_s=timeout_s)
    return earliest[topic_partition].offset, latest[topic_partition].offset


async def latest_offset(cluster: Cluster, topic_partition: TopicPartition, isolation_level: IsolationLevel) -> int:
    """Return the offset after the last record that a consumer may read by now. Raises as `list_offsets`."""
    timeout_s = cluster.config.request_timeout_ms / 1000
    asked = {topic_partition: LATEST}
    latest = await list_offsets(cluster, asked, timeout_s=timeout_s, isolation_level=isolation_level)
    return latest[topic_partition].offset


async def ends_of_positions(
    cluster: Cluster, broker: BrokerId, states: Sequence[FetchState]
) -> tuple[dict[TopicPartition, tuple[int, EpochEnd]], PipelineError]:
    """Ask a leader where the epochs of the last records before the positions end. Return error code and end of each.

    A leader whose version is too old to tell leaves the positions as they are. The second value is the reason why the
    others have no answer.
    """
    epochs = {state.topic_partition: state.last_epoch for state in states}
    timeout_s = cluster.config.request_timeout_ms / 1000
    try:
        answers = await ask_ends_once(cluster, cluster.view, broker, epochs, timeout_s=timeout_s)
    except PipelineError as error:
        if isinstance(error, KafkaError) and error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {state.topic_partition: (ErrorCode.NONE, _as_it_is(state)) for state in states}, error
        return {}, error
    return answers, ProtocolError(f"broker {broker} left partitions out of its answer")


def follow_truncation(state: FetchState, end: EpochEnd, reset: OffsetReset) -> PartitionTruncatedError | None:
    """Move a position behind the end of the leader's log to that end; return the error if the policy is to report that.

    A leader that knows no epoch as high as the position's cannot tell: ZooKeeper, or the logs as well, are older
    than the position. A caller that keeps epochs can compare records and is told; for others the reading goes on.
    """
    # An older epoch in the answer is no truncation by itself: compaction may have removed all records of the epoch,
    # and a replica made after that never knew it.
    is_unknown = end.end_offset < 0
    name = str(state.topic_partition)
    if is_unknown and not (state.is_epoch_kept and reset is OffsetReset.NONE):
        logger.warning("position_not_validated", partition=name, epoch=state.last_epoch)
    elif end.end_offset < state.offset:
        if reset is OffsetReset.NONE:
            return PartitionTruncatedError(state.topic_partition, state.offset, end.leader_epoch, end.end_offset)
        logger.warning("log_truncated", partition=name, position=state.offset, offset=end.end_offset)
        move(state, end.end_offset, end.leader_epoch)
    return None


def _as_it_is(state: FetchState) -> EpochEnd:
    """Return the answer that leaves the position as it is."""
    return EpochEnd(leader_epoch=state.last_epoch, end_offset=state.offset)
