import struct
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ProtocolError
from pipeline.model import FileRegion
from pipeline.protocol.api import API, ApiKey
from pipeline.protocol.codec import encode
from pipeline.protocol.connection import (
    MAX_REQUEST_ELEMENTS,
    ClientConnection,
    LargeRequest,
    Request,
    ServerConnection,
    size_of,
)
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from pipeline.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pipeline.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pipeline.protocol.schema import Message
from tests.support.wire import joined

Machine = ServerConnection | ClientConnection


def feed(machine: Machine, data: bytes) -> None:
    """Receives data that holds no complete message before its end."""
    position = 0
    while position < len(data):
        position += receive(machine, data[position:])


def receive(machine: Machine, data: bytes) -> int:
    target = machine.get_buffer()
    count = min(len(target), len(data))
    target[:count] = data[:count]
    machine.bytes_received(count)
    return count


def requests_of(machine: ServerConnection, data: bytes, step: int) -> list[Any]:
    """Receives as a server does: so much as comes, then takes all requests."""
    requests = []
    position = 0
    while position < len(data):
        position += receive(machine, data[position : position + step])
        while (request := machine.next_request()) is not None:
            requests.append(request)
    return requests


def produce(records: bytes) -> ProduceRequest:
    partition = PartitionProduceData(index=3, records=records)
    return ProduceRequest(acks=-1, topic_data=(TopicProduceData(name="t", partition_data=(partition,)),))


def header(api_key: int, version: int, correlation_id: int, rest: bytes) -> bytes:
    raw = struct.pack(">hhi", api_key, version, correlation_id) + rest
    return struct.pack(">i", len(raw)) + raw


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_pipelined_requests_come_out_in_order(step: int) -> None:
    client, server = ClientConnection("cliënt"), ServerConnection(1 << 20)
    sent: list[tuple[Message, int]] = [
        (ApiVersionsRequest(client_software_name="a", client_software_version="b"), 3),
        (MetadataRequest(topics=(MetadataRequestTopic(name="t"),)), 1),
        (produce(b"r" * 40_000), 9),
        (produce(b"s" * 100), 7),
        (FetchRequest(topics=(FetchTopic(topic="t", partitions=(FetchPartition(partition=1),)),)), 12),
        (MetadataRequest(topics=None), 13),
    ]
    wire = b"".join(joined(client.encode_request(message, version)[1]) for message, version in sent)
    requests = requests_of(server, wire, step)
    assert [(request.body, request.api_version) for request in requests] == sent
    assert [request.correlation_id for request in requests] == list(range(len(sent)))
    assert {request.client_id for request in requests} == {"cliënt"}
    assert sum(request.size_bytes + 4 for request in requests) == len(wire)


@pytest.mark.parametrize("size", [100, 40_000, 2_000_000])
def test_records_stay_valid_and_writeable_when_more_requests_follow(size: int) -> None:
    client, server = ClientConnection("c"), ServerConnection(1 << 24)
    first = joined(client.encode_request(produce(b"a" * size), 9)[1])
    second = joined(client.encode_request(produce(b"b" * size), 9)[1])
    held = []
    for request in requests_of(server, first + second, 1 << 16):
        assert isinstance(request.body, ProduceRequest)
        held.append(request.body.topic_data[0].partition_data[0].records)
    views = [view for view in held if isinstance(view, memoryview)]
    assert [bytes(view) for view in views] == [b"a" * size, b"b" * size]
    views[0][0] = ord("!")
    assert views[1][0] == ord("b")


@settings(max_examples=25)
@given(data=st.data())
def test_both_ends_understand_each_other_in_every_version(data: st.DataObject) -> None:
    client, server = ClientConnection("c"), ServerConnection(1 << 20)
    asked: list[int] = []
    wire = b""
    for api_key in data.draw(st.lists(st.sampled_from(list(ApiKey)), min_size=1, max_size=8)):
        version = data.draw(st.integers(api_key.min_version, api_key.max_version))
        correlation_id, pieces = client.encode_request(api_key.request(), version)
        asked.append(correlation_id)
        feed(server, joined(pieces))
        request = server.next_request()
        assert request is not None and request.body == api_key.request()
        wire += joined(server.encode_response(request, api_key.response()))
    assert client.expected == len(asked)
    feed(client, wire)
    for correlation_id in asked:
        response = client.next_response()
        assert response is not None
        assert response[0] == correlation_id
    assert client.next_response() is None
    assert client.expected == 0


@pytest.mark.parametrize("step", [1, 1 << 20])
def test_responses_byte_by_byte(step: int) -> None:
    client, server = ClientConnection("c"), ServerConnection(1 << 20)
    partition = PartitionData(partition_index=1, records=b"r" * 20_000)
    answers = [
        FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(partition,)),)),
        MetadataResponse(cluster_id="x"),
    ]
    wire = b""
    for message, version, answer in zip((FetchRequest(), MetadataRequest()), (12, 9), answers, strict=True):
        feed(server, joined(client.encode_request(message, version)[1]))
        request = server.next_request()
        assert isinstance(request, Request)
        wire += joined(server.encode_response(request, answer))
    got = []
    position = 0
    while position < len(wire):
        position += receive(client, wire[position : position + step])
        while (response := client.next_response()) is not None:
            got.append(response[1])
    assert got == answers


def test_a_file_region_is_counted_and_passed_on() -> None:
    server = ServerConnection(1 << 20)
    feed(server, joined(ClientConnection("c").encode_request(FetchRequest(), 12)[1]))
    request = server.next_request()
    assert isinstance(request, Request)
    with open(__file__, "rb") as file:  # noqa: PTH123
        region = FileRegion(file, 0, 100)
        partition = PartitionData(partition_index=1, records=region)
        response = FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(partition,)),))
        pieces = server.encode_response(request, response)
    assert region in pieces
    assert struct.unpack_from(">i", joined(pieces))[0] == size_of(pieces) - 4


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    server, client = ServerConnection(1 << 20), ClientConnection("c")
    feed(server, header(18, 99, 0, b"\0\1c\0" + b"whatever comes in version 99"))
    request = server.next_request()
    assert isinstance(request, Request)
    assert (request.api_version, request.body) == (99, ApiVersionsRequest())
    pieces = server.encode_response(request, ApiVersionsResponse())
    expected = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=(ApiVersion(api_key=18, min_version=0, max_version=4),)
    )
    assert joined(pieces)[8:] == joined(encode(expected, 0))
    client.encode_request(ApiVersionsRequest(), 4)
    feed(client, joined(pieces))
    assert client.next_response() == (0, expected)


@pytest.mark.parametrize(
    "data",
    [
        header(18, 99, 0, b"\0\1c"),  # no flexible header, so no request of a later version
        header(77, 0, 0, b"\xff\xff"),
        header(3, 14, 0, b"\0\1c\0"),
        header(3, -1, 0, b"\xff\xff"),
        header(3, 1, 0, b"\0\x09c"),
        header(3, 1, 0, b"\0\1\xff"),
        header(3, 9, 0, b"\0\1c\1\5\x7f"),
        header(3, 1, 0, b"\0\1c"),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 1 << 20),
        struct.pack(">i", -5),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_garbage_is_refused_as_a_request(data: bytes) -> None:
    server = ServerConnection((1 << 20) - 1)
    feed(server, data)
    with pytest.raises(ProtocolError):
        server.next_request()


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_protocol_errors(data: bytes) -> None:
    for start in (b"", header(0, 9, 1, data)[:12], header(1, 12, 1, data)[:12], header(18, 3, 1, data)[:12]):
        server = ServerConnection(1 << 20)
        feed(server, start + data)
        try:
            while server.next_request() is not None:
                pass
        except ProtocolError:
            pass


def decoded(machine: ServerConnection) -> Request[Message] | None:
    """The next request; a large one as a thread decodes it."""
    request = machine.next_request()
    return request.decode() if isinstance(request, LargeRequest) else request


@pytest.mark.long
@pytest.mark.parametrize("nesting", ["topics", "partitions"])
def test_a_request_of_very_many_small_elements_is_refused_before_it_is_decoded(nesting: str) -> None:
    """A hundred megabytes of empty names would take seconds and gigabytes."""
    if nesting == "topics":
        many = MetadataRequest(topics=(MetadataRequestTopic(name=""),) * (MAX_REQUEST_ELEMENTS + 1))
        enough = MetadataRequest(topics=(MetadataRequestTopic(name=""),) * MAX_REQUEST_ELEMENTS)
    else:
        partitions = (FetchPartition(),) * 1000
        many, enough = (  # type: ignore[assignment]
            FetchRequest(topics=(FetchTopic(topic="t", partitions=partitions),) * count) for count in (100, 99)
        )
    for message, is_taken in ((many, False), (enough, True)):
        machine = ServerConnection(100_000_000)
        data = memoryview(joined(ClientConnection("c").encode_request(message, 4)[1]))
        request = None
        with nullcontext() if is_taken else pytest.raises(ProtocolError, match="more elements than are taken"):
            while request is None:
                target = machine.get_buffer()
                count = min(len(target), len(data))
                target[:count] = data[:count]
                machine.bytes_received(count)
                data, request = data[count:], decoded(machine)
        assert (request is not None) == is_taken


def test_very_many_tagged_fields_are_refused() -> None:
    tags = b"\xff\xff\x7f" + b"\x40\x00" * 30_000
    for body in (tags, b"\x00" + b"\x01\x00\x00\x00" + b"\xff\xff\xff\x7f" + b"\x40\x00" * 30_000):
        machine = ServerConnection(1_000_000)
        feed(machine, struct.pack(">ihhih", 10 + len(body), ApiKey.METADATA, 9, 1, -1) + body)
        with pytest.raises(ProtocolError, match=r"tagged|more elements"):
            decoded(machine)


def test_tagged_fields_in_a_header_are_skipped() -> None:
    server = ServerConnection(1 << 20)
    body = joined(encode(MetadataRequest(topics=None), 9))
    feed(server, header(3, 9, 5, b"\0\1c" + b"\2\0\1x\xc8\1\2yz" + body))
    request = server.next_request()
    assert request is not None and request.body == MetadataRequest(topics=None)


def test_a_client_without_an_id() -> None:
    server = ServerConnection(1 << 20)
    feed(server, header(18, 0, 5, b"\xff\xff"))
    request = server.next_request()
    assert request is not None and request.client_id is None


def test_keys_left_out_are_not_served() -> None:
    server = ServerConnection(1 << 20, {18: API[18]})
    feed(server, joined(ClientConnection("c").encode_request(MetadataRequest(), 1)[1]))
    with pytest.raises(ProtocolError):
        server.next_request()


def test_produce_without_acknowledgement_expects_no_response() -> None:
    client = ClientConnection("c")
    client.encode_request(produce(b""), 7, expect_response=False)
    correlation_id, _ = client.encode_request(produce(b""), 7)
    assert (client.expected, correlation_id) == (1, 1)
    answer = ProduceResponse(responses=(TopicProduceResponse(name="t"),))
    body = joined(encode(answer, 7))
    feed(client, struct.pack(">ii", 4 + len(body), 1) + body)
    assert client.next_response() == (1, answer)


@pytest.mark.parametrize("data", [struct.pack(">ii", 4, 0), struct.pack(">i", 0)])
def test_an_unrequested_response_is_refused(data: bytes) -> None:
    client = ClientConnection("c")
    feed(client, data)
    with pytest.raises(ProtocolError):
        client.next_response()


def test_a_response_out_of_turn() -> None:
    client = ClientConnection("c")
    client.encode_request(MetadataRequest(), 1)
    feed(client, struct.pack(">ii", 4, 9))
    with pytest.raises(ProtocolError):
        client.next_response()


def test_an_oversized_client_id() -> None:
    with pytest.raises(ProtocolError):
        ClientConnection("x" * 40_000)
