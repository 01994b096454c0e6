"""Recovery of a cluster without help once the last fault is over, and how an outsider waits for it.

Rule: some time after the last fault every partition with a live replica that has everything committed has a leader, the
intended number of replicas and all of them in sync, without anybody's hand. The leader that ZooKeeper has leads, in the
epoch that ZooKeeper has. Each broker has registered with the broker epoch that ZooKeeper has: otherwise no leader adds
it to an ISR any more. Then all replicas become equal.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from pipeline.coordination.znodes import BrokerRegistration, broker_epoch_path, broker_path
from pipeline.model import BrokerId, TopicPartition
from pipeline.testing.simulation.cluster import SimulatedCluster
from pipeline.testing.simulation.state_rules import StateInZooKeeper

RECOVERY_S = 120.0
LOOK_S = 0.2

Intended = Callable[[str], int]
"""The replication factor that was asked for a topic."""
MayEndOffline = Callable[[str], bool]
"""Whether a topic may stay without a leader."""


class FailedError(Exception):
    """A run cannot go on."""


@contextmanager
def within(timeout_s: float, otherwise: str, details: Callable[[], str] = str) -> Generator[None]:
    """Raise FailedError if the block takes longer."""
    with trio.move_on_after(timeout_s) as scope:
        yield
    if scope.cancelled_caught:
        raise FailedError(f"{otherwise} within {timeout_s:g} s{details()}")


async def until(is_so: Callable[[], bool], problems: Callable[[], Iterable[str]] = tuple) -> None:
    """Return once it is so. Raises FailedError as soon as a rule is known to be broken: nobody needs to wait then."""
    while not is_so():
        if any(problems()):
            raise FailedError("the cluster was not waited for, as a rule was broken before")
        await trio.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Judges whether a cluster has recovered."""

    cluster: SimulatedCluster
    intended: Intended
    may_end_offline: MayEndOffline

    def is_whole(self) -> bool:
        """True if every broker serves, and every partition is as the rule says."""
        states = self.cluster.states()
        return (
            all(machine.is_serving and self._is_known(machine.id) for machine in self.cluster.machines)
            and all(name in states for name in self.cluster.zookeeper.partitions.all())
            and all(self._is_whole(name, state) or self._is_given_up(name, state) for name, state in states.items())
        )

    def _is_known(self, broker: BrokerId) -> bool:
        """True if the broker has registered with the broker epoch that ZooKeeper has."""
        registered = self.cluster.zookeeper.znodes.find_or_none(broker_path(broker))
        epoch = self.cluster.zookeeper.znodes.find_or_none(broker_epoch_path(broker))
        if registered is None or epoch is None:
            return False
        return BrokerRegistration.decode(broker, registered.data).epoch == epoch.version

    def _is_whole(self, name: TopicPartition, state: StateInZooKeeper) -> bool:
        intended = self.intended(name.topic)
        replicas = self.cluster.replica_ids(name)
        return self._is_led(name, state) and len(replicas) == intended and sorted(state.isr) == sorted(replicas)

    def _is_led(self, name: TopicPartition, state: StateInZooKeeper) -> bool:
        """True if the leader that ZooKeeper has leads, in the same epoch."""
        leader = next((found for found in self.cluster.replicas(name).values() if found.own_id == state.leader), None)
        return leader is not None and leader.is_leader and leader.leader_epoch == state.leader_epoch

    def _is_given_up(self, name: TopicPartition, state: StateInZooKeeper) -> bool:
        """True if nobody is left that can vouch for what it has (KIP-966)."""
        return self.may_end_offline(name.topic) and state.leader < 0 and not state.isr

    def given_up(self) -> list[TopicPartition]:
        """The partitions of which no replica vouches for what it has, and which may end like that."""
        return [name for name, state in self.cluster.states().items() if self._is_given_up(name, state)]

    def led(self) -> list[TopicPartition]:
        """The partitions that were not given up."""
        return [name for name, state in self.cluster.states().items() if not self._is_given_up(name, state)]

    def is_equal(self) -> bool:
        """True if all replicas end where their high watermarks are, at the same offset."""
        for name in self.led():
            ends = {(part.log.log_end_offset, part.high_watermark) for part in self.cluster.replicas(name).values()}
            if len(ends) != 1 or any(end != high_watermark for end, high_watermark in ends):
                return False
        return True

    def describe(self) -> str:
        """Describe how far the recovery is."""
        cluster = self.cluster
        lines = [
            f"{machine.name}: {'serves' if machine.is_serving else 'does not serve'}"
            f"{'' if self._is_known(machine.id) else ', registered in another epoch or not at all'}"
            for machine in cluster.machines
        ]
        for name, state in cluster.states().items():
            ends = {
                machine: f"{part.log.log_end_offset} hw {part.high_watermark}"
                for machine, part in cluster.replicas(name).items()
            }
            lines.append(
                f"{name}: leader {state.leader} epoch {state.leader_epoch} isr {state.isr} "
                f"replicas {cluster.replica_ids(name)} ends {ends}"
            )
        return "".join(f"\n    {line}" for line in lines)
