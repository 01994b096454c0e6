"""A long way between two hosts of a `Network`: packets arrive late, some never, and no more of them than a rate allows.

Two TUN devices, one in each host, and a process that reads packets of the one and writes them to the other. TCP at both
ends is the kernel's. It takes the place of the kernel's netem, which not every kernel has. As there, a packet is lost
before it takes up room in the queue, and packets keep their order: loss, then a queue of bounded bytes that the
rate empties, then the delay.

Invariant: the way is gone when its process is, which dies with its parent. The hosts reach each other quickly then.
"""

import fcntl
import json
import math
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from pipeline.processes import DIE_WITH_PARENT
from tests.support.cluster.network import Host, NetworkError, run_command

TUN = "/dev/net/tun"
TUNSETIFF = 0x400454CA
IFF_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
DEVICE_QUEUE = 10_000
"""Packets that wait for the process, so that none is lost while it does not run."""
MAX_PACKET_BYTES = 65_536
READS_IN_A_ROW = 64
MTU = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Properties of a way, the same in both directions."""

    bytes_per_s: float
    """Rate of IP packets with their headers."""
    delay_s: float
    """Time that a packet takes in one direction."""
    loss: float
    """Share of the packets that is lost by chance."""
    queue_bytes: int
    """Bytes that may wait for the rate. A packet that finds no room is dropped."""
    congestion_control: str = "cubic"
    """Algorithm of TCP at both ends."""
    seed: int = 1


@dataclass(slots=True)
class Counts:
    """Packets of one direction."""

    delivered: int = 0
    lost: int = 0
    """By chance."""
    overflowed: int = 0
    """Without room in the queue."""


class Direction:
    """Packets of one direction on their way. Pure: times are passed in."""

    def __init__(self, way: Way, seed: int) -> None:
        self._way = way
        self._random = random.Random(seed)
        self._free_at = -math.inf
        self._packets: deque[tuple[float, bytes]] = deque()
        self.counts = Counts()

    def accept(self, packet: bytes, now: float) -> None:
        """Take in a packet: lose it, drop it, or have it wait."""
        if self._random.random() < self._way.loss:
            self.counts.lost += 1
            return
        begins_at = max(self._free_at, now)
        if (begins_at - now) * self._way.bytes_per_s + len(packet) > self._way.queue_bytes:
            self.counts.overflowed += 1
            return
        self._free_at = begins_at + len(packet) / self._way.bytes_per_s
        self._packets.append((self._free_at + self._way.delay_s, packet))

    def take(self, now: float) -> Iterator[bytes]:
        """Yield the packets that have arrived, in their order."""
        while self._packets and self._packets[0][0] <= now:
            self.counts.delivered += 1
            yield self._packets.popleft()[1]

    @property
    def next_at(self) -> float:
        """Time at which the next packet arrives."""
        return self._packets[0][0] if self._packets else math.inf


@dataclass(slots=True)
class Wan:
    """A way that is open. `counts` are known when it is closed, by the direction from the first and second host."""

    counts: list[Counts] = field(default_factory=list)


@contextmanager
def wan(first: Host, second: Host, way: Way) -> Iterator[Wan]:
    """Have all packets between two hosts take this way until the block ends. Raises NetworkError."""
    opened = Wan()
    devices: list[int] = []
    relay: subprocess.Popen[str] | None = None
    try:
        for name, here, there in (("wan1", first, second), ("wan2", second, first)):
            devices.append(new_device(name))
            _route(name, here, there, way.congestion_control)
        relay = _start_relay(devices, way)
        yield opened
    finally:
        for device in devices:
            os.close(device)
        if relay is not None:
            relay.send_signal(signal.SIGTERM)
            said, _ = relay.communicate()
            opened.counts += [Counts(**counts) for counts in json.loads(said or "[]")]


def _start_relay(devices: Sequence[int], way: Way) -> subprocess.Popen[str]:
    relay = subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid())),
            *(sys.executable, "-m", "tests.support.cluster.wan"),
            *(*map(str, devices), json.dumps(asdict(way))),
        ],
        pass_fds=devices,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert relay.stdout is not None
    if relay.stdout.readline() != "ready\n":
        raise NetworkError("the process of the way has ended")
    return relay


def new_device(name: str) -> int:
    """Return the descriptor of a new device, which is in this process's network and gone when nobody has it open."""
    try:
        descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_WITHOUT_HEADER))
    except OSError as error:
        raise NetworkError(f"{TUN}: {error.strerror}; a long way needs TUN devices that this user may open") from error
    return descriptor


def _route(name: str, here: Host, there: Host, congestion_control: str) -> None:
    """Have a host send through this device to the other one."""
    run_command("ip", "link", "set", name, "netns", str(here.keeper))
    inside = here.command(["ip"])
    run_command(*inside, "link", "set", name, "mtu", str(MTU), "txqueuelen", str(DEVICE_QUEUE), "up")
    through = ["dev", name, "src", here.address, "congctl", congestion_control]
    run_command(*inside, "route", "add", f"{there.address}/32", *through)


def main() -> None:
    """Relay between two devices until SIGTERM, then print the counts."""
    *devices, said = sys.argv[1:]
    way = Way(**json.loads(said))
    directions = [Direction(way, way.seed * 2 + number) for number in range(2)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", flush=True)
    try:
        relay(list(map(int, devices)), directions)
    finally:
        print(json.dumps([asdict(direction.counts) for direction in directions]), flush=True)


def relay(devices: list[int], directions: list[Direction]) -> None:
    """Carry packets between two devices for ever."""
    ends = [(devices[0], devices[1], directions[0]), (devices[1], devices[0], directions[1])]
    while True:
        wait_s = min(direction.next_at for direction in directions) - time.monotonic()
        select.select(devices, [], [], None if wait_s == math.inf else max(0.0, wait_s))
        for source, target, direction in ends:
            for packet in _read(source):
                direction.accept(packet, time.monotonic())
            for packet in direction.take(time.monotonic()):
                os.write(target, packet)


def _read(device: int) -> Iterator[bytes]:
    for _ in range(READS_IN_A_ROW):
        try:
            yield os.read(device, MAX_PACKET_BYTES)
        except BlockingIOError:
            return


if __name__ == "__main__":
    main()
