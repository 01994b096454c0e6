"""A producer with a schema and audit counts: page views as Avro, each with its creation time and its host.

pipeline topic create page_views --partitions 2 -b HOST:PORT
python examples/produce_page_views.py HOST:PORT http://REGISTRY [COUNT]
"""

import json
import socket
import sys
import time
from random import SystemRandom

import trio

from pipeline.audit.counting.lives import open_audited_producer
from pipeline.client import (
    AvroSerializer,
    ClientConfig,
    Codec,
    ProducerConfig,
    open_cluster,
    open_schema_registry,
    parse_addresses,
)

TOPIC = "page_views"
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "PageView",
        "fields": [{"name": "user", "type": "string"}, {"name": "page", "type": "string"}],
    }
)


async def produce(bootstrap: str, registry_url: str, count: int) -> None:
    """Publish `count` page views and wait until all are acknowledged and reported to the audit."""
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
        open_schema_registry([registry_url]) as registry,
        open_audited_producer(
            cluster,
            ProducerConfig(compression=Codec.ZSTD),
            datacenter="local",
            host=socket.gethostname(),
            clock=lambda: time.time_ns() // 1_000_000,
            rng=SystemRandom(),
        ) as producer,
    ):
        serializer = AvroSerializer(registry, SCHEMA)
        for number in range(count):
            user = f"user-{number % 10}"
            value = await serializer.serialize(TOPIC, {"user": user, "page": f"/page/{number % 4}"})
            await producer.send(TOPIC, value, key=user.encode())
    print(f"{count} page views are acknowledged.")


if __name__ == "__main__":
    trio.run(produce, sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1000)
