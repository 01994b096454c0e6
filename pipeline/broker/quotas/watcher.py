"""Keeps the table of quotas equal to ZooKeeper, so that a change applies at once on every broker."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import trio

from pipeline.broker.quotas.table import QuotaKind, QuotaTable, parse_quota
from pipeline.coordination.interface import CoordinationClient, NodeValue
from pipeline.coordination.quota_znodes import (
    CONFIG_CLIENTS,
    CONFIG_USERS,
    EntityName,
    QuotaEntity,
    clients_path,
    decode_name,
)
from pipeline.coordination.znodes import decode_config
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError

logger = get_logger(__name__)


async def watch_quotas(
    zookeeper: CoordinationClient,
    table: QuotaTable,
    on_user: Callable[[str, Mapping[str, str]], None] = lambda _user, _settings: None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Watch all quotas, for ever. Reports started once the present ones have been read.

    `on_user` is told all settings of a user, whose znode holds not quotas alone: now, and after each change.
    """

    async def watch_entity(entity: QuotaEntity, *, task_status: trio.TaskStatus[None]) -> None:
        table.followed += 1
        try:
            async for value in zookeeper.watch_data(entity.path):
                settings = {} if value is None else _settings(entity, value)
                table.set(entity, _quotas(entity, settings))
                if isinstance(entity.user, str) and entity.client_id is None:
                    on_user(entity.user, settings)
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED  # may be called only once
        finally:
            table.followed -= 1
            table.set(entity, {})
            if isinstance(entity.user, str) and entity.client_id is None:
                on_user(entity.user, {})

    async def watch_client(user: EntityName, part: str, *, task_status: trio.TaskStatus[None]) -> None:
        await watch_entity(QuotaEntity(user=user, client_id=decode_name(part)), task_status=task_status)

    async def watch_user(part: str, *, task_status: trio.TaskStatus[None]) -> None:
        user = decode_name(part)

        async with trio.open_nursery() as nursery:
            await nursery.start(watch_entity, QuotaEntity(user=user))
            await nursery.start(_watch_names, zookeeper, clients_path(user), partial(watch_client, user))
            task_status.started()

    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_names, zookeeper, CONFIG_USERS, watch_user)
        await nursery.start(_watch_names, zookeeper, CONFIG_CLIENTS, partial(watch_client, None))
        task_status.started()


async def _watch_names(
    zookeeper: CoordinationClient,
    path: str,
    watch: Callable[..., Awaitable[None]],
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Run `watch` for every child of `path` for as long as it exists."""
    scopes: dict[str, trio.CancelScope] = {}

    async def run(name: str, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await watch(name, task_status=task_status)

    async with trio.open_nursery() as nursery:
        async for names in zookeeper.watch_children(path):
            for name in scopes.keys() - set(names):
                scopes.pop(name).cancel()
            for name in sorted(set(names) - scopes.keys()):
                scopes[name] = trio.CancelScope()
                await nursery.start(run, name, scopes[name])
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED


def _settings(entity: QuotaEntity, value: NodeValue) -> Mapping[str, str]:
    try:
        return decode_config(entity.path, value.data)
    except CoordinationError as error:
        logger.error("quota_unreadable", error=str(error))
        return {}


def _quotas(entity: QuotaEntity, settings: Mapping[str, str]) -> Mapping[QuotaKind, float]:
    quotas = {}
    for kind in QuotaKind:
        if kind.value in settings:
            try:
                quotas[kind] = parse_quota(settings[kind.value])
            except ValueError as error:
                logger.warning("quota_ignored", path=entity.path, quota=kind.value, error=str(error))
    return quotas
