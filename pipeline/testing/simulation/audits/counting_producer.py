"""A simulated producer process that counts what it sends, life after life; each life ends cleanly or by a kill.

Most records bear the time at which they are sent. A few are late: they bear a time of an hour or a day before.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from pipeline.audit.counting.lives import open_audited_producer
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.batches import DeliveredBatch, RecordMetadata
from pipeline.client.producer.producer import Producer
from pipeline.errors import NetworkError, PipelineError
from pipeline.model import HostPort, TopicPartition
from pipeline.net.transport import Transport
from pipeline.records.tally import HOUR_MS
from pipeline.testing.simulation.audits.broker_audit import INTERVAL_S, WINDOW_MS
from pipeline.testing.simulation.audits.word_rules import AcceptedRecords
from pipeline.testing.simulation.client_context import (
    DELIVERY_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    ClientContext,
    client_config,
    simulated_clock,
)
from pipeline.testing.simulation.process import PROCESS, Process
from pipeline.testing.simulation.workload import CODECS, Workload

LIFE_S = (3.0, 15.0)
RESTART_S = 1.0
RECORDS_PER_S = 6.0
DELAYS_MS = (*[0] * 30, HOUR_MS, 24 * HOUR_MS)
"""Age of a record when it is sent."""


@dataclass(eq=False)
class CountingProducer:
    """Lives until the work of the clients is over. `workload` has the partitions and notes values and outcomes."""

    name: str
    context: ClientContext
    workload: Workload
    delivered: Callable[[DeliveredBatch], None]
    """Called with each batch that was acknowledged to a process that was alive."""
    is_killed_at_times: bool = True
    lives: int = 0
    killed: int = 0
    accepted: AcceptedRecords | None = None
    """Records of the present life that have no outcome yet; None if no life is there."""
    _number: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = self.context.rng(self.name)

    async def run(self) -> None:
        """Live, again and again. The last life ends cleanly."""
        while not self.context.is_over:
            self.lives += 1
            ends_by_kill = self.is_killed_at_times and self._rng.random() < 0.5
            lasts_s = self._rng.uniform(*LIFE_S)
            process = Process(f"{self.name}/{self.lives}")
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._live, process, None if ends_by_kill else lasts_s)
                    if ends_by_kill:
                        nursery.start_soon(self._kill_later, process, lasts_s, scope)
            await trio.sleep(RESTART_S)

    async def _kill_later(self, process: Process, lasts_s: float, scope: trio.CancelScope) -> None:
        with trio.move_on_after(lasts_s):
            while not self.context.is_over:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(RESTART_S)
            return
        if process.is_alive:
            self.context.tell(self.name, "KILLED")
            self.killed += 1
            process.is_alive, self.accepted = False, None
            self.context.cluster.network.host(self.name).end_process(tells_peers=True)
        scope.cancel()

    async def _live(self, process: Process, lasts_s: float | None) -> None:
        PROCESS.set(process)
        host = self.context.cluster.network.host(self.name)
        host.has_power = True
        self.accepted = AcceptedRecords(self.name, simulated_clock())

        async def connect(address: HostPort) -> Transport:
            if not process.is_alive:
                raise NetworkError("the process has ended")
            return await host.connect(address)

        def delivered(batch: DeliveredBatch) -> None:
            if process.is_alive:
                self.delivered(batch)

        try:
            async with (
                open_cluster(client_config(self.name, self.context.cluster.addresses), connect=connect) as cluster,
                open_audited_producer(
                    cluster,
                    self._config(),
                    datacenter=self.context.cluster.name,
                    host=self.name,
                    clock=simulated_clock,
                    rng=self._rng,
                    window_ms=WINDOW_MS,
                    interval_s=INTERVAL_S,
                    on_delivered=delivered,
                ) as producer,
            ):
                await self._send(process, producer, lasts_s)
        except PipelineError as error:
            self.context.tell(self.name, f"begins anew: {error}")
        finally:
            process.is_alive, self.accepted = False, None

    def _config(self) -> ProducerConfig:
        return ProducerConfig(
            linger_ms=self._rng.choice([0, 5]),
            batch_size=self._rng.choice([200, 2000]),
            compression=self._rng.choice(CODECS),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=DELIVERY_TIMEOUT_MS,
        )

    async def _send(self, process: Process, producer: Producer, lasts_s: float | None) -> None:
        rng, end = self._rng, trio.current_time() + (lasts_s or 1e9)
        partitions: Sequence[TopicPartition] = self.workload.partitions
        while not self.context.is_over and trio.current_time() < end:
            await trio.sleep(rng.expovariate(RECORDS_PER_S))
            if not process.is_alive:
                return
            target = rng.choice(partitions)
            timestamp_ms = simulated_clock() - rng.choice(DELAYS_MS)
            for _ in range(rng.choice([1, 1, 1, 5])):
                self._number += 1
                value = f"{self.name}/{self._number}".encode() + self.workload.padding
                self.context.history.sent[value] = target
                await self._send_one(producer, value, target, timestamp_ms)

    async def _send_one(self, producer: Producer, value: bytes, target: TopicPartition, timestamp_ms: int) -> None:
        accepted = self.accepted
        assert accepted is not None

        def has_outcome(told: RecordMetadata | None, error: Exception | None) -> None:
            accepted.has_outcome(value)
            self.workload.delivered(value, target, told, error)

        accepted.offered(value)
        await producer.send(
            target.topic, value, partition=target.partition, timestamp_ms=timestamp_ms, callback=has_outcome
        )
        accepted.accepted(value, simulated_clock())
