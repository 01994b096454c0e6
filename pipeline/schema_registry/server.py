"""Runs a schema registry: its topics, the replay of its log, and its HTTP server, until cancelled."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from random import Random
from typing import Final

import httpx
import trio
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.diagnostics import get_logger
from pipeline.errors import AuthenticationError, ConfigurationError, DeadlineExceededError, NetworkError
from pipeline.model import Clock, HostPort
from pipeline.net.http.server import operations_routes
from pipeline.net.http.service import HttpService, InterimServer, serve_interim, serve_service
from pipeline.net.waiting import Waiting
from pipeline.schema_registry.api.access import SubjectAccess
from pipeline.schema_registry.api.forwarding import ForwardedWrites, ForwardSettings
from pipeline.schema_registry.api.roles import REGISTRY_ROLES
from pipeline.schema_registry.api.routes import prepare_application, registry_routes
from pipeline.schema_registry.config import RegistryConfig
from pipeline.schema_registry.page.registry_page import PAGE_ROLES, AskTopics, browser_route, no_topics, page_routes
from pipeline.schema_registry.page.validating_topics import ValidatingTopics
from pipeline.schema_registry.service import RegistryService
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.writing.freshness import (
    Freshness,
    StalenessHeader,
    ask_brokers,
    ask_registries,
    journal_route,
)
from pipeline.schema_registry.writing.id_guard import (
    GUARD_SUFFIX,
    IdGuard,
    ids_beyond_a_copy,
    why_ids_are_lost,
)
from pipeline.schema_registry.writing.journal import SchemaJournal
from pipeline.schema_registry.writing.kafka_journal import (
    OWN_TOPIC,
    LogTopic,
    check_log_topic,
    create_log_topic,
    has_topic,
    open_kafka_journal,
)
from pipeline.schema_registry.writing.log_start import LogStart

EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")
LOOK_INTERVAL_S: Final = 0.5
ANSWER_TIMEOUT_S: Final = 5.0
"""Time for the cluster to answer, before the reason why it does not is known."""

logger = get_logger(__name__)


async def run_registry(
    config: RegistryConfig,
    cluster: Cluster,
    *,
    clock: Clock,
    rng: Random,
    metrics: CollectorRegistry,
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a registry whose log is a topic of `cluster`, until cancelled. Reports the address of its HTTP API.

    Waits for the cluster, and a registry that never writes for the topic, as long as it takes; `/readyz` says so.
    Raises ConfigurationError for a topic that cannot be the log, or that is empty or missing though ids were given out,
    and for an address that is taken; DeadlineExceededError if the log was not read to its end within
    `kafkastore.init.timeout.ms`; JournalLostError (see there).
    """
    open_journal = partial(open_kafka_journal, cluster, timeout_ms=config.timeout_ms, clock=clock)
    waiting = Waiting()
    routes = operations_routes(metrics, lambda: None, lambda: waiting.problem or "starting: the schemas are being read")
    http = HttpService(name="registry", routes=routes, roles={}, metrics=metrics)
    async with background_tasks() as nursery:
        interim: InterimServer = await nursery.start(serve_interim, http, config.http_listen, config.http)
        await _wait_for_cluster(config, cluster, waiting)
        deadline = trio.current_time() + config.init_timeout_ms / 1000
        async with _open_guard(config, cluster, open_journal) as (guard, origin), open_journal(config.topic) as journal:
            await serve_registry(
                config,
                journal,
                guard,
                name=f"{rng.getrandbits(64):016x}",
                replay_deadline=deadline,
                metrics=metrics,
                origin=origin,
                cluster_id=lambda: cluster.view.cluster_id,
                ask_topics=ValidatingTopics(cluster).document,
                free_address=interim.end,
                task_status=task_status,
            )


async def _wait_for_cluster(config: RegistryConfig, cluster: Cluster, waiting: Waiting) -> None:
    """Return once brokers answer and, for a registry that does not create its topic, the topic is there."""
    servers = ",".join(map(str, config.bootstrap_servers))
    last_error: list[str] = []

    async def reach() -> None:
        while True:
            try:
                if config.leader_eligibility:
                    await cluster.refresh(timeout_s=ANSWER_TIMEOUT_S)
                    return
                if await has_topic(cluster, config.topic, timeout_s=ANSWER_TIMEOUT_S):
                    return
                last_error[:] = [f"topic {config.topic} is missing, and is not created without leader.eligibility"]
            except AuthenticationError:
                raise
            except (NetworkError, DeadlineExceededError) as error:
                last_error[:] = [str(error)]
            await trio.sleep(LOOK_INTERVAL_S)

    await waiting.wait_for(f"the cluster at {servers}", reach, lambda: last_error[0] if last_error else None)


@asynccontextmanager
async def _open_guard(
    config: RegistryConfig, cluster: Cluster, open_journal: Callable[[str], AbstractAsyncContextManager[SchemaJournal]]
) -> AsyncIterator[tuple[SchemaJournal | None, LogTopic]]:
    """Make sure that the topics exist, and open the guard's; None for a registry that never writes.

    The second value tells the origin of the topic of the schemas.
    """
    timeout_s = config.init_timeout_ms / 1000
    exists = await has_topic(cluster, config.topic, timeout_s=timeout_s)
    origin = await check_log_topic(cluster, config.topic, timeout_s=timeout_s) if exists else OWN_TOPIC
    if origin.is_copy or not config.leader_eligibility:
        yield None, origin
        return
    create = partial(create_log_topic, cluster, replication_factor=config.replication_factor, timeout_s=timeout_s)
    await create(config.topic + GUARD_SUFFIX)
    async with open_journal(config.topic + GUARD_SUFFIX) as guard:
        if not exists:
            reason = why_ids_are_lost(RegistryState(config.level), await IdGuard(guard).given_ids())
            if reason is not None:
                raise ConfigurationError("kafkastore.topic", reason)
            await create(config.topic)
        yield guard, origin


async def serve_registry(
    config: RegistryConfig,
    journal: SchemaJournal,
    guard: SchemaJournal | None,
    *,
    name: str,
    replay_deadline: float,
    metrics: CollectorRegistry,
    origin: LogTopic = OWN_TOPIC,
    cluster_id: Callable[[], str | None] = lambda: None,
    ask_topics: AskTopics = no_topics,
    free_address: Callable[[], Awaitable[HostPort]] | None = None,
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a registry over any journal, which must be replayed by `replay_deadline` (trio's clock).

    `guard` and `name` as in RegistryService. `free_address` ends the interim server, and returns its address.
    """
    service = RegistryService(
        journal,
        guard,
        RegistryState(config.level),
        name=name,
        write_timeout_s=config.timeout_ms / 1000,
        metrics=metrics,
    )
    async with _client_of_registries(config) as http, background_tasks() as nursery:
        with trio.move_on_at(replay_deadline) as replay:
            await nursery.start(service.run)
        if replay.cancelled_caught:
            reason = f"the log of the registry was not read to its end within {config.init_timeout_ms} ms"
            raise DeadlineExceededError(f"{reason}; see kafkastore.init.timeout.ms")
        if service.guard is not None:
            await _check_ids(service.state, service.guard, origin)
        ask = ask_brokers(journal, service.follower)
        if guard is None:
            timeout_s = config.leader_read_timeout_ms / 1000
            own_cluster = None if origin.is_copy else cluster_id
            headers = config.leader_login.headers()
            ask = ask_registries(
                http, config.leader_urls, service.follower, own_cluster, headers=headers, timeout_s=timeout_s
            )
        freshness = Freshness(service.follower, ask, metrics=metrics)
        nursery.start_soon(freshness.run)
        log_start = LogStart(journal)
        nursery.start_soon(log_start.run)
        nursery.start_soon(service.writer.repair)
        routes = [  # tried in order
            browser_route(),
            *registry_routes(service, access=SubjectAccess(config.subjects), cluster_id=cluster_id),
            *page_routes(ask_topics),
            *operations_routes(metrics, lambda: None, warning=partial(_warning, service, log_start, freshness)),
            journal_route(journal, service.follower, freshness, cluster_id, is_source=guard is not None),
        ]

        def prepare(application: Starlette) -> None:
            prepare_application(application)
            application.add_middleware(ForwardedWrites, service, http, _forward_settings(config), metrics)
            if guard is None:
                application.add_middleware(StalenessHeader, freshness)

        roles = {**REGISTRY_ROLES, **PAGE_ROLES}
        served = HttpService(name="registry", routes=routes, roles=roles, metrics=metrics, prepare=prepare)
        at = config.http_listen if free_address is None else await free_address()
        address: HostPort = await nursery.start(serve_service, served, at, config.http)
        service.writer.url = _advertised_url(config, address)
        logger.info("registry_ready", http=str(address), topic=config.topic, url=service.writer.url)
        task_status.started(address)
        await trio.sleep_forever()


def _client_of_registries(config: RegistryConfig) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=50)
    return httpx.AsyncClient(limits=limits, trust_env=False, verify=config.leader_login.context() or True)


async def _check_ids(state: RegistryState, guard: IdGuard, origin: LogTopic) -> None:
    """Raise ConfigurationError if the log lost its ids; leave ids out if the log may lack some from the beginning."""
    given = await guard.given_ids()
    reason = why_ids_are_lost(state, given)
    if reason is not None:
        raise ConfigurationError("kafkastore.topic", reason)
    if origin.is_promoted and not given:
        await guard.keep(ids_beyond_a_copy(state))


def _warning(service: RegistryService, log_start: LogStart, freshness: Freshness) -> str | None:
    lost = service.follower.lost
    if lost is not None:
        return f"the topic of the schemas was lost: {lost}"
    return ". ".join(filter(None, (log_start.warning(), freshness.warning()))) or None


def _forward_settings(config: RegistryConfig) -> ForwardSettings:
    return ForwardSettings(
        urls=config.leader_urls,
        connect_timeout_s=config.leader_connect_timeout_ms / 1000,
        read_timeout_s=config.leader_read_timeout_ms / 1000,
        apply_timeout_s=config.timeout_ms / 1000,
    )


def _advertised_url(config: RegistryConfig, address: HostPort) -> str:
    host = config.host_name
    if host is None:
        host = socket.gethostname() if address.host in EVERY_ADDRESS else address.host
    return f"{config.http.scheme}://{HostPort(host, address.port)}"
