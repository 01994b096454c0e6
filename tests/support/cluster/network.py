"""Hosts of their own on this machine: network namespaces joined by a bridge; and cuts in one direction.

This process must be in a namespace of its own already (`isolated` gives the command for that, which needs no root);
it is the host GATEWAY, where clients and ZooKeeper are. What is cut is sent to an Ethernet address that nobody has: it
is lost without a word, in this direction alone, by a means that every kernel has.

Invariant: a host is gone when its keeper is, and the keeper dies with this process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.processes import DIE_WITH_PARENT

GATEWAY = "10.77.0.254"
BRIDGE = "bridge0"
INTERFACE = "eth0"
NOBODY = "02:00:00:00:00:ff"
COMMAND_DEADLINE_S = 60
NEEDED = (
    "cuts need user and network namespaces with veth and bridge devices (Linux, user.max_user_namespaces > 0, "
    "packages util-linux and iproute2)"
)


class NetworkError(Exception):
    """The machine cannot have such a network; says what failed and what is needed."""


def isolated(command: Sequence[str]) -> list[str]:
    """The command that runs `command` in a network of its own, as its root."""
    return ["unshare", "--user", "--map-root-user", "--net", *command]


def require_networks() -> None:
    """Raises NetworkError unless a process of this user may have a network of its own."""
    run_command(*isolated(["ip", "link", "add", BRIDGE, "type", "bridge"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where a process may run."""

    address: str
    keeper: int
    """The process whose network it is."""
    ethernet_address: str

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` there; it has the process id of the first."""
        return [*_inside(self.keeper), *command]


class Network:
    """Hosts by number: 10.77.0.1 and so on."""

    def __init__(self, hosts: dict[int, Host], gateway: Host) -> None:
        self.hosts = hosts
        self._gateway = gateway

    def cut_sending(self, number: int) -> None:
        """Nothing that this host sends arrives; it still hears the others."""
        for other in self._others(number):
            _lose(self.hosts[number], other)

    def cut_hearing(self, number: int) -> None:
        """Nothing arrives that is sent to this host; the others still hear it."""
        for other in self._others(number):
            _lose(other, self.hosts[number])

    def heal(self, number: int) -> None:
        """End both."""
        for other in self._others(number):
            _reach(self.hosts[number], other)
            _reach(other, self.hosts[number])

    def _others(self, number: int) -> Iterator[Host]:
        yield self._gateway
        yield from (host for each, host in self.hosts.items() if each != number)


@contextmanager
def network(numbers: Iterable[int]) -> Iterator[Network]:
    """Hosts with these numbers. Raises NetworkError."""
    keepers: list[subprocess.Popen[bytes]] = []
    try:
        _ip("link", "set", "lo", "up")
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("address", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        hosts = {}
        for number in numbers:
            keepers.append(_new_keeper())
            hosts[number] = _join(number, keepers[-1].pid)
        gateway = Host(address=GATEWAY, keeper=os.getpid(), ethernet_address=_ethernet_address(BRIDGE))
        yield Network(hosts, gateway)
    finally:
        for keeper in keepers:
            keeper.kill()
            keeper.wait()


def _new_keeper() -> subprocess.Popen[bytes]:
    said = "echo ready; exec sleep infinity"
    command = ["unshare", "--net", "sh", "-c", said]
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert keeper.stdout is not None
    if keeper.stdout.readline() != b"ready\n":
        keeper.kill()
        keeper.wait()
        raise NetworkError(f"unshare --net failed: {NEEDED}")
    return keeper


def _join(number: int, keeper: int) -> Host:
    address, outside = f"10.77.0.{number}", f"veth{number}"
    _ip("link", "add", outside, "type", "veth", "peer", "name", INTERFACE, "netns", str(keeper))
    _ip("link", "set", outside, "master", BRIDGE, "up")
    inside = _inside(keeper)
    run_command(*inside, "ip", "link", "set", "lo", "up")
    run_command(*inside, "ip", "address", "add", f"{address}/24", "dev", INTERFACE)
    run_command(*inside, "ip", "link", "set", INTERFACE, "up")
    return Host(address=address, keeper=keeper, ethernet_address=_ethernet_address(INTERFACE, inside))


def _ethernet_address(interface: str, inside: Sequence[str] = ()) -> str:
    found: str = json.loads(run_command(*inside, "ip", "-json", "link", "show", interface))[0]["address"]
    return found


def _lose(sender: Host, receiver: Host) -> None:
    _set_neighbour(sender, receiver, NOBODY)


def _reach(sender: Host, receiver: Host) -> None:
    _set_neighbour(sender, receiver, receiver.ethernet_address)


def _set_neighbour(host: Host, other: Host, ethernet_address: str) -> None:
    interface = BRIDGE if host.address == GATEWAY else INTERFACE
    change = ["ip", "neighbour", "replace", other.address, "lladdr", ethernet_address, "dev", interface]
    run_command(*(_inside(host.keeper) if host.keeper != os.getpid() else ()), *change, "nud", "permanent")


def _inside(keeper: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{keeper}/ns/net"]


def _ip(*arguments: str) -> None:
    run_command("ip", *arguments)


def run_command(*command: str) -> str:
    """Run a command to its end and return its output. Raises NetworkError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S, check=False)
    except OSError as error:
        raise NetworkError(f"{command[0]}: {error.strerror}; {NEEDED}") from error
    if done.returncode:
        raise NetworkError(f"`{' '.join(command)}` failed: {done.stderr.strip()}; {NEEDED}")
    return done.stdout
