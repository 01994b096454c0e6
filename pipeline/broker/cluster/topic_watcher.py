"""Follows the topics of the cluster: their replicas, their settings, and the states of new partitions.

Invariants:

- The view gets a topic together with the states that its partitions had when the topic was read, never without.
- Settings that are missing or unreadable in ZooKeeper change nothing: known settings go on to count, and without known
  settings nothing of the topic is deleted. Their znode lives as long as the topic: if it is missing, they were lost.
"""

import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from pipeline.broker.cluster.state_watcher import patiently
from pipeline.broker.cluster.topic_names import topic_name_fault
from pipeline.broker.cluster.view import ClusterView, PartitionView, TopicView
from pipeline.broker.runtime.slicing import for_each
from pipeline.broker.settings.dynamic import DynamicSettings, Overrides
from pipeline.broker.settings.topic import KEEPING_ALL, TopicSettings, readable_settings
from pipeline.coordination.deleted_topics import find_deletions
from pipeline.coordination.interface import MAX_AT_ONCE, CoordinationClient, NodeValue
from pipeline.coordination.partition_states import look_up_states, read_states
from pipeline.coordination.znodes import TOPICS, TopicAssignment, decode_config, topic_config_path, topic_path
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError
from pipeline.model import TopicPartition

NAMED_IN_LOG = 10
_LOST_SETTINGS = (
    "the known settings go on to count, and after a restart nothing of the topic is deleted; restore the znode, or"
    " change a setting of the topic, which writes the znode again"
)
LOADED_AT_A_TIME = 50
"""Number of new topics that are read at a time: the event loop runs all ready tasks before anything else."""

logger = get_logger(__name__)


@dataclass(slots=True)
class WatchTask:
    """The task that watches one znode: how to end it, and its end. Until then it may change the view."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)

    @contextmanager
    def running(self) -> Generator[None]:
        """Run the task in this block."""
        try:
            with self.scope:
                yield
        finally:
            self.ended.set()


class TopicWatcher:
    """The tasks that watch topics."""

    def __init__(self, zookeeper: CoordinationClient, broker_settings: DynamicSettings, view: ClusterView) -> None:
        self._zookeeper = zookeeper
        self._broker_settings = broker_settings
        self._view = view

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled. Reports started when all present topics are in the view."""
        watches: dict[str, WatchTask] = {}
        async with trio.open_nursery() as nursery:
            async for children in self._zookeeper.watch_children(TOPICS):
                names = _legal(children)
                gone = sorted(watches.keys() - set(names))
                for name in gone:
                    watches[name].scope.cancel()
                for name in gone:
                    await watches.pop(name).ended.wait()
                await self._remove_missing(gone)

                async def load(name: str) -> None:
                    watches[name] = WatchTask()
                    await nursery.start(self._watch_topic, name, watches[name])

                await for_each(sorted(set(names) - watches.keys()), LOADED_AT_A_TIME, load)
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED

    def reconfigure_all(self) -> None:
        """Apply changed settings of the broker, which are the defaults of the topics."""
        for topic in self._view.topics():
            self._reconfigure(topic, Overrides(topic.overrides, topic.overrides_version), keeps_all=topic.keeps_all)

    async def _watch_topic(self, name: str, watch: WatchTask, *, task_status: trio.TaskStatus[None]) -> None:
        with watch.running():
            async with trio.open_nursery() as nursery:
                await nursery.start(self._watch_config, name)
                async for value in self._zookeeper.watch_data(topic_path(name)):
                    if value is not None:
                        await self._take_assignment(name, value)
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED

    async def _watch_config(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        is_first = True  # the topic is read after that, and its settings with it
        async for value in self._zookeeper.watch_data(topic_config_path(name)):
            if not is_first and self._view.topic(name) is None:  # the view is about to get it, with older settings
                await self._view.wait_until(lambda view: view.topic(name) is not None)
                value = await patiently(partial(self._zookeeper.get_or_none, topic_config_path(name)))
            is_first = False
            is_there = value is not None
            if not is_there:
                is_there = await patiently(partial(self._zookeeper.exists, topic_path(name))) is not None
            topic = self._view.topic(name)
            if topic is not None and is_there:  # else the view is about to get it, or it was deleted
                overrides = self._read_overrides(name, value)
                if overrides is not None:
                    self._reconfigure(topic, overrides, keeps_all=False)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED

    def _reconfigure(self, topic: TopicView, overrides: Overrides, *, keeps_all: bool) -> None:
        settings = self._settings(overrides, keeps_all=keeps_all)
        if settings != topic.settings or overrides.version != topic.overrides_version:
            self._view.set_topic(
                replace(
                    topic,
                    settings=settings,
                    overrides=overrides.settings,
                    overrides_version=overrides.version,
                    keeps_all=keeps_all,
                )
            )

    def _settings(self, overrides: Overrides, *, keeps_all: bool) -> TopicSettings:
        held = KEEPING_ALL if keeps_all else {}
        settings, _ = readable_settings({**overrides.settings, **held}, self._broker_settings.current)
        return settings

    def _read_overrides(self, name: str, value: NodeValue | None) -> Overrides | None:
        """Return the topic's own settings; None if ZooKeeper lost them."""
        self._view.lost_znodes[topic_config_path(name)] = None
        if value is None:
            logger.error("topic_settings_missing", topic=name, path=topic_config_path(name), advice=_LOST_SETTINGS)
            return None
        try:
            stored = decode_config(topic_config_path(name), value.data)
        except CoordinationError as error:
            logger.error("topic_config_unreadable", topic=name, error=str(error), advice=_LOST_SETTINGS)
            return None
        del self._view.lost_znodes[topic_config_path(name)]
        _, ignored = readable_settings(stored, self._broker_settings.current)
        if ignored:
            logger.warning("topic_settings_ignored", topic=name, settings=ignored)
        return Overrides({key: text for key, text in stored.items() if key not in ignored}, value.version)

    async def _take_assignment(self, name: str, value: NodeValue) -> None:
        try:
            assignment = TopicAssignment.decode(name, value.data)
        except CoordinationError as error:
            logger.error("topic_unreadable", topic=name, error=str(error))
            self._view.lost_znodes[topic_path(name)] = None
            return
        self._view.lost_znodes.pop(topic_path(name), None)
        topic_id = assignment.id
        if assignment.is_deleted:
            self._remove(name, is_deleted=True)
            self._view.being_deleted.add(name)
            return
        self._view.being_deleted.discard(name)
        known = self._view.topic(name)
        if known is not None and known.topic_id != topic_id:
            await self._remove_missing([name], is_recreated=True)
            known = None
        is_new = known is None
        if known is None:
            config = await patiently(partial(self._zookeeper.get_or_none, topic_config_path(name)))
            overrides = self._read_overrides(name, config)
            keeps_all = overrides is None
            overrides = overrides or Overrides()
            known = TopicView(
                name=name,
                topic_id=topic_id,
                partitions=self._remembered(name, topic_id),
                settings=self._settings(overrides, keeps_all=keeps_all),
                overrides=overrides.settings,
                overrides_version=overrides.version,
                keeps_all=keeps_all,
            )
        seen = () if is_new else known.partitions
        new = [TopicPartition(name, index) for index in sorted(assignment.partitions) if index not in seen]
        found, others = await patiently(partial(look_up_states, self._zookeeper, new))
        known = self._view.topic(name) or known
        partitions = {
            index: _partition_view(assignment, index, known.partitions.get(index))
            for index in sorted(assignment.partitions)
        }
        moment, now_s = self._view.next_moment(), trio.current_time()
        for new_name in new:
            view = partitions[new_name.partition]
            if new_name in found:
                view = view.restored(*found[new_name])
            else:
                view = view.without_znode(others[new_name]) or view
            partitions[new_name.partition] = replace(view, moment=moment, lost_s=now_s)
        self._view.set_topic(replace(known, partitions=partitions, assignment_version=value.version))
        if len(new) > MAX_AT_ONCE:  # notifications between two of the reads came before the view had these partitions
            asking = self._view.asking(new)
            self._view.accept_states(asking, await patiently(partial(read_states, self._zookeeper, new)))

    def _remembered(self, name: str, topic_id: uuid.UUID) -> Mapping[int, PartitionView]:
        """Return the partitions of a topic that ZooKeeper had lost, as they were last known."""
        missing = self._view.missing.get(name)
        if missing is None or missing.topic.topic_id != topic_id:
            return {}
        return missing.remembered(self._view.log_dirs)

    async def _remove_missing(self, names: Sequence[str], *, is_recreated: bool = False) -> None:
        """Remove topics that are missing in ZooKeeper or were recreated there, as deleted if a record says so."""
        ids = {name: topic.topic_id for name in names if (topic := self._view.topic(name)) is not None}
        deleted = await patiently(partial(find_deletions, self._zookeeper, set(ids.values())))
        for name in names:
            self._view.being_deleted.discard(name)
            record = deleted.get(ids[name]) if name in ids else None
            deleted_ms = record.timestamp_ms if record is not None and is_recreated else None
            self._remove(name, is_deleted=record is not None, deleted_ms=deleted_ms)

    def _remove(self, name: str, *, is_deleted: bool, deleted_ms: int | None = None) -> None:
        for path in (topic_path(name), topic_config_path(name)):
            self._view.lost_znodes.pop(path, None)
        known = self._view.topic(name)
        if known is None:
            return
        self._view.remove_topic(name, is_deleted=is_deleted, deleted_ms=deleted_ms)
        if is_deleted:
            logger.info("topic_deleted", topic=name, topic_id=str(known.topic_id))
        else:
            logger.error(
                "topic_missing",
                topic=name,
                topic_id=str(known.topic_id),
                reason="ZooKeeper has neither the topic nor a record of its deletion; its logs are kept as strays",
                advice="restore ZooKeeper's data; `pipeline cluster describe` names the strays",
            )


def _legal(names: Sequence[str]) -> Sequence[str]:
    """Return the names that are legal for a topic; log dirs and clients cannot use others."""
    legal = [name for name in names if topic_name_fault(name) is None]
    if len(legal) < len(names):
        logger.warning("odd_znodes_ignored", path=TOPICS, names=sorted(set(names) - set(legal))[:NAMED_IN_LOG])
    return legal


def _partition_view(assignment: TopicAssignment, index: int, known: PartitionView | None) -> PartitionView:
    """Return the view of a partition: its replicas, and its state as last known."""
    return replace(
        known or PartitionView(replicas=()),
        replicas=assignment.partitions[index],
        adding=assignment.adding_replicas.get(index, ()),
        removing=assignment.removing_replicas.get(index, ()),
    )
