"""Creates, grows and deletes topics: `plan` decides, this module writes the decision to ZooKeeper and waits for it.

A change returns when this broker's view of the cluster shows it, so that the client's next request finds it. Each is
one transaction; if its answer is lost, the znode is read back. Further transactions remove the znodes of a deleted
topic (`deleted_topics`).
"""

import random
import uuid
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import trio

from pipeline.broker.cluster.topic_names import topic_name_fault
from pipeline.broker.cluster.view import ClusterView, TopicView
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.broker.topics.placement import Racks
from pipeline.broker.topics.plan import (
    TopicPlan,
    WantedTopic,
    check_not_reassigned,
    check_replica_count,
    plan_growth,
    plan_topic,
)
from pipeline.coordination.deleted_topics import (
    demand_not_deleted,
    find_deleted,
    make_records_directory,
    mark_deleted,
    remove_znodes,
)
from pipeline.coordination.interface import CoordinationClient, CreateNode, Operation, SetNode
from pipeline.coordination.znodes import (
    TOPIC_CONFIGS,
    TOPICS,
    TopicAssignment,
    encode_config,
    topic_config_path,
    topic_path,
)
from pipeline.diagnostics import get_logger
from pipeline.errors import BadVersionError, CoordinationLostError, NodeExistsError, NoNodeError
from pipeline.model import BrokerId, Clock
from pipeline.protocol.errors import ErrorCode, KafkaError

ATTEMPTS = 5
MIN_WRITE_S = 1.0
MIN_BEGIN_S = 30.0

logger = get_logger(__name__)


class ChangeTime:
    """The time of a request for the changes of all its topics."""

    def __init__(self, timeout_s: float) -> None:
        now_s = trio.current_time()
        self._deadline = now_s + timeout_s
        self._begin_deadline = now_s + max(timeout_s, MIN_BEGIN_S)

    def left_s(self) -> float:
        """Return the time for the next change. Raises KafkaError (REQUEST_TIMED_OUT) if it is too late to begin one.

        A client with a timeout of 0 wants all changes begun, but 100,000 of them would take minutes.
        """
        now_s = trio.current_time()
        if now_s > self._begin_deadline:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The time of the request was over before this topic's turn.")
        return self._deadline - now_s


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """Changes of topics by this broker. `kept_ids` finds the ids of a name's topics whose logs are strays here."""

    zookeeper: CoordinationClient
    view: ClusterView
    settings: DynamicSettings
    kept_ids: Callable[[str], Collection[uuid.UUID | None]]
    clock: Clock
    rng: random.Random

    def plan(self, request: WantedTopic) -> TopicPlan:
        """Plan a topic, and write nothing. Raises KafkaError."""
        return plan_topic(
            request,
            existing=self.view.names_like(request.name),
            racks=self._racks(),
            config=self.settings.current,
            rng=self.rng,
        )

    def _racks(self) -> Racks:
        return {endpoint.id: endpoint.rack for endpoint in self.view.brokers.values()}

    async def create_by_asking(self, request: WantedTopic, *, timeout_s: float) -> TopicView:
        """Create a topic, as `create` does, because a client used its name.

        Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION) also if ZooKeeper has lost a topic of this name, or its logs are
        kept here: a client that only repeats its request must not replace the lost topic with an empty one.
        """
        missing = self.view.missing.get(request.name)
        named = *self.kept_ids(request.name), missing.topic.topic_id if missing else None
        lost = {topic_id for topic_id in named if topic_id is not None}
        if lost:
            with time_to_write(timeout_s):
                lost -= await find_deleted(self.zookeeper, lost)
        if lost:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"ZooKeeper has lost the topic '{request.name}'. Restore ZooKeeper's data, or create the topic to go "
                f"on without its records.",
            )
        return await self.create(request, timeout_s=timeout_s)

    async def create(self, request: WantedTopic, *, timeout_s: float) -> TopicView:
        """Create a topic and wait until its partitions are led.

        Raises KafkaError (REQUEST_TIMED_OUT also for a topic that exists and is not led yet), CoordinationError.
        """
        planned = self.plan(request)
        topic_id = uuid.UUID(int=self.rng.getrandbits(128), version=4)
        assignment = TopicAssignment(topic=planned.name, topic_id=topic_id, partitions=planned.partitions)

        def is_there(view: ClusterView) -> bool:
            topic = view.applied(assignment.topic)
            return topic is not None and topic.topic_id == topic_id and topic.is_led

        deadline = trio.current_time() + timeout_s
        with time_to_write(timeout_s):
            await self._write_topic(assignment, encode_config(planned.settings))
        copies = len(next(iter(planned.partitions.values())))
        partitions, named = len(planned.partitions), str(topic_id)
        logger.info("topic_created", topic=planned.name, topic_id=named, partitions=partitions, replicas=copies)
        with trio.move_on_at(deadline):
            await self.view.wait_until(is_there)
        topic = self.view.topic_of_id(topic_id)
        if topic is None or not topic.is_led:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"The topic '{planned.name}' was created, but not all of its partitions have a leader yet; "
                f"describe it later.",
            )
        return topic

    async def _write_topic(self, assignment: TopicAssignment, config: bytes) -> None:
        zookeeper, topic_id, config_path = self.zookeeper, assignment.topic_id, topic_config_path(assignment.topic)
        for parent in (TOPICS, TOPIC_CONFIGS):
            if await zookeeper.exists(parent) is None:
                try:
                    await zookeeper.create(parent)
                except NodeExistsError:
                    continue
        for _ in range(ATTEMPTS):
            left_over = await zookeeper.exists(config_path)
            write_config: Operation
            if left_over is None:
                write_config = CreateNode(path=config_path, data=config)
            else:
                write_config = SetNode(path=config_path, data=config, version=left_over.version)
            try:
                await zookeeper.transaction([CreateNode(path=assignment.path, data=assignment.encode()), write_config])
            except (NodeExistsError, CoordinationLostError) as error:
                await remove_znodes(zookeeper, assignment.topic, self.clock())
                found = await zookeeper.get_or_none(assignment.path)
                if found is not None and TopicAssignment.decode(assignment.topic, found.data).topic_id == topic_id:
                    return
                if found is not None:
                    reason = f"Topic '{assignment.topic}' already exists."
                    raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, reason) from error
                if await find_deleted(zookeeper, {assignment.id}):  # no topic of a deleted id is ever led
                    reason = f"The topic '{assignment.topic}' was deleted by another request before it was led."
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, reason) from error
            except (BadVersionError, NoNodeError):
                continue
            else:
                return
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not take the topic; try again.")

    async def grow(
        self,
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
        with time_to_write(timeout_s):
            await self._write_growth(name, total, assignments, validate_only=validate_only)
        with trio.move_on_at(deadline):
            await self.view.wait_until(is_there)
        if not is_there(self.view):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    async def _write_growth(
        self,
        name: str,
        total: int,
        assignments: list[tuple[BrokerId, ...]] | None,
        *,
        validate_only: bool,
    ) -> None:
        lost: TopicAssignment | None = None
        # not by `update`: the transaction also checks deletion, and a growth that exists may be this one
        is_legal = topic_name_fault(name) is None  # `t/` is another path of topic t
        for _ in range(ATTEMPTS):
            found = await self.zookeeper.get_or_none(topic_path(name)) if is_legal else None
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            current = TopicAssignment.decode(name, found.data)
            if lost is not None and _is_grown_to(current, lost):
                return
            check_not_reassigned(current)
            partitions = plan_growth(current.partitions, total=total, assignments=assignments, racks=self._racks())
            if validate_only:
                return
            check_replica_count(partitions)
            grown = replace(current, partitions=partitions)
            try:
                await make_records_directory(self.zookeeper)
                write = SetNode(path=grown.path, data=grown.encode(), version=found.version)
                await self.zookeeper.transaction([*demand_not_deleted(current.id), write])
            except (BadVersionError, NodeExistsError):
                continue
            except CoordinationLostError:
                lost = grown
                continue
            return
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not take the partitions; try again.")

    async def delete(self, topic: TopicView, *, timeout_s: float) -> None:
        """Delete a topic and wait until this broker has removed it. Raises KafkaError, CoordinationError."""

        def is_gone(view: ClusterView) -> bool:
            applied = view.applied(topic.name)
            return view.topic_of_id(topic.topic_id) is None and (applied is None or applied.topic_id != topic.topic_id)

        deadline = trio.current_time() + timeout_s
        with time_to_write(timeout_s):
            await mark_deleted(self.zookeeper, topic.name, topic.topic_id, self.clock())
        with trio.move_on_at(deadline):  # the controller removes what is left
            await remove_znodes(self.zookeeper, topic.name, self.clock())
            await self.view.wait_until(is_gone)
        if not is_gone(self.view):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)


@contextmanager
def time_to_write(timeout_s: float) -> Generator[None]:
    """Give a change time to be written, whatever the request's timeout: with a timeout of 0 clients want it begun."""
    with trio.move_on_after(max(timeout_s, MIN_WRITE_S)) as scope:
        yield
    if scope.cancelled_caught:
        reason = "ZooKeeper did not answer in time, and may carry the change out later: look at ZooKeeper."
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, reason)


def _is_grown(topic: TopicView | None, total: int) -> bool:
    return topic is not None and len(topic.partitions) >= total and topic.is_led


def _is_grown_to(found: TopicAssignment, grown: TopicAssignment) -> bool:
    """True if a growth whose answer was lost was written; replicas may have been moved since."""
    return found.topic_id == grown.topic_id and len(found.partitions) >= len(grown.partitions)
