"""The parts of a broker that its handlers share."""

import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from pipeline.broker.cluster.view import ClusterView, TopicView
from pipeline.broker.contract.gate import ContractGate
from pipeline.broker.controller.controller import Controller
from pipeline.broker.groups.service import GroupService
from pipeline.broker.membership.session_watch import SessionWatch
from pipeline.broker.quotas.keeper import QuotaKeeper
from pipeline.broker.replicas.disk_room import DiskRoom
from pipeline.broker.replicas.replicas import Replicas
from pipeline.broker.replicas.strays import StrayKeeper
from pipeline.broker.replication.copier_claims import CopierClaims
from pipeline.broker.replication.partition import Partition
from pipeline.broker.replication.replication_quota import ReplicationThrottle
from pipeline.broker.requests.fetch_sessions import FetchSessions
from pipeline.broker.requests.file_openings import FileOpenings
from pipeline.broker.requests.producer_ids import ProducerIds
from pipeline.broker.runtime.scan_threads import ScanThreads
from pipeline.broker.security.acl_table import AclTable
from pipeline.broker.security.decisions import AuthorizerLog
from pipeline.broker.security.scram_store import ScramStore
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.broker.topics.changes import TopicChanges
from pipeline.broker.topics.config_changes import ConfigChanges
from pipeline.model import ANONYMOUS, NO_LEADER_EPOCH, BrokerId, Clock, LeaderEpoch, SecurityProtocol, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

SILENT_SESSIONS_CHECK_S = 30.0
OPENERS = 2
"""Batches of producers that are opened concurrently: other work needs the processor and the interpreter."""
SEARCHERS = 2
"""Searches by timestamp that run concurrently in a log dir; the others wait for turns of some milliseconds."""


class Caller(NamedTuple):
    """The sender of a request: the address that it came from, the name of its user, and the listener it came in on."""

    client_id: str | None
    host: str
    principal: str = ANONYMOUS
    listener: str = SecurityProtocol.PLAINTEXT.value


@dataclass(slots=True)
class ProduceService:
    """Parts that Produce requests share, and counts of their partitions, which metrics read."""

    ids: ProducerIds
    claims: CopierClaims
    contracts: ContractGate
    openers: ScanThreads = field(default_factory=partial(ScanThreads, OPENERS))
    partitions: int = 0
    failed_partitions: int = 0


@dataclass(slots=True)
class FetchService:
    """Parts that readers share, and counts, which metrics read. `searchers` serve ListOffsets, by log dir."""

    sessions: FetchSessions
    openings: FileOpenings
    throttle: ReplicationThrottle
    searchers: Mapping[Path, ScanThreads] = field(default_factory=partial(defaultdict, partial(ScanThreads, SEARCHERS)))
    partitions: int = 0
    failed_partitions: int = 0
    replication_bytes_out: int = 0

    async def run(self) -> None:
        """Open files and end the sessions of silent clients, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.openings.run)
            while True:
                await trio.sleep(SILENT_SESSIONS_CHECK_S)
                self.sessions.end_silent(trio.current_time())


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """The broker, as its handlers see it."""

    settings: DynamicSettings
    view: ClusterView
    session: SessionWatch
    controller: Controller
    replicas: Replicas
    strays: StrayKeeper
    room: DiskRoom
    groups: GroupService
    topics: TopicChanges
    configs: ConfigChanges
    quotas: QuotaKeeper
    produce: ProduceService
    fetch: FetchService
    clock: Clock
    inter_broker_listener: str = SecurityProtocol.PLAINTEXT.value
    acls: AclTable | None = None
    """The rules by which requests are allowed; None if everybody may do everything."""
    authorizer_log: AuthorizerLog = field(default_factory=AuthorizerLog)
    scram: ScramStore = field(default_factory=ScramStore)

    def is_other_broker(self, replica: BrokerId, broker_epoch: int | None = None) -> bool:
        """True if another live broker has this id and, unless None, this epoch: else a replica id is only a claim."""
        endpoint = self.view.brokers.get(replica)
        if endpoint is None or replica == self.settings.static.broker_id:
            return False
        return broker_epoch is None or endpoint.epoch == broker_epoch

    def find_partition(self, topic: str, index: int, epoch: LeaderEpoch = NO_LEADER_EPOCH) -> Partition:
        """Return the partition, if it is led here and `epoch` (unless -1) is its epoch. Raises KafkaError otherwise.

        A partition of a deleted topic of the same name does not count; it is about to be removed.
        """
        return self.find_partition_of(self.view.topic(topic), TopicPartition(topic, index), epoch)

    def find_partition_by_id(self, topic_id: uuid.UUID, index: int, epoch: LeaderEpoch = NO_LEADER_EPOCH) -> Partition:
        """Return the partition as `find_partition` does, by topic id (KIP-516)."""
        topic = self.view.topic_of_id(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self.find_partition_of(topic, TopicPartition(topic.name, index), epoch)

    def find_partition_of(
        self, topic: TopicView | None, topic_partition: TopicPartition, epoch: LeaderEpoch
    ) -> Partition:
        """Return the partition as `find_partition` does, for a topic that the caller has looked up already."""
        partition = self.replicas.partitions.get(topic_partition)
        if partition is None:
            if topic_partition in self.replicas.failed:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.replicas.failed[topic_partition]))
            if topic is None or topic_partition.partition not in topic.partitions:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        topic_id = partition.log.topic_id
        # as integers: comparing UUIDs takes as long as the rest of this function
        if topic is not None and topic_id is not None and topic_id.int != topic.topic_id.int:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if epoch not in (partition.leader_epoch, NO_LEADER_EPOCH):
            is_old = epoch < partition.leader_epoch
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
        if partition.leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition
