"""A producer process whose records the audit counts, to be killed: says on stdout how far it is.

    python -m tests.support.counted_producer BOOTSTRAP TOPIC MOMENT [TIMESTAMP_MS INTERVAL_S]

MOMENT: `registered`, `accepted`, `acknowledged`, `reported`, `held` (some are reported, some accepted and held),
`ended`, or `always`: publish until killed.
"""

import sys
import time
from random import SystemRandom

import trio

from pipeline.audit.counting.lives import open_audited_producer
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import Producer
from pipeline.settings import parse_addresses

WINDOW_MS = 1_000
RECORDS = 10
OFTEN_S = 0.1
SELDOM_S = 600.0
MAX_BURST = 50
MAX_PAUSE_S = 0.02


def clock() -> int:
    return time.time_ns() // 1_000_000


def say(moment: str) -> None:
    print(moment, flush=True)


async def publish_always(producer: Producer, topic: str) -> None:
    random = SystemRandom()
    say("always")
    while True:
        for _ in range(random.randrange(MAX_BURST)):
            await producer.send(topic, b"x" * random.randrange(200), key=b"%d" % random.randrange(100))
        await trio.sleep(random.random() * MAX_PAUSE_S)


async def publish_to(producer: Producer, topic: str, moment: str, timestamp_ms: int | None) -> None:
    if moment == "registered":
        return
    await producer.send_many(topic, [b"x"] * RECORDS, timestamp_ms=timestamp_ms)
    if moment != "accepted":
        await producer.flush()
    if moment == "held":
        await producer.send_many(topic, [b"x"] * RECORDS, timestamp_ms=timestamp_ms)


async def run(*arguments: str) -> None:
    bootstrap, topic, moment, *times = arguments
    linger_ms = 600_000 if moment in ("accepted", "held") else 5
    seldom_s = float(times[1]) if times else SELDOM_S
    interval_s = OFTEN_S if moment in ("reported", "held", "always") else seldom_s
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
        open_audited_producer(
            cluster,
            ProducerConfig(linger_ms=linger_ms, delivery_timeout_ms=600_000),
            datacenter="east",
            host="h",
            clock=clock,
            rng=SystemRandom(),
            window_ms=WINDOW_MS,
            interval_s=interval_s,
        ) as producer,
    ):
        if moment == "always":
            await publish_always(producer, topic)
        await publish_to(producer, topic, moment, int(times[0]) if times else None)
        if moment != "ended":
            say(moment)
            await trio.sleep_forever()
    say(moment)
    await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(run, *sys.argv[1:])
