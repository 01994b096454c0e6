"""Staying registered: an ephemeral znode that is made again whenever a session is lost. Works on any client.

Invariant: the znode is ours, or we are about to make it, or the caller has been told by an exception whose it is.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Never

import structlog
import trio

from pipeline.coordination.interface import CoordinationClient, NodeStat, SessionId, SessionState
from pipeline.errors import (
    BadVersionError,
    CoordinationLostError,
    CoordinationUnavailableError,
    NodeExistsError,
    NodeOwnedError,
    NoNodeError,
)

_log = structlog.get_logger()


def _nobody(_data: bytes) -> bool:
    return False


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What is done around registrations. `lost` as soon as a session has expired."""

    before: Callable[[], Awaitable[None]] = _nothing
    after: Callable[[], Awaitable[None]] = _nothing
    lost: Callable[[], Awaitable[None]] = _nothing


NO_HOOKS = Hooks()


async def keep_registered(
    client: CoordinationClient,
    path: str,
    data: bytes,
    *,
    is_former_self: Callable[[bytes], bool] = _nobody,
    hooks: Hooks = NO_HOOKS,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> Never:
    """Create the ephemeral znode, report started, and create it again after every expired session, until cancelled.

    A znode that is there already is taken over if it belongs to an earlier session of this client, or if
    `is_former_self` says of its data that they are those of an earlier life of this process, which is dead (the caller
    must know: because it holds what only one process can hold). If it belongs to anybody else: NodeOwnedError, with
    the data found there.
    """
    events = client.sessions()
    registered: SessionId | None = None
    is_started = False
    while True:
        event = await anext(events)
        if event.state is SessionState.EXPIRED:
            await hooks.lost()
        if event.state is not SessionState.CONNECTED or event.session_id == registered:
            continue
        await hooks.before()
        await _register(client, path, data, is_former_self)
        registered = event.session_id
        _log.info("registered", path=path, session=f"0x{client.session_id:x}")
        await hooks.after()
        if not is_started:
            task_status.started()
            is_started = True


async def _register(
    client: CoordinationClient, path: str, data: bytes, is_former_self: Callable[[bytes], bool]
) -> None:
    while True:
        try:
            try:
                await client.create(path, data, ephemeral=True)
            except NodeExistsError:
                stat, found = await client.exists(path), await client.get_or_none(path)
            else:
                return
        except (CoordinationLostError, CoordinationUnavailableError) as error:
            _log.warning("registration_repeated", path=path, reason=error.reason)
            continue
        if stat is None or found is None:
            continue
        if stat.ephemeral_owner == client.session_id and found.data == data:
            return
        if not _is_ours(client, stat) and not is_former_self(found.data):
            raise NodeOwnedError(path, found.data, stat.ephemeral_owner)
        _log.info("registration_taken_over", path=path, session=f"0x{stat.ephemeral_owner or 0:x}")
        with suppress(NoNodeError, BadVersionError, CoordinationLostError, CoordinationUnavailableError):
            await client.delete(path, found.version)


def _is_ours(client: CoordinationClient, stat: NodeStat) -> bool:
    owner = stat.ephemeral_owner
    return owner is not None and owner != client.session_id and client.owns_session(owner)
