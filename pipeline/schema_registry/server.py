"""Runs a schema registry: its topic, the replay of its log, and its HTTP server, until cancelled."""

from collections.abc import Callable
from random import Random

import structlog
import trio
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import DeadlineExceededError
from pipeline.model import Clock, HostPort
from pipeline.net.http import http_application, operations_routes, serve_http
from pipeline.schema_registry.config import RegistryConfig
from pipeline.schema_registry.journal import SchemaJournal
from pipeline.schema_registry.kafka_journal import ensure_topic, open_kafka_journal
from pipeline.schema_registry.routes import prepare_application, registry_routes
from pipeline.schema_registry.service import RegistryService
from pipeline.schema_registry.state import RegistryState

logger = structlog.get_logger()


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

    Raises ConfigurationError for a topic that cannot be the log, DeadlineExceededError if the log was not read to its
    end within `kafkastore.init.timeout.ms`, OSError if the address is taken, JournalLostError (see there).
    """
    init_timeout_s = config.init_timeout_ms / 1000
    deadline = trio.current_time() + init_timeout_s
    await ensure_topic(cluster, config.topic, replication_factor=config.replication_factor, timeout_s=init_timeout_s)
    async with open_kafka_journal(cluster, config.topic, timeout_ms=config.timeout_ms, clock=clock, rng=rng) as journal:
        await serve_registry(
            config,
            journal,
            replay_deadline=deadline,
            metrics=metrics,
            cluster_id=lambda: cluster.view.cluster_id,
            task_status=task_status,
        )


async def serve_registry(
    config: RegistryConfig,
    journal: SchemaJournal,
    *,
    replay_deadline: float,
    metrics: CollectorRegistry,
    cluster_id: Callable[[], str | None] = lambda: None,
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a registry over any journal, which must be replayed by `replay_deadline` (trio's clock)."""
    service = RegistryService(
        journal, RegistryState(config.level), write_timeout_s=config.timeout_ms / 1000, metrics=metrics
    )
    async with background_tasks() as nursery:
        with trio.move_on_at(replay_deadline) as replay:
            await nursery.start(service.run)
        if replay.cancelled_caught:
            reason = f"the log of the registry was not read to its end within {config.init_timeout_ms} ms"
            raise DeadlineExceededError(f"{reason}; see kafkastore.init.timeout.ms")
        nursery.start_soon(service.repair)
        api = registry_routes(service, cluster_id=cluster_id)
        application = http_application([*operations_routes(metrics, lambda: None), *api])
        prepare_application(application)
        address: HostPort = await nursery.start(serve_http, application, config.http_listen)
        logger.info("registry_serving", address=str(address), topic=config.topic)
        task_status.started(address)
        await trio.sleep_forever()
