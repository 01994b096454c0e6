"""The fetchers of a broker: which leader's partitions are fetched by which task.

Invariants
  A. A partition is fetched by at most one fetcher of its leader; the partition's name alone decides on the number.
  B. Only fetchers that have partitions have a task and connections.
  C. The role of a partition changes only after `remove`, and after `ReplicaFetcher.wait_until_untouched` has returned:
     nothing of the old role touches its log any more (`replica_fetcher`, invariant A).
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import trio

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.replication.replica_fetch_plan import FetchLimits, FollowedPartition
from pipeline.broker.replication.replica_fetcher import FetcherCounts, FetcherSettings, Replica, ReplicaFetcher
from pipeline.broker.replication.replication_quota import ReplicationThrottle
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.model import BrokerId, Clock, HostPort, TopicPartition
from pipeline.net.dialing import Dialer

FetcherKey = tuple[BrokerId, int]
"""The leader, and the number of its fetcher."""

NOBODY: FetcherKey = (BrokerId(-1), 0)


def fetcher_number(topic_partition: TopicPartition, count: int) -> int:
    """Return the number of a partition's fetcher. Those of a topic go round; its name says where they begin."""
    return (zlib.crc32(topic_partition.topic.encode()) + topic_partition.partition) % count


class ReplicaFetchers:
    """All fetchers; `run` holds their tasks."""

    def __init__(self, settings: FetcherSettings, fetchers_per_leader: int) -> None:
        self._settings = settings
        self._fetchers_per_leader = fetchers_per_leader
        self._fetchers: dict[FetcherKey, ReplicaFetcher] = {}
        self._keys: dict[TopicPartition, FetcherKey] = {}
        self._tasks: trio.Nursery | None = None
        self._ended = FetcherCounts()

    @property
    def fetchers(self) -> Mapping[FetcherKey, ReplicaFetcher]:
        """Fetchers that have partitions (a live view)."""
        return MappingProxyType(self._fetchers)

    @property
    def partitions(self) -> Iterator[FollowedPartition]:
        """All partitions that are fetched."""
        return (partition for fetcher in self._fetchers.values() for partition in fetcher.partitions)

    @property
    def max_lag(self) -> int:
        """Highest lag of a partition in records, as of the last answer of its leader."""
        return max((partition.lag for partition in self.partitions), default=0)

    def counts(self) -> FetcherCounts:
        """Return the sums over all fetchers, ended ones too."""
        total = FetcherCounts()
        for counts in [self._ended, *(fetcher.counts for fetcher in self._fetchers.values())]:
            total.add(counts)
        return total

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch until cancelled."""
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            try:
                for fetcher in self._fetchers.values():
                    nursery.start_soon(fetcher.run)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._tasks = None

    def follow(self, replica: Replica, partition: FollowedPartition, leader: BrokerId) -> None:
        """Fetch a partition from this leader from now on. No fetcher may have it (invariant C)."""
        topic_partition = partition.topic_partition
        key = leader, fetcher_number(topic_partition, self._fetchers_per_leader)
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = ReplicaFetcher(leader, key[1], self._settings)
            if self._tasks is not None:
                self._tasks.start_soon(fetcher.run)
        self._keys[topic_partition] = key
        fetcher.follow(replica, partition)

    def throttle(self, topic_partition: TopicPartition, *, is_throttled: bool) -> None:
        """Throttle a partition, or stop that; do nothing if the partition is not fetched."""
        fetcher = self._fetchers.get(self._keys.get(topic_partition, NOBODY))
        if fetcher is not None:
            fetcher.throttle(topic_partition, is_throttled=is_throttled)

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[ReplicaFetcher, Sequence[TopicPartition]]:
        """Stop fetching these, and return the fetchers that had them. A change of a log may still be under way."""
        leaving: dict[ReplicaFetcher, list[TopicPartition]] = {}
        for topic_partition in topic_partitions:
            fetcher = self._fetchers.get(self._keys.pop(topic_partition, NOBODY))
            if fetcher is not None:
                leaving.setdefault(fetcher, []).append(topic_partition)
        for fetcher, left in leaving.items():
            fetcher.remove(left)
            if not fetcher.is_needed:
                self._end(fetcher)
        return leaving

    def _end(self, fetcher: ReplicaFetcher) -> None:
        del self._fetchers[fetcher.leader, fetcher.number]
        self._ended.add(fetcher.counts)
        fetcher.scope.cancel()


def leader_throttle(settings: DynamicSettings) -> ReplicationThrottle:
    """Return the throttle of what leaders send to replicas that a reassignment adds; its rate follows the settings."""
    return _throttle(settings, lambda config: config.leader_replication_throttled_rate)


def _throttle(settings: DynamicSettings, rate_of: Callable[[BrokerConfig], int]) -> ReplicationThrottle:
    throttle = ReplicationThrottle(rate_of(settings.current))

    def take_rate(changed: BrokerConfig) -> None:
        throttle.bytes_per_s = rate_of(changed)

    settings.follow(take_rate)
    return throttle


def replica_fetchers(settings: DynamicSettings, view: ClusterView, clock: Clock, dialer: Dialer) -> ReplicaFetchers:
    """Return the fetchers of a broker with these settings."""
    config = settings.static

    def find_address(broker: BrokerId) -> HostPort | None:
        found = view.brokers.get(broker)
        return None if found is None else found.address

    limits = FetchLimits(
        own_id=config.broker_id,
        min_bytes=config.replica_fetch_min_bytes,
        max_wait_ms=config.replica_fetch_wait_max_ms,
        max_partition_bytes=config.replica_fetch_max_bytes,
        max_response_bytes=config.replica_fetch_response_max_bytes,
        max_backoff_s=config.replica_fetch_backoff_ms / 1000,
    )
    fetcher_settings = FetcherSettings(
        limits=limits,
        request_timeout_s=(config.replica_fetch_wait_max_ms + config.replica_socket_timeout_ms) / 1000,
        clock=clock,
        dialer=dialer,
        throttle=_throttle(settings, lambda config: config.follower_replication_throttled_rate),
        find_address=find_address,
        find_epoch=lambda: view.own_epoch,
    )
    return ReplicaFetchers(fetcher_settings, config.num_replica_fetchers)
