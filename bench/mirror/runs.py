"""One run: a new destination and a new mirror, watched until all records have arrived, which are then counted.

Invariant: a run gives figures only if each partition of the replica holds as many records as that of the source.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import trio

from bench.broker.servers import KAFKA, Server, apache_kafka, our_broker
from bench.mirror.flows import Copied, Data, Flow
from bench.mirror.mirrors import mirror_of, replica_of
from bench.processes import ServerProcess, cpu_s, ended, peak_resident_bytes
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.errors import PipelineError
from pipeline.model import HostPort, TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.records.batch import iterate_headers

POLL_S = 0.02
ANSWER_S = 30.0
START_S = 120.0
LEAST_BYTES_PER_S = 2_000_000


class CopyError(Exception):
    """The copy is not complete, or not in time; says what is missing."""


@dataclass(slots=True)
class _Times:
    """Seconds since the mirror's start: of the first look that saw a record, the look before it, and the last one."""

    before_first: float = 0.0
    first: float = 0.0
    end: float = 0.0


def run_flow(flow: Flow, data: Data, source: Server, topic: str, directory: Path) -> Copied:
    """Copy a topic once. Raises CopyError for a copy that is not right, RuntimeError if a process ended."""
    opened = apache_kafka if flow.destination == KAFKA else our_broker
    directory.mkdir(parents=True)
    with opened(directory / "destination") as destination:
        destination.start()
        mirror = mirror_of(flow, data, topic, (source.bootstrap, destination.bootstrap), directory)
        with ended(mirror):
            before_s = source.cpu_with_zookeeper_s + destination.cpu_with_zookeeper_s
            times = trio.run(_watch, mirror, destination, replica_of(flow, topic), data)
            mirror_s = cpu_s(mirror.pid)
            all_s = mirror_s + source.cpu_with_zookeeper_s + destination.cpu_with_zookeeper_s - before_s
            peak = peak_resident_bytes(mirror.pid)
        trio.run(_check, destination, replica_of(flow, topic), data)
    gigabytes = data.payload_bytes / 1e9
    return Copied(
        payload=data.payload_bytes / 1e6 / (times.end - times.before_first),
        mirror_cpu=mirror_s / gigabytes,
        all_cpu=all_s / gigabytes,
        peak_rss=peak / 1e6,
        first_record=times.first,
    )


async def _watch(mirror: ServerProcess, destination: Server, topic: str, data: Data) -> _Times:
    """Start the mirror, and look at the ends of the replica until all offsets of the source are there."""
    deadline_s = START_S + data.payload_bytes / LEAST_BYTES_PER_S
    times = _Times()
    seen = 0
    async with open_cluster(client_of(destination)) as cluster:
        await cluster.refresh()
        started = time.monotonic()
        mirror.launch()
        while seen < data.records:
            await trio.sleep(POLL_S)
            mirror.check()
            seen = await _records_at(cluster, topic, data)
            now = time.monotonic() - started
            if seen and not times.first:
                times.first = now
            elif not seen:
                times.before_first = now
            if now > deadline_s:
                raise CopyError(f"{seen} of {data.records} records after {deadline_s:.0f} s")
        times.end = now
    return times


async def wait_for_records(mirror: ServerProcess, destination: Server, topic: str, data: Data, records: int) -> None:
    """Start the mirror, and wait until the replica has so many records. Raises CopyError after START_S."""
    mirror.launch()
    with trio.move_on_after(START_S):
        async with open_cluster(client_of(destination)) as cluster:
            await cluster.refresh()
            while await _records_at(cluster, topic, data) < records:
                mirror.check()
                await trio.sleep(POLL_S)
            return
    raise CopyError(f"fewer than {records} records after {START_S:.0f} s")


async def _records_at(cluster: Cluster, topic: str, data: Data) -> int:
    """The sum of the log end offsets of a topic; 0 until it exists."""
    if topic not in cluster.view.topics:
        found = (await cluster.fetch_all_topics()).topics.get(topic)
        if found is None or len(found.led_partitions) < data.partitions:
            return 0
        await cluster.topic(topic)
    partitions = {TopicPartition(topic, number): LATEST for number in range(data.partitions)}
    listed = await list_offsets(cluster, partitions, timeout_s=ANSWER_S)
    return sum(each.offset for each in listed.values())


async def _check(destination: Server, topic: str, data: Data) -> None:
    """Raise CopyError unless each partition holds as many records as at the source, by the headers of its batches."""
    counts = dict.fromkeys(range(data.partitions), 0)
    async with open_cluster(client_of(destination)) as cluster:
        await cluster.topic(topic)
        partitions = {TopicPartition(topic, number): LATEST for number in range(data.partitions)}
        left = {each: end.offset for each, end in (await list_offsets(cluster, partitions, timeout_s=ANSWER_S)).items()}
        async with open_consumer(cluster, ConsumerConfig(max_bytes=16 << 20, max_partition_bytes=4 << 20)) as consumer:
            consumer.assign(dict.fromkeys(left, 0))
            while any(consumer.position(each) < end for each, end in left.items()):
                try:
                    polled = await consumer.poll_batches(ANSWER_S)
                except PipelineError as error:
                    raise CopyError(f"the replica cannot be read: {error}") from error
                if not polled:
                    raise CopyError(f"the replica cannot be read to its end within {ANSWER_S:.0f} s")
                for batches in polled:
                    headers = (header for _, header in iterate_headers(batches.data))
                    counts[batches.topic_partition.partition] += sum(
                        header.record_count for header in headers if not header.is_control
                    )
    wrong = [number for number, count in data.counts.items() if counts[number] != count]
    if wrong:
        raise CopyError(
            f"partition {wrong[0]} has {counts[wrong[0]]} records in place of {data.counts[wrong[0]]}; "
            f"{len(wrong)} partitions are wrong"
        )


def client_of(server: Server) -> ClientConfig:
    """Settings of a client of the server."""
    return ClientConfig(bootstrap=(HostPort(server.process.host, server.process.port),), client_id="bench-mirror")
