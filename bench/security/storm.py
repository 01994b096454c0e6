"""1,000 clients that open TLS connections at a time, and the acknowledgements of a client that is there already."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

from bench.broker.clients import confluent, create_topic, delete_topic
from bench.broker.servers import our_broker
from bench.report import Options, Row, Show, Target
from bench.security.listeners import Site, new_ports

NAME = "p99 of a client while 1,000 others connect by TLS: more than without them"
ALONE = "p99 of a client by TLS, alone"
CONNECTING = "1,000 TLS connections: time"
TARGET = Target(bound=50, at_least=False, absolute=True)
CONNECTIONS = 1000
RATE = 1000
SECONDS = 8
BEGIN_S = 2.0
"""Time until the others come: the client has connected and warmed up."""
DEADLINE_S = 120


def measure(options: Options, rounds: int, directory: Path, show: Show) -> list[Row]:
    """All selected rows."""
    if not any(options.selects(name) for name in (NAME, ALONE, CONNECTING)):
        return []
    site, ports = Site.made(directory), new_ports()
    alone_ms: list[float] = []
    beside_ms: list[float] = []
    taken_s: list[float] = []
    with our_broker(directory / "ours", ports, **site.of_server()) as server:
        server.start()

        def p99_ms() -> float:
            topic = create_topic(server, 1)
            asked = {
                "action": "latency",
                "rate": RATE,
                "records": RATE * SECONDS,
                "record_bytes": 1000,
                "codec": "none",
                "acks": "all",
                "bootstrap": f"127.0.0.1:{ports['SSL']}",
                "settings": str(site.settings_of("SSL")),
            }
            try:
                return confluent(server, topic, asked)["p99"]
            finally:
                delete_topic(server, topic)

        def storm() -> None:
            time.sleep(BEGIN_S)
            arguments = [str(ports["SSL"]), str(CONNECTIONS), str(directory / "ca.pem")]
            command = [sys.executable, "-m", "bench.security.connections", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
            taken_s.append(float(done.stdout))

        p99_ms()
        for number in range(rounds):
            show(f"{ALONE}, round {number + 1} of {rounds}")
            alone_ms.append(p99_ms())
            show(f"{NAME}, round {number + 1} of {rounds}")
            others = threading.Thread(target=storm)
            others.start()
            beside_ms.append(p99_ms())
            others.join()
    error = "" if len(taken_s) == rounds else f"the others came {len(taken_s)} of {rounds} times"
    rows = [
        Row(
            name=NAME,
            unit="ms",
            ours=median(beside - alone for beside, alone in zip(beside_ms, alone_ms, strict=True)),
            target=TARGET,
            error=error,
        ),
        Row(name=ALONE, unit="ms", ours=median(alone_ms)),
        Row(name=CONNECTING, unit="s", ours=median(taken_s) if taken_s else None, error=error),
    ]
    return [row for row in rows if options.selects(row.name)]
