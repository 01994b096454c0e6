"""Table of guards: which operation on which resource each api key needs, as in Apache Kafka (KIP-11 and later)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pipeline.broker.requests.guards import groups, records, topics
from pipeline.broker.requests.guards.cluster import cluster_guard, guard_describe_cluster
from pipeline.broker.requests.guards.gate import Guard
from pipeline.protocol.api import ApiKey
from pipeline.protocol.messages.describe_acls import AclOperation


@dataclass(frozen=True, slots=True)
class Need:
    """The need of an api key: as docs/security.md says it, and its guard; None if everybody may use it."""

    text: str
    guard: Guard | None


def _of_cluster(operation: AclOperation) -> Need:
    """Return the need of a request that is allowed or refused as a whole."""
    return Need(f"{operation.name} on the cluster", cluster_guard(operation))


NEEDS: Mapping[ApiKey, Need] = MappingProxyType(
    {
        ApiKey.PRODUCE: Need(
            "WRITE on each topic; ALTER, too, for copies at given offsets; WRITE on the transactional id",
            records.guard_produce,
        ),
        ApiKey.FETCH: Need("READ on each topic; CLUSTER_ACTION on the cluster for followers", records.guard_fetch),
        ApiKey.LIST_OFFSETS: Need("DESCRIBE on each topic; READ for sums over ranges", records.GUARD_LIST_OFFSETS),
        ApiKey.METADATA: Need(
            "DESCRIBE on each topic; CREATE on the cluster or the topic, if it would be created", topics.guard_metadata
        ),
        ApiKey.OFFSET_COMMIT: Need("READ on the group and on each topic", groups.guard_offset_commit),
        ApiKey.OFFSET_FETCH: Need("DESCRIBE on each group and each topic", groups.guard_offset_fetch),
        ApiKey.FIND_COORDINATOR: Need("DESCRIBE on each group or transactional id", groups.guard_find_coordinator),
        ApiKey.JOIN_GROUP: Need("READ on the group", groups.GUARD_JOIN_GROUP),
        ApiKey.HEARTBEAT: Need("READ on the group", groups.GUARD_HEARTBEAT),
        ApiKey.LEAVE_GROUP: Need("READ on the group", groups.GUARD_LEAVE_GROUP),
        ApiKey.SYNC_GROUP: Need("READ on the group", groups.GUARD_SYNC_GROUP),
        ApiKey.DESCRIBE_GROUPS: Need("DESCRIBE on each group", groups.guard_describe_groups),
        ApiKey.LIST_GROUPS: Need("DESCRIBE on the cluster, or on the groups to see", groups.guard_list_groups),
        ApiKey.SASL_HANDSHAKE: Need("nothing", None),
        ApiKey.API_VERSIONS: Need("nothing", None),
        ApiKey.CREATE_TOPICS: Need(
            "CREATE on the cluster or on each topic; DESCRIBE_CONFIGS on the topic to see its settings",
            topics.guard_create_topics,
        ),
        ApiKey.DELETE_TOPICS: Need("DELETE on the cluster or on each topic", topics.guard_delete_topics),
        ApiKey.DELETE_RECORDS: Need("DELETE on each topic", records.GUARD_DELETE_RECORDS),
        ApiKey.INIT_PRODUCER_ID: Need(
            "WRITE on the transactional id; without one, WRITE on some topic or IDEMPOTENT_WRITE on the cluster",
            records.guard_init_producer_id,
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: Need(
            "DESCRIBE on each topic, or CLUSTER_ACTION on the cluster", records.guard_offset_for_leader_epoch
        ),
        ApiKey.DESCRIBE_ACLS: _of_cluster(AclOperation.DESCRIBE),
        ApiKey.CREATE_ACLS: _of_cluster(AclOperation.ALTER),
        ApiKey.DELETE_ACLS: _of_cluster(AclOperation.ALTER),
        ApiKey.DESCRIBE_CONFIGS: Need(
            "DESCRIBE_CONFIGS on each topic, on the cluster for brokers", topics.GUARD_DESCRIBE_CONFIGS
        ),
        ApiKey.ALTER_CONFIGS: Need(
            "ALTER_CONFIGS on each topic, on the cluster for brokers", topics.GUARD_ALTER_CONFIGS
        ),
        ApiKey.DESCRIBE_LOG_DIRS: _of_cluster(AclOperation.DESCRIBE),
        ApiKey.SASL_AUTHENTICATE: Need("nothing", None),
        ApiKey.CREATE_PARTITIONS: Need("ALTER on each topic", topics.GUARD_CREATE_PARTITIONS),
        ApiKey.DELETE_GROUPS: Need("DELETE on each group", groups.GUARD_DELETE_GROUPS),
        ApiKey.ELECT_LEADERS: _of_cluster(AclOperation.ALTER),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: Need(
            "ALTER_CONFIGS on each topic, on the cluster for brokers", topics.GUARD_INCREMENTAL_ALTER_CONFIGS
        ),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: _of_cluster(AclOperation.ALTER),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: _of_cluster(AclOperation.DESCRIBE),
        ApiKey.OFFSET_DELETE: Need("DELETE on the group, READ on each topic", groups.guard_offset_delete),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: _of_cluster(AclOperation.DESCRIBE_CONFIGS),
        ApiKey.ALTER_CLIENT_QUOTAS: _of_cluster(AclOperation.ALTER_CONFIGS),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _of_cluster(AclOperation.DESCRIBE),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _of_cluster(AclOperation.ALTER),
        ApiKey.DESCRIBE_CLUSTER: Need("DESCRIBE on the cluster to see its faults", guard_describe_cluster),
        ApiKey.DESCRIBE_PRODUCERS: Need("READ on each topic", records.GUARD_DESCRIBE_PRODUCERS),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: Need("DESCRIBE on each topic", topics.guard_describe_topic_partitions),
    }
)
"""The needs of every api key."""
