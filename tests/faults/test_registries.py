"""Three registries over three brokers, killed and paused at seeded moments while clients register through them all."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.registries import RegistryProcess, running_registries
from tests.support.sizes import size

BROKERS = 3
REGISTRIES = 3
CLIENTS = 4
DEADLINE_S = 120
CLIENT_TIMEOUT_S = 20
"""Time after which a client leaves a paused registry. Otherwise all may wait for one that waits for them."""
READ_TIMEOUT_MS = 1500
"""Time after which a paused writer is replaced."""
PAUSE_S = 2.5
PAGE = 1000
SEEDS = size(20, 50)


class Clients:
    """Clients that register schemas of their own and shared ones, each through any registry, until they are ended."""

    def __init__(self, urls: list[str], seed: int) -> None:
        self.acknowledged: list[tuple[str, str, int]] = []
        """Subject, text and id of what was answered."""
        self.errors: set[int] = set()
        self._urls = urls
        self._seed = seed
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(CLIENTS) as threads:
            runs = [threads.submit(self._run, number) for number in range(CLIENTS)]
            try:
                yield
            finally:
                self._ended.set()
            for run in runs:
                run.result()

    def _run(self, client: int) -> None:
        rng = Random(self._seed * 1000 + client)
        with httpx.Client(timeout=CLIENT_TIMEOUT_S) as http:
            for number in range(100_000):
                shared = rng.random() < 0.2
                name = f"S{self._seed}x{number // 5}" if shared else f"C{self._seed}x{client}x{number}"
                subject, text = f"{name}-value", f'{{"type":"record","name":"{name}","fields":[]}}'
                while not self._ended.is_set():
                    try:
                        url = rng.choice(self._urls)
                        answer = http.post(f"{url}/subjects/{subject}/versions", json={"schema": text})
                    except httpx.TransportError:
                        continue  # this registry is down: the client tries another
                    if answer.status_code == 200:
                        self.acknowledged.append((subject, text, answer.json()["id"]))
                        break
                    self.errors.add(answer.json()["error_code"])
                if self._ended.is_set():
                    return


def until_acknowledged(clients: Clients, count: int) -> None:
    """Wait until the clients have got so many further answers."""
    wanted, deadline = len(clients.acknowledged) + count, time.monotonic() + DEADLINE_S
    while len(clients.acknowledged) < wanted:
        assert time.monotonic() < deadline, "no registration was acknowledged"
        time.sleep(0.005)


def break_something(local: LocalCluster, registries: list[RegistryProcess], rng: Random, clients: Clients) -> str:
    """Break the writer or another part, and repair it. Registrations must go on before that, where they can."""
    writer = next((one for one in registries if one.is_writer()), rng.choice(registries))
    target = writer if rng.random() < 0.7 else rng.choice(registries)
    kind = rng.choice(["kill", "kill", "pause", "pause", "broker"])
    if kind == "kill":
        target.kill()
        until_acknowledged(clients, 10)
        target.start()
    elif kind == "pause":
        os.kill(target.pid, signal.SIGSTOP)
        try:
            paused_at = time.monotonic()
            until_acknowledged(clients, 1)
            time.sleep(max(0.0, paused_at + PAUSE_S - time.monotonic()) * rng.random())
        finally:
            os.kill(target.pid, signal.SIGCONT)
    else:
        name = f"broker-{rng.randrange(BROKERS) + 1}"
        local.kill(name)
        local.wait_restarted(name)
    return kind


def check(registries: list[RegistryProcess], acknowledged: list[tuple[str, str, int]]) -> None:
    """Each registry must have each acknowledged registration, and all must have the same."""
    texts_of_ids: dict[int, str] = {}
    for _, text, schema_id in acknowledged:
        assert texts_of_ids.setdefault(schema_id, text) == text
    assert len(set(texts_of_ids.values())) == len(texts_of_ids)
    found = []
    for registry in registries:
        registry.wait_applied()
        schemas: list[dict[str, Any]] = []
        with httpx.Client(base_url=registry.url, timeout=DEADLINE_S) as http:
            while page := http.get(f"/schemas?deleted=true&limit={PAGE}&offset={len(schemas)}").json():
                schemas += page
        versions = {(one["subject"], one["version"]): (one["id"], one["schema"]) for one in schemas}
        by_subject: dict[str, list[Any]] = {}
        for (subject, _), version in versions.items():
            by_subject.setdefault(subject, []).append(version)
        for subject, text, schema_id in acknowledged:
            assert by_subject.get(subject) == [(schema_id, text)], (registry.url, subject)
        found.append(versions)
    assert all(versions == found[0] for versions in found)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_registration_is_lost_and_no_id_is_given_twice(tmp_path: Path) -> None:
    first = int(os.environ.get("FIRST_SEED", "1"))
    settings = {"leader.read.timeout.ms": READ_TIMEOUT_MS, "kafkastore.topic.replication.factor": BROKERS}
    kinds, errors, acknowledged = [], set(), []
    with (
        LocalCluster(tmp_path / "local", brokers=BROKERS) as local,
        running_registries(tmp_path, local.bootstrap, REGISTRIES, settings) as registries,
    ):
        for seed in range(first, first + SEEDS):
            rng = Random(seed)
            clients = Clients([registry.url for registry in registries], seed)
            with clients.running():
                until_acknowledged(clients, rng.randrange(1, 40))
                kinds.append(break_something(local, registries, rng, clients))
                until_acknowledged(clients, 10)
            acknowledged += clients.acknowledged
            errors |= clients.errors
            check(registries, acknowledged)
    print(f"{len(acknowledged)} registrations; {', '.join(kinds)}; errors that clients repeated: {sorted(errors)}")
    assert errors <= {50001, 50002, 50003, 503}  # 503: it starts
