"""A broker from start to stop: its log dirs, its registration, its sockets.

Order of a start: serve metrics and health, wait for ZooKeeper, listen (so that the address is ours), check that no
other broker has our broker id, open and recover the log dirs, read the keys that logins need, read the cluster's state,
join the cluster (`membership`), open the assigned replicas, serve. Nothing that waits for others comes between joining
and serving: a broker that has joined is elected. A stop is a cancellation: other brokers take over what they can, the
sockets close, all logs are flushed, and the log dirs are marked as cleanly shut down.
"""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.assembly import Parts, World, assemble
from pipeline.broker.cluster.spent_epochs import raise_spent_epochs
from pipeline.broker.cluster.standing import partitions_that_need, replicas_out_of_sync
from pipeline.broker.cluster.view import TopicView
from pipeline.broker.contract.verdicts import CompileSchema
from pipeline.broker.membership.former_self import Holdings, owned_by, refuse_other_owner
from pipeline.broker.membership.identity import find_cluster_id, watch_cluster_id
from pipeline.broker.membership.membership import Membership
from pipeline.broker.metrics.cleaner import run_with_metrics
from pipeline.broker.metrics.collector import BrokerCollector
from pipeline.broker.protection import Protection
from pipeline.broker.quotas.watcher import watch_quotas
from pipeline.broker.replicas.failed_replicas import leave_what_failed
from pipeline.broker.replicas.logs import log_config
from pipeline.broker.replicas.replicas import Replicas
from pipeline.broker.replicas.strays import StrayKeeper
from pipeline.broker.replication.observer import LogObserver
from pipeline.broker.requests.dispatch import LONG_POLLS, SERVED, Dispatcher
from pipeline.broker.runtime.disk_threads import HUNG_S, DiskThreads
from pipeline.broker.runtime.loop_watch import watch_loop
from pipeline.broker.security.acl_watcher import watch_acls
from pipeline.broker.security.open_paths import warn_of_open_paths
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.listeners import ListenerPlan, advertised_address
from pipeline.broker.settings.topic import topic_settings
from pipeline.broker.stopping import run_until_relieved
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.znodes import BrokerRegistration
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, NodeOwnedError, StorageError
from pipeline.log.directories.broker_directories import LogDirectories, find_cluster_id_of
from pipeline.log.directories.directory import CLOSE_TIMEOUT_S, LogDirectory
from pipeline.log.directories.identity import find_lock_ids
from pipeline.log.files import DiskFiles, Files
from pipeline.log.known_producers import KNOWN_PRODUCERS
from pipeline.model import BrokerId, Clock, HostPort, TopicPartition
from pipeline.net.http.server import operations_routes
from pipeline.net.http.service import HttpService, serve_service
from pipeline.net.network import SOCKETS, ConnectionListener, Network
from pipeline.net.nurseries import unwrapped_errors
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity
from pipeline.net.server import Server, ServerConfig
from pipeline.net.waiting import Waiting
from pipeline.records.memory import OPENED_BATCHES

MARK_TIMEOUT_S = 5.0
"""Time for the checkpoints and the mark of a clean stop, after the logs are closed."""
MAX_PROBLEMS_TOLD = 3

logger = get_logger(__name__)


FindPartitions = Callable[[Iterable[TopicView], BrokerId], Iterable[TopicPartition]]

BoundListener = tuple[ListenerPlan, Sequence[ConnectionListener]]
"""A listener, and the sockets on which it listens."""


@dataclass(slots=True)
class BrokerHandle:
    """A broker from its start on: its progress, for `/healthz` and for the task that stops it, and its parts.

    `address` is the address for clients, `http_address` serves metrics and health. By `inter_broker_address` and
    `inter_broker_security` the broker's own clients come in, as the brokers do.
    """

    parts: Parts | None = None
    is_serving: bool = False
    waiting: Waiting = field(default_factory=Waiting)
    """What the start waits for."""
    last_word: Callable[[], Awaitable[None]] | None = None
    """Called when other brokers have taken over what they can, before the broker stops to serve; must end soon."""
    address: HostPort = field(init=False)
    http_address: HostPort = field(init=False)
    inter_broker_address: HostPort = field(init=False)
    inter_broker_security: ClientSecurity = OPEN_SECURITY

    @property
    def replicas(self) -> Replicas:
        """The replicas of a broker whose start has been reported."""
        assert self.parts is not None
        return self.parts.context.replicas

    @property
    def strays(self) -> StrayKeeper:
        """The strays of a broker whose start has been reported."""
        assert self.parts is not None
        return self.parts.context.strays

    async def relieve(self) -> None:
        """Let other brokers take over what they can, unless `controlled.shutdown.enable` is off."""
        if self.parts is not None and self.is_serving and self.parts.context.settings.static.controlled_shutdown:
            await self.parts.membership.leave()
        if self.is_serving and self.last_word is not None:
            await self.last_word()

    def health(self) -> str | None:
        """Return None if all is well, else a sentence about the problem."""
        return self._cluster_problem() or self.disk_trouble()

    def readiness(self) -> str | None:
        """Return None if clients are served and the view of the cluster is current, else a sentence about the problem.

        Failed disks count for `health` alone.
        """
        if not self.is_serving:
            return self.waiting.problem or "starting: the logs are being opened, or recovered"
        return self._cluster_problem() or self.warning()

    def replicas_lag(self) -> str | None:
        """Return None if this broker is ready and its replicas are in sync, else a sentence that says what is not."""
        return self.readiness() or self._named("out of sync here", replicas_out_of_sync)

    def stop_hurts(self) -> str | None:
        """Return None if no partition needs this broker while other replicas are out of sync, else which ones do."""
        if self.parts is None:
            return None
        view = self.parts.context.view
        find = partial(partitions_that_need, staying=view.brokers.keys() - view.shutting_down)
        return (
            self._cluster_problem()
            or self.parts.context.session.problem
            or self._named("in need of this broker, as other replicas are out of sync or about to stop", find)
        )

    def _named(self, what: str, find: FindPartitions) -> str | None:
        assert self.parts is not None
        context = self.parts.context
        found = [str(each) for each in find(context.view.topics(), context.settings.static.broker_id)]
        named = ", ".join(found[:MAX_PROBLEMS_TOLD])
        return (
            f"partitions {what}: {len(found)} ({named}{', ...' * (len(found) > MAX_PROBLEMS_TOLD)})" if found else None
        )

    def warning(self) -> str | None:
        """Return a sentence about problems that a restart of this broker does not mend, or None."""
        if self.parts is None:
            return None
        return ". ".join(filter(None, (self.parts.context.session.problem, self.parts.context.room.problem))) or None

    def disk_trouble(self) -> str | None:
        """Return None if all disks are well, else a sentence about the problems."""
        problems = [] if self.parts is None else self.replicas.problems()
        if not problems:
            return None
        more = f" and {len(problems) - MAX_PROBLEMS_TOLD} more" if len(problems) > MAX_PROBLEMS_TOLD else ""
        return f"disk trouble: {'; '.join(problems[:MAX_PROBLEMS_TOLD])}{more}"

    def _cluster_problem(self) -> str | None:
        return None if self.parts is None else self.parts.context.view.problem


async def _is_connected(_waiting: Waiting) -> None:
    """Do nothing: ZooKeeper is connected already."""


async def run_broker(
    config: BrokerConfig,
    zookeeper: CoordinationClient,
    *,
    clock: Clock,
    rng: random.Random,
    observer: LogObserver,
    metrics: CollectorRegistry,
    files: Files | None = None,
    network: Network = SOCKETS,
    compile_schema: CompileSchema | None = None,
    connect: Callable[[Waiting], Awaitable[None]] = _is_connected,
    task_status: trio.TaskStatus[BrokerHandle] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until cancelled; reports started when all its partitions are served.

    `compile_schema`: None if no topic wants its data decoded. `connect`: connects `zookeeper`, however long that takes;
    meanwhile metrics and health are served.

    Raises ConfigurationError (an address, log dir or broker id in use), CoordinationError, StorageError; the latter
    also in place of the cancellation, if the stop was not clean.
    """
    handle = BrokerHandle()
    protection = Protection(config.listening, rng)
    dialer = protection.inter_broker_dialer(network.connect)
    world = World(zookeeper, clock, rng, observer, metrics, files or DiskFiles(), network, dialer, compile_schema)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            checks = {"replicas": handle.replicas_lag, "stop": handle.stop_hurts}
            routes = operations_routes(metrics, handle.health, handle.readiness, handle.warning, checks)
            http = HttpService(name="broker", routes=routes, roles={}, metrics=metrics)
            handle.http_address = await nursery.start(serve_service, http, config.http_listen, config.http)
            await connect(handle.waiting)
            async with _listening(config, network) as listeners:
                await _run(config, world, listeners, protection, handle, task_status)

    with unwrapped_errors():
        await run_until_relieved(run, handle.relieve)


async def _run(
    config: BrokerConfig,
    world: World,
    listeners: Sequence[BoundListener],
    protection: Protection,
    handle: BrokerHandle,
    task_status: trio.TaskStatus[BrokerHandle],
) -> None:
    """Run the broker without its HTTP port."""
    addresses = {plan.name: advertised_address(plan, bound[0].port) for plan, bound in listeners}
    handle.address = next(iter(addresses.values()))
    handle.inter_broker_address = addresses[config.listening.inter_broker.name]
    handle.inter_broker_security = protection.inter_broker_security()
    OPENED_BATCHES.resize(config.opened_batches_max_bytes)
    KNOWN_PRODUCERS.resize(config.known_producers_max)
    await refuse_other_owner(world.zookeeper, config, world.files)
    known = await trio.to_thread.run_sync(find_cluster_id_of, config.log_dirs, world.files)
    cluster_id = await find_cluster_id(world.zookeeper, world.rng, known)
    disks = DiskThreads()
    async with _open_directories(config, world, cluster_id, disks) as directories:
        paths = [directory.path for directory in directories.opened]
        locks = await trio.to_thread.run_sync(find_lock_ids, paths, world.files)
        handle.parts = assemble(config, world, addresses, cluster_id, directories, locks, disks)
        with unwrapped_errors():
            async with disks.ending_in_time(), trio.open_nursery() as nursery:
                if handle.parts.context.acls is not None:
                    await trio.to_thread.run_sync(warn_of_open_paths, [*config.log_dirs, *protection.key_files])
                await protection.find_secret(world.zookeeper)
                await nursery.start(protection.run)
                await _start(nursery, handle.parts, world)
                await nursery.start(_serve, handle.parts, listeners, protection, world)
                handle.is_serving = True
                served = ",".join(f"{name}://{address}" for name, address in addresses.items())
                logger.info("broker_ready", broker=config.broker_id, listeners=served, http=str(handle.http_address))
                task_status.started(handle)


async def _start(nursery: trio.Nursery, parts: Parts, world: World) -> None:
    """Read the cluster's state, join, and start all tasks but the Kafka port; return when all replicas are open."""
    broker, replicas, config = parts.context, parts.context.replicas, parts.context.settings.static
    nursery.start_soon(watch_loop, world.metrics)
    nursery.start_soon(broker.session.run)
    nursery.start_soon(broker.fetch.run)
    await nursery.start(broker.produce.contracts.run)
    await nursery.start(broker.groups.run)
    await parts.membership.catch_up()
    await nursery.start(parts.watcher.run)
    await nursery.start(watch_quotas, world.zookeeper, broker.quotas.table, broker.scram.set)
    if broker.acls is not None:
        await nursery.start(watch_acls, world.zookeeper, broker.acls)
    await nursery.start(replicas.logs.pending.run)
    await nursery.start(replicas.fetchers.run)
    nursery.start_soon(parts.isr_writer.run)
    nursery.start_soon(parts.assigner.run)
    nursery.start_soon(broker.strays.run)
    nursery.start_soon(raise_spent_epochs, world.zookeeper, broker.view, replicas.spent_epochs)
    nursery.start_soon(watch_cluster_id, world.zookeeper, broker.view)
    await nursery.start(_keep_joined, parts.membership, parts.registration)
    nursery.start_soon(parts.membership.keep_epoch)
    await nursery.start(broker.controller.run)
    nursery.start_soon(replicas.watch_log_dirs)
    nursery.start_soon(broker.room.run)
    nursery.start_soon(
        leave_what_failed,
        world.zookeeper,
        broker.view,
        replicas,
        broker.strays,
        config.broker_id,
        parts.membership.announce_offline,
    )
    nursery.start_soon(replicas.upkeep.run, config)
    if config.log_cleaner_enable:
        nursery.start_soon(run_with_metrics, parts.cleaner, world.metrics)


async def _serve(
    parts: Parts,
    listeners: Sequence[BoundListener],
    protection: Protection,
    world: World,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Serve the Kafka port and its metrics."""
    broker = parts.context
    handle = Dispatcher(broker).handle
    server = Server(handle, SERVED, _limits(broker.settings.current), LONG_POLLS, world.network)
    broker.settings.follow(lambda config: server.reconfigure(_limits(config)))
    collector = BrokerCollector(broker, parts.isr_writer, server.statistics, protection.metrics)
    world.metrics.register(collector)
    try:
        served = [protection.serve(plan, each, broker, handle) for plan, bound in listeners for each in bound]
        await server.serve(served, task_status=task_status)
    finally:
        world.metrics.unregister(collector)


def _limits(config: BrokerConfig) -> ServerConfig:
    return ServerConfig(
        max_request_bytes=config.socket_request_max_bytes,
        max_connections=config.max_connections,
        max_idle_s=config.connections_max_idle_ms / 1000,
        max_memory_bytes=config.max_request_memory_bytes,
        max_connections_per_ip=config.max_connections_per_ip,
        max_connections_per_ip_overrides=config.max_connections_per_ip_overrides,
    )


@asynccontextmanager
async def _listening(config: BrokerConfig, network: Network) -> AsyncGenerator[Sequence[BoundListener]]:
    bound: list[BoundListener] = []
    try:
        for plan in config.listening.plans:
            try:
                bound.append((plan, await network.listen(plan.address)))
            except OSError as error:
                raise ConfigurationError("listeners", f"cannot listen on {plan.address}: {error}") from error
        yield bound
    finally:
        for _, listeners in bound:
            for listener in listeners:
                listener.close()


@asynccontextmanager
async def _open_directories(
    config: BrokerConfig, world: World, cluster_id: str, disks: DiskThreads
) -> AsyncGenerator[LogDirectories]:
    """Open and recover the log directories; on leaving, flush and close them, even if cancelled."""
    now_ms = world.clock()
    directories = await trio.to_thread.run_sync(
        lambda: LogDirectories.open(
            config.log_dirs,
            world.files,
            log_config(topic_settings({}, config), config.producer_id_expiration_ms),
            broker_id=config.broker_id,
            cluster_id=cluster_id,
            rng=world.rng,
            now_ms=now_ms,
        )
    )
    try:
        yield directories
    finally:
        with trio.CancelScope(shield=True):
            await _close(directories, disks.abandoned)


async def _close(directories: LogDirectories, abandoned: Collection[Path]) -> None:
    """Flush and close all log dirs concurrently, so that a hung disk delays only its own.

    A log dir of `abandoned` stays as it is: a hung call may still change it. Raises the first StorageError of a log dir
    that was online: the stop was not clean.
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
        logger.error("shutdown_not_clean", log_dir=str(directory.path), error=str(error))
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
