"""Assembly of a broker: makes and connects its parts, and runs none."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.cluster.watcher import ClusterWatcher
from pipeline.broker.compaction.cleaner import LogCleaner
from pipeline.broker.contract.gate import ContractGate
from pipeline.broker.contract.verdicts import CompileSchema
from pipeline.broker.controller.controller import Controller
from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC
from pipeline.broker.groups.service import GroupService
from pipeline.broker.membership.membership import Membership
from pipeline.broker.membership.session_watch import SessionWatch
from pipeline.broker.quotas.keeper import QuotaKeeper
from pipeline.broker.quotas.table import QuotaKind, QuotaTable
from pipeline.broker.replicas.assigner import ReplicaAssigner
from pipeline.broker.replicas.disk_room import DiskRoom
from pipeline.broker.replicas.lost_replicas import LostReplicas
from pipeline.broker.replicas.replicas import Replicas
from pipeline.broker.replicas.strays import StrayKeeper
from pipeline.broker.replication.copier_claims import CopierClaims
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.isr_writer import IsrWriter
from pipeline.broker.replication.observer import LogObserver
from pipeline.broker.replication.replica_fetchers import leader_throttle, replica_fetchers
from pipeline.broker.requests.context import BrokerContext, FetchService, ProduceService
from pipeline.broker.requests.fetch_sessions import FetchSessions
from pipeline.broker.requests.file_openings import FileOpenings
from pipeline.broker.requests.producer_ids import ProducerIds
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.broker.security.acl_table import AclTable
from pipeline.broker.security.decisions import AuthorizerLog
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.broker.topics.changes import TopicChanges
from pipeline.broker.topics.config_changes import ConfigChanges
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.znodes import BrokerRegistration, Listener
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.files import Files
from pipeline.model import MAX_INT64, BrokerEndpoint, Clock, HostPort
from pipeline.net.dialing import Dialer
from pipeline.net.network import Network


@dataclass(frozen=True, slots=True)
class World:
    """The outside of a broker: ZooKeeper, clock, randomness, disks, network, the compiler of schemas, if any."""

    zookeeper: CoordinationClient
    clock: Clock
    rng: random.Random
    observer: LogObserver
    metrics: CollectorRegistry
    files: Files
    network: Network
    dialer: Dialer
    """Opens connections to other brokers."""
    compile_schema: CompileSchema | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a broker; its handlers see only `context`."""

    context: BrokerContext
    watcher: ClusterWatcher
    assigner: ReplicaAssigner
    isr_writer: IsrWriter
    membership: Membership
    registration: BrokerRegistration
    cleaner: LogCleaner


def assemble(
    config: BrokerConfig,
    world: World,
    addresses: Mapping[str, HostPort],
    cluster_id: str,
    directories: LogDirectories,
    locks: Sequence[str],
    disks: DiskThreads,
) -> Parts:
    """Make and connect all parts. `addresses`: for clients, by listener. `locks`: ids of the opened `directories`."""
    zookeeper, clock, rng = world.zookeeper, world.clock, world.rng
    own, inter_broker = _own_endpoint(config, addresses), config.listening.inter_broker.name
    registration = BrokerRegistration(
        id=own.id,
        listeners=_registered(config, addresses),
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
        fetchers=replica_fetchers(settings, view, clock, world.dialer),
        producer_expiration_ms=config.producer_id_expiration_ms,
    )
    kept = KeptMemory(config.client_state_max_bytes)
    groups = GroupService(config, view, clock, rng, kept)
    replicas.subscribe(GROUP_METADATA_TOPIC, groups.journal)
    watcher = ClusterWatcher(zookeeper, settings, view, own, inter_broker)
    strays = StrayKeeper(zookeeper, view, replicas, own.id, world.dialer)
    controller = Controller(zookeeper, settings, view, watcher.states, own.id, clock)
    lost_replicas = LostReplicas(zookeeper, view, replicas, own.id, controller.counts)
    assigner = ReplicaAssigner(view, replicas, lost_replicas, own.id)
    sessions = FetchSessions(config.max_fetch_sessions, rng, kept)
    context = BrokerContext(
        settings=settings,
        view=view,
        session=SessionWatch(zookeeper, config.zookeeper_session_timeout_ms / 1000),
        controller=controller,
        replicas=replicas,
        strays=strays,
        room=DiskRoom(directories, disks),
        groups=groups,
        topics=TopicChanges(zookeeper, view, settings, strays.topic_ids, clock, rng),
        configs=ConfigChanges(zookeeper, view, settings),
        quotas=_quota_keeper(config),
        produce=_produce_service(config, world),
        fetch=FetchService(sessions, FileOpenings(disks), leader_throttle(settings)),
        clock=clock,
        inter_broker_listener=inter_broker,
        authorizer_log=AuthorizerLog(config.listening.authorizer_log_level),
        acls=_acl_table(config, sessions),
    )
    return Parts(
        context=context,
        watcher=watcher,
        assigner=assigner,
        isr_writer=IsrWriter(zookeeper, view, in_sync, replicas.partitions, own.id),
        membership=Membership(zookeeper, registration, view, lost_replicas, assigner, watcher.states),
        registration=registration,
        cleaner=LogCleaner(config, replicas.partitions, directories, world.files, clock, rng),
    )


def _own_endpoint(config: BrokerConfig, addresses: Mapping[str, HostPort]) -> BrokerEndpoint:
    return BrokerEndpoint(
        id=config.broker_id,
        address=addresses[config.listening.inter_broker.name],
        rack=config.rack,
        addresses={} if len(addresses) == 1 else addresses,
    )


def _registered(config: BrokerConfig, addresses: Mapping[str, HostPort]) -> tuple[Listener, ...]:
    return tuple(
        Listener(name=plan.name, security_protocol=plan.protocol.value, address=addresses[plan.name])
        for plan in config.listening.plans
    )


def _acl_table(config: BrokerConfig, sessions: FetchSessions) -> AclTable | None:
    if not config.listening.authorizer_class_name:
        return None
    return AclTable(
        config.listening.super_users,
        allow_if_no_rule=config.listening.allow_everyone_if_no_acl_found,
        on_change=sessions.end_all,
    )


def _produce_service(config: BrokerConfig, world: World) -> ProduceService:
    ids = ProducerIds(world.zookeeper, config.broker_id, world.clock)
    return ProduceService(ids, CopierClaims(world.zookeeper), ContractGate(config, world.compile_schema))


def _quota_keeper(config: BrokerConfig) -> QuotaKeeper:
    defaults = {QuotaKind.PRODUCE: config.quota_producer_default, QuotaKind.FETCH: config.quota_consumer_default}
    table = QuotaTable({kind: None if limit == MAX_INT64 else float(limit) for kind, limit in defaults.items()})
    return QuotaKeeper(table, window_s=config.quota_window_size_seconds, samples_kept=config.quota_window_num)
