"""Schemas that nobody should send, from fixed seeds, to a registry in a process of its own.

The long parts are independent of one another.
"""

import http.client
import socket
import threading
import time
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.hostile_schemas import hostile_schema
from tests.support.sizes import size

CASES = range(600)
PARTS = [range(first, first + 5_000) for first in range(0, size(10_000, 100_000), 5_000)]
SEED = 20110612
WARM_UP = 30
CLIENTS = 4
SUBJECTS = 40
SLOW_CLIENTS = 20
SMALL = b'{"schema": "{\\"type\\":\\"record\\",\\"name\\":\\"R\\",\\"fields\\":[]}"}'
HONEST = [
    ("GET", "/healthz", None, b'{"status":"ok"}'),
    ("POST", "/compatibility/subjects/honest/versions", SMALL, b'{"is_compatible":true}'),
]
"""What a client asks meanwhile, and is answered at once."""
STATUSES = (200, 404, 409, 413, 422)
SLOW_REQUEST = b"POST /subjects/s/versions HTTP/1.1\r\nHost: registry\r\nContent-Length: 900000\r\n\r\n"
MAX_WAIT_S = 0.5
PATIENCE = 20
"""By what a machine that tests share may be slower than an idle one."""
MAX_GROWTH_MB = 100
DEADLINE_S = 120


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.mark.long
@pytest.mark.parametrize(
    "cases",
    [CASES, *(pytest.param(part, marks=pytest.mark.timeout(1200)) for part in PARTS)],
    ids=["some", *(f"from-{part.start}" for part in PARTS)],
)
def test_hostile_schemas_hold_up_nobody(tmp_path: Path, cases: range) -> None:
    with LocalCluster(tmp_path, registry=True) as local:
        address = urlsplit(local.registry)
        assert address.hostname is not None
        ended, waits_s, small_s, statuses = threading.Event(), [0.0], [0.0], set()
        strange: list[tuple[int, int, bytes]] = []

        def watch() -> None:
            while not ended.is_set():
                connection = http.client.HTTPConnection(address.netloc, timeout=DEADLINE_S)
                for (method, path, sent, expected), waits in zip(HONEST, (waits_s, small_s), strict=True):
                    began = time.monotonic()
                    connection.request(method, path, sent)
                    assert connection.getresponse().read() == expected
                    waits.append(time.monotonic() - began)
                connection.close()
                ended.wait(0.05)

        def send(numbers: range) -> None:
            connection = http.client.HTTPConnection(address.netloc, timeout=DEADLINE_S)
            for number in numbers:
                path = f"/subjects/s{number % SUBJECTS}/versions"
                if number % 2:
                    path = f"/compatibility{path}?verbose=true"
                connection.request("POST", path, hostile_schema(SEED + number))
                answer = connection.getresponse()
                body = answer.read()
                statuses.add(answer.status)
                if answer.status not in STATUSES:
                    strange.append((number, answer.status, body))
                if answer.getheader("connection") == "close":
                    connection.close()
            connection.close()

        send(cases[:WARM_UP])
        before_mb = resident_mb(local.pids["registry"])
        slow = [socket.create_connection((address.hostname, address.port)) for _ in range(SLOW_CLIENTS)]
        for number, one in enumerate(slow):
            one.sendall(SLOW_REQUEST[: 40 + number * 3])
        threads = [threading.Thread(target=send, args=[cases[first::CLIENTS]]) for first in range(CLIENTS)]
        watcher = threading.Thread(target=watch)
        for thread in (watcher, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        ended.set()
        watcher.join()
        for one in slow:
            one.close()
        growth_mb = resident_mb(local.pids["registry"]) - before_mb
    waits = f"longest wait {max(waits_s):.2f} s of {len(waits_s)}, median {median(waits_s):.3f} s"
    waits = f"{waits}; of a small schema {max(small_s):.2f} s, median {median(small_s):.3f} s"
    print(f"{waits}; {growth_mb:.0f} MB more; statuses {sorted(statuses)}")
    assert len(waits_s) > 10
    assert strange == []
    assert max(*waits_s, *small_s) < MAX_WAIT_S * PATIENCE
    assert growth_mb < MAX_GROWTH_MB
