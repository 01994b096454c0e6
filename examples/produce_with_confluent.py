"""A producer of confluent-kafka whose records the audit counts.

pipeline topic create page_visits -b HOST:PORT
python examples/produce_with_confluent.py HOST:PORT [COUNT]
"""

import sys

from confluent_kafka import Producer

from pipeline.audit.confluent import count_deliveries

TOPIC = "page_visits"


def produce(bootstrap: str, count: int) -> None:
    """Publish `count` page visits, wait until all are acknowledged, and report them to the audit."""
    with count_deliveries(bootstrap, datacenter="local", topics=[TOPIC]) as counted:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "on_delivery": counted.on_delivery}
        )
        for number in range(count):
            producer.produce(TOPIC, f"/page/{number % 4}".encode(), key=f"user-{number % 10}".encode())
            producer.poll(0)
        producer.flush()
    print(f"{count} page visits are acknowledged.")


if __name__ == "__main__":
    produce(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
