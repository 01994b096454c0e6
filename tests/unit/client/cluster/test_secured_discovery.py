"""Brokers that ZooKeeper names: each client is led to the listener of its own protocol."""

import pytest

from pipeline.client.cluster.discovery import from_zookeeper
from pipeline.coordination.znodes import BrokerRegistration, Listener
from pipeline.errors import CoordinationError
from pipeline.model import BrokerId, HostPort, SecurityProtocol
from pipeline.testing.memory_zookeeper import MemoryZooKeeper


async def test_a_client_is_led_to_the_listener_of_its_protocol() -> None:
    listeners = tuple(
        Listener(name=name, security_protocol=protocol, address=HostPort("b", port))
        for name, protocol, port in (("OPEN", "PLAINTEXT", 1), ("CLIENT", "SASL_SSL", 2))
    )
    broker = BrokerRegistration(id=BrokerId(1), listeners=listeners, rack=None, timestamp_ms=0)
    async with MemoryZooKeeper().open() as zookeeper:
        await zookeeper.create(broker.path, broker.encode())
        assert await from_zookeeper(zookeeper)() == [HostPort("b", 1)]
        assert await from_zookeeper(zookeeper, SecurityProtocol.SASL_SSL)() == [HostPort("b", 2)]
        with pytest.raises(CoordinationError, match="no broker that a client can reach"):
            await from_zookeeper(zookeeper, SecurityProtocol.SSL)()
