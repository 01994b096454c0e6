"""What a view takes over from the registrations of brokers."""

from dataclasses import replace

from pipeline.coordination.znodes import BrokerRegistration, Listener
from pipeline.model import BrokerId, HostPort, TopicPartition
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.controllers import running

LOST = frozenset({TopicPartition("t", 0)})


def registration(broker: int) -> BrokerRegistration:
    address = HostPort("127.0.0.1", 9092)
    return BrokerRegistration(id=BrokerId(broker), listeners=(Listener(address=address),), timestamp_ms=0, epoch=2)


async def test_the_registration_of_a_former_life_makes_no_broker_whole() -> None:
    """A restored ZooKeeper holds it for the length of a session. The broker lost its log since."""
    zookeeper, two = MemoryZooKeeper(), BrokerId(2)
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        present = replace(registration(2), offline_replicas={"t": (0,)})
        await other.create(present.path, present.encode(), ephemeral=True)
        await rig.until(lambda view: view.offline_replicas.get(two) == LOST)
        assert rig.view.registrations[two] == 0
        await other.set(present.path, replace(registration(2), epoch=1).encode())
        await rig.until(lambda view: view.registrations.get(two) == 1)
        assert rig.view.offline_replicas[two] == LOST
        await other.set(present.path, replace(registration(2), epoch=3).encode())
        await rig.until(lambda view: view.registrations.get(two) == 2)
        assert two not in rig.view.offline_replicas
        await other.delete(present.path)
        await rig.until(lambda view: two not in view.registrations)


async def test_a_broker_does_not_ask_zookeeper_what_it_lost_itself() -> None:
    zookeeper, own = MemoryZooKeeper(), BrokerId(1)
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        rig.view.set_offline_replicas(own, LOST)
        known = rig.view.registrations[own]
        await other.set(registration(1).path, registration(1).encode())
        await rig.until(lambda view: view.registrations.get(own) == known + 1)
        assert rig.view.offline_replicas[own] == LOST
