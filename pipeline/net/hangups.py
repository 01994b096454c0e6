"""Clients that leave while their request is being answered, which reading would only show afterwards.

An epoll of its own waits for the one event that a peer has ended its side (EPOLLRDHUP, edge-triggered): what the peer
sent before stays unread in the socket, and a connection is registered once, however often it waits.
"""

import select
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

_GONE = select.EPOLLRDHUP | select.EPOLLET


@dataclass(slots=True)
class Hangups:
    """Tells when watched sockets are given up by their peers. Owns its epoll while `run` runs."""

    _epoll: select.epoll = field(default_factory=select.epoll)
    _watched: dict[int, Callable[[], None]] = field(default_factory=dict)

    def watch(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        """Have `on_gone` called once the peer has ended its side. A second watch of a connection does nothing."""
        if descriptor not in self._watched:
            self._watched[descriptor] = on_gone
            self._epoll.register(descriptor, _GONE)

    def forget(self, descriptor: int) -> None:
        """Watch no longer. Call before the socket is closed."""
        if self._watched.pop(descriptor, None) is not None and not self._epoll.closed:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Notify until cancelled."""
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for descriptor, _ in self._epoll.poll(0):
                    on_gone = self._watched.get(descriptor)
                    if on_gone is not None:
                        on_gone()
