"""10,000 partitions between two of our brokers: start of the mirror, CPU while all are idle, and while 100 are busy.

All partitions hold a record when the mirror starts. Source and destination run for these rows alone.
"""

import json
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import trio

from bench.broker.clients import ClientError, confluent, create_topic
from bench.broker.servers import Server, our_broker
from bench.mirror.delays import LINGER_MS, RECORD_BYTES
from bench.mirror.flows import OWN, Data
from bench.mirror.mirrors import mirror_of
from bench.mirror.runs import client_of
from bench.processes import ServerProcess, cpu_s, ended, peak_resident_bytes
from bench.report import Options, Row, Show, Target
from pipeline.cli.terminal.connect import randomness, wall_clock
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer

TOPICS = 100
TOPIC_PARTITIONS = 100
NAME = f"{TOPICS * TOPIC_PARTITIONS:,} partitions"
BUSY = f"{NAME}, {TOPIC_PARTITIONS} busy"
RATE = 5 * TOPIC_PARTITIONS
"""Records per second to all partitions of the busy topic together."""
SECONDS = 60
CAUGHT_UP_S = 600.0
SETTLED_S = 10.0
"""Time for what the start has left to do."""
POLL_S = 1.0

COPIED = f"{NAME}: from the start of the mirror until all are copied"
COPIED_CPU = f"{NAME}: CPU of the mirror until all are copied"
IDLE_CPU = f"{NAME}, idle: CPU of the mirror"
IDLE_SOURCE_CPU = f"{NAME}, idle: CPU of the source"
IDLE_DESTINATION_CPU = f"{NAME}, idle: CPU of the destination"
BUSY_CPU = f"{BUSY}: CPU of the mirror"
BUSY_P50, BUSY_P99 = f"{BUSY}: delay p50", f"{BUSY}: delay p99"
PEAK = f"{NAME}: peak RSS of the mirror"
UNITS = {
    **dict.fromkeys((COPIED, COPIED_CPU), "s"),
    **dict.fromkeys((IDLE_CPU, IDLE_SOURCE_CPU, IDLE_DESTINATION_CPU, BUSY_CPU), "% of a core"),
    **dict.fromkeys((BUSY_P50, BUSY_P99), "ms"),
    PEAK: "MB",
}
IDLE = Target(bound=10, at_least=False, absolute=True)


def measure_many(options: Options, directory: Path, show: Show) -> list[Row]:
    """The selected rows, measured once."""
    names = [name for name in UNITS if options.selects(name)]
    if not names or (options.quick and not options.rows):
        return []
    figures: dict[str, float] = {}
    error = ""
    try:
        figures = _run(directory, show)
    except (ClientError, RuntimeError, TimeoutError) as failure:
        error = str(failure)
    targets = {IDLE_CPU: IDLE}
    return [
        Row(name=name, unit=UNITS[name], ours=figures.get(name), target=targets.get(name), error=error)
        for name in names
    ]


def _run(directory: Path, show: Show) -> dict[str, float]:
    """All figures. Raises ClientError, RuntimeError, TimeoutError."""
    with ExitStack() as stack:
        source, destination = (stack.enter_context(our_broker(directory / name)) for name in ("source", "destination"))
        for server in (source, destination):
            server.start()
        topics = []
        for number in range(TOPICS):
            show(f"{NAME}: creating topic {number + 1} of {TOPICS}")
            topics.append(create_topic(source, TOPIC_PARTITIONS))
        show(f"{NAME}: a record in each")
        trio.run(_write_records, source, topics)
        data = Data(codec="none", partitions=TOPIC_PARTITIONS, records=RATE * SECONDS)
        mirror = mirror_of(OWN, data, "bench-.*", (source.bootstrap, destination.bootstrap), directory)
        stack.enter_context(ended(mirror))
        began = time.monotonic()
        mirror.launch()
        _wait_until_caught_up(mirror, show)
        figures = {COPIED: time.monotonic() - began, COPIED_CPU: cpu_s(mirror.pid)}
        show(f"{IDLE_CPU}: {SECONDS} s")
        time.sleep(SETTLED_S)
        pids = {
            IDLE_CPU: mirror.pid,
            IDLE_SOURCE_CPU: source.process.pid,
            IDLE_DESTINATION_CPU: destination.process.pid,
        }
        figures |= _cpu_percent(pids, SECONDS)
        show(f"{BUSY}: {SECONDS} s")
        figures |= _busy(mirror, source, destination, topics[0], data)
        figures[PEAK] = peak_resident_bytes(mirror.pid) / 1e6
    return figures


async def _write_records(source: Server, topics: list[str]) -> None:
    async with (
        open_cluster(client_of(source)) as cluster,
        open_producer(cluster, ProducerConfig(), clock=wall_clock, rng=randomness()) as producer,
    ):
        for topic in topics:
            for partition in range(TOPIC_PARTITIONS):
                await producer.send(topic, b"first", partition=partition)
        await producer.flush()


def _wait_until_caught_up(mirror: ServerProcess, show: Show) -> None:
    """Wait until the mirror shows all partitions as caught up. Raises TimeoutError, RuntimeError if it has ended."""
    mirror.wait_for_port()
    deadline = time.monotonic() + CAUGHT_UP_S
    url = f"http://127.0.0.1:{mirror.port}/v1/status?partitions=troubled"
    while time.monotonic() < deadline:
        mirror.check()
        with urllib.request.urlopen(url, timeout=CAUGHT_UP_S) as answer:
            (source,) = json.load(answer)["sources"]
        caught_up = source["states"]["caught_up"]
        if caught_up == TOPICS * TOPIC_PARTITIONS:
            return
        show(f"{NAME}: {caught_up:,} caught up")
        time.sleep(POLL_S)
    raise TimeoutError(f"{caught_up} of {TOPICS * TOPIC_PARTITIONS} partitions caught up after {CAUGHT_UP_S:.0f} s")


def _cpu_percent(pids: dict[str, int], seconds: float) -> dict[str, float]:
    before, began = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    elapsed_s = time.monotonic() - began
    return {name: 100 * (cpu_s(pid) - before[name]) / elapsed_s for name, pid in pids.items()}


def _busy(mirror: ServerProcess, source: Server, destination: Server, topic: str, data: Data) -> dict[str, float]:
    asked = {
        "action": "delay",
        "destination": destination.bootstrap,
        "replica": topic,
        "begins_at": 1,
        "rate": RATE,
        "records": data.records,
        "record_bytes": RECORD_BYTES,
        "linger_ms": LINGER_MS,
        "partitions": data.partitions,
        "codec": data.codec,
        "acks": "all",
    }
    before_s, began = cpu_s(mirror.pid), time.monotonic()
    delays = confluent(source, topic, asked)
    percent = 100 * (cpu_s(mirror.pid) - before_s) / (time.monotonic() - began)
    return {BUSY_CPU: percent, BUSY_P50: delays["p50"], BUSY_P99: delays["p99"]}
