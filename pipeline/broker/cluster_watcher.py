"""Follows ZooKeeper: keeps the view of the cluster up to date and lets this broker's partitions follow it.

With one replica per partition the replica is the leader; on opening a partition it claims the next leader epoch, so
that clients notice a log that may have lost its unflushed end (KIP-320). Nothing here gives up on a lost connection:
the watches go on by themselves, and a claim is repeated until it is answered.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog
import trio

from pipeline.broker.claims import claim
from pipeline.broker.cluster_view import ClusterView, PartitionView, TopicView
from pipeline.broker.dynamic_settings import DynamicSettings, Overrides
from pipeline.broker.replicas import Replicas
from pipeline.broker.topic_settings import TopicSettings, readable_settings
from pipeline.coordination.interface import MAX_AT_ONCE, CoordinationClient, NodeValue
from pipeline.coordination.znodes import (
    BROKER_IDS,
    TOPICS,
    BrokerOverrides,
    BrokerRegistration,
    PartitionState,
    TopicAssignment,
    TopicConfig,
    broker_config_path,
    broker_path,
    partition_state_path,
    topic_config_path,
    topic_path,
)
from pipeline.errors import CoordinationError
from pipeline.model import BrokerEndpoint, BrokerId, TopicPartition

log = structlog.get_logger()


@dataclass(slots=True)
class _TopicWatch:
    """The task that watches one topic: how to end it, and whether it has ended."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


@dataclass(slots=True)
class _Topic:
    """What the znodes of one topic said last."""

    assignment: TopicAssignment
    settings: TopicSettings
    overrides: Overrides
    states: dict[int, PartitionState] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    """The partitions that are led here."""
    watched: set[int] = field(default_factory=set)

    @property
    def topic_id(self) -> uuid.UUID:
        """Of its own, or (made before Kafka 2.8) one made of the name."""
        return self.assignment.topic_id or uuid.uuid5(uuid.NAMESPACE_URL, self.assignment.topic)


class ClusterWatcher:
    """The tasks that watch. `own` is this broker as clients see it; it is part of the view whatever ZooKeeper says."""

    def __init__(
        self,
        zookeeper: CoordinationClient,
        broker_settings: DynamicSettings,
        view: ClusterView,
        replicas: Replicas,
        own: BrokerEndpoint,
    ) -> None:
        self._zookeeper = zookeeper
        self._broker_settings = broker_settings
        self._view = view
        self._replicas = replicas
        self._own = own
        self._topics: dict[str, _Topic] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled. Reports started when all that ZooKeeper holds now has been seen and opened."""
        self._view.set_brokers({self._own.id: self._own})
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch_brokers)
            for name in self._broker_settings.names:
                await nursery.start(self._watch_broker_settings, name)
            await nursery.start(self._watch_topics)
            for stray in self._replicas.strays():
                log.warning("stray_log", topic_partition=str(stray), advice="the cluster does not know it; remove it")
            task_status.started()

    # Brokers

    async def _watch_brokers(self, *, task_status: trio.TaskStatus[None]) -> None:
        scopes: dict[str, trio.CancelScope] = {}
        async with trio.open_nursery() as nursery:
            async for names in self._zookeeper.watch_children(BROKER_IDS):
                for name in scopes.keys() - set(names):
                    scopes.pop(name).cancel()
                    self._forget_broker(BrokerId(int(name)))
                for name in sorted(set(names) - scopes.keys()):
                    scopes[name] = trio.CancelScope()
                    await nursery.start(self._watch_broker, BrokerId(int(name)), scopes[name])
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED

    async def _watch_broker(
        self, broker_id: BrokerId, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]
    ) -> None:
        with scope:
            async for value in self._zookeeper.watch_data(broker_path(broker_id)):
                if value is None:
                    self._forget_broker(broker_id)
                else:
                    self._meet_broker(broker_id, value)
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED

    def _meet_broker(self, broker_id: BrokerId, value: NodeValue) -> None:
        try:
            endpoint = BrokerRegistration.decode(broker_id, value.data).endpoint()
        except CoordinationError as error:
            log.error("broker_unreadable", error=str(error))
            return
        if endpoint is not None and broker_id != self._own.id:
            self._view.set_brokers({**self._view.brokers, broker_id: endpoint})

    def _forget_broker(self, broker_id: BrokerId) -> None:
        if broker_id != self._own.id:
            brokers = dict(self._view.brokers)
            brokers.pop(broker_id, None)
            self._view.set_brokers(brokers)

    async def _watch_broker_settings(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        async for value in self._zookeeper.watch_data(broker_config_path(name)):
            try:
                found = {} if value is None else BrokerOverrides.decode(name, value.data).settings
            except CoordinationError as error:
                log.error("broker_settings_unreadable", error=str(error))
                found = {}
            ignored = self._broker_settings.take(name, Overrides(found, -1 if value is None else value.version))
            if ignored:
                log.warning("broker_settings_ignored", name=name, settings=ignored)
            for topic in self._topics.values():
                self._reconfigure(topic, topic.overrides)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED

    # Topics

    async def _watch_topics(self, *, task_status: trio.TaskStatus[None]) -> None:
        watches: dict[str, _TopicWatch] = {}
        async with trio.open_nursery() as nursery:
            async for names in self._zookeeper.watch_children(TOPICS):
                for name in watches.keys() - set(names):
                    watch = watches.pop(name)
                    watch.scope.cancel()
                    await watch.ended.wait()
                    await self._remove_topic(name)
                async with trio.open_nursery() as loading:
                    for name in sorted(set(names) - watches.keys()):
                        watches[name] = _TopicWatch()
                        loading.start_soon(nursery.start, self._watch_topic, name, watches[name])
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED

    async def _watch_topic(self, name: str, watch: _TopicWatch, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with watch.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._watch_config, name)
                    async for value in self._zookeeper.watch_data(topic_path(name)):
                        if value is not None:
                            await self._take_assignment(name, value, nursery)
                        task_status.started()
                        task_status = trio.TASK_STATUS_IGNORED
        finally:
            watch.ended.set()

    async def _watch_config(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        async for value in self._zookeeper.watch_data(topic_config_path(name)):
            topic = self._topics.get(name)
            if topic is not None:
                self._reconfigure(topic, self._read_overrides(name, value))
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED

    def _reconfigure(self, topic: _Topic, overrides: Overrides) -> None:
        topic.overrides = overrides
        topic.settings, _ = readable_settings(overrides.settings, self._broker_settings.current)
        self._replicas.reconfigure(topic.assignment.topic, topic.assignment.partitions, topic.settings)
        self._publish(topic.assignment.topic)

    def _read_overrides(self, name: str, value: NodeValue | None) -> Overrides:
        if value is None:
            return Overrides()
        stored: Mapping[str, str] = {}
        try:
            stored = TopicConfig.decode(name, value.data).settings
        except CoordinationError as error:
            log.error("topic_config_unreadable", topic=name, error=str(error))
        _, ignored = readable_settings(stored, self._broker_settings.current)
        if ignored:
            log.warning("topic_settings_ignored", topic=name, settings=ignored)
        return Overrides({key: text for key, text in stored.items() if key not in ignored}, value.version)

    async def _take_assignment(self, name: str, value: NodeValue, nursery: trio.Nursery) -> None:
        try:
            assignment = TopicAssignment.decode(name, value.data)
        except CoordinationError as error:
            log.error("topic_unreadable", topic=name, error=str(error))
            return
        known = self._topics.get(name)
        if known is not None and known.assignment.topic_id != assignment.topic_id:
            await self._remove_topic(name)
            known = None
        if known is None:
            config = await self._zookeeper.get_or_none(topic_config_path(name))
            overrides = self._read_overrides(name, config)
            settings, _ = readable_settings(overrides.settings, self._broker_settings.current)
            topic = self._topics[name] = _Topic(assignment, settings, overrides)
        else:
            topic = known
            topic.assignment = assignment
        await self._open_own(topic)
        for index, brokers in assignment.partitions.items():
            if brokers[:1] != (self._own.id,) and index not in topic.watched:
                topic.watched.add(index)
                nursery.start_soon(self._watch_state, topic, index)
        self._publish(name)

    async def _open_own(self, topic: _Topic) -> None:
        name = topic.assignment.topic
        own = {index for index, brokers in topic.assignment.partitions.items() if brokers[:1] == (self._own.id,)}
        for index in sorted(topic.own - own):
            log.warning("partition_assigned_elsewhere", topic_partition=f"{name}-{index}")
            self._replicas.close(TopicPartition(name, index))
        topic.own = own
        unopened = sorted(index for index in own if TopicPartition(name, index) not in self._replicas.partitions)
        async with trio.open_nursery() as nursery:
            for start in range(0, len(unopened), MAX_AT_ONCE):
                nursery.start_soon(self._lead, topic, unopened[start : start + MAX_AT_ONCE])

    async def _lead(self, topic: _Topic, indexes: Sequence[int]) -> None:
        name = topic.assignment.topic
        for index, state in (await claim(self._zookeeper, self._own.id, name, indexes)).items():
            topic.states[index] = state
            await self._replicas.open(TopicPartition(name, index), topic.topic_id, topic.settings, state.leader_epoch)

    async def _watch_state(self, topic: _Topic, index: int) -> None:
        name = topic.assignment.topic
        async for value in self._zookeeper.watch_data(partition_state_path(name, index)):
            if self._topics.get(name) is not topic:
                return
            try:
                if value is not None:
                    topic.states[index] = PartitionState.decode(name, index, value.data)
            except CoordinationError as error:
                log.error("partition_state_unreadable", error=str(error))
                continue
            self._publish(name)

    def _publish(self, name: str) -> None:
        topic = self._topics[name]
        partitions = {}
        for index, brokers in topic.assignment.partitions.items():
            seen = PartitionView(replicas=brokers)
            state = topic.states.get(index)
            if state is not None:
                seen = replace(seen, leader=state.leader, leader_epoch=state.leader_epoch, isr=state.isr)
            partitions[index] = seen
        self._view.set_topic(
            TopicView(
                name=name,
                topic_id=topic.topic_id,
                partitions=partitions,
                settings=topic.settings,
                overrides=topic.overrides.settings,
                overrides_version=topic.overrides.version,
            )
        )

    async def _remove_topic(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        self._view.remove_topic(name)
        if topic is not None:
            for topic_partition in (TopicPartition(name, index) for index in sorted(topic.own)):
                if topic_partition in self._replicas.partitions or topic_partition in self._replicas.failed:
                    await self._replicas.delete(topic_partition)
            log.info("topic_deleted", topic=name)
