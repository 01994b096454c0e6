"""Messages to the service manager that started this process (systemd, sd_notify(3)): ready, alive, stopping.

NOTIFY_SOCKET names the manager's socket; without it nothing is sent. Invariants: a message never blocks and never fails
the service, and is lost if the manager does not take it; only that the service is ready is told until it is taken,
since nobody would tell it again. Signs of life come from a task of the event loop, so a loop that hangs gives none.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import trio

INTERVAL_S = 10.0
"""Time between signs of life if the manager has no watchdog."""
SIGNS_IN_TIME = 3
"""Signs of life within the time after which the manager gives the service up."""
LOOK_INTERVAL_S = 0.1


@dataclass(slots=True)
class ServiceManager:
    """The service manager of this process, or nobody."""

    address: str | None
    """Path of the socket; an abstract one begins with @."""
    interval_s: float = INTERVAL_S
    is_stopping: bool = False

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], pid: int) -> Self:
        """Return the manager that a process's environment names."""
        address = environment.get("NOTIFY_SOCKET")
        watchdog = environment.get("WATCHDOG_USEC", "")
        is_watched = (
            watchdog.isdecimal() and int(watchdog) > 0 and environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        )
        interval_s = int(watchdog) / 1e6 / SIGNS_IN_TIME if is_watched else INTERVAL_S
        return cls(address if address and address[0] in "/@" else None, interval_s)

    def tell(self, *assignments: str) -> bool:
        """Send assignments such as READY=1. Return False if there is a manager that did not take them."""
        if self.address is None:
            return True
        name = self.address.replace("@", "\0", 1) if self.address.startswith("@") else self.address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(assignments).encode(errors="replace"), name)
            return True
        return False

    async def keep_alive(self) -> None:
        """Give signs of life until cancelled. Each one extends the time of a start, but not that of a stop."""
        extension = f"EXTEND_TIMEOUT_USEC={self.interval_s * SIGNS_IN_TIME * 1e6:.0f}"
        while self.address is not None:
            self.tell("WATCHDOG=1", *(() if self.is_stopping else (extension,)))
            await trio.sleep(self.interval_s)

    async def announce(self, why_not_ready: Callable[[], str | None]) -> None:
        """Tell that the service is ready as soon as it is; until then, the reason why not."""
        told: str | None = ""
        while self.address is not None and (reason := why_not_ready()) is not None:
            if reason != told:
                self.tell(f"STATUS={' '.join(reason.split())}")
                told = reason
            await trio.sleep(LOOK_INTERVAL_S)
        while True:
            if self.tell("READY=1", "STATUS=ready"):
                return
            await trio.sleep(LOOK_INTERVAL_S)

    def note_stop(self) -> None:
        """Tell that the service stops."""
        self.is_stopping = True
        self.tell("STOPPING=1", "STATUS=stopping")


def service_manager() -> ServiceManager:
    """Return the service manager of this process."""
    return ServiceManager.of_environment(os.environ, os.getpid())
