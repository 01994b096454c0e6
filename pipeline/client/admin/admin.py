"""`Admin`: the administration of a cluster in one class, with the names of Kafka's admin client.

Each method has the deadline of the object, and retries what passes until then, as the function that it calls does. A
request whose answer was lost may have been done; repeating it is safe.
"""

from collections.abc import Iterable, Mapping, Sequence

from pipeline.client.admin import client_quotas, elections, groups, offsets, resource_configs, topics
from pipeline.client.admin.client_quotas import ClientQuotaEntity
from pipeline.client.admin.elections import Reassignment
from pipeline.client.admin.groups import CommittedOffset, GroupDescription, GroupListing
from pipeline.client.admin.offsets import ListedOffset
from pipeline.client.admin.resource_configs import ConfigEntry, ConfigResource
from pipeline.client.admin.topics import NewTopic
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.metadata import TopicMetadata
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import KafkaError
from pipeline.protocol.messages.elect_leaders import ElectionType


class Admin:
    """Administration of the cluster, over its connections. Owns nothing; usable while the cluster is open."""

    def __init__(self, cluster: Cluster, *, timeout_s: float = 30.0) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s

    async def create_topics(self, new_topics: Sequence[NewTopic], *, exist_ok: bool = False) -> None:
        """Create topics and wait until each has leaders. Raises KafkaError (TOPIC_ALREADY_EXISTS) unless `exist_ok`."""
        await topics.create_topics(self._cluster, new_topics, exist_ok=exist_ok, timeout_s=self._timeout_s)

    async def delete_topics(self, names: Sequence[str], *, missing_ok: bool = False) -> None:
        """Delete topics and their records. Raises KafkaError for the first that is refused."""
        await topics.delete_topics(self._cluster, names, missing_ok=missing_ok, timeout_s=self._timeout_s)

    async def list_topics(self) -> dict[str, TopicMetadata]:
        """Return all topics, by name."""
        return await topics.list_topics(self._cluster, timeout_s=self._timeout_s)

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        """Return these topics. Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION) for a missing one."""
        return await topics.describe_topics(self._cluster, names, timeout_s=self._timeout_s)

    async def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Raise the numbers of partitions of topics to these (KIP-195). Raises KafkaError."""
        await topics.create_partitions(self._cluster, counts, timeout_s=self._timeout_s)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before these offsets (KIP-107), and return the new log start offsets."""
        return await offsets.delete_records(self._cluster, before, timeout_s=self._timeout_s)

    async def list_offsets(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        """Return offsets of EARLIEST, LATEST, MAX_TIMESTAMP, or of the first records since times in ms (KIP-396)."""
        return await offsets.list_offsets(self._cluster, positions, timeout_s=self._timeout_s)

    async def describe_configs(
        self, resources: Sequence[ConfigResource]
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Return all settings of topics and brokers (KIP-226)."""
        return await resource_configs.describe_configs(self._cluster, resources, timeout_s=self._timeout_s)

    async def incremental_alter_configs(self, changes: Mapping[ConfigResource, Mapping[str, str | None]]) -> None:
        """Set settings; None removes an override; others stay (KIP-339). Raises KafkaError for the first refused."""
        await resource_configs.alter_configs(self._cluster, changes, timeout_s=self._timeout_s)

    async def list_consumer_groups(self) -> list[GroupListing]:
        """Return all groups, by id (KIP-222)."""
        return await groups.list_groups(self._cluster, timeout_s=self._timeout_s)

    async def describe_consumer_group(self, group: str) -> GroupDescription:
        """Return a group with its members. Raises KafkaError (GROUP_ID_NOT_FOUND)."""
        return await groups.describe_group(self._cluster, group, timeout_s=self._timeout_s)

    async def delete_consumer_group(self, group: str) -> None:
        """Delete a group without members (KIP-229). Raises KafkaError (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND)."""
        await groups.delete_group(self._cluster, group, timeout_s=self._timeout_s)

    async def list_consumer_group_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group; none for an unknown group."""
        return await groups.fetch_offsets(self._cluster, group, timeout_s=self._timeout_s)

    async def alter_consumer_group_offsets(
        self, group: str, committed: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Set offsets of a group without members (KIP-396). Raises KafkaError (UNKNOWN_MEMBER_ID if it has some)."""
        await groups.commit_offsets(self._cluster, group, committed, timeout_s=self._timeout_s)

    async def delete_consumer_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete offsets of a group in topics that no member reads (KIP-496).

        Raises KafkaError (GROUP_SUBSCRIBED_TO_TOPIC, GROUP_ID_NOT_FOUND).
        """
        await groups.delete_offsets(self._cluster, group, partitions, timeout_s=self._timeout_s)

    async def describe_client_quotas(self) -> dict[ClientQuotaEntity, Mapping[str, float]]:
        """Return the quotas of users and client ids (KIP-546)."""
        return await client_quotas.describe_client_quotas(self._cluster, timeout_s=self._timeout_s)

    async def alter_client_quotas(self, changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]]) -> None:
        """Set quotas; None removes one; others stay (KIP-546). Raises KafkaError for the first refused."""
        await client_quotas.alter_client_quotas(self._cluster, changes, timeout_s=self._timeout_s)

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[BrokerId] | None]
    ) -> dict[TopicPartition, KafkaError]:
        """Start to move partitions; None cancels a move (KIP-455). Return the refused ones."""
        return await elections.alter_reassignments(self._cluster, targets, timeout_s=self._timeout_s)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the partitions that are being moved (KIP-455)."""
        return await elections.list_reassignments(self._cluster, partitions, timeout_s=self._timeout_s)

    async def elect_leaders(
        self, kind: ElectionType, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders of these partitions, or of all that need it (KIP-460). Return None for each success."""
        return await elections.elect_leaders(self._cluster, partitions, kind, timeout_s=self._timeout_s)
