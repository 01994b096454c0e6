"""A broker as a member of its cluster: how it joins, what it does when its session is lost, and how it leaves.

Order of each joining: see all that was written so far, leave the ISRs of what it cannot vouch for (nobody must elect it
there), register (from then on it may be given leaderships), claim what it led (in a new epoch), and only then lead and
follow what the view says.

Invariants:

- Between the loss of a session and the end of the next joining this broker leads nothing.
- A connection that is merely away changes nothing.
- A broker that stops says so in its registration, and goes on serving until others have taken over what they can, or
  `CONTROLLED_SHUTDOWN_S` is over.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog
import trio

from pipeline.broker.claims import claim, leave, own_partitions
from pipeline.broker.cluster_view import ClusterView
from pipeline.broker.controller.reign import ReignCounts
from pipeline.broker.replica_assigner import ReplicaAssigner
from pipeline.broker.replicas import Replicas
from pipeline.broker.state_watcher import StateWatcher
from pipeline.coordination.cluster_znodes import STATE_CHANGES
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.registration import Hooks, keep_registered
from pipeline.coordination.znodes import BrokerRegistration
from pipeline.errors import (
    BadVersionError,
    CoordinationLostError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from pipeline.model import BrokerId, TopicPartition

CONTROLLED_SHUTDOWN_S = 4.0

log = structlog.get_logger()


class Membership:
    """The task that keeps this broker a member. `states` reads what others wrote while it was none."""

    def __init__(
        self,
        zookeeper: CoordinationClient,
        registration: BrokerRegistration,
        view: ClusterView,
        replicas: Replicas,
        assigner: ReplicaAssigner,
        states: StateWatcher,
        counts: ReignCounts,
    ) -> None:
        self._zookeeper = zookeeper
        self._registration = registration
        self._view = view
        self._replicas = replicas
        self._assigner = assigner
        self._states = states
        self._counts = counts
        self._has_joined = False
        self._is_leaving = False

    @property
    def _own_id(self) -> BrokerId:
        return self._registration.id

    async def run(
        self,
        is_former_self: Callable[[bytes], bool],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Join, and again whenever a session is lost, until cancelled. Reports started when all replicas are open.

        Raises NodeOwnedError if another broker has this id.
        """
        hooks = Hooks(before=self._before, after=self._after, lost=self._lost)
        await keep_registered(
            self._zookeeper,
            self._registration.path,
            self._registration.encode(),
            is_former_self=is_former_self,
            hooks=hooks,
            task_status=task_status,
        )

    async def _before(self) -> None:
        if self._has_joined:
            await self.catch_up()
            await self._states.read_all()
        lacking = [name for name in own_partitions(self._view, self._own_id) if self._lacks(name)]
        if lacking:
            alone = await leave(self._zookeeper, self._view, self._own_id, lacking)
            self._counts.unclean_elections += len(alone)

    def _lacks(self, name: TopicPartition) -> bool:
        """Whether this broker may have told others of more than its log holds now.

        What its logs held at the start of the process is judged once: it has been set right since.
        """
        topic = self._view.topic(name.topic)
        if topic is None:
            return False
        return name in self._replicas.failed if self._has_joined else self._replicas.lacks(name, topic.topic_id)

    async def catch_up(self) -> None:
        """A write, even one that is refused, makes all reads after it see what was written before it.

        To be called before the view is read for the first time.
        """
        while True:
            try:
                await self._zookeeper.create(STATE_CHANGES)
            except (CoordinationLostError, CoordinationUnavailableError) as error:
                log.warning("joining_waits", reason=error.reason)
            except NodeExistsError:
                return
            else:
                return

    async def _after(self) -> None:
        claimed = await claim(self._zookeeper, self._view, self._own_id)
        self._has_joined = True
        await self._assigner.resume()
        log.info("joined", broker=self._own_id, claimed=len(claimed))
        if self._is_leaving:
            await self._announce_leaving()

    async def _lost(self) -> None:
        log.warning("session_lost", broker=self._own_id)
        await self._assigner.pause()

    async def leave(self) -> None:
        """Have others take over what they can, and return then, or when the time is over."""
        self._is_leaving = True
        if self._is_relieved(self._view):
            return
        with trio.move_on_after(CONTROLLED_SHUTDOWN_S) as scope:
            await self._announce_leaving()
            await self._view.wait_until(self._is_relieved)
        log.info("relieved", broker=self._own_id, completely=not scope.cancelled_caught)

    def _is_relieved(self, view: ClusterView) -> bool:
        """Whether there is no partition whose ISR it could leave to another."""
        others = view.brokers.keys() - view.shutting_down - {self._own_id}
        return not others or not any(
            self._own_id in found.isr and not others.isdisjoint(found.isr)
            for topic in view.topics()
            for found in topic.partitions.values()
        )

    async def _announce_leaving(self) -> None:
        wanted = replace(self._registration, is_shutting_down=True)
        while True:
            try:
                await self._zookeeper.set(wanted.path, wanted.encode())
            except (CoordinationLostError, CoordinationUnavailableError, BadVersionError):
                continue
            except NoNodeError:  # the session is lost: said again once it has joined anew
                return
            else:
                return
