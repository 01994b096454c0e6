"""DescribeLogDirs (35), v1 to v5: log dirs, disk space (KIP-827) and the size of each partition (KIP-113).

- A log dir whose disk failed has KAFKA_STORAGE_ERROR and no partitions; space that is not reported in time is -1.
- The lag of a follower is the number of committed records that it lacked at its leader's last answer; a leader's is 0.
- Tagged fields of ours hold strays, if all partitions are requested, and a sentence about a log dir that is full.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter

from pipeline.broker.replicas.disk_room import measured_volume
from pipeline.broker.replicas.strays import Stray
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.errors import StorageError
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.files import Volume
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsStray,
    DescribeLogDirsTopic,
)
from pipeline.protocol.schema import ZERO_UUID

_UNKNOWN_VOLUME = Volume(total_bytes=-1, usable_bytes=-1)
PARTITIONS_AT_ONCE = 10_000
"""Partitions that are read before other requests have a turn."""


async def handle(
    broker: BrokerContext, request: DescribeLogDirsRequest, _version: int, _caller: Caller
) -> DescribeLogDirsResponse:
    """Answer when all disks have reported their space, or after STALLED_S each."""
    wanted = None
    if request.topics is not None:
        wanted, turns = set(), Turns(PARTITIONS_AT_ONCE)
        for topic in request.topics:
            for index in topic.partitions:
                wanted.add(TopicPartition(topic.topic, index))
                await turns.after()
    lags = {followed.topic_partition: followed.lag for followed in broker.replicas.fetchers.partitions}
    strays = broker.strays.strays if wanted is None else ()
    directories = broker.replicas.directories
    results = [await _describe(broker, directory, wanted, lags, strays) for directory in directories.opened]
    opened = {directory.path for directory in directories.opened}
    results += [
        DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(path.absolute()))
        for path in directories.offline
        if path not in opened
    ]
    return DescribeLogDirsResponse(results=results)


async def _describe(
    broker: BrokerContext,
    directory: LogDirectory,
    wanted: set[TopicPartition] | None,
    lags: Mapping[TopicPartition, int],
    strays: Sequence[Stray],
) -> DescribeLogDirsResult:
    path = str(directory.path.absolute())
    try:
        volume = await measured_volume(broker.replicas.disks, directory) or _UNKNOWN_VOLUME
    except StorageError:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path)
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    turns = Turns(PARTITIONS_AT_ONCE)
    for topic_partition, log in sorted(directory.logs.items(), key=itemgetter(0)):
        if wanted is None or topic_partition in wanted:
            size = DescribeLogDirsPartition(
                partition_index=topic_partition.partition,
                partition_size=log.snapshot.size_bytes,
                offset_lag=lags.get(topic_partition, 0),
            )
            topics.setdefault(topic_partition.topic, []).append(size)
        await turns.after()
    return DescribeLogDirsResult(
        log_dir=path,
        topics=[DescribeLogDirsTopic(name=topic, partitions=partitions) for topic, partitions in topics.items()],
        total_bytes=volume.total_bytes,
        usable_bytes=volume.usable_bytes,
        strays=[_stray(stray) for stray in strays if directory.path in stray.path.parents],
        lack_of_room=broker.room.full.get(directory.path, ""),
    )


def _stray(stray: Stray) -> DescribeLogDirsStray:
    topic_partition, topic_id = stray.name
    return DescribeLogDirsStray(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        topic_id=topic_id or ZERO_UUID,
        path=str(stray.path.absolute()),
        reason=stray.reason,
    )
