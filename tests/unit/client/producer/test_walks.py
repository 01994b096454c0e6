"""Random walks: tasks send while brokers go wrong in every way, and each record has the one outcome that is true."""

from collections import Counter, defaultdict
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.batches import DeliveryError, RecordMetadata
from pipeline.client.producer.delivery import Delivery
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.client.producer.record import UndeliveredRecord
from pipeline.errors import PipelineError
from pipeline.records.compression import Codec
from tests.support.wayward_brokers import MAX_DELAY_S, WaywardCluster

SENDERS, PARTITIONS = 2, 3
Outcome = RecordMetadata | DeliveryError


class Walk:
    """What a program was told of its records, by value."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.deliveries: dict[bytes, Delivery] = {}
        self.outcomes: dict[bytes, list[Outcome]] = defaultdict(list)
        self.reported: Counter[bytes] = Counter()
        self.refused: set[bytes] = set()

    def config(self) -> ProducerConfig:
        choice = self.rng.choice
        return ProducerConfig(
            batch_size=choice((100, 200, 1000)),
            linger_ms=choice((0, 1, 20)),
            delivery_timeout_ms=choice((50, 300, 2000, 20_000)),
            request_timeout_ms=choice((30, 200, 2000)),
            buffer_memory=choice((1000, 5000, 1_000_000)),
            max_block_ms=choice((10, 500, 5000)),
            max_in_flight=choice((1, 2, 5)),
            retries=choice((1, 3, 2**31 - 1)),
            compression=choice((Codec.NONE, Codec.ZSTD)),
        )

    async def send(self, producer: Producer, sender: int) -> None:
        """Send numbered records, some with a time limit, and flush now and then."""
        rng = self.rng
        for number in range(rng.randint(5, 50)):
            value = b"%d:%d:" % (sender, number) + b"x" * rng.choice((0, 5, 50))

            def told(metadata: RecordMetadata | None, error: Any, value: bytes = value) -> None:
                self.outcomes[value].append(metadata or error)

            try:
                with trio.move_on_after(rng.choice((0, 0.01, 1000, 1000, 1000))):
                    partition = rng.choice((None, *range(PARTITIONS)))
                    self.deliveries[value] = await producer.send("t", value, partition=partition, callback=told)
            except PipelineError:
                pass
            if value not in self.deliveries:
                self.refused.add(value)
            if rng.random() < 0.2:
                await trio.sleep(rng.uniform(0, 0.1))
            if rng.random() < 0.1:
                with trio.move_on_after(rng.choice((0, 0.01, 1000))):
                    self.report(await producer.flush(rng.choice((0, 0.01, 1))))

    def report(self, records: list[UndeliveredRecord]) -> None:
        self.reported.update(record.value for record in records if record.error is not None and record.value)

    def check(self, log: list[list[bytes]], *, reports_are_whole: bool) -> None:
        written = Counter(value for values in log for value in values)
        assert not [value for value in self.refused if written[value]]
        failed = set()
        for value, delivery in self.deliveries.items():
            (outcome,) = self.outcomes[value]
            if isinstance(outcome, RecordMetadata):
                assert delivery.result() == outcome
                assert written[value] == 1
                assert outcome.offset < 0 or log[outcome.topic_partition.partition][outcome.offset] == value
            else:
                failed.add(value)
                assert written[value] <= outcome.outcome_unknown
                with pytest.raises(DeliveryError):
                    delivery.result()
        if reports_are_whole:
            assert self.reported == Counter(failed)
        assert max(self.reported.values(), default=1) == 1
        for values in log:
            numbers = [tuple(map(int, value.split(b":")[:2])) for value in values if value not in failed]
            for sender in range(SENDERS):
                own = [number for its_sender, number in numbers if its_sender == sender]
                assert own == sorted(own)


async def walk(seed: int, clock: trio.testing.MockClock) -> tuple[int, int]:
    """Return how many records were accepted, and how many of them failed."""
    rng = Random(seed)
    told = Walk(rng)
    async with trio.open_nursery() as late:
        brokers = WaywardCluster(rng, rng.choice((0.1, 0.4, 1.0)), late)
        brokers.add_topic("t", [1] * PARTITIONS)

        async def disturb() -> None:
            """Move leaders; and let time pass as for a process that is stopped for a while."""
            while True:
                await trio.sleep(rng.uniform(0, 1))
                brokers.move_leader("t")
                if rng.random() < 0.2:
                    clock.jump(rng.choice((0.1, 1, 30)))

        async with brokers.broker(1), brokers.broker(2):
            settings = ClientConfig(bootstrap=brokers.bootstrap, retry_backoff_ms=5, retry_backoff_max_ms=50)
            async with (
                open_cluster(settings) as cluster,
                trio.open_nursery() as nursery,
                open_producer(cluster, told.config(), clock=lambda: 0, rng=Random(seed)) as producer,
            ):
                nursery.start_soon(disturb)
                async with trio.open_nursery() as senders:
                    for sender in range(SENDERS):
                        senders.start_soon(told.send, producer, sender)
                with trio.move_on_after(rng.choice((0, 0.05, 1000))):
                    told.report(await producer.aclose(rng.choice((None, 0, 0.05, 1))))
                told.report(producer.close())
                with suppress(DeliveryError):  # of a close that was cancelled
                    await producer.flush()
                assert producer._accumulator.used_bytes == 0
                nursery.cancel_scope.cancel()
            await trio.sleep(2 * MAX_DELAY_S)
    log = [[record.value or b"" for record in partition.records()] for partition in brokers.topics["t"].values()]
    told.check(log, reports_are_whole=not producer._sender.undelivered.forgotten_records)
    return len(told.deliveries), sum(isinstance(outcome, DeliveryError) for (outcome,) in told.outcomes.values())


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 200), marks=pytest.mark.long)])
def test_each_record_has_the_one_outcome_that_is_true(seeds: range) -> None:
    accepted = failed = 0
    for seed in seeds:
        clock = trio.testing.MockClock(autojump_threshold=0.005)
        counts = trio.run(walk, seed, clock, clock=clock)
        accepted, failed = accepted + counts[0], failed + counts[1]
    assert accepted > 20 * len(seeds)
    assert failed > len(seeds)
