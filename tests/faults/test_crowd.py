"""Five thousand clients, a thousand of which announce 100 MB and send a byte a second: the broker stays small, and
serves who behaves as before. Rates are judged by the broker's CPU, and a byte comes after so many requests of the good
client: by the clock both are those of the whole machine.
"""

import contextlib
import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pipeline.net.open_files import raise_open_files_limit
from pipeline.processes import free_port
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.blocking_client import DEADLINE_S, BlockingClient
from tests.support.broker import BrokerProcess, configured_broker

CONNECTIONS = 5000
SLOW = 1000
ANNOUNCED_BYTES = 100_000_000
REQUESTS_PER_BYTE = 5
"""So that each slow client sends one byte a second, or two, where nothing else runs."""
MAX_RESIDENT_MB = 400
LEAST_RATIO = 0.7
"""Of what the broker handles for the good client in a second of its CPU, in the crowd and alone: 0.9 where nothing else
runs."""
WINDOWS = 3
WINDOW_REQUESTS = 5000
IN_FLIGHT = 5


class GoodClient(BlockingClient):
    """Produces 10 KB at a time, five requests in flight."""

    def rates(self, broker: BrokerProcess, trickle: Iterator[None]) -> tuple[float, float]:
        """Requests per second by the clock and by the broker's CPU, in the best of some windows; `trickle` is driven on
        meanwhile.
        """
        builder = BatchBuilder(Codec.NONE, 20_000)
        builder.append(None, bytes(10_000), (), 0)
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(records=builder.build())])
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data])
        by_clock, by_cpu = [], []
        for _ in range(WINDOWS):
            started, used = time.monotonic(), cpu_seconds(broker)
            for _ in range(IN_FLIGHT):
                self.send(request, 9)
            for _ in range(WINDOW_REQUESTS):
                self.receive()
                self.send(request, 9)
                next(trickle)
            by_clock.append(WINDOW_REQUESTS / (time.monotonic() - started))
            by_cpu.append(WINDOW_REQUESTS / (cpu_seconds(broker) - used))
            for _ in range(IN_FLIGHT):
                response = self.receive()
                assert isinstance(response, ProduceResponse)
                assert response.responses[0].partition_responses[0].error_code == 0
        return max(by_clock), max(by_cpu)


def cpu_seconds(broker: BrokerProcess) -> float:
    """Of all threads that it has now, in steps of nanoseconds: `stat` counts in steps of 10 ms."""
    assert broker.process is not None
    threads = Path(f"/proc/{broker.process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def bytes_one_by_one(connections: Sequence[socket.socket]) -> Iterator[None]:
    """A byte on one connection after the other, each after so many requests."""
    for connection in itertools.cycle(connections):
        for _ in range(REQUESTS_PER_BYTE):
            yield
        connection.send(b"\0")


@contextlib.contextmanager
def connections(address: tuple[str, int], count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address, DEADLINE_S)) for _ in range(count)]


def wait_for_connections(broker: BrokerProcess, good: GoodClient, opened: Sequence[socket.socket]) -> None:
    """All are served: the last one has an answer."""
    for client in (good, BlockingClient(good.connection.getpeername(), opened[-1])):
        client.ask(MetadataRequest(), 4)


@pytest.mark.long
def test_a_crowd_costs_little_and_takes_nothing_from_others(
    tmp_path: Path, zookeeper: str, record_property: Callable[[str, object], None]
) -> None:
    raise_open_files_limit(CONNECTIONS)
    port = free_port()
    address = ("127.0.0.1", port)
    with configured_broker(tmp_path, zookeeper, broker_id=1, port=port) as broker:
        broker.start()
        good = GoodClient(address)
        good.ask(CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]), 4)
        alone, alone_by_cpu = good.rates(broker, itertools.repeat(None))
        before_mb = broker.resident_mb
        with connections(address, SLOW) as slow, connections(address, CONNECTIONS - SLOW) as idle:
            wait_for_connections(broker, good, idle)
            idle_mb = broker.resident_mb
            for connection in slow:
                connection.sendall(struct.pack(">i", ANNOUNCED_BYTES))
            crowded, crowded_by_cpu = good.rates(broker, bytes_one_by_one(slow))
            crowded_mb = broker.resident_mb
        ratio, ratio_by_cpu = crowded / alone, crowded_by_cpu / alone_by_cpu
        per_connection = (idle_mb - before_mb) * 1e6 / CONNECTIONS
        record_property("ratio", ratio)
        print(
            f"{alone:.0f} requests/s alone, {crowded:.0f} in the crowd: ratio {ratio:.2f}, by CPU {ratio_by_cpu:.2f}; "
            f"{before_mb:.0f} MB before, {idle_mb:.0f} MB with {CONNECTIONS} connections ({per_connection:.0f} bytes "
            f"each), {crowded_mb:.0f} MB at last"
        )
        assert crowded_mb < MAX_RESIDENT_MB
        assert ratio_by_cpu > LEAST_RATIO
        good.connection.close()
        assert broker.stop() == 0
