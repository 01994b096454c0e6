"""Rows of registrations: new schemas in subjects of their own, three brokers that all have each before the answer."""

import http.client
import json
import threading
import time
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

from bench.report import Options, Row, Show, Target
from pipeline.testing.local_cluster import LocalCluster

BROKERS = 3
ROUNDS = 3
SECONDS = 10.0
CLIENTS = (1, 8, 32)
LEAST_RATE = 200
RATE = "registrations, {} clients"
P99 = "registration latency p99, {} clients"


def measure(options: Options, directory: Path, show: Show) -> list[Row]:
    """All selected rows of registrations."""
    wanted = [count for count in CLIENTS if options.selects(RATE.format(count)) or options.selects(P99.format(count))]
    if not wanted:
        return []
    rates: dict[int, list[float]] = {count: [] for count in wanted}
    tails_ms: dict[int, list[float]] = {count: [] for count in wanted}
    with LocalCluster(directory / "local", brokers=BROKERS, registry=True) as local:
        _register(local.registry, 1, 1.0, "warm_up")
        for number in range(options.rounds_or(ROUNDS)):
            for count in wanted:
                show(f"{RATE.format(count)}: round {number + 1}")
                took_s, latencies_s = _register(local.registry, count, SECONDS * options.scale, f"{number}_{count}")
                rates[count].append(len(latencies_s) / took_s)
                tails_ms[count].append(quantiles(latencies_s, n=100)[98] * 1000)
    rows = []
    for count in wanted:
        target = Target(bound=LEAST_RATE, at_least=True, absolute=True) if count > 1 else None
        rows.append(Row(name=RATE.format(count), unit="requests/s", ours=median(rates[count]), target=target))
        rows.append(Row(name=P99.format(count), unit="ms", ours=median(tails_ms[count])))
    return [row for row in rows if options.selects(row.name)]


def _register(url: str, clients: int, seconds: float, name: str) -> tuple[float, list[float]]:
    """Register with so many connections for a time. Returns the time that it took, and that of each registration."""
    latencies_s: list[float] = []
    errors: list[str] = []
    ends_at = time.monotonic() + seconds

    def run(client: int) -> None:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        number = 0
        while time.monotonic() < ends_at and not errors:
            field = {"name": "id", "type": "long"}
            schema = {"type": "record", "name": f"R{client}x{number}", "namespace": f"n{name}", "fields": [field]}
            body = json.dumps({"schema": json.dumps(schema)})
            began = time.monotonic()
            connection.request("POST", f"/subjects/s{name}-{client}-{number}-value/versions", body)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != http.client.OK:
                errors.append(content.decode(errors="replace"))
            latencies_s.append(time.monotonic() - began)
            number += 1

    began = time.monotonic()
    threads = [threading.Thread(target=run, args=[client]) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"the registry answered: {errors[0]}")
    return time.monotonic() - began, latencies_s
