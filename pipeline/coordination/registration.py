"""Registers by an ephemeral znode, which is created again whenever the znode or its session is lost.

Invariant: the znode is ours, or we are about to create it, or an exception has told the caller its owner.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Never

import trio

from pipeline.coordination.interface import (
    CoordinationClient,
    NodeStat,
    NodeValue,
    SessionEvent,
    SessionId,
    SessionState,
)
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    BadVersionError,
    CoordinationError,
    CoordinationLostError,
    CoordinationUnavailableError,
    NodeExistsError,
    NodeOwnedError,
    NoNodeError,
)

logger = get_logger(__name__)


def _nobody(_data: bytes) -> bool:
    return False


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Callbacks of a registration: `before` if the znode is free, `after`, and `lost` once the registration is lost."""

    before: Callable[[], Awaitable[None]] = _nothing
    after: Callable[[], Awaitable[None]] = _nothing
    lost: Callable[[], Awaitable[None]] = _nothing


NO_HOOKS = Hooks()


async def keep_registered(
    client: CoordinationClient,
    path: str,
    data: Callable[[], bytes],
    *,
    is_former_self: Callable[[bytes], bool] = _nobody,
    hooks: Hooks = NO_HOOKS,
    writing: trio.Lock | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> Never:
    """Create the ephemeral znode, report started, and create it again after every expired session, until cancelled.

    The registration is also lost if the znode is removed, is created by another client, or holds other data than
    `data` returns. `data` is called before each registration, after `hooks.before`. A caller that changes the result
    of `data` holds `writing` while it does so and writes the znode.

    An existing znode is taken over if a session of this client owns it, or if `is_former_self` returns True for its
    data: they are those of an earlier process, which is dead for certain, since the caller holds a lock that only one
    process can hold. If another client owns the znode, NodeOwnedError is raised with its data. `is_former_self` raises
    CoordinationError for unreadable data.
    """
    writing = writing or trio.Lock()
    events = client.sessions()
    registered: SessionId | None = None
    is_started = False
    while True:
        event: SessionEvent | None
        if registered is None:
            event = await anext(events)
        else:
            event = await _next_event(events, partial(_wait_until_lost, client, path, data, writing, registered))
        if event is None:
            logger.warning("registration_lost", path=path, session=f"0x{registered or 0:x}", reason="changed by others")
            await hooks.lost()
            event, registered = SessionEvent(SessionState.CONNECTED, client.session_id), None
        if event.state is SessionState.EXPIRED:
            logger.warning("session_lost", path=path, session=f"0x{event.session_id:x}")
            await hooks.lost()
            registered = None
        if event.state is not SessionState.CONNECTED or event.session_id == registered:
            continue
        await _refuse_other_owner(client, path, is_former_self)
        await hooks.before()
        async with writing:
            await _register(client, path, data(), is_former_self)
        registered = event.session_id
        logger.info("registered", path=path, session=f"0x{client.session_id:x}")
        await hooks.after()
        if not is_started:
            task_status.started()
            is_started = True


async def _next_event(
    events: AsyncIterator[SessionEvent], wait_until_lost: Callable[[], Awaitable[None]]
) -> SessionEvent | None:
    """Return the next change of the session, or None if the registration is lost before that."""
    event: SessionEvent | None = None
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await wait_until_lost()
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        event = await anext(events)  # loses nothing if it is cancelled
        nursery.cancel_scope.cancel()
    return event


async def _wait_until_lost(
    client: CoordinationClient, path: str, data: Callable[[], bytes], writing: trio.Lock, session: SessionId
) -> None:
    """Return once the znode is not the one that this session registered, unless the session has expired."""
    async for _ in client.watch_data(path):
        async with writing:
            is_kept = await _is_kept(client, path, data())
        if not is_kept and client.session_id == session:  # else the event EXPIRED follows
            return


async def _is_kept(client: CoordinationClient, path: str, data: bytes) -> bool:
    """True if this session owns the znode, and it holds these data."""
    while True:
        try:
            stat, found = await _read(client, path)
        except CoordinationUnavailableError:
            continue
        return (
            stat is not None and found is not None and stat.ephemeral_owner == client.session_id and found.data == data
        )


async def _read(client: CoordinationClient, path: str) -> tuple[NodeStat | None, NodeValue | None]:
    """Return owner and data of a znode, if it exists. Raises CoordinationUnavailableError."""
    while True:  # until both are of the same znode, not of two that had the name one after the other
        stat, found, after = await client.exists(path), await client.get_or_none(path), await client.exists(path)
        is_one = stat is None or after is None or stat.ephemeral_owner == after.ephemeral_owner
        if is_one and (found is None or (stat is not None and stat.version == found.version)):
            return stat, found


async def _refuse_other_owner(client: CoordinationClient, path: str, is_former_self: Callable[[bytes], bool]) -> None:
    """Raise NodeOwnedError if another client owns the znode: the writes of `before` would harm that owner."""
    while True:
        try:
            stat, found = await _read(client, path)
        except CoordinationUnavailableError as error:
            logger.warning("registration_repeated", path=path, reason=error.reason)
            continue
        if stat is not None and found is not None:
            _check_owner(client, path, stat, found, is_former_self)
        return


def _check_owner(
    client: CoordinationClient, path: str, stat: NodeStat, found: NodeValue, is_former_self: Callable[[bytes], bool]
) -> None:
    """Raise NodeOwnedError if another client owns the znode; a persistent znode with unreadable data has no owner."""
    owner = stat.ephemeral_owner
    if owner is not None and client.owns_session(owner):
        return
    try:
        is_own = is_former_self(found.data)
    except CoordinationError as error:
        logger.error("registration_unreadable", path=path, error=str(error))
        is_own = owner is None
    if not is_own:
        raise NodeOwnedError(path, found.data, owner)


async def _register(
    client: CoordinationClient, path: str, data: bytes, is_former_self: Callable[[bytes], bool]
) -> None:
    while True:  # without a limit: the invariant holds as long as the process lives
        try:
            try:
                await client.create(path, data, ephemeral=True)
            except NodeExistsError:
                stat, found = await _read(client, path)
            else:
                return
        except (CoordinationLostError, CoordinationUnavailableError) as error:
            logger.warning("registration_repeated", path=path, reason=error.reason)
            continue
        if stat is None or found is None:
            continue
        if stat.ephemeral_owner == client.session_id and found.data == data:
            return
        _check_owner(client, path, stat, found, is_former_self)
        logger.info("registration_taken_over", path=path, session=f"0x{stat.ephemeral_owner or 0:x}")
        with suppress(NoNodeError, BadVersionError, CoordinationLostError, CoordinationUnavailableError):
            await client.delete(path, found.version)
