"""Topics made, grown and deleted: the decision is `topic_plan`'s, here it is written to ZooKeeper and waited for.

Whoever carries out a change returns once its own view of the cluster shows it, so that the client's next request finds
it. A change is written by one transaction; if its answer is lost, the znode is read back.
"""

import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import trio

from pipeline.broker.cluster_view import ClusterView, TopicView
from pipeline.broker.context import BrokerContext
from pipeline.broker.placement import Racks
from pipeline.broker.topic_plan import TopicPlan, TopicRequest, plan_growth, plan_topic
from pipeline.coordination.interface import CoordinationClient, CreateNode, DeleteNode, Operation, SetNode
from pipeline.coordination.znodes import (
    TOPIC_CONFIGS,
    TOPICS,
    TopicAssignment,
    TopicConfig,
    topic_config_path,
    topic_path,
)
from pipeline.errors import (
    BadVersionError,
    CoordinationLostError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode, KafkaError

ATTEMPTS = 5
MIN_WRITE_S = 1.0


def plan(broker: BrokerContext, request: TopicRequest) -> TopicPlan:
    """Decide how a topic will be. Raises KafkaError."""
    return plan_topic(
        request,
        exists=broker.view.topic(request.name) is not None,
        racks=_racks(broker),
        config=broker.settings.current,
        rng=broker.random,
    )


def _racks(broker: BrokerContext) -> Racks:
    """Where the live brokers stand."""
    return {endpoint.id: endpoint.rack for endpoint in broker.view.brokers.values()}


async def create_topic(broker: BrokerContext, request: TopicRequest, *, timeout_s: float) -> TopicView:
    """Make a topic and wait until its partitions are led. Raises KafkaError, CoordinationError."""
    planned = plan(broker, request)
    topic_id = uuid.UUID(int=broker.random.getrandbits(128), version=4)
    assignment = TopicAssignment(topic=planned.name, topic_id=topic_id, partitions=planned.partitions)
    config = TopicConfig(topic=planned.name, settings=planned.settings)

    def is_there(view: ClusterView) -> bool:
        topic = view.applied(assignment.topic)
        return topic is not None and topic.topic_id == topic_id and topic.is_led

    deadline = trio.current_time() + timeout_s
    with writing(timeout_s):
        await _write_topic(broker, assignment, config)
    with trio.move_on_at(deadline):
        await broker.view.wait_until(is_there)
    topic = broker.view.topic_of_id(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    return topic


@contextmanager
def writing(timeout_s: float) -> Generator[None]:
    """Gives a change the time to be written, whatever the request's timeout: with one of 0 clients want it begun."""
    with trio.move_on_after(max(timeout_s, MIN_WRITE_S)) as scope:
        yield
    if scope.cancelled_caught:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not answer in time.")


async def _write_topic(broker: BrokerContext, assignment: TopicAssignment, config: TopicConfig) -> None:
    zookeeper = broker.zookeeper
    for parent in (TOPICS, TOPIC_CONFIGS):
        if await zookeeper.exists(parent) is None:
            try:
                await zookeeper.create(parent)
            except NodeExistsError:
                continue
    for _ in range(ATTEMPTS):
        left_over = await zookeeper.exists(config.path)
        write_config: Operation
        if left_over is None:
            write_config = CreateNode(path=config.path, data=config.encode())
        else:
            write_config = SetNode(path=config.path, data=config.encode(), version=left_over.version)
        try:
            await zookeeper.transaction([CreateNode(path=assignment.path, data=assignment.encode()), write_config])
        except (NodeExistsError, CoordinationLostError) as error:
            found = await zookeeper.get_or_none(assignment.path)
            if found is not None and TopicAssignment.decode(assignment.topic, found.data) == assignment:
                return
            if found is not None:
                raise KafkaError(
                    ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{assignment.topic}' already exists."
                ) from error
        except (BadVersionError, NoNodeError):
            continue
        else:
            return
    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not take the topic; try again.")


async def grow_topic(
    broker: BrokerContext,
    name: str,
    *,
    total: int,
    assignments: list[tuple[BrokerId, ...]] | None,
    validate_only: bool,
    timeout_s: float,
) -> None:
    """Add partitions and wait until they are led. Raises KafkaError, CoordinationError."""

    def is_there(view: ClusterView) -> bool:
        topic = view.applied(name)
        return validate_only or view.topic(name) is None or _is_grown(topic, total)

    deadline = trio.current_time() + timeout_s
    with writing(timeout_s):
        await _write_growth(broker, name, total, assignments, validate_only=validate_only)
    with trio.move_on_at(deadline):
        await broker.view.wait_until(is_there)
    if not is_there(broker.view):
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)


def _is_grown(topic: TopicView | None, total: int) -> bool:
    return topic is not None and len(topic.partitions) >= total and topic.is_led


async def _write_growth(
    broker: BrokerContext,
    name: str,
    total: int,
    assignments: list[tuple[BrokerId, ...]] | None,
    *,
    validate_only: bool,
) -> None:
    for _ in range(ATTEMPTS):
        found = await broker.zookeeper.get_or_none(topic_path(name))
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        current = TopicAssignment.decode(name, found.data)
        partitions = plan_growth(current.partitions, total=total, assignments=assignments, racks=_racks(broker))
        if validate_only:
            return
        grown = replace(current, partitions=partitions)
        try:
            await broker.zookeeper.set(grown.path, grown.encode(), found.version)
        except BadVersionError:
            continue
        except CoordinationLostError:
            if not await _is_written(broker, grown):
                continue
        return
    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not take the partitions; try again.")


async def _is_written(broker: BrokerContext, assignment: TopicAssignment) -> bool:
    found = await broker.zookeeper.get_or_none(assignment.path)
    return found is not None and TopicAssignment.decode(assignment.topic, found.data) == assignment


async def delete_topic(broker: BrokerContext, topic: TopicView, *, timeout_s: float) -> None:
    """Delete a topic and wait until it is gone here. Raises KafkaError, CoordinationError."""

    def is_gone(view: ClusterView) -> bool:
        applied = view.applied(topic.name)
        return view.topic_of_id(topic.topic_id) is None and (applied is None or applied.topic_id != topic.topic_id)

    deadline = trio.current_time() + timeout_s
    with writing(timeout_s):
        await _write_deletion(broker, topic)
    with trio.move_on_at(deadline):
        await broker.view.wait_until(is_gone)
    if not is_gone(broker.view):
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)


async def _write_deletion(broker: BrokerContext, topic: TopicView) -> None:
    for _ in range(ATTEMPTS):
        found = await broker.zookeeper.get_or_none(topic_path(topic.name))
        if found is None or TopicAssignment.decode(topic.name, found.data).topic_id not in {topic.topic_id, None}:
            return
        try:
            await _delete_znodes(broker.zookeeper, topic.name)
        except (NotEmptyError, NoNodeError, CoordinationLostError):
            continue
        return
    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not delete the topic; try again.")


async def _delete_znodes(zookeeper: CoordinationClient, name: str) -> None:
    """The topic, its partitions and its settings, in one transaction: nothing is left for a topic of the same name."""
    paths = [topic_path(name)]
    for parent in paths:
        paths.extend(f"{parent}/{child}" for child in await zookeeper.children(parent))
    if await zookeeper.exists(topic_config_path(name)) is not None:
        paths.append(topic_config_path(name))
    await zookeeper.transaction([DeleteNode(path=path) for path in reversed(paths)])
