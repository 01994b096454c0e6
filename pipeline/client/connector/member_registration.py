"""The registration of a member: the ephemeral znode that names its topics, from the first until the member leaves.

Invariant: the registration of another session, of a process that took the name, is neither replaced nor removed.
"""

from collections.abc import Awaitable, Callable

import trio

from pipeline.client.connector.connector_znodes import ConsumerRegistration
from pipeline.coordination.interface import CoordinationClient, CreateNode, DeleteNode, Operation
from pipeline.coordination.registration import Hooks, keep_registered
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    BadVersionError,
    CoordinationLostError,
    CoordinationUnavailableError,
    NodeOwnedError,
    NoNodeError,
)

RETRY_S = 0.1

logger = get_logger(__name__)


class MemberRegistration:
    """The registration at `path`: `current` is what its znode holds or will hold, `wanted` what replaces it soon."""

    def __init__(self, client: CoordinationClient, path: str, registration: ConsumerRegistration) -> None:
        self.path = path
        self.current = self.wanted = registration
        self._client = client
        self._writing = trio.Lock()
        self._keeping = trio.CancelScope()

    async def keep(self, hooks: Hooks, task_status: trio.TaskStatus[None]) -> None:
        """Register, and register again after each expired session, until `remove`. Raises NodeOwnedError.

        A registration of this session is another connector's, which would be taken over again and again.
        """
        with self._keeping:
            found, value = await self._client.exists(self.path), await self._client.get_or_none(self.path)
            if found is not None and value is not None and found.ephemeral_owner == self._client.session_id:
                raise NodeOwnedError(self.path, value.data, found.ephemeral_owner)
            await keep_registered(
                self._client,
                self.path,
                self._data,
                hooks=hooks,
                writing=self._writing,
                task_status=task_status,
            )

    def _data(self) -> bytes:
        return self.current.encode()

    async def replace(self) -> None:
        """Register what is wanted now. All members notice, since another znode takes the place."""
        async with self._writing:
            if self.current == self.wanted:
                return
            self.current = self.wanted
            data = self.current.encode()
            operations: list[Operation] = [
                DeleteNode(path=self.path),
                CreateNode(path=self.path, data=data, ephemeral=True),
            ]
            await self._change(lambda: self._client.transaction(operations))

    async def remove(self) -> None:
        """Keep the registration no longer, and remove it."""
        self._keeping.cancel()
        await self._change(lambda: self._client.delete(self.path))

    async def _change(self, change: Callable[[], Awaitable[None]]) -> None:
        """Change the znode if it is of this session, until the outcome is known."""
        while True:
            try:
                found = await self._client.exists(self.path)
                if found is not None and found.ephemeral_owner == self._client.session_id:
                    await change()
            except (NoNodeError, BadVersionError):
                return
            except (CoordinationLostError, CoordinationUnavailableError) as error:
                logger.warning("connector_registration_repeated", path=self.path, reason=error.reason)
                await trio.sleep(RETRY_S)
            else:
                return
