"""Thousands of requests that nobody should send, to every api key served, from a fixed seed: each ends its
connection or is answered, the process lives, its memory is flat, and what it keeps is intact.
"""

import contextlib
import selectors
import socket
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.broker.requests.dispatch import SERVED
from pipeline.processes import free_port
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.blocking_client import BlockingClient
from tests.support.broker import configured_broker
from tests.support.hostile import HostileRequests

CASES = 100_000
SEED = 20110612
NAMES = ("", "a", "b", "c", "missing", "group", "range", "retention.ms", "-1", "\N{SNOWMAN}" * 100)
CONNECTIONS = 32
PIPELINED = 8
DEADLINE_S = 60
SILENCE_S = 2.0
"""A request that waits (JoinGroup) is left alone after this."""
WARM_SHARE = 4
MAX_GROWTH_MB = 40


@dataclass(slots=True)
class Attack:
    """One connection, with a few cases sent at once; its end of sending tells the broker that no more come."""

    connection: socket.socket
    cases: Sequence[bytes]
    received: bytearray = field(default_factory=bytearray)

    def start(self) -> None:
        self.connection.settimeout(SILENCE_S)
        with contextlib.suppress(OSError):  # closed while we were sending, or it does not read on before it is heard
            self.connection.sendall(b"".join(self.cases))
            self.connection.shutdown(socket.SHUT_WR)

    def answered(self, *, is_cut_off: bool) -> int:
        """How many cases are behind us: those up to the last one answered, and the one that ended the connection.

        `is_cut_off`: the broker has not ended the connection, and may have been in the middle of an answer.
        """
        position, last = 0, -1
        first = struct.unpack_from(">i", self.cases[0], 8)[0]
        while position + 8 <= len(self.received):
            size, correlation_id = struct.unpack_from(">ii", self.received, position)
            if position + 4 + size > len(self.received):
                break
            last = correlation_id - first
            position += 4 + size
        assert is_cut_off or position == len(self.received), "an answer that is not whole"
        return last + 1


def attack(address: tuple[str, int], cases: Sequence[bytes], outcomes: Counter[str]) -> None:
    """Send all cases over connections of which many are open at once."""
    chunks = [list(cases[start : start + PIPELINED]) for start in range(0, len(cases), PIPELINED)]
    with selectors.DefaultSelector() as selector:
        while chunks or selector.get_map():
            while chunks and len(selector.get_map()) < CONNECTIONS:
                one = Attack(socket.create_connection(address, DEADLINE_S), chunks.pop())
                one.start()
                selector.register(one.connection, selectors.EVENT_READ, one)
            ready = selector.select(SILENCE_S)
            ended = [key.data for key, _ in ready if not has_more(key.data)]
            if not ready:
                ended = [key.data for key in selector.get_map().values()]
                outcomes["waits"] += len(ended)
            for one in ended:
                selector.unregister(one.connection)
                one.connection.close()
                answered = one.answered(is_cut_off=not ready)
                outcomes["answered"] += answered
                outcomes["closed"] += answered < len(one.cases)
                if rest := one.cases[answered + 1 :]:
                    chunks.append(rest)


def has_more(one: Attack) -> bool:
    try:
        received = one.connection.recv(1 << 20)
    except ConnectionResetError:
        return False
    one.received += received
    return bool(received)


def produce(client: BlockingClient, topic: str, count: int) -> None:
    for number in range(count):
        builder = BatchBuilder(Codec.NONE, 10_000)
        builder.append(b"%d" % number, bytes(1000), (), number)
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(records=builder.build())])
        response = client.ask(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[data]), 9)
        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 0


def fetched(client: BlockingClient, topic: str) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000_000)
    request = FetchRequest(max_bytes=10_000_000, topics=[FetchTopic(topic=topic, partitions=[partition])])
    response = client.ask(request, 11)
    assert isinstance(response, FetchResponse)
    data = response.responses[0].partitions[0]
    assert data.error_code == 0
    return bytes(data.records or b"")  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_hostile_requests_harm_no_other_client(
    tmp_path: Path, zookeeper: str, record_property: Callable[[str, object], None]
) -> None:
    port = free_port()
    address = ("127.0.0.1", port)
    outcomes: Counter[str] = Counter()
    cases = list(HostileRequests(SERVED, NAMES, SEED).frames(CASES))
    warm_cases = CASES // WARM_SHARE
    with configured_broker(tmp_path, zookeeper, broker_id=1, port=port) as broker, contextlib.ExitStack() as stack:
        broker.start()
        good = stack.enter_context(BlockingClient(address))
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("kept", *NAMES[1:3])]
        good.ask(CreateTopicsRequest(topics=topics), 4)
        produce(good, "kept", 200)
        before = fetched(good, "kept")
        attack(address, cases[:warm_cases], outcomes)
        warm_mb = broker.resident_mb
        attack(address, cases[warm_cases:], outcomes)
        resident_mb = broker.resident_mb
        for outcome, count in outcomes.items():
            record_property(outcome, count)
        print(f"{dict(outcomes)}, {warm_mb:.0f} MB after {warm_cases} cases, {resident_mb:.0f} MB after {CASES}")
        assert "handler_failed" not in broker.log.read_text()
        assert resident_mb - warm_mb < MAX_GROWTH_MB
        assert fetched(good, "kept") == before
        produce(good, "kept", 1)
        broker.stop()
        broker.start()
        assert fetched(stack.enter_context(BlockingClient(address)), "kept").startswith(before)
        assert broker.stop() == 0
