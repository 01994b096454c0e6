"""Attempts to log in: those of one address come one after the other, with a pause after each that failed.

Invariants:
- An address has at most MAX_WAITING attempts that wait for their turn; more are refused at once.
- An address takes memory only while an attempt of it waits or its pause lasts, whatever comes from how many addresses.
"""

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from pipeline.errors import PipelineError

FAILURE_PAUSE_S = 0.5
"""Time from a failed attempt to its answer, and to the next attempt of the same address."""
MAX_WAITING = 100
MAX_QUIET = 1000
"""Addresses that are kept without a look whether their pauses are over."""
_IPV6_SUBSCRIBER_BITS = 64
"""Length of the part of an IPv6 address that one customer of a provider shares."""


class TooManyAttemptsError(PipelineError):
    """Attempts of one address wait already, as many as may."""


@dataclass(slots=True)
class _Address:
    turn: trio.Lock = field(default_factory=trio.Lock)
    waiting: int = 0
    paused_until: float = float("-inf")


class LoginAttempts:
    """The attempts at one server, by address."""

    def __init__(self) -> None:
        self._addresses: dict[str, _Address] = {}

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Wait for the turn of an attempt, and hold it until the block ends. Raises TooManyAttemptsError."""
        name = _subscriber(host)
        address = self._addresses.get(name)
        if address is None:
            self._forget_quiet()
            address = self._addresses[name] = _Address()
        if address.waiting >= MAX_WAITING:
            raise TooManyAttemptsError("too many attempts to log in wait already: try again later")
        address.waiting += 1
        try:
            async with address.turn:
                await trio.sleep_until(max(address.paused_until, trio.current_time()))
                yield
        finally:
            address.waiting -= 1
            if not address.waiting and address.paused_until <= trio.current_time():
                self._addresses.pop(name, None)

    async def note_failure(self, host: str) -> None:
        """Have the address pause, and wait as long. Call it within a turn."""
        address = self._addresses[_subscriber(host)]
        address.paused_until = trio.current_time() + FAILURE_PAUSE_S
        await trio.sleep(FAILURE_PAUSE_S)

    def _forget_quiet(self) -> None:
        if len(self._addresses) >= MAX_QUIET:
            now = trio.current_time()
            quiet = [name for name, each in self._addresses.items() if not each.waiting and each.paused_until <= now]
            for name in quiet:
                del self._addresses[name]


def _subscriber(host: str) -> str:
    """Return what stands for an address: of IPv6 the first half, which its holder cannot choose."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is not None:
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_SUBSCRIBER_BITS), strict=False).network_address)
