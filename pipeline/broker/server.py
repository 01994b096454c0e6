"""A broker from start to end: its directory, its registration, its sockets.

Order of a start: listen (so that the address is ours), ask who has our broker id, take the directory and recover what
needs it, see the cluster, join it (`membership`), open what it assigns to us, serve. A stop is a cancellation: others
take over what they can, the sockets close, then every log is brought to disk and the directory marked as cleanly shut
down.
"""

import random
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.cluster.spent_epochs import raise_spent_epochs
from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.cluster.watcher import ClusterWatcher
from pipeline.broker.compaction.cleaner import LogCleaner
from pipeline.broker.controller.controller import Controller
from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC
from pipeline.broker.groups.service import GroupService
from pipeline.broker.membership.former_self import Holdings, owned_by, refuse_other_owner
from pipeline.broker.membership.identity import find_cluster_id, watch_cluster_id
from pipeline.broker.membership.membership import Membership
from pipeline.broker.membership.session_watch import SessionWatch
from pipeline.broker.metrics.cleaner import run_with_metrics
from pipeline.broker.metrics.collector import BrokerCollector
from pipeline.broker.quotas.keeper import QuotaKeeper
from pipeline.broker.quotas.table import QuotaKind, QuotaTable
from pipeline.broker.quotas.watcher import watch_quotas
from pipeline.broker.replicas.assigner import ReplicaAssigner
from pipeline.broker.replicas.failed_replicas import leave_what_failed
from pipeline.broker.replicas.logs import log_config
from pipeline.broker.replicas.lost_replicas import LostReplicas
from pipeline.broker.replicas.replicas import Replicas
from pipeline.broker.replicas.strays import StrayKeeper
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.isr_keeper import IsrKeeper
from pipeline.broker.replication.observer import LogObserver
from pipeline.broker.replication.replica_fetchers import leader_throttle, replica_fetchers
from pipeline.broker.requests.context import BrokerContext
from pipeline.broker.requests.dispatch import LONG_POLLS, SERVED, Dispatcher
from pipeline.broker.requests.fetch_sessions import FetchSessions
from pipeline.broker.requests.file_openings import FileOpenings
from pipeline.broker.requests.producer_ids import ProducerIds
from pipeline.broker.runtime.disk_threads import HUNG_S, DiskThreads
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.broker.runtime.loop_watch import watch_loop
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.broker.settings.topic import topic_settings
from pipeline.broker.stopping import run_until_relieved
from pipeline.broker.topics.changes import TopicChanges
from pipeline.broker.topics.config_changes import ConfigChanges
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.znodes import BrokerRegistration, Listener
from pipeline.errors import ConfigurationError, NodeOwnedError, StorageError
from pipeline.log.directories.broker_directories import LogDirectories, find_cluster_id_of
from pipeline.log.directories.directory import CLOSE_TIMEOUT_S, LogDirectory
from pipeline.log.directories.identity import find_lock_ids
from pipeline.log.files import DiskFiles, Files
from pipeline.log.known_producers import KNOWN_PRODUCERS
from pipeline.model import BrokerEndpoint, Clock, HostPort
from pipeline.net.http import http_application, operations_routes, serve_http
from pipeline.net.network import SOCKETS, ConnectionListener, Network
from pipeline.net.nurseries import unwrapped_errors
from pipeline.net.server import Server, ServerConfig
from pipeline.records.memory import OPENED_BATCHES
from pipeline.settings import MAX_INT64

MARK_TIMEOUT_S = 5.0
"""How much longer the checkpoints and the mark of a clean stop may take than the logs."""
SILENT_SESSIONS_CHECK_S = 30.0
MAX_PROBLEMS_TOLD = 3

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHandle:
    """A running broker. `address` is what clients are told, `http_address` where metrics and health are."""

    address: HostPort
    http_address: HostPort
    replicas: Replicas
    strays: StrayKeeper

    def disk_trouble(self) -> str | None:
        """None when the disks are well, else a sentence saying what is not."""
        return _disk_trouble(self.replicas)


async def run_broker(
    config: BrokerConfig,
    zookeeper: CoordinationClient,
    *,
    clock: Clock,
    random: random.Random,
    observer: LogObserver,
    metrics: CollectorRegistry,
    files: Files | None = None,
    network: Network = SOCKETS,
    task_status: trio.TaskStatus[BrokerHandle] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until cancelled; reports started when it serves all its partitions.

    Raises ConfigurationError (an address or directory in use, a broker id registered by somebody else),
    CoordinationError, StorageError; the last one also in place of the cancellation, if the stop was not clean.
    """
    status = _Status()
    world = _World(zookeeper, clock, random, observer, metrics, files or DiskFiles(), network)

    async def run() -> None:
        async with _listening(config, network) as listeners, trio.open_nursery() as nursery:
            http_address = await _serve_http(nursery, config, metrics, status)
            await _run(config, world, listeners, http_address, status, task_status)

    with unwrapped_errors():
        await run_until_relieved(run, status.relieve)


@dataclass(frozen=True, slots=True)
class _World:
    """All that a broker does not make itself."""

    zookeeper: CoordinationClient
    clock: Clock
    random: random.Random
    observer: LogObserver
    metrics: CollectorRegistry
    files: Files
    network: Network


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a broker is made of, and its handlers do not see."""

    broker: BrokerContext
    replicas: Replicas
    groups: GroupService
    watcher: ClusterWatcher
    assigner: ReplicaAssigner
    strays: StrayKeeper
    membership: Membership
    registration: BrokerRegistration


async def _run(
    config: BrokerConfig,
    world: _World,
    listeners: Sequence[ConnectionListener],
    http_address: HostPort,
    status: "_Status",
    task_status: trio.TaskStatus[BrokerHandle],
) -> None:
    """All of the broker but what it says of itself."""
    address = config.advertised_address(listeners[0].port)
    OPENED_BATCHES.resize(config.opened_batches_max_bytes)
    KNOWN_PRODUCERS.resize(config.known_producers_max)
    await refuse_other_owner(world.zookeeper, config, world.files)
    known = await trio.to_thread.run_sync(find_cluster_id_of, config.log_dirs, world.files)
    cluster_id = await find_cluster_id(world.zookeeper, world.random, known)
    disks = DiskThreads()
    async with _open_directories(config, world, cluster_id, disks) as directories:
        paths = [directory.path for directory in directories.opened]
        locks = await trio.to_thread.run_sync(find_lock_ids, paths, world.files)
        parts = _assemble(config, world, address, cluster_id, directories, locks, disks)
        status.replicas = parts.replicas
        status.session = parts.broker.session
        with unwrapped_errors():
            async with disks.ending_in_time(), trio.open_nursery() as nursery:
                await _start(nursery, parts, world, directories)
                await nursery.start(_serve, parts.broker, listeners, world.metrics, world.network)
                status.membership = parts.membership if config.controlled_shutdown else None
                status.is_serving = True
                log.info("broker_ready", broker=config.broker_id, address=str(address), http=str(http_address))
                handle = BrokerHandle(
                    address=address, http_address=http_address, replicas=parts.replicas, strays=parts.strays
                )
                task_status.started(handle)


def _assemble(
    config: BrokerConfig,
    world: _World,
    address: HostPort,
    cluster_id: str,
    directories: LogDirectories,
    locks: Sequence[str],
    disks: DiskThreads,
) -> _Parts:
    """Everything, not yet running."""
    zookeeper, clock = world.zookeeper, world.clock
    own = BrokerEndpoint(id=config.broker_id, address=address, rack=config.rack)
    registration = BrokerRegistration(
        id=own.id,
        listeners=(Listener(address=address),),
        rack=own.rack,
        timestamp_ms=clock(),
        directories=tuple(directories.ids),
        locks=tuple(locks),
    )
    view = ClusterView(cluster_id)
    settings = DynamicSettings(config)
    in_sync = InSyncWatch(view, config.replica_lag_time_max_ms / 1000)
    replicas = Replicas(
        directories,
        disks,
        world.observer,
        clock,
        own_id=own.id,
        in_sync=in_sync,
        fetchers=replica_fetchers(settings, view, clock, world.network),
        producer_expiration_ms=config.producer_id_expiration_ms,
    )
    kept = KeptMemory(config.client_state_max_bytes)
    groups = GroupService(config, view, clock, world.random, kept)
    watcher = ClusterWatcher(zookeeper, settings, view, own)
    strays = StrayKeeper(zookeeper, view, replicas, own.id, world.network)
    controller = Controller(zookeeper, settings, view, watcher.states, own.id, clock)
    lost_replicas = LostReplicas(zookeeper, view, replicas, own.id, controller.counts)
    assigner = ReplicaAssigner(view, replicas, lost_replicas, own.id)
    broker = BrokerContext(
        apis=SERVED,
        config=config,
        settings=settings,
        view=view,
        controller=controller,
        isr_keeper=IsrKeeper(zookeeper, view, in_sync, replicas.partitions, own.id),
        fetchers=replicas.fetchers,
        strays=strays,
        leader_throttle=leader_throttle(settings),
        partitions=replicas.partitions,
        failed=replicas.failed,
        log_dirs=directories,
        disks=disks,
        openings=FileOpenings(disks),
        topics=TopicChanges(zookeeper, view, settings, strays.topic_ids, clock, world.random),
        configs=ConfigChanges(zookeeper, view, settings),
        zookeeper=zookeeper,
        session=SessionWatch(zookeeper, config.zookeeper_session_timeout_ms / 1000),
        producer_ids=ProducerIds(zookeeper, config.broker_id, clock),
        kept=kept,
        fetch_sessions=FetchSessions(config.max_fetch_sessions, world.random, kept),
        quotas=_quota_keeper(config),
        journal=groups.journal,
        coordinator=groups.coordinator,
        offsets=groups.offsets,
        clock=clock,
    )
    return _Parts(
        broker=broker,
        replicas=replicas,
        groups=groups,
        watcher=watcher,
        assigner=assigner,
        strays=strays,
        membership=Membership(zookeeper, registration, view, lost_replicas, assigner, watcher.states),
        registration=registration,
    )


async def _start(nursery: trio.Nursery, parts: _Parts, world: _World, directories: LogDirectories) -> None:
    """See the cluster, join it, and keep up what is joined; returns when all replicas are open."""
    broker, replicas, config = parts.broker, parts.replicas, parts.broker.config
    nursery.start_soon(watch_loop, world.metrics)
    nursery.start_soon(broker.session.run)
    nursery.start_soon(broker.openings.run)
    replicas.follow(GROUP_METADATA_TOPIC, parts.groups.journal)
    await nursery.start(parts.groups.run)
    await parts.membership.catch_up()
    await nursery.start(parts.watcher.run)
    await nursery.start(watch_quotas, world.zookeeper, broker.quotas.table)
    await nursery.start(replicas.run)
    await nursery.start(replicas.fetchers.run)
    nursery.start_soon(broker.isr_keeper.run)
    nursery.start_soon(_end_silent_sessions, broker.fetch_sessions)
    nursery.start_soon(parts.assigner.run)
    nursery.start_soon(parts.strays.run)
    nursery.start_soon(raise_spent_epochs, world.zookeeper, broker.view, replicas.spent_epochs)
    nursery.start_soon(watch_cluster_id, world.zookeeper, broker.view)
    await nursery.start(_keep_joined, parts.membership, parts.registration)
    nursery.start_soon(parts.membership.keep_epoch)
    await nursery.start(broker.controller.run)
    nursery.start_soon(replicas.flush_for_ever)
    nursery.start_soon(
        leave_what_failed,
        world.zookeeper,
        broker.view,
        replicas,
        parts.strays,
        config.broker_id,
        parts.membership.announce_offline,
    )
    nursery.start_soon(replicas.checkpoint_for_ever, config.replica_high_watermark_checkpoint_interval_ms)
    if config.log_cleaner_enable:
        cleaner = LogCleaner(config, replicas.partitions, directories, world.files, world.clock, world.random)
        nursery.start_soon(run_with_metrics, cleaner, world.metrics)
    nursery.start_soon(replicas.delete_expired_for_ever, config.log_retention_check_interval_ms)


async def _end_silent_sessions(sessions: FetchSessions) -> None:
    """End the fetch sessions of clients that have left, until cancelled."""
    while True:
        await trio.sleep(SILENT_SESSIONS_CHECK_S)
        sessions.end_silent(trio.current_time())


def _quota_keeper(config: BrokerConfig) -> QuotaKeeper:
    defaults = {QuotaKind.PRODUCE: config.quota_producer_default, QuotaKind.FETCH: config.quota_consumer_default}
    table = QuotaTable({kind: None if limit == MAX_INT64 else float(limit) for kind, limit in defaults.items()})
    return QuotaKeeper(table, window_s=config.quota_window_size_seconds, samples_kept=config.quota_window_num)


async def _serve(
    broker: BrokerContext,
    listeners: Sequence[ConnectionListener],
    metrics: CollectorRegistry,
    network: Network,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Answer clients, and count it."""
    server = Server(Dispatcher(broker).handle, broker.apis, _limits(broker.settings.current), LONG_POLLS, network)
    broker.settings.follow(lambda config: server.reconfigure(_limits(config)))
    collector = BrokerCollector(broker, server.statistics)
    metrics.register(collector)
    try:
        await server.serve(listeners, task_status=task_status)
    finally:
        metrics.unregister(collector)


@dataclass(slots=True)
class _Status:
    """How far a broker is, for those who ask over HTTP, and for whoever stops it."""

    replicas: Replicas | None = None
    session: SessionWatch | None = None
    membership: Membership | None = None
    """What others are to take over before it stops."""
    is_serving: bool = False

    async def relieve(self) -> None:
        """Let others take over what they can."""
        if self.membership is not None:
            await self.membership.leave()

    def health(self) -> str | None:
        """None when all is well, else a sentence saying what is not."""
        return None if self.replicas is None else self._cluster_problem() or _disk_trouble(self.replicas)

    def readiness(self) -> str | None:
        """None when clients are served, and this broker knows by whom: all that the disks let be served.

        What the disks do not let is for `health` to say.
        """
        if not self.is_serving:
            return "starting: the logs are being opened, or recovered"
        return self._cluster_problem() or self.warning()

    def _cluster_problem(self) -> str | None:
        return None if self.replicas is None else self.replicas.in_sync.view.problem

    def warning(self) -> str | None:
        """None, or a sentence saying what is wrong that a restart of this broker does not mend."""
        return None if self.session is None else self.session.problem


async def _serve_http(
    nursery: trio.Nursery, config: BrokerConfig, metrics: CollectorRegistry, status: _Status
) -> HostPort:
    application = http_application(operations_routes(metrics, status.health, status.readiness, status.warning))
    address: HostPort = await nursery.start(serve_http, application, config.http_listen)
    return address


def _limits(config: BrokerConfig) -> ServerConfig:
    return ServerConfig(
        max_request_bytes=config.socket_request_max_bytes,
        max_connections=config.max_connections,
        max_idle_s=config.connections_max_idle_ms / 1000,
        max_memory_bytes=config.max_request_memory_bytes,
        max_connections_per_ip=config.max_connections_per_ip,
        max_connections_per_ip_overrides=config.max_connections_per_ip_overrides,
    )


def _disk_trouble(replicas: Replicas) -> str | None:
    problems = replicas.problems()
    if not problems:
        return None
    more = f" and {len(problems) - MAX_PROBLEMS_TOLD} more" if len(problems) > MAX_PROBLEMS_TOLD else ""
    return f"disk trouble: {'; '.join(problems[:MAX_PROBLEMS_TOLD])}{more}"


@asynccontextmanager
async def _listening(config: BrokerConfig, network: Network) -> AsyncGenerator[Sequence[ConnectionListener]]:
    try:
        listeners = await network.listen(config.listener)
    except OSError as error:
        raise ConfigurationError("listeners", f"cannot listen on {config.listener}: {error}") from error
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


@asynccontextmanager
async def _open_directories(
    config: BrokerConfig, world: _World, cluster_id: str, disks: DiskThreads
) -> AsyncGenerator[LogDirectories]:
    """The log directories, recovered if need be; on leaving, brought to disk and closed, even if cancelled."""
    now_ms = world.clock()
    directories = await trio.to_thread.run_sync(
        lambda: LogDirectories.open(
            config.log_dirs,
            world.files,
            log_config(topic_settings({}, config), config.producer_id_expiration_ms),
            broker_id=config.broker_id,
            cluster_id=cluster_id,
            rng=world.random,
            now_ms=now_ms,
        )
    )
    try:
        yield directories
    finally:
        with trio.CancelScope(shield=True):
            await _close(directories, disks.abandoned)


async def _close(directories: LogDirectories, abandoned: Collection[Path]) -> None:
    """Bring all logs to disk, in all log dirs at once: a disk that hangs is given up for itself.

    A log dir of `abandoned` is left as it is: a call that hangs there may still change it. Raises the first
    StorageError of a log dir that was online: the stop was not clean.
    """
    errors: list[StorageError] = []

    async def close(directory: LogDirectory) -> None:
        was_online = directory.failure is None
        try:
            if directory.path in abandoned:
                reason = f"the disk has not answered for {HUNG_S:g} s: the logs are left for the next start to check"
                raise StorageError(str(directory.path), reason)
            with trio.fail_after(CLOSE_TIMEOUT_S + MARK_TIMEOUT_S):
                await trio.to_thread.run_sync(directory.close, CLOSE_TIMEOUT_S, abandon_on_cancel=True)
        except trio.TooSlowError:
            error = StorageError(str(directory.path), f"the disk took longer than {CLOSE_TIMEOUT_S:g} s")
        except StorageError as refusal:
            error = refusal
        else:
            return
        log.error("shutdown_not_clean", log_dir=str(directory.path), error=str(error))
        if was_online:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for directory in directories.opened:
            nursery.start_soon(close, directory)
    if errors:
        raise errors[0]


async def _keep_joined(
    membership: Membership, registration: BrokerRegistration, *, task_status: trio.TaskStatus[None]
) -> None:
    own = Holdings(directories=registration.directories, locks=registration.locks)
    try:
        await membership.run(
            lambda data: own.is_former_self(BrokerRegistration.decode(registration.id, data)), task_status=task_status
        )
    except NodeOwnedError as error:
        raise owned_by(registration.id, error.data, own) from error
