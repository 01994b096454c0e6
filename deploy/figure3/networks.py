"""Network namespaces of the figure: one for each host, and a router for each datacenter.

Hosts of a datacenter hang on the bridge of its router. The host USERS has a leg in every datacenter: users, and the
measurements, come from there. Between the routers of live datacenters and of the hub is the long way, see `wan.py`.

Invariants: all names begin with PREFIX, so that `remove` needs no notes. Nothing is changed outside these namespaces.
The machine has one figure: one command at a time makes or removes namespaces, and none those of another checkout.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from deploy.figure3.errors import FigureError

PREFIX = "figure3-"
USERS = "users"
USERS_NUMBER = 200
ROUTER_NUMBER = 254
NAMES = Path("/run/netns")
LOCK = Path("/run/figure3.lock")
OWNER = Path("/run/figure3.owner")
"""File with the folder of the figure that is up."""
END_S = 30.0


@contextmanager
def turn() -> Iterator[None]:
    """Wait until no other command brings a figure up or takes it down, and keep others waiting during the block."""
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("figure3: another command is at work; this one waits until it has ended", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def require_own(folder: Path) -> None:
    """Raise FigureError if the namespaces are those of a figure in another folder."""
    with suppress(FileNotFoundError):
        owner = Path(OWNER.read_text())
        if owner != folder and owner.exists() and existing_hosts():
            raise FigureError(f"the figure of {owner} is up on this machine; run `python -m deploy.figure3 down` there")


def inside(host: str, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` on a host: it keeps the process id."""
    return ["ip", "netns", "exec", f"{PREFIX}{host}", *command]


def run(*command: str) -> str:
    """Run a command to its end and return its output. Raises FigureError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise FigureError(f"{command[0]}: {error.strerror}; the figure needs iproute2") from error
    if done.returncode:
        raise FigureError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def existing_hosts() -> set[str]:
    """Return the hosts that have a namespace, routers included."""
    return {path.name.removeprefix(PREFIX) for path in NAMES.glob(f"{PREFIX}*")}


def is_on(host: str, pid: int) -> bool:
    """True if a process lives and is in the namespace of a host, so that it is one of the figure."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino == (NAMES / f"{PREFIX}{host}").stat().st_ino
    except OSError:
        return False


def processes_on(host: str) -> Iterator[int]:
    """Yield the processes in a namespace."""
    yield from map(int, run("ip", "netns", "pids", f"{PREFIX}{host}").split())


def create(folder: Path, subnets: Mapping[str, str], hosts: Mapping[str, tuple[str, str]]) -> None:
    """Make all namespaces, for the figure in a folder. Raises FigureError.

    `subnets`: first three numbers of addresses by datacenter. `hosts`: datacenter and address.
    """
    OWNER.write_text(str(folder))
    for datacenter, subnet in subnets.items():
        _new(datacenter)
        _ip(datacenter, "link", "add", "bridge", "type", "bridge")
        _ip(datacenter, "address", "add", f"{subnet}.{ROUTER_NUMBER}/24", "dev", "bridge")
        _ip(datacenter, "link", "set", "bridge", "up")
        run(*inside(datacenter, ["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]))
    _new(USERS)
    for datacenter, subnet in subnets.items():
        _join(USERS, f"to-{datacenter}", datacenter, f"{subnet}.{USERS_NUMBER}")
    for host, (datacenter, address) in hosts.items():
        _new(host)
        _join(host, "eth0", datacenter, address)
        _ip(host, "route", "add", "default", "via", f"{subnets[datacenter]}.{ROUTER_NUMBER}")


def _new(host: str) -> None:
    run("ip", "netns", "add", f"{PREFIX}{host}")
    _ip(host, "link", "set", "lo", "up")


def _join(host: str, interface: str, datacenter: str, address: str) -> None:
    there = ["netns", f"{PREFIX}{datacenter}"]
    run("ip", "link", "add", host, *there, "type", "veth", "peer", "name", interface, "netns", f"{PREFIX}{host}")
    _ip(datacenter, "link", "set", host, "master", "bridge", "up")
    _ip(host, "address", "add", f"{address}/24", "dev", interface)
    _ip(host, "link", "set", interface, "up")


def _ip(host: str, *arguments: str) -> None:
    run("ip", "-n", f"{PREFIX}{host}", *arguments)


def remove() -> None:
    """End all processes in namespaces of the figure, at once, and remove the namespaces. Raises FigureError."""
    deadline = time.monotonic() + END_S
    while pids := [pid for host in existing_hosts() for pid in processes_on(host)]:
        if time.monotonic() > deadline:
            raise FigureError(f"processes {pids} do not end after SIGKILL")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for host in existing_hosts():
        run("ip", "netns", "delete", f"{PREFIX}{host}")
    OWNER.unlink(missing_ok=True)


def is_command_available() -> bool:
    """True if this process may make namespaces: root, with iproute2."""
    try:
        return os.geteuid() == 0 and isinstance(json.loads(run("ip", "-json", "link", "show", "lo")), list)
    except (FigureError, ValueError):
        return False
