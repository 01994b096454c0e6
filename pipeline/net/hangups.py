"""Notices clients that leave while their request is being handled, when nobody reads from their connection.

A separate epoll waits for one event, that a peer has ended its side (EPOLLRDHUP, edge-triggered): bytes that the peer
sent before stay unread in the socket, and a connection is registered once, however often it waits.
"""

import select
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

_GONE = select.EPOLLRDHUP | select.EPOLLET


@dataclass(slots=True)
class Hangups:
    """Notices when peers end their side of watched sockets. Owns its epoll while `run` runs."""

    _epoll: select.epoll = field(default_factory=select.epoll)
    _watched: dict[int, Callable[[], None]] = field(default_factory=dict)

    def watch(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        """Have `on_gone` called once the peer has ended its side. A second watch of a connection does nothing."""
        if descriptor not in self._watched:
            self._watched[descriptor] = on_gone
            self._epoll.register(descriptor, _GONE)

    def forget(self, descriptor: int) -> None:
        """Stop watching a connection. Call before its socket is closed."""
        if self._watched.pop(descriptor, None) is not None and not self._epoll.closed:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Call `on_gone` of peers that leave, until cancelled."""
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for descriptor, _ in self._epoll.poll(0):
                    on_gone = self._watched.get(descriptor)
                    if on_gone is not None:
                        on_gone()
