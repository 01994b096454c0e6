"""A confluent-kafka producer at a steady rate: `python -m bench.cluster.steady JSON`, until its standard input ends.

Each line of its input names what goes on from then on; at the end it prints, as JSON, the latency percentiles of the
records that were sent meanwhile, by that name. acks=all, no linger, 1 KB.
"""

import json
import sys
import threading
import time
from collections import defaultdict
from typing import Any

from bench.broker.confluent import open_producer, payloads

DEADLINE_S = 60
RECORD_BYTES = 1000
SHARES = {"p50": 0.5, "p99": 0.99}


def main() -> None:
    asked = json.loads(sys.argv[1])
    producer = open_producer({**asked, "codec": "none", "acks": "all"}, linger_ms=0)
    value = next(payloads(RECORD_BYTES))
    phase, ended = ["start"], threading.Event()
    taken_s: dict[str, list[float]] = defaultdict(list)
    failures: list[Any] = []

    def listen() -> None:
        for line in sys.stdin:
            phase[0] = line.strip()
        ended.set()

    def delivered_since(sent: float, name: str) -> Any:
        def delivered(error: Any, _message: Any) -> None:
            taken_s[name].append(time.perf_counter() - sent)
            if error is not None:
                failures.append(error)

        return delivered

    threading.Thread(target=listen, daemon=True).start()
    began, number = time.perf_counter(), 0
    while not ended.is_set():
        due = began + number / asked["rate"]
        while (now := time.perf_counter()) < due:
            producer.poll(due - now)
        sent = delivered_since(time.perf_counter(), phase[0])
        producer.produce(asked["topic"], value, partition=0, on_delivery=sent)
        producer.poll(0)
        number += 1
    if producer.flush(DEADLINE_S) or failures:
        raise RuntimeError(f"not all were delivered: {failures[:1]}")
    print(json.dumps({name: percentiles_ms(values) for name, values in taken_s.items()}))


def percentiles_ms(values_s: list[float]) -> dict[str, float]:
    ordered = sorted(values_s)
    return {name: ordered[int(len(ordered) * share)] * 1000 for name, share in SHARES.items()}


if __name__ == "__main__":
    main()
