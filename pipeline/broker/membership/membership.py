"""Membership of a broker in its cluster: joining, loss of the registration, and leaving.

Order of joining: raise the broker epoch (from then on no leader adds this broker to an ISR by an older fetch), read all
that was written so far, leave the ISRs of replicas that it cannot vouch for (they must not be elected) and note that in
its log dirs, register (from then on it may be elected), claim the partitions that it led (in a new leader epoch), and
only then lead and follow partitions as the view says.

Invariants:

- From the loss of a session or registration to the end of the next joining, this broker leads nothing.
- A connection that is lost for less than the session timeout changes nothing.
- The broker epoch in the registration follows the epoch in ZooKeeper: otherwise no leader would add this broker to an
  ISR again.
- A broker that stops says so in its registration, and serves until others have taken over what they can, or
  `CONTROLLED_SHUTDOWN_S` is over. If it led partitions it answers `REFERRAL_S` longer, to name their new leaders.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

import trio

from pipeline.broker.cluster.own_states import claim_leaderships, own_partitions
from pipeline.broker.cluster.state_watcher import StateWatcher
from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.membership.identity import wait_for_cluster
from pipeline.broker.replicas.assigner import ReplicaAssigner
from pipeline.broker.replicas.lost_replicas import LostReplicas
from pipeline.coordination.cluster_znodes import STATE_CHANGES
from pipeline.coordination.interface import CheckNode, CoordinationClient, SetNode
from pipeline.coordination.registration import Hooks, keep_registered
from pipeline.coordination.znodes import BrokerRegistration, broker_epoch_path
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    BadVersionError,
    CoordinationLostError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from pipeline.model import BrokerId, TopicPartition
from pipeline.net.signals import Wakeup

CONTROLLED_SHUTDOWN_S = 4.0
REFERRAL_S = 1.0
"""Longer than the usual wait of a fetch. A client that does not learn the new leader here may request metadata from a
broker that does not know it yet, and then waits for its next refresh."""
BYTES_OF_PARTITION = 8
MAX_OFFLINE_BYTES = 500_000
"""Maximum size of offline replicas in a registration: a znode holds 1 MB."""

logger = get_logger(__name__)


class Membership:
    """The task that keeps this broker a member. `states` reads what others wrote while the broker was no member."""

    def __init__(
        self,
        zookeeper: CoordinationClient,
        registration: BrokerRegistration,
        view: ClusterView,
        lost_replicas: LostReplicas,
        assigner: ReplicaAssigner,
        states: StateWatcher,
    ) -> None:
        self._zookeeper = zookeeper
        self._registration = registration
        self._view = view
        self._lost_replicas = lost_replicas
        self._assigner = assigner
        self._states = states
        self._has_joined = False
        self._registered = Wakeup()
        self._writing = trio.Lock()
        """Held while the registration is changed and written: a difference then is no write of others."""

    @property
    def _own_id(self) -> BrokerId:
        return self._registration.id

    async def run(
        self,
        is_former_self: Callable[[bytes], bool],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Join, and join again whenever the registration is lost, until cancelled.

        Reports started when all replicas are open. Raises NodeOwnedError if another broker has this id.
        """
        hooks = Hooks(before=self._before, after=self._after, lost=self._lost)
        await keep_registered(
            self._zookeeper,
            self._registration.path,
            self._encoded,
            is_former_self=is_former_self,
            hooks=hooks,
            writing=self._writing,
            task_status=task_status,
        )

    def _encoded(self) -> bytes:
        return self._registration.encode()

    async def _before(self) -> None:
        if self._has_joined:
            await wait_for_cluster(self._zookeeper, self._view.cluster_id)
        async with self._writing:
            await self._raise_epoch()
        if self._has_joined:
            await self.catch_up()
            await self._states.read_all()
        await self._lost_replicas.leave(own_partitions(self._view, self._own_id))
        async with self._writing:
            self._note_offline(self._lost_replicas.find_unable())

    async def keep_epoch(self) -> None:
        """Begin another broker epoch whenever another process has changed the epoch, until cancelled.

        It was another broker of the same id, which has lost the id since, or an operator, or a restored backup.
        """
        async for value in self._zookeeper.watch_data(broker_epoch_path(self._own_id)):
            await self._registered.wait()
            async with self._writing:
                if value is None or value.version != self._registration.epoch:
                    found = None if value is None else value.version
                    logger.warning("broker_epoch_changed_by_others", known=self._registration.epoch, found=found)
                    await self._raise_epoch()
                    await self._announce()

    async def _raise_epoch(self) -> None:
        """Begin another broker epoch, higher than all earlier ones of this process even if the znode was removed."""
        path = broker_epoch_path(self._own_id)
        while True:  # without a pause: the client waits for ZooKeeper itself
            try:
                epoch = await self._zookeeper.set(path, b"")  # unconditional: the new version is the epoch
            except NoNodeError:
                with suppress(NodeExistsError, CoordinationLostError, CoordinationUnavailableError):
                    await self._zookeeper.create(path)
            except (CoordinationLostError, CoordinationUnavailableError) as error:
                logger.warning("joining_waits", reason=error.reason)
            else:
                if epoch > self._registration.epoch:
                    self._registration = replace(self._registration, epoch=epoch)
                    self._view.own_epoch = epoch
                    return

    async def catch_up(self) -> None:
        """Have later reads see everything written so far, by a write, which may be refused.

        Call before the view is read for the first time.
        """
        while True:  # without a pause: the client waits for ZooKeeper itself
            try:
                await self._zookeeper.create(STATE_CHANGES)
            except (CoordinationLostError, CoordinationUnavailableError) as error:
                logger.warning("joining_waits", reason=error.reason)
            except NodeExistsError:
                return
            else:
                return

    async def _after(self) -> None:
        self._registered.set()
        own = own_partitions(self._view, self._own_id)
        claimed = await claim_leaderships(self._zookeeper, self._view, self._own_id, own)
        self._has_joined = True
        await self._assigner.resume()
        logger.info("joined", broker=self._own_id, claimed=len(claimed))

    async def _lost(self) -> None:
        self._registered.clear()
        await self._assigner.pause()

    async def leave(self) -> None:
        """Let other brokers take over what they can, and refer clients to them, for at most a few seconds."""
        if self._is_relieved(self._view):
            return
        is_leading, is_complete = self._leads_any(self._view), False
        with trio.move_on_after(CONTROLLED_SHUTDOWN_S):
            async with self._writing:
                self._registration = replace(self._registration, is_shutting_down=True)
                await self._announce()
            await self._view.wait_until(self._is_relieved)
            is_complete = True
            await trio.sleep(REFERRAL_S if is_leading else 0)
        logger.info("relieved", broker=self._own_id, completely=is_complete)

    def _leads_any(self, view: ClusterView) -> bool:
        return any(found.leader == self._own_id for topic in view.topics() for found in topic.partitions.values())

    def _is_relieved(self, view: ClusterView) -> bool:
        """True if no other broker could take over a partition of this broker."""
        others = view.brokers.keys() - view.shutting_down - {self._own_id}
        return not others or not any(
            self._own_id in found.isr and not others.isdisjoint(found.isr)
            for topic in view.topics()
            for found in topic.partitions.values()
        )

    async def announce_offline(self) -> None:
        """Report replicas that this broker cannot vouch for to the controller, which elects other leaders."""
        async with self._writing:
            if self._note_offline(self._lost_replicas.find_unable()):
                await self._announce()

    def _note_offline(self, offline: Collection[TopicPartition]) -> bool:
        """Take over the replicas that the registration is to name, and return True if they are others than before.

        The view has them at once: a controller in this process must not wait for ZooKeeper to hear of them.
        """
        self._view.set_offline_replicas(self._own_id, frozenset(offline))
        told: dict[str, tuple[int, ...]] = {}
        size_bytes = 0
        for name in sorted(offline):
            size_bytes += BYTES_OF_PARTITION + (0 if name.topic in told else len(name.topic))
            if size_bytes > MAX_OFFLINE_BYTES:
                logger.warning("offline_replicas_untold", told=sum(map(len, told.values())), all=len(offline))
                break
            told[name.topic] = (*told.get(name.topic, ()), name.partition)
        is_new = told != self._registration.offline_replicas
        self._registration = replace(self._registration, offline_replicas=told)
        return is_new

    async def _announce(self) -> None:
        """Write the registration again, unless it is lost: then joining writes it. The caller holds `_writing`.

        A registration of another session stays as it is. If this session ends before the write, another broker of this
        id has begun another epoch, and the check of the epoch fails; `keep_epoch` announces an epoch begun here.
        """
        path, epoch_path = self._registration.path, broker_epoch_path(self._own_id)
        while True:
            try:
                stat = await self._zookeeper.exists(path)
                if stat is None or stat.ephemeral_owner != self._zookeeper.session_id:
                    return
                await self._zookeeper.transaction(
                    [
                        CheckNode(path=epoch_path, version=self._registration.epoch),
                        SetNode(path=path, data=self._encoded(), version=stat.version),
                    ]
                )
            except (CoordinationLostError, CoordinationUnavailableError):
                continue
            except BadVersionError as error:
                if error.path == epoch_path:
                    return
            except NoNodeError:
                return
            else:
                return
