"""Standing of a broker's replicas in the cluster: whether it has caught up, and whether it may stop. Pure.

A rolling restart that waits for both never takes two replicas of a partition out of sync.
"""

from collections.abc import Collection, Iterable, Iterator

from pipeline.broker.cluster.view import TopicView
from pipeline.model import BrokerId, TopicPartition


def replicas_out_of_sync(topics: Iterable[TopicView], broker: BrokerId) -> Iterator[TopicPartition]:
    """Yield partitions of which the broker holds a replica that is not in sync, but for those being added."""
    for topic in topics:
        for index, partition in topic.partitions.items():
            if broker in partition.origin_replicas and broker not in partition.isr:
                yield TopicPartition(topic.name, index)


def partitions_that_need(
    topics: Iterable[TopicView], broker: BrokerId, staying: Collection[BrokerId]
) -> Iterator[TopicPartition]:
    """Yield partitions that would have too few replicas in sync without the broker, while others may catch up.

    `staying`: brokers that are alive and do not shut down; the replicas of all others do not count. Too few: none, or
    fewer than `min.insync.replicas`. A partition whose replicas are all in sync has no more to wait for, however few
    they are.
    """
    for topic in topics:
        needed = max(1, topic.settings.min_insync_replicas)
        for index, partition in topic.partitions.items():
            others = {*partition.isr} & {*staying} - {broker}
            is_all = others >= {*partition.origin_replicas} - {broker}
            if broker in partition.isr and len(others) < needed and not is_all:
                yield TopicPartition(topic.name, index)
