"""The other side that is not there yet: the one way in which every service waits for it at its start.

Invariants:

- A service waits for as long as it takes. What waiting cannot mend is raised by `reach`, and ends the service at once.
- The log names the party that is missing after NOTICE_S, and every REMIND_S; and once more when it is there.
- `problem` names it from the first moment on, for `/readyz`. Before that the service is starting.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from pipeline.diagnostics import get_logger
from pipeline.net.nurseries import unwrapped_errors

NOTICE_S: Final = 2.0
"""Time in which a party that is there answers."""
REMIND_S: Final = 30.0

_Found = TypeVar("_Found")

logger = get_logger(__name__)


class Waiting:
    """The parties that a service waits for now."""

    def __init__(self) -> None:
        self._awaited: dict[str, Callable[[], str | None]] = {}
        self._has_begun = False

    @property
    def problem(self) -> str | None:
        """A sentence about each party that is not there; None once the first, and all others, were there."""
        if not self._has_begun:
            return "starting"
        return "; ".join(f"waiting for {party}: {_said(why)}" for party, why in self._awaited.items()) or None

    async def wait_for(
        self, party: str, reach: Callable[[], Awaitable[_Found]], why: Callable[[], str | None] = lambda: None
    ) -> _Found:
        """Return what `reach` returns, which waits for the party. Raises what it raises.

        `party`: name and address, `ZooKeeper at 127.0.0.1:2181`. `why`: why it is not there, as far as known.
        """
        began_s = trio.current_time()
        self._awaited[party], self._has_begun = why, True
        try:
            with unwrapped_errors():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_tell, party, why)
                    found = await reach()
                    nursery.cancel_scope.cancel()
        finally:
            del self._awaited[party]
        waited_s = trio.current_time() - began_s
        if waited_s >= NOTICE_S:
            logger.info("waited", party=party, waited_s=round(waited_s, 1))
        return found


async def _tell(party: str, why: Callable[[], str | None]) -> None:
    """Log that the party is not there, again and again."""
    await trio.sleep(NOTICE_S)
    while True:
        logger.warning("waiting", party=party, reason=_said(why))
        await trio.sleep(REMIND_S)


def _said(why: Callable[[], str | None]) -> str:
    return why() or "it has not answered yet"
