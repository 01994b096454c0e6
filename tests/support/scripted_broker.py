"""Brokers in this process that keep their logs in memory and misbehave when told to: for tests of the client alone."""

from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID, uuid4

import trio

from pipeline.client.cluster.config import IsolationLevel
from pipeline.errors import ProtocolError
from pipeline.model import BrokerId, HostPort, TopicPartition
from pipeline.net.answers import Peer
from pipeline.net.network import SOCKETS
from pipeline.net.nurseries import unwrapped_errors
from pipeline.net.server import ServedListener, Server, ServerConfig
from pipeline.protocol.api import API
from pipeline.protocol.connection import Request
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from pipeline.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from pipeline.protocol.messages.fetch import (
    FINAL_EPOCH,
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pipeline.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pipeline.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pipeline.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from pipeline.protocol.messages.produce import (
    KEEP_OFFSETS_FEATURE,
    KEEP_OFFSETS_VERSIONS,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from pipeline.protocol.schema import Message
from pipeline.records.batch import (
    BatchHeader,
    iterate_headers,
    place_batch,
    read_header,
    set_base_offset,
    validate_for_append,
)
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import Record, iterate_records
from tests.support.scripted_sessions import ScriptedSessions

LIMITS = ServerConfig(max_request_bytes=1 << 24, max_connections=100, max_idle_s=60)


@dataclass
class Partition:
    """A log in memory, and who leads it."""

    leader: BrokerId
    epoch: int = 0
    log_start_offset: int = 0
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    last_of_producer: dict[tuple[int, int], BatchHeader] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first offset and offset of the marker of each aborted transaction."""

    @property
    def log_end_offset(self) -> int:
        return self.batches[-1][0].next_offset if self.batches else self.log_start_offset

    def append_values(self, values: list[bytes]) -> None:
        builder = BatchBuilder(Codec.NONE, 1 << 20)
        for value in values:
            assert builder.append(None, value, (), 0)
        self.append_batch(builder.build())

    def append_batch(self, batch: bytearray) -> int:
        """Append a batch as it was built, and return its offset."""
        base_offset = self.log_end_offset
        place_batch(batch, 0, base_offset, self.epoch)
        self.batches.append((read_header(batch), bytes(batch)))
        return base_offset

    def truncate(self, end_offset: int) -> None:
        """Drop the batches from this offset on, as a new leader that lacks them does: in the next epoch."""
        self.batches = [(header, data) for header, data in self.batches if header.next_offset <= end_offset]
        self.epoch += 1

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is not above this one, and where it ends."""
        if epoch > self.epoch:
            return -1, -1
        known = [header for header, _ in self.batches if 0 <= header.partition_leader_epoch <= epoch]
        later = [header.base_offset for header, _ in self.batches if header.partition_leader_epoch > epoch]
        found = known[-1].partition_leader_epoch if known else epoch
        return found, later[0] if later else self.log_end_offset

    def records(self) -> list[Record]:
        return [record for _, data in self.batches for record in iterate_records(data)]


class ScriptedCluster:
    """Brokers and what they share. `produce_script` and `fetch_script` hold what goes wrong next."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, Partition]] = {}
        self.topic_ids: dict[str, UUID] = {}
        self.lagging: dict[BrokerId, dict[str, dict[int, Partition]]] = {}
        """The topics as brokers know them that have not heard the news yet."""
        self.addresses: dict[BrokerId, HostPort] = {}
        self.produce_script: deque[ErrorCode | str] = deque()
        self.fetch_script: deque[ErrorCode | str] = deque()
        self.requests: Counter[str] = Counter()
        self.sessions: ScriptedSessions | None = None
        """The fetch sessions; None if brokers grant none."""
        self.keep_offsets = KEEP_OFFSETS_VERSIONS[1]
        """The highest version of the feature that is announced."""
        self.produced_requests: list[ProduceRequest] = []
        self.fetch_limit_batches = 1000
        self.leading_batches = 0
        self.trailing_bytes = 0
        self.hold_produce = trio.Event()
        self.hold_produce.set()
        self.hold_metadata = trio.Event()
        self.hold_metadata.set()
        self.appended = trio.Event()
        self.coordinate: Callable[[BrokerId, Message], Awaitable[Message]] | None = None
        """Answers the requests about groups; see `scripted_coordinator.py`."""
        self._producer_ids = iter(range(1000, 2000))

    def add_topic(self, name: str, leaders: list[int]) -> None:
        self.topics[name] = {number: Partition(BrokerId(leader)) for number, leader in enumerate(leaders)}
        self.topic_ids[name] = uuid4()

    def partition(self, topic_partition: TopicPartition) -> Partition:
        return self.topics[topic_partition.topic][topic_partition.partition]

    def notify(self) -> None:
        """Wake the fetches that wait."""
        self.appended.set()
        self.appended = trio.Event()

    @property
    def bootstrap(self) -> tuple[HostPort, ...]:
        return tuple(self.addresses.values())

    @asynccontextmanager
    async def broker(self, number: int, *, versions: dict[int, int] | None = None) -> AsyncIterator[HostPort]:
        """A broker that serves as long as the block runs, each time at the same port. `versions` caps api keys."""
        broker = BrokerId(number)
        listeners = await SOCKETS.listen(self.addresses.get(broker, HostPort("127.0.0.1", 0)))
        self.addresses[broker] = HostPort("127.0.0.1", listeners[0].port)

        async def handle(request: Request[Message], _peer: Peer) -> Message | None:
            return await self._handle(broker, request, versions or {})

        with unwrapped_errors():
            async with trio.open_nursery() as nursery:
                await nursery.start(
                    Server(handle=handle, apis=API, config=LIMITS).serve, [ServedListener(each) for each in listeners]
                )
                yield self.addresses[broker]
                nursery.cancel_scope.cancel()

    async def _handle(self, broker: BrokerId, request: Request[Message], caps: dict[int, int]) -> Message | None:
        body = request.body
        self.requests[type(body).__name__] += 1
        match body:
            case ApiVersionsRequest():
                return self._api_versions(caps)
            case MetadataRequest():
                await self.hold_metadata.wait()
                return self._metadata(broker, body)
            case InitProducerIdRequest():
                return InitProducerIdResponse(producer_id=next(self._producer_ids), producer_epoch=0)
            case ProduceRequest():
                return await self._produce(broker, body)
            case FetchRequest():
                return await self._fetch(broker, body)
            case ListOffsetsRequest():
                return self._list_offsets(broker, body)
            case OffsetForLeaderEpochRequest():
                return self._end_epochs(broker, body)
            case CreateTopicsRequest():
                for topic in body.topics:
                    self.add_topic(topic.name, [broker] * topic.num_partitions)
                return CreateTopicsResponse(topics=[CreatableTopicResult(name=topic.name) for topic in body.topics])
        if self.coordinate is not None:
            return await self.coordinate(broker, body)
        raise ProtocolError(f"no script for {type(body).__name__}")

    def _api_versions(self, caps: dict[int, int]) -> Message:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(
                    api_key=key, min_version=api.min_version, max_version=min(api.max_version, caps.get(key, 99))
                )
                for key, api in API.items()
            ],
            supported_features=[
                SupportedFeatureKey(name=KEEP_OFFSETS_FEATURE, min_version=1, max_version=self.keep_offsets)
            ],
        )

    def _topics_of(self, broker: BrokerId) -> dict[str, dict[int, Partition]]:
        return self.lagging.get(broker, self.topics)

    def _metadata(self, broker: BrokerId, request: MetadataRequest) -> Message:
        topics = self._topics_of(broker)
        names = list(topics) if request.topics is None else [topic.name for topic in request.topics]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=broker, host=address.host, port=address.port)
                for broker, address in self.addresses.items()
            ],
            cluster_id="scripted",
            controller_id=min(self.addresses),
            topics=[self._topic_metadata(topics, name or "") for name in names],
        )

    def _topic_metadata(self, topics: dict[str, dict[int, Partition]], name: str) -> MetadataResponseTopic:
        if name not in topics:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
        return MetadataResponseTopic(
            name=name,
            topic_id=self.topic_ids[name],
            partitions=[
                MetadataResponsePartition(
                    partition_index=number, leader_id=partition.leader, leader_epoch=partition.epoch
                )
                for number, partition in topics[name].items()
            ],
        )

    def _name(self, name: str, topic_id: UUID) -> str:
        by_id = {known: topic for topic, known in self.topic_ids.items()}
        return name or by_id.get(topic_id, "")

    async def _produce(self, broker: BrokerId, request: ProduceRequest) -> Message | None:
        self.produced_requests.append(request)
        await self.hold_produce.wait()
        fault = self.produce_script.popleft() if self.produce_script else None
        if fault is ErrorCode.NONE:
            fault = None
        if fault == "close":
            raise ProtocolError("told to close before appending")
        responses = []
        for topic in request.topic_data:
            name = self._name(topic.name, topic.topic_id)
            parts = [
                PartitionProduceResponse(index=data.index, error_code=fault)
                if isinstance(fault, ErrorCode)
                else self._append(broker, name, data)
                for data in topic.partition_data
            ]
            responses.append(TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=parts))
        if fault == "close after":
            raise ProtocolError("told to close after appending")
        if fault == "fail after":
            responses = [_failed(topic, ErrorCode.UNKNOWN_SERVER_ERROR) for topic in responses]
        self.notify()
        return None if request.acks == 0 else ProduceResponse(responses=responses)

    def _append(self, broker: BrokerId, topic: str, data: PartitionProduceData) -> PartitionProduceResponse:
        partition = self.topics.get(topic, {}).get(data.index)
        if partition is None:
            return PartitionProduceResponse(index=data.index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.leader != broker:
            return PartitionProduceResponse(index=data.index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert isinstance(data.records, memoryview)
        headers = validate_for_append(data.records, max_batch_bytes=1 << 20, keep_offsets=data.keep_offsets)
        is_other_end = data.expected_end not in {-1, partition.log_end_offset}
        if is_other_end or (data.keep_offsets and headers[0].base_offset < partition.log_end_offset):
            return PartitionProduceResponse(
                index=data.index,
                error_code=ErrorCode.OFFSET_OUT_OF_RANGE,
                log_end_offset=partition.log_end_offset,
            )
        base_offset = headers[0].base_offset if data.keep_offsets else partition.log_end_offset
        position = 0
        for header in headers:
            batch = bytearray(data.records[position : position + header.size_bytes])
            position += header.size_bytes
            code, offset = self._check_sequence(partition, header)
            if code is not ErrorCode.NONE or offset >= 0:
                return PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset)
            if not data.keep_offsets:
                set_base_offset(batch, 0, partition.log_end_offset)
            appended = next(iterate_headers(batch))[1]
            partition.batches.append((appended, bytes(batch)))
            partition.last_of_producer[header.producer_id, header.producer_epoch] = appended
        return PartitionProduceResponse(
            index=data.index, base_offset=base_offset, log_end_offset=partition.log_end_offset
        )

    @staticmethod
    def _check_sequence(partition: Partition, header: BatchHeader) -> tuple[ErrorCode, int]:
        if header.producer_id < 0:
            return ErrorCode.NONE, -1
        last = partition.last_of_producer.get((header.producer_id, header.producer_epoch))
        if last is not None and last.base_sequence == header.base_sequence:
            return ErrorCode.NONE, last.base_offset
        expected = 0 if last is None else last.last_sequence + 1
        return (ErrorCode.NONE if header.base_sequence == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1

    async def _fetch(self, broker: BrokerId, request: FetchRequest) -> Message:
        fault = self.fetch_script.popleft() if self.fetch_script else None
        if fault == "close":
            raise ProtocolError("told to close")
        code = fault if isinstance(fault, ErrorCode) else ErrorCode.NONE
        if self.sessions is not None and request.session_epoch != FINAL_EPOCH:
            return await self._fetch_in_session(self.sessions, broker, request)
        response = self._read(broker, request, code)
        if not any(part.records or part.error_code for topic in response.responses for part in topic.partitions):
            with trio.move_on_after(request.max_wait_ms / 1000):
                await self.appended.wait()
            response = self._read(broker, request, code)
        return response

    async def _fetch_in_session(
        self, sessions: ScriptedSessions, broker: BrokerId, request: FetchRequest
    ) -> FetchResponse:
        found = sessions.begin(broker, request)
        if isinstance(found, ErrorCode):
            return FetchResponse(error_code=found)
        read = partial(self._read, broker, code=ErrorCode.NONE)
        answer = sessions.answer(broker, request, found[0], read, is_last=request.max_wait_ms <= 0)
        if answer is None:
            with trio.move_on_after(request.max_wait_ms / 1000):
                await self.appended.wait()
            answer = sessions.answer(broker, request, found[0], read, is_last=True)
        assert answer is not None
        return answer

    def _read(self, broker: BrokerId, request: FetchRequest, code: ErrorCode) -> FetchResponse:
        responses = []
        is_committed = request.isolation_level == IsolationLevel.READ_COMMITTED
        for topic in request.topics:
            name = self._name(topic.topic, topic.topic_id)
            parts = []
            for asked in topic.partitions:
                partition = self._topics_of(broker).get(name, {}).get(asked.partition)
                refusal = _refusal(broker, partition, asked.current_leader_epoch) or code
                parts.append(
                    self._read_partition(
                        partition, asked.partition, asked.fetch_offset, refusal, is_committed=is_committed
                    )
                )
            responses.append(FetchableTopicResponse(topic=name, topic_id=topic.topic_id, partitions=parts))
        return FetchResponse(responses=responses)

    def _read_partition(
        self, partition: Partition | None, number: int, offset: int, code: ErrorCode, *, is_committed: bool
    ) -> PartitionData:
        if partition is not None and not partition.log_start_offset <= offset <= partition.log_end_offset:
            code = code or ErrorCode.OFFSET_OUT_OF_RANGE
        if partition is None or code is not ErrorCode.NONE:
            return PartitionData(partition_index=number, error_code=code, high_watermark=-1)
        first = sum(header.next_offset <= offset for header, _ in partition.batches)
        first = max(0, first - self.leading_batches)
        answered = partition.batches[first : first + self.fetch_limit_batches]
        found = [data for _, data in answered]
        if first == len(partition.batches) - self.leading_batches:
            found = []
        aborted = [
            AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset, last_offset in partition.aborted
            if found and last_offset >= offset and first_offset < answered[-1][0].next_offset
        ]
        return PartitionData(
            partition_index=number,
            high_watermark=partition.log_end_offset,
            log_start_offset=partition.log_start_offset,
            aborted_transactions=aborted if is_committed else None,
            records=b"".join(found) + (found[-1][: self.trailing_bytes] if found else b""),
        )

    def _list_offsets(self, broker: BrokerId, request: ListOffsetsRequest) -> Message:
        topics = []
        for topic in request.topics:
            parts = []
            for asked in topic.partitions:
                partition = self._topics_of(broker)[topic.name][asked.partition_index]
                refusal = _refusal(broker, partition, asked.current_leader_epoch)
                if refusal is ErrorCode.NONE:
                    parts.append(_listed(asked.partition_index, asked.timestamp, partition))
                else:
                    parts.append(
                        ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=refusal)
                    )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return ListOffsetsResponse(topics=topics)

    def _end_epochs(self, broker: BrokerId, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            known = self._topics_of(broker)[topic.topic]
            parts = [_epoch_end(broker, known[asked.partition], asked) for asked in topic.partitions]
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=parts))
        return OffsetForLeaderEpochResponse(topics=topics)


def _epoch_end(broker: BrokerId, partition: Partition, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    refusal = _refusal(broker, partition, asked.current_leader_epoch)
    if refusal is not ErrorCode.NONE:
        return EpochEndOffset(partition=asked.partition, error_code=refusal)
    epoch, end_offset = partition.end_of_epoch(asked.leader_epoch)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)


def _failed(topic: TopicProduceResponse, code: ErrorCode) -> TopicProduceResponse:
    parts = [PartitionProduceResponse(index=part.index, error_code=code) for part in topic.partition_responses]
    return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=parts)


def _refusal(broker: BrokerId, partition: Partition | None, epoch: int) -> ErrorCode:
    """Why the broker does not serve the partition to a client that knows this leader epoch (-1: none)."""
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if epoch not in {-1, partition.epoch}:
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < partition.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if partition.leader == broker else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _listed(number: int, timestamp: int, partition: Partition) -> ListOffsetsPartitionResponse:
    special: dict[int, Callable[[], int]] = {
        -1: lambda: partition.log_end_offset,
        -2: lambda: partition.log_start_offset,
    }
    if timestamp in special:
        return ListOffsetsPartitionResponse(partition_index=number, offset=special[timestamp]())
    for record in partition.records():
        if record.timestamp_ms >= timestamp:
            return ListOffsetsPartitionResponse(
                partition_index=number, offset=record.offset, timestamp=record.timestamp_ms
            )
    return ListOffsetsPartitionResponse(partition_index=number)
