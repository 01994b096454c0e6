"""Requests about partitions, sent to the leader of each, and retried while leaders move."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import trio

from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.errors import NetworkError, PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.schema import Message

Asked = TypeVar("Asked")
Told = TypeVar("Told")

MakeRequest = Callable[[Mapping[str, Mapping[int, Asked]], ClusterMetadata, int], Message]
"""Function from partitions by topic, the view that names their leader, and the remaining milliseconds to a request.
"""
ReadResponse = Callable[[Any], Iterable[tuple[TopicPartition, int, Told]]]
"""Function from a response to its partitions, each with an error code and an answer."""


async def ask_leaders(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, Asked],
    request: MakeRequest[Asked],
    read: ReadResponse[Told],
    *,
    timeout_s: float,
) -> dict[TopicPartition, Told]:
    """Ask the leaders of these partitions, and return the answer for each.

    Retries while leaders move. Raises KafkaError, NetworkError or DeadlineExceededError if a partition stays without
    answer.
    """
    deadline = trio.current_time() + timeout_s
    found: dict[TopicPartition, Told] = {}
    failures = 0
    cluster.track(topic_partition.topic for topic_partition in wanted)
    if not all(cluster.view.knows(topic_partition.topic) for topic_partition in wanted):
        with suppress(*UNREACHABLE):  # the leaders are unknown then, and asked for again
            await cluster.refresh(timeout_s=timeout_s)
    while True:
        errors: list[Exception] = []
        view = cluster.view
        missing = {partition: asked for partition, asked in wanted.items() if partition not in found}

        async def ask(
            leader: BrokerId | None,
            share: Mapping[TopicPartition, Asked],
            view: ClusterMetadata,
            errors: list[Exception],
        ) -> None:
            if leader is None:
                errors.append(_no_leader(view, next(iter(share))))
                return
            left_s = max(0.001, min(deadline - trio.current_time(), cluster.config.request_timeout_ms / 1000))
            try:
                answers = await ask_broker(cluster, view, leader, share, request, read, timeout_s=left_s)
            except PipelineError as failure:
                errors.append(failure)
                return
            for topic_partition in share:
                if topic_partition not in answers:
                    reason = f"the response leaves {topic_partition} out"
                    errors.append(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, reason))
                    continue
                code, told = answers[topic_partition]
                if code == ErrorCode.NONE:
                    found[topic_partition] = told
                else:
                    errors.append(KafkaError(code, str(topic_partition)))

        async with trio.open_nursery() as nursery:
            for leader, share in by_leader(view, missing).items():
                nursery.start_soon(ask, leader, share, view, errors)
        if not errors:
            return found
        for error in errors:
            if not (error.retriable if isinstance(error, KafkaError) else isinstance(error, UNREACHABLE)):
                raise error
        failures += 1
        cluster.refresh_soon()
        if not await cluster.back_off(failures, deadline):
            raise errors[0]


async def ask_broker(
    cluster: Cluster,
    view: ClusterMetadata,
    broker: BrokerId,
    asked: Mapping[TopicPartition, Asked],
    request: MakeRequest[Asked],
    read: ReadResponse[Told],
    *,
    timeout_s: float,
    lane: str = "",
) -> dict[TopicPartition, tuple[int, Told]]:
    """Ask one broker about these partitions, in the leader epochs of `view`, without a retry.

    Return an error code and an answer for each partition of the response. Raises as `Cluster.request`. Requests of
    other lanes do not wait behind this one.
    """
    topics: dict[str, dict[int, Asked]] = {}
    for topic_partition, value in asked.items():
        topics.setdefault(topic_partition.topic, {})[topic_partition.partition] = value
    message = request(topics, view, int(timeout_s * 1000))
    response = await cluster.request(broker, message, timeout_s=timeout_s, lane=lane)
    return {topic_partition: (code, told) for topic_partition, code, told in read(response)}


def by_leader(
    view: ClusterMetadata, asked: Mapping[TopicPartition, Asked]
) -> dict[BrokerId | None, dict[TopicPartition, Asked]]:
    """Return the partitions of each leader; None: the leader is unknown or not registered."""
    shares: dict[BrokerId | None, dict[TopicPartition, Asked]] = {}
    for topic_partition, value in asked.items():
        shares.setdefault(view.leader_of(topic_partition), {})[topic_partition] = value
    return shares


def _no_leader(view: ClusterMetadata, topic_partition: TopicPartition) -> Exception:
    code = view.errors.get(topic_partition.topic)
    if code is not None:
        return KafkaError(code, str(topic_partition))
    if topic_partition.topic not in view.topics:
        return NetworkError(f"{topic_partition}: no broker reported the metadata of topic {topic_partition.topic}")
    return NetworkError(f"{topic_partition}: the leader is unknown or not registered")
