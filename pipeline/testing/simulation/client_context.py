"""Context shared by all simulated clients: the cluster, the history they write, and when their work is over."""

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import trio

from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.errors import PipelineError
from pipeline.model import HostPort
from pipeline.testing.simulation.cluster import SimulatedCluster
from pipeline.testing.simulation.history import History
from pipeline.testing.simulation.schedule import true_time_ms

REQUEST_TIMEOUT_MS = 4_000
REQUEST_TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
DELIVERY_TIMEOUT_MS = 12_000


def simulated_clock() -> int:
    """The time of the clients."""
    return true_time_ms()


def client_config(name: str, addresses: tuple[HostPort, ...]) -> ClientConfig:
    """Settings of an impatient client."""
    return ClientConfig(
        bootstrap=addresses,
        client_id=name,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        default_api_timeout_ms=REQUEST_TIMEOUT_MS * 2,
        metadata_max_age_ms=5_000,
    )


@dataclass(eq=False)
class ClientContext:
    """A client runs until it is cancelled, or `is_over`."""

    cluster: SimulatedCluster
    history: History
    seed: str
    is_over: bool = False

    def rng(self, name: str) -> random.Random:
        """The dice of a client."""
        return random.Random(f"{name} {self.seed}")

    def open(self, name: str) -> AbstractAsyncContextManager[Cluster]:
        """A cluster as this client sees it, from a host of its own."""
        host = self.cluster.network.host(name)
        return open_cluster(client_config(name, self.cluster.addresses), connect=host.connect)

    async def keep_producing(
        self,
        name: str,
        rng: random.Random,
        config: ProducerConfig,
        records_per_s: float,
        write: Callable[[Producer, int], Awaitable[None]],
    ) -> None:
        """Call `write` with a producer and the numbers 1, 2, 3 ... until the work is over.

        A producer that failed is replaced. The calls are `records_per_s` a second on average, at random times.
        """
        number = 0
        async with self.open(name) as cluster:
            while not self.is_over:
                try:
                    async with open_producer(cluster, config, clock=simulated_clock, rng=rng) as producer:
                        while not self.is_over:
                            await trio.sleep(rng.expovariate(records_per_s))
                            number += 1
                            await write(producer, number)
                except PipelineError as error:
                    self.tell(name, f"begins anew: {error}")

    def tell(self, name: str, what: str) -> None:
        """Add to the trace."""
        self.cluster.trace.add(name, what)
