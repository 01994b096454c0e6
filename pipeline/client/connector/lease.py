"""The time for which a consumer's session is certainly alive.

ZooKeeper ends a session when its leader has heard nothing of it for the session timeout. A confirmation is a write,
which only the leader can grant: a server that is cut off from the others still answers reads of ended sessions. The
leader learns of a client by its server, up to half a tick later, and a session timeout is at least two ticks. So the
lease ends a quarter of the timeout before the session can.

Invariant: while `holds` is true, the ephemeral znodes of `session` exist, unless somebody has removed them by hand.
"""

import math

import trio

from pipeline.coordination.interface import ANY_VERSION, CheckNode, CoordinationClient, SessionId
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError
from pipeline.net.signals import Wakeup

LEASE_SHARE = 0.75
"""Share of the session timeout, from the time at which the confirmation was asked for."""
CONFIRMATIONS = 4
"""Confirmations in the time of a session."""

logger = get_logger(__name__)


class SessionLease:
    """Confirms regularly that a registration exists, while `run` runs."""

    def __init__(self, client: CoordinationClient, registration: str) -> None:
        self._client = client
        self._condition = CheckNode(path=registration, version=ANY_VERSION)
        self._session: SessionId | None = None
        self._ends_at = -math.inf
        self._started = Wakeup()

    def holds(self) -> bool:
        """True if the session is certainly alive now."""
        return trio.current_time() < self._ends_at

    def start(self, session: SessionId) -> None:
        """Confirm this session from now on."""
        self._session = session
        self._started.set()

    def end(self) -> None:
        """Hold no longer: the session has ended, or the registration is gone."""
        self._session, self._ends_at = None, -math.inf

    async def run(self) -> None:
        """Confirm until cancelled."""
        while True:
            asked_at, session = trio.current_time(), self._session
            if session is not None:
                try:
                    await self._client.transaction([self._condition])
                except CoordinationError as error:
                    logger.warning("connector_not_confirmed", error=str(error))
                else:
                    if self._session == session == self._client.session_id:
                        self._ends_at = asked_at + LEASE_SHARE * self._client.session_timeout_s
                        if not self.holds():
                            waited_s = trio.current_time() - asked_at
                            logger.warning("connector_confirmed_too_late", waited_s=round(waited_s, 3))
            with trio.move_on_at(asked_at + self._client.session_timeout_s / CONFIRMATIONS):
                await self._started.wait_and_clear()
