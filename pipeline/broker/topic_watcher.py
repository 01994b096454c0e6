"""Follows the topics of the cluster: their replicas and their settings, and first of all the states of what is new.

Invariant: a topic is shown with the states of all its partitions that there were when it was read, never without.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
import trio

from pipeline.broker.cluster_view import ClusterView, PartitionView, TopicView
from pipeline.broker.dynamic_settings import DynamicSettings, Overrides
from pipeline.broker.state_watcher import patiently
from pipeline.broker.topic_settings import TopicSettings, readable_settings
from pipeline.coordination.interface import MAX_AT_ONCE, CoordinationClient, NodeValue
from pipeline.coordination.partition_states import Written, read_states
from pipeline.coordination.znodes import TOPICS, TopicAssignment, TopicConfig, topic_config_path, topic_path
from pipeline.errors import CoordinationError
from pipeline.model import TopicPartition

log = structlog.get_logger()


@dataclass(slots=True)
class _TopicWatch:
    """The task that watches one topic: how to end it, and whether it has ended."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class TopicWatcher:
    """The tasks that watch topics."""

    def __init__(self, zookeeper: CoordinationClient, broker_settings: DynamicSettings, view: ClusterView) -> None:
        self._zookeeper = zookeeper
        self._broker_settings = broker_settings
        self._view = view

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled. Reports started when all topics that there are now are in the view."""
        watches: dict[str, _TopicWatch] = {}
        async with trio.open_nursery() as nursery:
            async for names in self._zookeeper.watch_children(TOPICS):
                for name in sorted(watches.keys() - set(names)):
                    watch = watches.pop(name)
                    watch.scope.cancel()
                    await watch.ended.wait()
                    self._remove(name)
                async with trio.open_nursery() as loading:
                    for name in sorted(set(names) - watches.keys()):
                        watches[name] = _TopicWatch()
                        loading.start_soon(nursery.start, self._watch_topic, name, watches[name])
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED

    def reconfigure_all(self) -> None:
        """The settings of the broker, which are the defaults of the topics, have changed."""
        for topic in self._view.topics():
            self._reconfigure(topic, Overrides(topic.overrides, topic.overrides_version))

    async def _watch_topic(self, name: str, watch: _TopicWatch, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with watch.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._watch_config, name)
                    async for value in self._zookeeper.watch_data(topic_path(name)):
                        if value is not None:
                            await self._take_assignment(name, value)
                        task_status.started()
                        task_status = trio.TASK_STATUS_IGNORED
        finally:
            watch.ended.set()

    async def _watch_config(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        async for value in self._zookeeper.watch_data(topic_config_path(name)):
            topic = self._view.topic(name)
            if topic is not None:
                self._reconfigure(topic, self._read_overrides(name, value))
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED

    def _reconfigure(self, topic: TopicView, overrides: Overrides) -> None:
        settings = self._settings(overrides)
        if settings != topic.settings or overrides.version != topic.overrides_version:
            self._view.set_topic(
                replace(topic, settings=settings, overrides=overrides.settings, overrides_version=overrides.version)
            )

    def _settings(self, overrides: Overrides) -> TopicSettings:
        settings, _ = readable_settings(overrides.settings, self._broker_settings.current)
        return settings

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

    async def _take_assignment(self, name: str, value: NodeValue) -> None:
        try:
            assignment = TopicAssignment.decode(name, value.data)
        except CoordinationError as error:
            log.error("topic_unreadable", topic=name, error=str(error))
            return
        topic_id = _topic_id(assignment)
        known = self._view.topic(name)
        if known is not None and known.topic_id != topic_id:
            self._remove(name)
            known = None
        if known is None:
            config = await patiently(partial(self._zookeeper.get_or_none, topic_config_path(name)))
            overrides = self._read_overrides(name, config)
            known = TopicView(
                name=name,
                topic_id=topic_id,
                partitions={},
                settings=self._settings(overrides),
                overrides=overrides.settings,
                overrides_version=overrides.version,
            )
        new = [TopicPartition(name, index) for index in sorted(assignment.partitions.keys() - known.partitions.keys())]
        states = await patiently(partial(read_states, self._zookeeper, new))
        known = self._view.topic(name) or known
        partitions = {
            index: _partition_view(
                assignment, index, known.partitions.get(index), states.get(TopicPartition(name, index))
            )
            for index in sorted(assignment.partitions)
        }
        self._view.set_topic(replace(known, partitions=partitions, assignment_version=value.version))
        if len(new) > MAX_AT_ONCE:  # what was written between two of the reads was told while nobody knew of these
            ids = self._view.topic_ids(new)
            self._view.accept_states(ids, await patiently(partial(read_states, self._zookeeper, new)))

    def _remove(self, name: str) -> None:
        if self._view.topic(name) is not None:
            self._view.remove_topic(name)
            log.info("topic_deleted", topic=name)


def _topic_id(assignment: TopicAssignment) -> uuid.UUID:
    """Of its own, or (made before Kafka 2.8) one made of the name."""
    return assignment.topic_id or uuid.uuid5(uuid.NAMESPACE_URL, assignment.topic)


def _partition_view(
    assignment: TopicAssignment, index: int, known: PartitionView | None, found: Written | None
) -> PartitionView:
    """Who holds a partition, and what is known of its state."""
    replicas = assignment.partitions[index]
    adding = assignment.adding_replicas.get(index, ())
    removing = assignment.removing_replicas.get(index, ())
    if known is not None:
        return replace(known, replicas=replicas, adding=adding, removing=removing)
    view = PartitionView(replicas=replicas, adding=adding, removing=removing)
    return view if found is None else view.with_state(found.state, found.version)
