"""DescribeLogDirs (35): log directories, the space of their disks, and the size of each partition in them (KIP-113,
KIP-827). A directory whose disk failed is told with KAFKA_STORAGE_ERROR and without partitions. Space that a disk does
not tell in time is -1. The lag of a follower
is how many committed records it had still to fetch when its leader answered last; a leader has none.
Strays are told in a tagged field of ours, when all partitions are asked for.
"""

from collections.abc import Awaitable, Mapping, Sequence
from operator import itemgetter

import trio

from pipeline.broker.replicas.strays import Stray
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.disk_threads import STALLED_S, DiskThreads
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

UNKNOWN_VOLUME = Volume(total_bytes=-1, usable_bytes=-1)
PARTITIONS_AT_ONCE = 10_000
"""Partitions that are looked at before others have their turn."""


def handle(
    broker: BrokerContext, request: DescribeLogDirsRequest, _version: int, _caller: Caller
) -> Awaitable[DescribeLogDirsResponse]:
    """Answers once all disks were asked for their space, each for STALLED_S at most."""
    return _handle(broker, request)


async def _handle(broker: BrokerContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
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
    results = [
        await _describe(broker.replicas.disks, directory, wanted, lags, strays) for directory in directories.opened
    ]
    opened = {directory.path for directory in directories.opened}
    results += [
        DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(path.absolute()))
        for path in directories.offline
        if path not in opened
    ]
    return DescribeLogDirsResponse(results=results)


async def _describe(
    disks: DiskThreads,
    directory: LogDirectory,
    wanted: set[TopicPartition] | None,
    lags: Mapping[TopicPartition, int],
    strays: Sequence[Stray],
) -> DescribeLogDirsResult:
    path = str(directory.path.absolute())
    try:
        volume = await _volume(disks, directory)
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
    )


async def _volume(disks: DiskThreads, directory: LogDirectory) -> Volume:
    """The space of its disk, unknown while the disk does not answer. Raises StorageError."""
    if not disks.is_stalled(directory.path):
        with trio.move_on_after(STALLED_S):
            return await disks.run(directory.path, directory.volume, abandon_on_cancel=True)
    return UNKNOWN_VOLUME


def _stray(stray: Stray) -> DescribeLogDirsStray:
    topic_partition, topic_id = stray.name
    return DescribeLogDirsStray(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        topic_id=topic_id or ZERO_UUID,
        path=str(stray.path.absolute()),
        reason=stray.reason,
    )
