"""Consumers that report to the audit what they have committed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from pipeline.audit.counting.counted_life import new_life, reporting
from pipeline.audit.counting.group_counter import GroupCounter
from pipeline.audit.counting.publisher import DEFAULT_INTERVAL_S
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.connector.config import ConnectorConfig
from pipeline.client.connector.connector import ConsumerConnector, open_consumer_connector
from pipeline.client.group.config import GroupConfig
from pipeline.client.group.group_consumer import GroupConsumer, open_group_consumer
from pipeline.client.group.listener import RebalanceListener
from pipeline.coordination.interface import CoordinationClient
from pipeline.model import Clock
from pipeline.records.tally import DEFAULT_WINDOW_MS


@asynccontextmanager
async def counted_consumption(
    cluster: Cluster,
    group: str,
    *,
    datacenter: str,
    host: str,
    clock: Clock,
    rng: Random,
    window_ms: int = DEFAULT_WINDOW_MS,
    interval_s: float = DEFAULT_INTERVAL_S,
) -> AsyncIterator[GroupCounter]:
    """Give an observer for consumers of a group, and report what it counts until the block ends, and once more then.

    `cluster` is the one that is consumed, and `datacenter` its name. A program that keeps offsets itself gives the
    observer to `open_consumer`, and calls `committed` with each next offset that it has stored. Give no observer to
    consumers that share partitions.
    """
    counter = GroupCounter(
        datacenter,
        group,
        instance=new_life(rng),
        host=host,
        window_ms=window_ms,
        interval_ms=round(interval_s * 1000),
        clock=clock,
    )
    async with reporting(counter, cluster, interval_s=interval_s, clock=clock, rng=rng):
        yield counter


@asynccontextmanager
async def open_counted_group_consumer(
    cluster: Cluster,
    config: GroupConfig,
    *,
    datacenter: str,
    host: str,
    clock: Clock,
    rng: Random,
    listener: RebalanceListener | None = None,
    window_ms: int = DEFAULT_WINDOW_MS,
    interval_s: float = DEFAULT_INTERVAL_S,
) -> AsyncIterator[GroupConsumer]:
    """Open a member of a group as `open_group_consumer` does, which reports to the audit what it has committed."""
    async with (
        counted_consumption(
            cluster,
            config.group_id,
            datacenter=datacenter,
            host=host,
            clock=clock,
            rng=rng,
            window_ms=window_ms,
            interval_s=interval_s,
        ) as counter,
        open_group_consumer(cluster, config, rng=rng, listener=listener, observer=counter) as consumer,
    ):
        yield consumer


@asynccontextmanager
async def open_counted_connector(
    cluster: Cluster,
    zookeeper: str | CoordinationClient,
    config: ConnectorConfig,
    *,
    datacenter: str,
    host: str,
    clock: Clock,
    rng: Random,
    listener: RebalanceListener | None = None,
    window_ms: int = DEFAULT_WINDOW_MS,
    interval_s: float = DEFAULT_INTERVAL_S,
) -> AsyncIterator[ConsumerConnector]:
    """Open a member of a group as `open_consumer_connector` does, which reports to the audit what it has committed."""
    async with (
        counted_consumption(
            cluster,
            config.group_id,
            datacenter=datacenter,
            host=host,
            clock=clock,
            rng=rng,
            window_ms=window_ms,
            interval_s=interval_s,
        ) as counter,
        open_consumer_connector(
            cluster, zookeeper, config, clock=clock, rng=rng, listener=listener, observer=counter
        ) as connector,
    ):
        yield connector
