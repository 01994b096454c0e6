"""Follows ZooKeeper, and keeps the view of the cluster up to date: brokers, their settings, topics, states.

A lost connection ends no task: the watches go on by themselves. `membership` and `replicas.assigner` act on the view.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import trio

from pipeline.broker.cluster.state_watcher import StateWatcher
from pipeline.broker.cluster.topic_watcher import TopicWatcher, WatchTask
from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.settings.dynamic import DynamicSettings, Overrides
from pipeline.coordination.interface import CoordinationClient, NodeValue
from pipeline.coordination.znodes import PLAINTEXT, BrokerRegistration, broker_config_path, broker_path, decode_config
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError
from pipeline.model import BROKER_IDS, BrokerEndpoint, BrokerId, TopicPartition
from pipeline.settings import MAX_INT32

NAMED_IN_LOG = 10

_BROKER_ID = re.compile(r"0|[1-9][0-9]{0,9}")

logger = get_logger(__name__)


class ClusterWatcher:
    """The tasks that watch. `own` is this broker as clients see it; the view has it always, whatever ZooKeeper says."""

    def __init__(
        self,
        zookeeper: CoordinationClient,
        broker_settings: DynamicSettings,
        view: ClusterView,
        own: BrokerEndpoint,
        inter_broker_listener: str = PLAINTEXT,
    ) -> None:
        self._zookeeper = zookeeper
        self._broker_settings = broker_settings
        self._view = view
        self._own = own
        self._inter_broker_listener = inter_broker_listener
        self._topics = TopicWatcher(zookeeper, broker_settings, view)
        self.states = StateWatcher(zookeeper, view)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled. Reports started when the view has all that ZooKeeper holds now."""
        self._view.set_brokers({self._own.id: self._own})
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch_brokers)
            for name in self._broker_settings.names:
                await nursery.start(self._watch_broker_settings, name)
            await nursery.start(self.states.run)
            await nursery.start(self._topics.run)
            task_status.started()

    # Brokers

    async def _watch_brokers(self, *, task_status: trio.TaskStatus[None]) -> None:
        watches: dict[str, WatchTask] = {}
        async with trio.open_nursery() as nursery:
            async for children in self._zookeeper.watch_children(BROKER_IDS):
                names = broker_names(children)
                for name in sorted(watches.keys() - set(names)):
                    watches[name].scope.cancel()
                    await watches.pop(name).ended.wait()
                    self._forget_broker(BrokerId(int(name)))
                for name in sorted(set(names) - watches.keys()):
                    watches[name] = WatchTask()
                    await nursery.start(self._watch_broker, BrokerId(int(name)), watches[name])
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED

    async def _watch_broker(self, broker_id: BrokerId, watch: WatchTask, *, task_status: trio.TaskStatus[None]) -> None:
        with watch.running():
            async for value in self._zookeeper.watch_data(broker_path(broker_id)):
                if value is None:
                    self._forget_broker(broker_id)
                else:
                    self._meet_broker(broker_id, value)
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED

    def _meet_broker(self, broker_id: BrokerId, value: NodeValue) -> None:
        try:
            registration = BrokerRegistration.decode(broker_id, value.data)
        except CoordinationError as error:
            logger.error("broker_unreadable", error=str(error))
            return
        endpoint = registration.endpoint(self._inter_broker_listener)
        if endpoint is None:
            logger.error("broker_unreachable", broker=broker_id, missing_listener=self._inter_broker_listener)
        self._view.log_dirs[broker_id] = frozenset(registration.directories)
        self._view.registrations[broker_id] = value.version
        if broker_id == self._own.id:  # which knows its own offline replicas before ZooKeeper does
            endpoint = replace(self._own, epoch=registration.epoch)
        elif endpoint is not None:
            self._take_offline_replicas(registration)
        if endpoint is not None:
            shutting_down = self._view.shutting_down - {broker_id}
            if registration.is_shutting_down:
                shutting_down |= {broker_id}
            self._view.set_brokers({**self._view.brokers, broker_id: endpoint}, shutting_down)

    def _take_offline_replicas(self, registration: BrokerRegistration) -> None:
        known, offline = self._view.brokers.get(registration.id), registration.offline_replicas.items()
        found = frozenset(TopicPartition(topic, index) for topic, indexes in offline for index in indexes)
        if known is not None and registration.epoch < known.epoch:
            # ZooKeeper went back to a former life of the broker, which did not know yet what it would lose.
            found |= self._view.offline_replicas.get(registration.id, frozenset())
        self._view.set_offline_replicas(registration.id, found)

    def _forget_broker(self, broker_id: BrokerId) -> None:
        self._view.registrations.pop(broker_id, None)
        brokers = dict(self._view.brokers)
        if broker_id != self._own.id:  # a controller that registers again must still know what it lost itself
            brokers.pop(broker_id, None)
            self._view.set_offline_replicas(broker_id, frozenset())
        self._view.set_brokers(brokers, self._view.shutting_down - {broker_id})

    async def _watch_broker_settings(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        async for value in self._zookeeper.watch_data(broker_config_path(name)):
            try:
                found = {} if value is None else decode_config(broker_config_path(name), value.data)
            except CoordinationError as error:
                logger.error("broker_settings_unreadable", error=str(error))
                found = {}
            ignored = self._broker_settings.take(name, Overrides(found, -1 if value is None else value.version))
            if ignored:
                logger.warning("broker_settings_ignored", name=name, settings=ignored)
            self._topics.reconfigure_all()
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED


def broker_names(children: Sequence[str]) -> list[str]:
    """Return the children of `/brokers/ids` that are broker ids; other names are ignored and logged."""
    names = [name for name in children if _BROKER_ID.fullmatch(name) and int(name) <= MAX_INT32]
    if len(names) < len(children):
        logger.warning("odd_znodes_ignored", path=BROKER_IDS, names=sorted(set(children) - set(names))[:NAMED_IN_LOG])
    return names
