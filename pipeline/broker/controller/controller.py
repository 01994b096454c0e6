"""Elections of the controller: each broker stands for election whenever there is no controller, and reigns if elected.

Invariants:

- `/controller` (ephemeral) and the next number in `/controller_epoch` are written by one transaction. Each write of a
  controller demands the version of `/controller_epoch` that this transaction left: no older controller can write any
  more.
- The controller plans from this broker's view of the cluster, which may be old: each write is conditional on what the
  view said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from pipeline.broker.cluster.own_states import ElectionCounts
from pipeline.broker.cluster.state_watcher import StateWatcher, patiently
from pipeline.broker.cluster.view import NO_BROKER, ClusterView
from pipeline.broker.controller.controller_plan import ElectPreferred, ElectUnclean
from pipeline.broker.controller.reassignment import Target, TargetResult
from pipeline.broker.controller.reign import Reign
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.coordination.cluster_znodes import ControllerEpoch, ControllerNode
from pipeline.coordination.interface import CheckNode, CoordinationClient, CreateNode, NodeValue, SetNode
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    BadVersionError,
    CoordinationError,
    CoordinationLostError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from pipeline.model import BrokerId, Clock, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

RETRY_S = 0.1
UNREADABLE_S = 1.0
MIN_WRITE_S = 1.0
"""Least time for a change to be written, even if the request's timeout is shorter: with 0 clients want it begun."""

logger = get_logger(__name__)


@dataclass(slots=True)
class _Elected:
    """A won election: the time as the controller."""

    node: ControllerNode
    reign: Reign
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(slots=True, eq=False)
class Controller:
    """The task that follows the elections of the controller and stands for them."""

    zookeeper: CoordinationClient
    settings: DynamicSettings
    view: ClusterView
    states: StateWatcher
    own_id: BrokerId
    clock: Clock
    counts: ElectionCounts = field(default_factory=ElectionCounts)
    _elected: _Elected | None = None

    @property
    def is_active(self) -> bool:
        """True if this broker is the controller, as far as it knows."""
        return self._elected is not None

    async def elect(
        self, partitions: Sequence[TopicPartition] | None, *, is_unclean: bool, timeout_s: float
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Elect leaders by hand, of these or (None) of all partitions, and return the result of each.

        Raises KafkaError: NOT_CONTROLLER, REQUEST_TIMED_OUT.
        """
        event = ElectUnclean(partitions) if is_unclean else ElectPreferred(partitions)
        with trio.move_on_after(max(timeout_s, MIN_WRITE_S)):
            return await self._reigning().elect(event)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    async def reassign(
        self, targets: Mapping[TopicPartition, Target], *, may_change_factor: bool = True, timeout_s: float
    ) -> Mapping[TopicPartition, TargetResult]:
        """Begin to move partitions to these replicas, or (None) stop moving them; return the result for each.

        Raises KafkaError: NOT_CONTROLLER, REQUEST_TIMED_OUT.
        """
        with trio.move_on_after(max(timeout_s, MIN_WRITE_S)):
            return await self._reigning().reassign(targets, may_change_factor=may_change_factor)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    def _reigning(self) -> Reign:
        if self._elected is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return self._elected.reign

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow and stand for election until cancelled. Reports started when there is a controller."""
        try:
            async with trio.open_nursery() as nursery:
                async for value in self.zookeeper.watch_data(ControllerNode.PATH):
                    node = self._decode(value)
                    if self._elected is not None and node != self._elected.node:
                        logger.info("controller_resigned", broker=self.own_id, epoch=self._elected.reign.epoch)
                        self._elected.scope.cancel()
                        self._elected = None
                    if value is None:
                        self._elected = await self._stand()
                        node = None if self._elected is None else self._elected.node
                        if self._elected is not None:
                            nursery.start_soon(self._reign, self._elected)
                    elif self._elected is None and await self._is_own(node):
                        await self._remove(value)
                        node = None  # a former life of this broker: there is no controller until the next election
                    self.view.set_controller(NO_BROKER if node is None else node.broker)
                    if node is not None:
                        task_status.started()
                        task_status = trio.TASK_STATUS_IGNORED
        finally:
            self._elected = None

    def _decode(self, value: NodeValue | None) -> ControllerNode | None:
        try:
            return None if value is None else ControllerNode.decode(value.data)
        except CoordinationError as error:
            logger.error("controller_unreadable", error=str(error))
            return None

    async def _reign(self, elected: _Elected) -> None:
        with elected.scope:
            logger.info("controller_elected", broker=self.own_id, epoch=elected.reign.epoch)
            await elected.reign.run()
            # Another controller has been elected: `/controller` must not name this one any more.
            written = await patiently(partial(self.zookeeper.get_or_none, ControllerNode.PATH))
            if written is not None and written.data == elected.node.encode():
                await self._remove(written)

    async def _stand(self) -> _Elected | None:
        """Try to become the controller; None if another broker is."""
        while True:
            try:
                found = await self.zookeeper.get_or_none(ControllerEpoch.PATH)
                if found is None:
                    await self.zookeeper.create(ControllerEpoch.PATH, ControllerEpoch(epoch=0).encode())
                    continue
                return await self._take(found)
            except NodeExistsError as error:
                if error.path == ControllerNode.PATH:
                    return None
            except (BadVersionError, NoNodeError):
                continue
            except (CoordinationLostError, CoordinationUnavailableError) as error:
                logger.warning("election_repeated", reason=error.reason)
                await trio.sleep(RETRY_S)
            except CoordinationError as error:
                advice = "write the number of controllers there were so far, and no less"
                logger.error("controller_epoch_unreadable", error=str(error), advice=advice)
                self.view.set_controller(NO_BROKER)  # whom this broker followed last is gone
                await trio.sleep(UNREADABLE_S)

    async def _take(self, found: NodeValue) -> _Elected:
        """Become the controller in the epoch after this one. Raises as `transaction`."""
        epoch = ControllerEpoch(epoch=ControllerEpoch.decode(found.data).epoch + 1)
        node = ControllerNode(broker=self.own_id, timestamp_ms=self.clock())
        try:
            await self.zookeeper.transaction(
                [
                    SetNode(path=ControllerEpoch.PATH, data=epoch.encode(), version=found.version),
                    CreateNode(path=ControllerNode.PATH, data=node.encode(), ephemeral=True),
                ]
            )
        except CoordinationLostError:
            if not await self._is_taken(node, epoch, found.version + 1):
                raise
        reign = Reign(
            self.zookeeper,
            self.settings,
            self.view,
            self.states,
            epoch=epoch.epoch,
            check=CheckNode(path=ControllerEpoch.PATH, version=found.version + 1),
            counts=self.counts,
            clock=self.clock,
        )
        return _Elected(node, reign)

    async def _is_taken(self, node: ControllerNode, epoch: ControllerEpoch, version: int) -> bool:
        """True if the transaction, whose answer was lost, was carried out."""
        stat = await patiently(partial(self.zookeeper.exists, ControllerNode.PATH))
        written = await patiently(partial(self.zookeeper.get_or_none, ControllerNode.PATH))
        known = await patiently(partial(self.zookeeper.get_or_none, ControllerEpoch.PATH))
        return (
            stat is not None
            and stat.ephemeral_owner == self.zookeeper.session_id
            and written is not None
            and written.data == node.encode()
            and known == NodeValue(epoch.encode(), version)
        )

    async def _is_own(self, node: ControllerNode | None) -> bool:
        """True if `/controller` names this broker, or is of its session, although this broker is not the controller.

        An earlier life of this broker wrote it, which is dead: this one holds the log dirs. Or somebody wrote over it.
        """
        if node is not None and node.broker == self.own_id:
            return True
        stat = await patiently(partial(self.zookeeper.exists, ControllerNode.PATH))
        return stat is not None and stat.ephemeral_owner == self.zookeeper.session_id

    async def _remove(self, value: NodeValue) -> None:
        while True:
            try:
                await self.zookeeper.delete(ControllerNode.PATH, value.version)
            except (CoordinationLostError, CoordinationUnavailableError) as error:
                logger.warning("controller_not_removed", reason=error.reason)
                await trio.sleep(RETRY_S)
                if await patiently(partial(self.zookeeper.get_or_none, ControllerNode.PATH)) != value:
                    return
            except (NoNodeError, BadVersionError):
                return
            else:
                return
