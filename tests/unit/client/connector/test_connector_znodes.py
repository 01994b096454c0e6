"""Znodes of a group: Kafka's JSON byte for byte, and data that cannot be read."""

import json

import pytest

from pipeline.client.connector.connector_znodes import (
    ConsumerGroupPaths,
    ConsumerRegistration,
    GroupStream,
    decode_offset,
    encode_offset,
)
from pipeline.client.streams.topic_filter import BlackList, WhiteList
from pipeline.errors import CoordinationError
from pipeline.model import TopicPartition

PATH = "/consumers/g/ids/c"


def test_paths_are_those_of_kafka() -> None:
    paths = ConsumerGroupPaths("g")
    assert paths.id("g_host-1") == "/consumers/g/ids/g_host-1"
    assert paths.owner(TopicPartition("views", 3)) == "/consumers/g/owners/views/3"
    assert paths.offset(TopicPartition("views", 3)) == "/consumers/g/offsets/views/3"
    assert str(GroupStream("g_host-1", 2)) == "g_host-1-2"


def test_registrations_of_kafkas_consumers_are_read() -> None:
    static = b'{"version":1,"subscription":{"views":2,"clicks":1},"pattern":"static","timestamp":"1416541391474"}'
    found = ConsumerRegistration.decode(PATH, static)
    assert (found.streams, found.topic_filter, found.timestamp_ms) == ({"views": 2, "clicks": 1}, None, 1416541391474)
    assert [found.streams_of(topic) for topic in ("views", "clicks", "other")] == [2, 1, 0]
    assert not found.shares_by_broker
    white = b'{"version":1,"subscription":{"page_.*":3},"pattern":"white_list","timestamp":"1"}'
    assert ConsumerRegistration.decode(PATH, white).topic_filter == WhiteList("page_.*")
    assert ConsumerRegistration.decode(PATH, white).streams_of("page_views") == 3
    black = b'{"version":1,"subscription":{"a,b":3},"pattern":"black_list","timestamp":"1"}'
    assert [ConsumerRegistration.decode(PATH, black).streams_of(topic) for topic in ("a", "c")] == [0, 3]


@pytest.mark.parametrize(
    "registration",
    [
        ConsumerRegistration(streams={"views": 2, "clicks": 1}, timestamp_ms=5),
        ConsumerRegistration(streams={'a"\\d+': 2}, topic_filter=WhiteList('a"\\d+')),
        ConsumerRegistration(streams={"a,b": 2}, topic_filter=BlackList("a,b"), shares_by_broker=False),
    ],
)
def test_registrations_are_written_as_kafka_does(registration: ConsumerRegistration) -> None:
    data = registration.encode()
    assert ConsumerRegistration.decode(PATH, data) == registration
    fields = json.loads(data)
    assert list(fields)[:4] == ["version", "subscription", "pattern", "timestamp"]
    assert isinstance(fields["timestamp"], str)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"version":1,"subscription":{"a":0},"pattern":"static"}',
        b'{"version":1,"subscription":{"a":1,"b":1},"pattern":"white_list"}',
        b'{"version":1,"subscription":{"(":1},"pattern":"white_list"}',
        b'{"version":1,"subscription":{"a":1},"pattern":"other"}',
        b'{"version":1,"subscription":{"a":10001},"pattern":"static"}',
    ],
)
def test_registrations_that_cannot_be_read_name_their_znode(data: bytes) -> None:
    with pytest.raises(CoordinationError, match=PATH):
        ConsumerRegistration.decode(PATH, data)


@pytest.mark.parametrize("data", [b"", b"-1", b"x", b"\xff", b"9223372036854775808", b"1" * 1000])
def test_offsets_that_cannot_be_read_name_their_znode(data: bytes) -> None:
    with pytest.raises(CoordinationError, match=PATH):
        decode_offset(PATH, data)
    assert decode_offset(PATH, encode_offset(2**63 - 1)) == 2**63 - 1
