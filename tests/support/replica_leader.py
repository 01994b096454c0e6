"""A leader on loopback that answers a replica fetcher as it is told to."""

import uuid
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
import trio.testing

from pipeline.broker.replication.replica_fetchers import ReplicaFetchers
from pipeline.model import BrokerId, HostPort, TopicPartition
from pipeline.net.answers import Peer
from pipeline.net.network import SOCKETS
from pipeline.net.server import ServedListener, Server, ServerConfig
from pipeline.protocol.api import API
from pipeline.protocol.connection import Request
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from pipeline.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pipeline.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from pipeline.protocol.schema import Message
from pipeline.records.batch import place_batch, validate_for_append
from tests.support.broker_in_process import batch

TOPIC_ID = uuid.UUID(int=7)
LEADER, FOLLOWER = BrokerId(1), BrokerId(2)
LONG_WAIT_MS = 60_000
LIMITS = ServerConfig(max_request_bytes=1 << 24, max_connections=100, max_idle_s=60)


@dataclass
class Leader:
    """What it has of each partition, and what else it says."""

    records: dict[int, bytes] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    epoch_end: tuple[int, int] = (0, 0)
    script: deque[ErrorCode | bytes] = field(default_factory=deque)
    """Said instead of the next answers with news."""
    fetches: list[FetchRequest] = field(default_factory=list)
    questions: int = 0
    address: HostPort | None = None
    asked: dict[int, FetchPartition] = field(default_factory=dict)
    _changed: trio.Event = field(default_factory=trio.Event)

    def append(self, index: int, *values: bytes) -> None:
        known = self.records.get(index, b"")
        end = self.end(index)
        new = batch(*values)
        place_batch(new, 0, end, 0)
        self.records[index] = known + new
        self.change()

    def end(self, index: int) -> int:
        known = self.records.get(index)
        start = self.starts.get(index, 0)
        return (
            validate_for_append(known, max_batch_bytes=1 << 30, keep_offsets=True)[-1].next_offset if known else start
        )

    def change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def handle(self, request: Request[Message], _peer: Peer) -> Message:
        body = request.body
        if isinstance(body, ApiVersionsRequest):
            keys = [ApiVersion(api_key=k, min_version=a.min_version, max_version=a.max_version) for k, a in API.items()]
            return ApiVersionsResponse(api_keys=keys)
        if isinstance(body, OffsetForLeaderEpochRequest):
            self.questions += 1
            epoch, end = self.epoch_end
            return OffsetForLeaderEpochResponse(
                topics=[
                    OffsetForLeaderTopicResult(
                        topic=topic.topic,
                        partitions=[
                            EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end)
                            for asked in topic.partitions
                        ],
                    )
                    for topic in body.topics
                ]
            )
        assert isinstance(body, FetchRequest)
        return await self._fetch(body)

    async def _fetch(self, request: FetchRequest) -> FetchResponse:
        self.fetches.append(request)
        number = len(self.fetches)
        self.change()
        if request.session_epoch == 0:
            self.asked.clear()
        for topic in request.topics:
            self.asked.update({asked.partition: asked for asked in topic.partitions})
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                self.asked.pop(index, None)
        with trio.move_on_after(request.max_wait_ms / 1000):
            while not (found := self._read()) and number == len(self.fetches):
                await self._changed.wait()
        if number != len(self.fetches):
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        found = self._read()
        if found and self.script:
            told = self.script.popleft()
            if isinstance(told, ErrorCode):
                found = [PartitionData(partition_index=found[0].partition_index, error_code=told, log_start_offset=-1)]
            else:
                found = [PartitionData(partition_index=found[0].partition_index, records=told)]
        topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=found)] if found else []
        return FetchResponse(session_id=7, responses=topics)

    def _read(self) -> list[PartitionData]:
        found = []
        for index, asked in self.asked.items():
            start, end = self.starts.get(index, 0), self.end(index)
            if not start <= asked.fetch_offset <= end:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
                found.append(PartitionData(partition_index=index, error_code=code, log_start_offset=start))
            elif asked.fetch_offset < end:
                position = 0
                for header in validate_for_append(self.records[index], max_batch_bytes=1 << 30, keep_offsets=True):
                    if header.next_offset > asked.fetch_offset:
                        break
                    position += header.size_bytes
                data = self.records[index][position:] + b"the beginning of a batch that was cut"
                found.append(
                    PartitionData(partition_index=index, high_watermark=end, log_start_offset=start, records=data)
                )
        return found


@asynccontextmanager
async def serving(leader: Leader, address: HostPort = HostPort("127.0.0.1", 0)) -> AsyncIterator[None]:  # noqa: B008
    listeners = await SOCKETS.listen(address)
    leader.address = HostPort("127.0.0.1", listeners[0].port)
    async with trio.open_nursery() as nursery:
        await nursery.start(Server(leader.handle, API, LIMITS).serve, [ServedListener(each) for each in listeners])
        yield
        nursery.cancel_scope.cancel()


async def leave_fetcher(fetchers: ReplicaFetchers, topic_partition: TopicPartition) -> None:
    for fetcher, left in fetchers.remove([topic_partition]).items():
        await fetcher.wait_until_untouched(left)
