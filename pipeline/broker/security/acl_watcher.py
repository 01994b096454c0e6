"""Keeps the table of ACLs equal to ZooKeeper, so that a change is in force on every broker within a second.

Invariants:

- The table is complete before the broker serves: a rule that denies must not be missing.
- Rules that cannot be understood close their resource to all but super users.
- Each change of a resource is told by a sequential znode. Where numbers are missing, because others removed them or
  this broker was away, all rules are read anew.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import trio

from pipeline.broker.security.acl_table import EVERYONE, AclTable
from pipeline.coordination.acl_znodes import (
    LITERAL_CHANGES,
    PREFIXED_CHANGES,
    AclPattern,
    AclRule,
    camel_case,
    decode_change,
    decode_rules,
    resource_type_of,
    types_path,
)
from pipeline.coordination.interface import MAX_AT_ONCE, CoordinationClient, NodeValue
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError, CoordinationUnavailableError, NoNodeError
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission

logger = get_logger(__name__)

KEPT_CHANGES = 1000
"""Change znodes that stay for brokers that read them later. Beyond, the oldest are removed."""
READ_AGAIN_S = 1.0
"""Pause before rules are read again, if ZooKeeper could not be reached."""
_Result = TypeVar("_Result")

CLOSED = frozenset({AclRule(EVERYONE, "*", AclOperation.ALL, AclPermission.DENY)})


async def watch_acls(
    zookeeper: CoordinationClient,
    table: AclTable,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Watch all rules, for ever. Reports started once the present ones have been read."""
    keeper = _Keeper(zookeeper, table)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.follow, LITERAL_CHANGES)
        await nursery.start(keeper.follow, PREFIXED_CHANGES)
        task_status.started()


class _Keeper:
    def __init__(self, zookeeper: CoordinationClient, table: AclTable) -> None:
        self._zookeeper = zookeeper
        self._table = table
        self._reading = trio.Lock()

    async def follow(self, changes: str, *, task_status: trio.TaskStatus[None]) -> None:
        """Read all rules of a kind, then those that change znodes below `changes` name."""
        kind = AclPatternType.LITERAL if changes == LITERAL_CHANGES else AclPatternType.PREFIXED
        last: int | None = None
        async for names in self._zookeeper.watch_children(changes):
            numbers = {number: name for name in names if (number := _number(name)) is not None}
            new = sorted(number for number in numbers if last is None or number > last)
            is_whole = last is not None and (not new or new[0] == last + 1) and new == list(range(*_ends(new)))
            is_read = is_whole and max(numbers, default=-1) >= (last or 0)
            if not (is_read and await self._read_changed(changes, [numbers[number] for number in new])):
                await self._read_all(kind)
            last = max(numbers, default=-1)
            await self._remove_old(changes, numbers)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED  # may be called only once

    async def _read_changed(self, changes: str, names: Sequence[str]) -> bool:
        """Read the rules of the resources that changes name. False if a change is gone, or cannot be understood."""
        patterns: dict[AclPattern, None] = {}
        for name in names:
            path = f"{changes}/{name}"
            found = await _persistently(partial(self._zookeeper.get_or_none, path))
            if found is None:
                return False
            try:
                patterns[decode_change(path, found.data)] = None
            except CoordinationError as error:
                logger.error("acl_change_unreadable", error=str(error))
                return False
        await self._read(patterns)
        return True

    async def _read_all(self, kind: AclPatternType) -> None:
        """Read the rules of all resources of a kind, and forget those of resources that are gone."""
        found = set()
        parent = types_path(kind)
        for part in await _persistently(partial(self._children, parent)):
            resource_type = resource_type_of(part)
            if resource_type is None:
                logger.error("acls_ignored", path=f"{parent}/{part}", reason="no resource type has this name")
                continue
            path = f"{parent}/{camel_case(resource_type)}"
            names = await _persistently(partial(self._children, path))
            found |= {AclPattern(resource_type, kind, name) for name in names}
        gone = {pattern for pattern in self._table.patterns() if pattern.pattern_type is kind} - found
        await self._read(sorted(found | gone))

    async def _read(self, patterns: Iterable[AclPattern]) -> None:
        """Take over the rules of resources. One task at a time: the newest value must be the last."""
        async with self._reading:
            is_changed, wanted = False, list(patterns)
            for first in range(0, len(wanted), MAX_AT_ONCE):
                some = wanted[first : first + MAX_AT_ONCE]
                values = await _persistently(partial(self._zookeeper.get_each, [pattern.path for pattern in some]))
                for pattern, value in zip(some, values, strict=True):
                    rules = _rules(pattern, value)
                    if rules != self._table.rules(pattern):
                        self._table.set(pattern, rules)
                        is_changed = True
            if is_changed:
                logger.info("acls_changed", rules=len(self._table))

    async def _children(self, path: str) -> tuple[str, ...]:
        try:
            return await self._zookeeper.children(path)
        except NoNodeError:
            return ()

    async def _remove_old(self, changes: str, numbers: dict[int, str]) -> None:
        for number in sorted(numbers)[:-KEPT_CHANGES]:
            with suppress(CoordinationError):  # another broker does the same
                await self._zookeeper.delete(f"{changes}/{numbers[number]}")


def _ends(numbers: Sequence[int]) -> tuple[int, int]:
    return (numbers[0], numbers[-1] + 1) if numbers else (0, 0)


def _number(name: str) -> int | None:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else None


def _rules(pattern: AclPattern, value: NodeValue | None) -> frozenset[AclRule]:
    if value is None:
        return frozenset()
    try:
        return decode_rules(pattern.path, value.data)
    except CoordinationError as error:
        logger.error("acls_unreadable", error=str(error), effect="closed to all but super users")
        return CLOSED


async def _persistently(ask: Callable[[], Awaitable[_Result]]) -> _Result:
    """Ask ZooKeeper until it answers: without the rules the broker must not go on."""
    while True:
        try:
            return await ask()
        except CoordinationUnavailableError as error:
            logger.warning("acls_not_read", error=str(error), retry_s=READ_AGAIN_S)
            await trio.sleep(READ_AGAIN_S)
