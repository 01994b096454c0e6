"""The throttle of a reassignment, in Kafka's settings.

Topics name the throttled replicas (`PARTITION:BROKER,...`: sources at the leader, added replicas at the follower),
brokers the bytes per second. Both stay until they are removed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pipeline.client.admin.resource_configs import ConfigResource, alter_configs, describe_topic_settings
from pipeline.client.cluster.cluster import Cluster
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.describe_configs import ResourceType

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The current and the target brokers of a partition."""

    now: Sequence[BrokerId]
    target: Sequence[BrokerId]

    @property
    def adding(self) -> list[BrokerId]:
        """The brokers that copy the partition."""
        return [broker for broker in self.target if broker not in self.now]


async def set_throttle(
    cluster: Cluster, moves: Mapping[TopicPartition, Move], bytes_per_s: int, *, timeout_s: float
) -> None:
    """Throttle these moves; other throttles stay. Raises KafkaError, NetworkError."""
    wanted: dict[str, dict[str, set[str]]] = {}
    brokers: set[BrokerId] = set()
    for topic_partition, move in moves.items():
        if not move.adding:
            continue
        brokers.update(move.now, move.adding)
        of_topic = wanted.setdefault(topic_partition.topic, {LEADER_REPLICAS: set(), FOLLOWER_REPLICAS: set()})
        of_topic[LEADER_REPLICAS].update(f"{topic_partition.partition}:{broker}" for broker in move.now)
        of_topic[FOLLOWER_REPLICAS].update(f"{topic_partition.partition}:{broker}" for broker in move.adding)
    set_already = await describe_topic_settings(
        cluster, sorted(wanted), (LEADER_REPLICAS, FOLLOWER_REPLICAS), timeout_s=timeout_s
    )
    for topic, settings in sorted(wanted.items()):
        changes: dict[str, str | None] = {
            name: _merge(set_already.get(topic, {}).get(name, ""), replicas) for name, replicas in settings.items()
        }
        await alter_configs(cluster, {ConfigResource(ResourceType.TOPIC, topic): changes}, timeout_s=timeout_s)
    rate = str(bytes_per_s)
    await _set_rates(cluster, brokers, {LEADER_RATE: rate, FOLLOWER_RATE: rate}, timeout_s)


async def remove_throttle(cluster: Cluster, topics: Collection[str], *, timeout_s: float) -> None:
    """Remove the throttles of these topics and the rates of all live brokers. Raises KafkaError, NetworkError."""
    names = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
    found = await describe_topic_settings(cluster, sorted(topics), names, timeout_s=timeout_s)
    for topic, settings in found.items():
        if any(settings.values()):
            changes = dict.fromkeys(names)
            await alter_configs(cluster, {ConfigResource(ResourceType.TOPIC, topic): changes}, timeout_s=timeout_s)
    brokers = (await cluster.refresh(timeout_s=timeout_s)).brokers
    await _set_rates(cluster, brokers, {LEADER_RATE: None, FOLLOWER_RATE: None}, timeout_s)


async def _set_rates(
    cluster: Cluster, brokers: Collection[BrokerId], rates: Mapping[str, str | None], timeout_s: float
) -> None:
    for broker in sorted(set(brokers) & set(cluster.view.brokers)):
        await alter_configs(cluster, {ConfigResource(ResourceType.BROKER, str(broker)): rates}, timeout_s=timeout_s)


def _merge(present: str, replicas: set[str]) -> str:
    if present == "*":
        return present
    return ",".join(sorted({*filter(None, present.split(",")), *replicas}, key=_by_number))


def _by_number(replica: str) -> tuple[int, ...]:
    return tuple(map(int, replica.split(":")))
