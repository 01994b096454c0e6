"""A client that gets schemas by their ids: `python -m bench.registry.getting JSON`, prints its figures as JSON.

It keeps its connections, over which it sends one request at a time: as fast as they are answered, or with `rate` at a
steady rate, whether or not the answers come in time (an open loop: the latency counts from when a request was due).
Answers other than 200 with the schema's text are failures.
"""

import json
import re
import selectors
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bench.registry.schemas import schema_text

DEADLINE_S = 30
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
HEAD_END = b"\r\n\r\n"
RECEIVED_BYTES = 65_536
SEED = 1


@dataclass(slots=True)
class Connection:
    """A connection, the request on its way (when it was due, its id), and what of the answer has come."""

    socket: socket.socket
    due: float = 0.0
    id: int = 0
    received: bytearray = field(default_factory=bytearray)

    def send(self, due: float, schema_id: int) -> None:
        self.due, self.id = due, schema_id
        self.socket.sendall(b"GET /schemas/ids/%d HTTP/1.1\r\nHost: registry\r\nAccept: */*\r\n\r\n" % schema_id)

    def has_answer(self) -> bool:
        """Take what has come. Raises RuntimeError for another answer than the schema."""
        part = self.socket.recv(RECEIVED_BYTES)
        self.received += part
        end = self.received.find(HEAD_END)
        if end < 0 and part:
            return False
        length = LENGTH.search(self.received, 0, end + 2)
        if length is None or not self.received.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"answered {bytes(self.received[:500])!r}")
        body_end = end + len(HEAD_END) + int(length[1])
        if len(self.received) < body_end:
            return False
        if len(self.received) > body_end or json.loads(self.received[end:])["schema"] != schema_text(self.id):
            raise RuntimeError(f"the answer for id {self.id} is another one: {bytes(self.received[:500])!r}")
        self.received.clear()
        return True


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    """Figures of `seconds` of requests over `connections` connections, for ids from 1 to `ids`."""
    ids, rng = asked["ids"], Random(SEED)
    selector = selectors.DefaultSelector()
    free: deque[Connection] = deque()
    for _ in range(asked["connections"]):
        connected = socket.create_connection(("127.0.0.1", asked["port"]), timeout=DEADLINE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        free.append(Connection(connected))
        selector.register(connected, selectors.EVENT_READ, free[-1])
    latencies_s: list[float] = []
    began = now = time.perf_counter()
    end = began + asked["seconds"]
    sent, flying = 0, 0
    while now < end or flying:
        while free and now < end:
            due = began + sent / asked["rate"] if asked.get("rate") else now
            if due > now:
                break
            free.popleft().send(due, rng.randint(1, ids))
            sent, flying = sent + 1, flying + 1
        wait_s = DEADLINE_S if flying else 0
        if asked.get("rate") and free and now < end:
            wait_s = max(0, began + sent / asked["rate"] - now)
        ready = selector.select(wait_s)
        now = time.perf_counter()
        if not ready and wait_s == DEADLINE_S:
            raise RuntimeError(f"no answer within {DEADLINE_S} s")
        for key, _ in ready:
            if key.data.has_answer():
                latencies_s.append(time.perf_counter() - key.data.due)
                free.append(key.data)
                flying -= 1
    ordered = sorted(latencies_s)
    return {
        "requests": sent,
        "seconds": time.perf_counter() - began,
        "latency_ms": {name: ordered[int(len(ordered) * share)] * 1000 for name, share in SHARES.items()},
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
