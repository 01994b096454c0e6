"""The owner of a registration of this broker id: a dead process of this broker, or another broker.

Invariants:

- A registration is taken over only from a dead process. It names the lock files of its process: in one boot of the
  machine only one process holds the lock of a file. A copy of a log dir, or the original on another machine, has the
  same directory id and another lock file.
- A registration with the same log dirs and other lock files belongs to a dead process (the machine was rebooted) or to
  a live broker that has the original or a copy. A start waits for a dead process's session to end, and refuses to go on
  beside a live broker.
- A registration without lock files was written by an older version, and is judged by its log dirs alone.
"""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.znodes import BrokerRegistration, broker_path
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, CoordinationError
from pipeline.log.directories.broker_directories import find_directory_ids
from pipeline.log.directories.identity import find_lock_ids
from pipeline.log.files import Files
from pipeline.model import BrokerId

SESSIONS_AWAITED = 2
"""Wait of a start for the end of another session, in session timeouts."""
LOOK_S = 0.5

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """The log dirs of a process, and their lock files."""

    directories: Sequence[uuid.UUID]
    locks: Sequence[str]

    def names(self, found: BrokerRegistration) -> bool:
        """True if the registration names one of these log dirs, or the original of a copy."""
        return not set(self.directories).isdisjoint(found.directories)

    def is_former_self(self, found: BrokerRegistration) -> bool:
        """True if the process that registered is dead, given that this process holds the locks."""
        return self.names(found) and (not found.locks or not set(self.locks).isdisjoint(found.locks))


async def refuse_other_owner(zookeeper: CoordinationClient, config: BrokerConfig, files: Files) -> None:
    """Refuse a start, before anything is changed, if another broker owns this broker id; ignore an unreadable znode.

    Waits while the owner may be a dead process. Raises ConfigurationError, CoordinationError.
    """

    def find() -> Holdings:
        return Holdings(
            directories=find_directory_ids(config.log_dirs, files), locks=find_lock_ids(config.log_dirs, files)
        )

    own = await trio.to_thread.run_sync(find)
    wait_s = SESSIONS_AWAITED * config.zookeeper_session_timeout_ms / 1000
    deadline, is_told = trio.current_time() + wait_s, False
    while (value := await zookeeper.get_or_none(broker_path(config.broker_id))) is not None:
        try:
            found = BrokerRegistration.decode(config.broker_id, value.data)
        except CoordinationError:
            return
        if own.is_former_self(found):
            return
        if not own.names(found) or trio.current_time() >= deadline:
            raise owned_by(config.broker_id, value.data, own)
        if not is_told:
            is_told = True
            logger.warning(
                "registration_awaited",
                path=found.path,
                seconds=wait_s,
                reason="a broker with the same log dirs is registered, from another machine, another boot of this one,"
                " or another copy of them; if it is dead, its session ends soon",
            )
        await trio.sleep(LOOK_S)


def owned_by(broker_id: BrokerId, data: bytes, own: Holdings) -> ConfigurationError:
    """Return the error that names the owner of the broker id."""
    where, is_copy = "another broker", False
    with suppress(CoordinationError):
        found = BrokerRegistration.decode(broker_id, data)
        is_copy = own.names(found)
        where = f"the broker at {found.listeners[0].address}" if found.listeners else where
    if is_copy:
        reason = (
            f"{broker_id} is registered already by {where} with the same log dirs, and that broker is alive: one of the"
            " two has a copy. Stop one of them; another broker needs an id and log dirs of its own"
        )
    else:
        reason = (
            f"{broker_id} is registered already by {where} with other log dirs; choose another id"
            " (if this broker lost those disks, start it again once its old session has expired)"
        )
    return ConfigurationError("broker.id", reason)
