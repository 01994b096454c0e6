"""What the handlers of one broker share."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.broker.cluster.view import ClusterView, TopicView
from pipeline.broker.controller.controller import Controller
from pipeline.broker.groups.coordinator import Coordinator
from pipeline.broker.groups.journal import GroupJournal
from pipeline.broker.groups.offset_keeper import OffsetKeeper
from pipeline.broker.membership.session_watch import SessionWatch
from pipeline.broker.quotas.keeper import QuotaKeeper
from pipeline.broker.replicas.strays import StrayKeeper
from pipeline.broker.replication.isr_keeper import IsrKeeper
from pipeline.broker.replication.partition import Partition
from pipeline.broker.replication.replica_fetchers import ReplicaFetchers
from pipeline.broker.replication.replication_quota import ReplicationThrottle
from pipeline.broker.requests.fetch_sessions import FetchSessions
from pipeline.broker.requests.file_openings import FileOpenings
from pipeline.broker.requests.producer_ids import ProducerIds
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.broker.topics.changes import TopicChanges
from pipeline.broker.topics.config_changes import ConfigChanges
from pipeline.coordination.interface import CoordinationClient
from pipeline.errors import PipelineError
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.model import NO_LEADER_EPOCH, BrokerId, Clock, LeaderEpoch, TopicPartition
from pipeline.protocol.api import ApiKey
from pipeline.protocol.errors import ErrorCode, KafkaError

ANONYMOUS = "ANONYMOUS"
"""The principal of whoever has not been authenticated."""


class Caller(NamedTuple):
    """Who sent a request. `host` is the address it came from."""

    client_id: str | None
    host: str
    principal: str = ANONYMOUS


@dataclass(slots=True)
class RequestCounts:
    """Plain counts, read when metrics are asked for."""

    produce_partitions: int = 0
    failed_produce_partitions: int = 0
    fetch_partitions: int = 0
    failed_fetch_partitions: int = 0
    replication_bytes_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """The broker, as its handlers see it. `partitions` are those of which this broker has a replica, led here or not;
    `failed` those that its disk did not let it open. `config` is what the broker was started with, `settings` what
    counts now.
    """

    apis: Mapping[int, ApiKey]
    config: BrokerConfig
    settings: DynamicSettings
    view: ClusterView
    controller: Controller
    isr_keeper: IsrKeeper
    fetchers: ReplicaFetchers
    strays: StrayKeeper
    leader_throttle: ReplicationThrottle
    partitions: Mapping[TopicPartition, Partition]
    failed: Mapping[TopicPartition, PipelineError]
    log_dirs: LogDirectories
    disks: DiskThreads
    openings: FileOpenings
    topics: TopicChanges
    configs: ConfigChanges
    zookeeper: CoordinationClient
    session: SessionWatch
    producer_ids: ProducerIds
    kept: KeptMemory
    fetch_sessions: FetchSessions
    quotas: QuotaKeeper
    journal: GroupJournal
    coordinator: Coordinator
    offsets: OffsetKeeper
    clock: Clock
    counts: RequestCounts = field(default_factory=RequestCounts)

    def is_other_broker(self, replica: BrokerId, broker_epoch: int | None = None) -> bool:
        """True if another live broker has this id and, unless None, this epoch: else a replica id is only a claim."""
        endpoint = self.view.brokers.get(replica)
        if endpoint is None or replica == self.config.broker_id:
            return False
        return broker_epoch is None or endpoint.epoch == broker_epoch

    def find_partition(self, topic: str, index: int, epoch: LeaderEpoch = NO_LEADER_EPOCH) -> Partition:
        """The partition, if it is led here and `epoch` (unless -1) is its epoch. Raises KafkaError otherwise.

        That of a deleted topic of the same name, which is about to be removed, is none.
        """
        return self.find_partition_of(self.view.topic(topic), TopicPartition(topic, index), epoch)

    def find_partition_by_id(self, topic_id: uuid.UUID, index: int, epoch: LeaderEpoch = NO_LEADER_EPOCH) -> Partition:
        """As `find_partition`, by topic id (KIP-516)."""
        topic = self.view.topic_of_id(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self.find_partition_of(topic, TopicPartition(topic.name, index), epoch)

    def find_partition_of(
        self, topic: TopicView | None, topic_partition: TopicPartition, epoch: LeaderEpoch
    ) -> Partition:
        """Return the partition as `find_partition` does, for a topic that the caller has looked up already."""
        partition = self.partitions.get(topic_partition)
        if partition is None:
            if topic_partition in self.failed:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failed[topic_partition]))
            if topic is None or topic_partition.partition not in topic.partitions:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        topic_id = partition.log.topic_id
        # integers, since comparing UUIDs takes as long as all the rest
        if topic is not None and topic_id is not None and topic_id.int != topic.topic_id.int:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if epoch not in (partition.leader_epoch, NO_LEADER_EPOCH):
            is_old = epoch < partition.leader_epoch
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition
