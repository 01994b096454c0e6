"""A mirror over a long way, in a network of its own: `measure` starts this module there with JSON.

The source is on one host, the hub and the mirror beside it on another one. The rate of the mirror is compared with what
plain TCP connections carry over the same way just before.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import trio

from bench.processes import ServerProcess, ended
from pipeline.cli.foreground import read_json
from pipeline.cli.terminal.connect import connected, wall_clock
from pipeline.cli.terminal.settings import write_settings
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.model import TopicPartition
from pipeline.processes import DIE_WITH_PARENT
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.cluster.network import Host, isolated, network, require_networks
from tests.support.cluster.systems import PORT, Place, our_cluster
from tests.support.cluster.wan import Counts, Way, wan
from tests.support.copies import log_ends, read_logs

TOPIC = "clicks"
MIRROR_PORT = 8090
LINK_PORT = 5001
LINK_CONNECTIONS = 64
LINK_S = 6.0
WARM_UP_S = 2.0
"""Time in which the connections of TCP find their rate."""
BATCH_BYTES = 64 * 1024
REQUEST_BYTES = 8 * 1024 * 1024
POLL_S = 0.1
DEADLINE_S = 240
ONE_REPLICA = {"default.replication.factor": 1, "min.insync.replicas": 1, "offsets.topic.replication.factor": 1}
STEADY = (0.15, 0.85)
"""Shares of the records between which the rate is measured: before, connections are opened; behind, few partitions are
left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The way, and what is copied over it."""

    way: Way
    partitions: int
    megabytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes per second of payload, and what was seen meanwhile."""

    link: float
    mirror: float
    samples: int
    unknown: int
    """Samples in which a lag was unknown."""
    false_ends: int
    """Samples without lag before all records were copied."""
    is_equal: bool
    """True if source and replica have the same bytes."""
    counts: list[Counts] = field(default_factory=list)


def measure(asked: Asked, directory: Path) -> Measured:
    """Measure in a network of its own. Raises NetworkError, or RuntimeError if the process ends without figures."""
    require_networks()
    said = json.dumps({**asdict(asked), "directory": str(directory)})
    inside = isolated([sys.executable, "-m", "tests.support.cluster.wan_mirror", said])
    log = directory / "run.log"
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *inside],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            answer = process.stdout.read()
        finally:
            process.send_signal(signal.SIGTERM)
    if process.returncode or not answer:
        raise RuntimeError(f"the run ended with {process.returncode}; {log} ends:\n{log.read_text()[-3000:]}")
    found = json.loads(answer)
    return Measured(**{**found, "counts": [Counts(**counts) for counts in found["counts"]]})


def main() -> None:
    """Measure what the argument asks for and print the figures."""
    said = json.loads(sys.argv[1])
    directory = Path(said.pop("directory"))
    asked = Asked(**{**said, "way": Way(**said["way"])})
    with network([1, 2]) as hosts:
        print(json.dumps(asdict(_measure(asked, directory, hosts.hosts[1], hosts.hosts[2]))))


def _measure(asked: Asked, directory: Path, far: Host, near: Host) -> Measured:
    with (
        our_cluster(directory / "source", [_place(far)], ONE_REPLICA) as source,
        our_cluster(directory / "hub", [_place(near)], ONE_REPLICA) as hub,
    ):
        source.start()
        hub.start()
        size, offsets = trio.run(_fill, source.bootstrap, asked)
        with wan(far, near, asked.way) as opened:
            link = _link_rate(far, near)
            samples = _copy(asked, offsets, directory, near, (source.bootstrap, hub.bootstrap))
        is_equal = trio.run(_are_equal, source.bootstrap, hub.bootstrap, asked.partitions)
    begin, end = (next(each for each in samples if each.copied >= share * offsets) for share in STEADY)
    return Measured(
        link=link,
        mirror=(end.copied - begin.copied) / (end.at - begin.at) * size / offsets,
        samples=len(samples),
        unknown=sum(each.lag is None for each in samples),
        false_ends=sum(each.lag == 0 and each.copied < offsets for each in samples),
        is_equal=is_equal,
        counts=opened.counts,
    )


def _place(host: Host) -> Place:
    return Place(number=1, host=host.address, port=PORT, controller_port=0, wrap=host.command)


async def _fill(bootstrap: str, asked: Asked) -> tuple[int, int]:
    """Write batches of random bytes to all partitions alike. Returns the numbers of bytes and records."""
    builder = BatchBuilder(Codec.NONE, BATCH_BYTES)
    records = 0
    while builder.append(None, os.urandom(700), (), wall_clock()):
        records += 1
    batch = bytes(builder.build())
    partitions = [TopicPartition(TOPIC, number) for number in range(asked.partitions)]
    of_each = max(1, asked.megabytes * 1_000_000 // len(batch) // len(partitions))
    at_once = max(1, REQUEST_BYTES // len(batch) // len(partitions))
    async with connected(bootstrap, None, "test") as cluster:
        await create_topics(cluster, [NewTopic(name=TOPIC, partitions=len(partitions), replication_factor=1)])
        for first in range(0, of_each, at_once):
            data = batch * min(at_once, of_each - first)
            results = await raw_produce(cluster, dict.fromkeys(partitions, data), keep_offsets=False, timeout_s=60)
            assert not any(result.error for result in results.values()), results
    batches = of_each * len(partitions)
    return batches * len(batch), batches * records


# The link


def _link_rate(far: Host, near: Host) -> float:
    """Return the bytes per second that plain connections carry from the far host to the near one."""
    command = [sys.executable, "-m", "tests.support.cluster.wan_mirror"]
    with subprocess.Popen(far.command([*command, "--serve"]), stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            done = subprocess.run(
                near.command([*command, "--receive", far.address]), capture_output=True, check=True, timeout=DEADLINE_S
            )
        finally:
            server.kill()
    return float(done.stdout)


def serve_bytes() -> None:
    """Send bytes to all who connect, until killed."""
    listener = socket.create_server(("0.0.0.0", LINK_PORT), backlog=2 * LINK_CONNECTIONS)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_send, args=(connection,), daemon=True).start()


def _send(connection: socket.socket) -> None:
    data = bytes(256 * 1024)
    try:
        while True:
            connection.sendall(data)
    except OSError:
        return


def receive_bytes(address: str) -> None:
    """Print the bytes per second that arrive over many connections."""
    connections = [socket.create_connection((address, LINK_PORT)) for _ in range(LINK_CONNECTIONS)]
    by_number = {connection.fileno(): connection for connection in connections}
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN)
    began, received, buffer = time.monotonic(), 0, bytearray(1 << 20)
    counted_from = began + WARM_UP_S
    while (now := time.monotonic()) < counted_from + LINK_S:
        for number, _ in poll.poll(100):
            size = by_number[number].recv_into(buffer)
            received += size if now >= counted_from else 0
    print(received / LINK_S)


# The mirror


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    at: float
    copied: int
    """Records, by the ends of the replicas."""
    lag: int | None
    """Of all partitions; None if one is unknown."""


def _copy(asked: Asked, offsets: int, directory: Path, near: Host, bootstraps: tuple[str, str]) -> list[_Sample]:
    """Copy all, and return what the mirror said of itself meanwhile, once it copies and all partitions are located."""
    config = directory / "mirror.toml"
    source, hub = bootstraps
    settings: dict[str, Any] = {
        "destination.bootstrap.servers": hub,
        "topics": [TOPIC],
        "http.listen": f"{near.address}:{MIRROR_PORT}",
        "sources": [{"name": "east", "bootstrap.servers": source}],
    }
    write_settings(config, settings)
    command = near.command([sys.executable, "-m", "pipeline", "mirror", "start", "--config", str(config)])
    mirror = ServerProcess(command, MIRROR_PORT, directory / "mirror.log", host=near.address)
    samples: list[_Sample] = []
    deadline = time.monotonic() + DEADLINE_S
    with ended(mirror):
        mirror.launch()
        mirror.wait_for_port()
        while not samples or samples[-1].copied < offsets or samples[-1].lag != 0:
            assert time.monotonic() < deadline, f"{samples[-1:]} of {offsets} records after {DEADLINE_S} s"
            mirror.check()
            sample = _sample(f"http://{near.address}:{MIRROR_PORT}", asked.partitions)
            if samples or (sample.copied and sample.lag is not None):
                samples.append(sample)
            time.sleep(POLL_S)
    return samples


def _sample(url: str, partitions: int) -> _Sample:
    at = time.monotonic()
    document = read_json(f"{url}/v1/status")
    found = [each for source in document["sources"] for each in source["partitions"]]
    lags = [each["lag"] for each in found]
    is_known = len(lags) == partitions and None not in lags
    copied = sum(each["position"] or 0 for each in found)
    return _Sample(at=at, copied=copied, lag=sum(lags) if is_known else None)


async def _are_equal(source: str, hub: str, count: int) -> bool:
    partitions = [TopicPartition(TOPIC, number) for number in range(count)]
    async with connected(source, None, "test") as original, connected(hub, None, "test") as copy:
        if await log_ends(original, partitions) != await log_ends(copy, partitions):
            return False
        return await read_logs(original, partitions) == await read_logs(copy, partitions)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--serve"]:
            serve_bytes()
        case ["--receive", address]:
            receive_bytes(address)
        case _:
            main()
