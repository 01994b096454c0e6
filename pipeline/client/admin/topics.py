"""Topics: create, delete, grow, list and describe them.

Each call has a deadline. A refusal that will pass (the controller moved, or is starting) is retried until then.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from pipeline.client.admin.controller import request_from_controller
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.metadata import TopicMetadata
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from pipeline.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from pipeline.protocol.schema import Message

DEFAULT_TIMEOUT_S = 30.0
BROKER_SHARE = 0.9
"""Part of the time that the controller gets, so that its answer, which says what it waited for, comes in time."""
BROKER_DEFAULT = -1
USUAL_REPLICAS = 3
"""Replication factor of the topics of services."""
MAX_NAMED = 5
"""Topics named in one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create; fields that are left out have the broker's default."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


class TopicsRefusedError(KafkaError):
    """Some of several topics were refused: `refused` has the reasons. `done`: topics that were changed.

    `left`: refused ones, and those without an answer, which may or may not be changed.
    """

    def __init__(self, refused: Mapping[str, KafkaError], done: Sequence[str], left: Sequence[str]) -> None:
        self.refused = dict(refused)
        self.done = list(done)
        self.left = list(left)
        first = next(iter(refused.values()))
        others = [name for name in left if name not in refused]
        told = [
            ("refused too", list(refused)[1:]),
            ("without answer", others),
            ("done", self.done),
        ]
        lists = "".join(f"; {label}: {_enumeration(named)}" for label, named in told if named)
        super().__init__(first.code, f"{first.detail}{lists if self.done else lists + '; none is done'}")


@dataclass(frozen=True, slots=True)
class _TopicResult:
    """Result of a request for one topic."""

    topic: str
    code: int
    detail: str | None


async def create_topics(
    cluster: Cluster, topics: Sequence[NewTopic], *, exist_ok: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
) -> None:
    """Create topics and wait until each has leaders. Raises KafkaError for the first that is refused, and
    TopicsRefusedError, which says what was done, if there are several. With `exist_ok` a topic that exists is left
    unchanged.
    """

    def request(names: Sequence[str], timeout_ms: int) -> Message:
        return CreateTopicsRequest(
            topics=tuple(_creatable(topic) for topic in topics if topic.name in names), timeout_ms=timeout_ms
        )

    def answers(response: CreateTopicsResponse) -> list[_TopicResult]:
        return [_TopicResult(topic.name, topic.error_code, topic.error_message) for topic in response.topics]

    deadline = trio.current_time() + timeout_s
    fine = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS} if exist_ok else {ErrorCode.NONE}
    names = [topic.name for topic in topics]
    await _ask_controller(cluster, names, request, answers, fine, deadline)
    await _wait_for_leaders(cluster, dict.fromkeys(names, 1), deadline)


async def replicas_for(cluster: Cluster, wanted: int = USUAL_REPLICAS, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
    """Return `wanted`, or the number of live brokers if that is less.

    Raises KafkaError, NetworkError.
    """
    view = await cluster.refresh(timeout_s=timeout_s)
    return max(1, min(wanted, len(view.brokers)))


async def delete_topics(
    cluster: Cluster, names: Sequence[str], *, missing_ok: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
) -> None:
    """Delete topics. Raises as `create_topics`; with `missing_ok` missing topics are ignored.

    Raises TypeError for a single text: its letters could be names of topics.
    """
    if isinstance(names, str):
        raise TypeError(f"{names!a} is one name, and not a sequence of names")

    def request(left: Sequence[str], timeout_ms: int) -> Message:
        return DeleteTopicsRequest(
            topics=tuple(DeleteTopicState(name=name) for name in left),
            topic_names=tuple(left),
            timeout_ms=timeout_ms,
        )

    def answers(response: DeleteTopicsResponse) -> list[_TopicResult]:
        return [_TopicResult(topic.name or "", topic.error_code, topic.error_message) for topic in response.responses]

    deadline = trio.current_time() + timeout_s
    fine = {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} if missing_ok else {ErrorCode.NONE}
    await _ask_controller(cluster, names, request, answers, fine, deadline)


async def create_partitions(
    cluster: Cluster, counts: Mapping[str, int], *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> None:
    """Raise the numbers of partitions. Raises as `create_topics`."""

    def request(names: Sequence[str], timeout_ms: int) -> Message:
        return CreatePartitionsRequest(
            topics=tuple(CreatePartitionsTopic(name=name, count=counts[name], assignments=None) for name in names),
            timeout_ms=timeout_ms,
        )

    def answers(response: CreatePartitionsResponse) -> list[_TopicResult]:
        return [_TopicResult(topic.name, topic.error_code, topic.error_message) for topic in response.results]

    deadline = trio.current_time() + timeout_s
    await _ask_controller(cluster, list(counts), request, answers, {ErrorCode.NONE}, deadline)
    await _wait_for_leaders(cluster, counts, deadline)


async def list_topics(cluster: Cluster, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[str, TopicMetadata]:
    """Return all topics of the cluster, by name."""
    view = await cluster.fetch_all_topics(timeout_s=timeout_s)
    return dict(sorted(view.topics.items()))


async def describe_topics(
    cluster: Cluster, names: Iterable[str], *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> dict[str, TopicMetadata]:
    """Return the current state of these topics. Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION) for a missing topic."""
    found = await list_topics(cluster, timeout_s=timeout_s)
    described = {}
    for name in names:
        if name not in found:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
        described[name] = found[name]
    return described


async def _wait_for_leaders(cluster: Cluster, counts: Mapping[str, int], deadline: float) -> None:
    """Wait until each topic has at least this number of partitions, all with leaders."""
    cluster.track(counts)
    failures = 0
    while True:
        view = await cluster.refresh(timeout_s=deadline - trio.current_time())
        found = {name: view.topics[name] for name in counts if name in view.topics}
        waiting = [
            name
            for name, count in counts.items()
            if name not in found or len(found[name].led_partitions) < max(count, len(found[name].partitions))
        ]
        if not waiting:
            return
        failures += 1
        if not await cluster.back_off(failures, deadline):
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"partitions of {', '.join(waiting)}")


async def _ask_controller(
    cluster: Cluster,
    names: Sequence[str],
    request: Callable[[Sequence[str], int], Message],
    answers: Callable[[Any], list[_TopicResult]],
    fine: set[ErrorCode],
    deadline: float,
) -> None:
    """Retry until each topic's answer is a `fine` code. Raises KafkaError for the first other code that stays,
    TopicsRefusedError if several topics were named.
    """
    left = list(dict.fromkeys(names))
    count = len(left)
    done: list[str] = []
    failures = 0
    last_error: Exception | None = None
    is_sent = is_answer_lost = False
    while left:
        timeout_s = max(0.001, min(deadline - trio.current_time(), cluster.config.request_timeout_ms / 1000))
        try:
            if failures or not cluster.view.brokers:
                await cluster.refresh(timeout_s=timeout_s)
            is_sent = True
            broker_timeout_ms = int(timeout_s * BROKER_SHARE * 1000)
            response = await request_from_controller(cluster, request(left, broker_timeout_ms), timeout_s=timeout_s)
        except UNREACHABLE as error:
            if not isinstance(last_error, KafkaError):  # which says more
                last_error = error
            is_answer_lost = is_sent
        else:
            refused: dict[str, KafkaError] = {}
            for answer in answers(response):
                if answer.topic not in left:
                    continue
                if answer.code in fine:
                    left.remove(answer.topic)
                    done.append(answer.topic)
                    continue
                doubt = "; an attempt whose answer was lost may have done it" if is_answer_lost else ""
                last_error = KafkaError(answer.code, f"topic {answer.topic}: {answer.detail or 'refused'}{doubt}")
                if not _passes(last_error):
                    refused[answer.topic] = last_error
            if refused:
                raise next(iter(refused.values())) if count == 1 else TopicsRefusedError(refused, done, left)
        failures += 1
        if left and not await cluster.back_off(failures, deadline):
            failure = last_error or KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the response leaves topics out")
            if done and isinstance(failure, KafkaError):
                raise TopicsRefusedError(dict.fromkeys(left, failure), done, left)
            raise failure


def _passes(error: KafkaError) -> bool:
    """True if the refusal will pass. A missing topic stays missing, though Kafka calls that retriable."""
    return error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()),
    )


def _enumeration(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
