"""Three brokers and a mirror as units of a real systemd: leaders are handed over, a mirror that hangs goes on."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_for
from tests.support.debian import BootedRoot, DebianRoot, booted_root, debian_root

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # with the build of the package

EAST = "127.0.0.1:9091,127.0.0.1:9092,127.0.0.1:9093"
HUB = "127.0.0.1:9099"
BROKERS = (1, 2, 3, 9)
UNITS = ("pipeline-zookeeper@1", *(f"pipeline-broker@{broker}" for broker in BROKERS), "pipeline-mirror@hub")
HUB_BROKER, MIRROR = UNITS[-2:]
LONGEST_WAIT_S = 3.0
"""Of a producer while a broker stops: without a handover it would be the session timeout and more."""

ZOOKEEPER = """
dataDir=/var/lib/pipeline/zookeeper-1
clientPort=2181
admin.enableServer=false
"""
BROKER = """
broker.id = {id}
listeners = "PLAINTEXT://127.0.0.1:909{id}"
http.listen = "127.0.0.1:908{id}"
log.dirs = "/var/lib/pipeline/broker-{id}"
zookeeper.connect = "127.0.0.1:2181/{cluster}"
offsets.topic.replication.factor = {replicas}
"""
MIRROR_SETTINGS = f"""
destination.bootstrap.servers = "{HUB}"
http.listen = "127.0.0.1:9180"
topics = ["clicks"]
[[sources]]
name = "east"
bootstrap.servers = "{EAST}"
"""
PRODUCER = """
import json, sys, threading, time
from confluent_kafka import Producer

waits, errors, stop = [], [], threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set())).start()
producer = Producer({"bootstrap.servers": sys.argv[1], "enable.idempotence": True, "linger.ms": 0})

def send(number):
    begun_s = time.monotonic()
    def told(error, message):
        waits.append(time.monotonic() - begun_s)
        if error is not None:
            errors.append(str(error))
    producer.produce("clicks", str(number).encode(), partition=number % 3, on_delivery=told)

number = 0
while not stop.is_set():
    send(number)
    number += 1
    producer.poll(0.01)
    if number == 100:
        print("running", flush=True)
producer.flush(60)
print(json.dumps({"sent": number, "acknowledged": len(waits) - len(errors), "errors": errors, "longest_s": max(waits)}))
"""


class RunningProducer:
    """An idempotent producer in the network of the host."""

    def __init__(self, host: BootedRoot) -> None:
        enter = ["nsenter", f"--target={host.pid}", "--net", sys.executable, "-c", PRODUCER, EAST]
        self._process = subprocess.Popen(enter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "running\n"

    def end(self) -> dict[str, Any]:
        """Return how many records were sent and acknowledged, the errors, and the longest wait."""
        told, _ = self._process.communicate(timeout=120)
        return dict(json.loads(told))


@pytest.fixture(scope="module")
def host(installed: DebianRoot, tmp_path_factory: Any) -> Iterator[BootedRoot]:
    """A host with two clusters and a mirror from one into the other, and a topic that it copies."""
    with debian_root(tmp_path_factory.mktemp("host") / "root", installed) as root:
        settings = {"zookeeper-1.properties": ZOOKEEPER, "mirror-hub.toml": MIRROR_SETTINGS}
        for broker in BROKERS:
            cluster, replicas = ("hub", 1) if broker == 9 else ("east", 3)
            settings[f"broker-{broker}.toml"] = BROKER.format(id=broker, cluster=cluster, replicas=replicas)
        for name, text in settings.items():
            (root.path / "etc/pipeline" / name).write_text(text)
        with booted_root(root, "east-1") as booted:
            booted.run("systemctl", "enable", "--now", "pipeline.target", *UNITS)
            replicated = ("--partitions", "3", "--replication-factor", "3")
            booted.run("pipeline", "topic", "create", "clicks", *replicated, "-b", EAST)
            yield booted


def shown(host: BootedRoot, unit: str, name: str) -> str:
    return host.run("systemctl", "show", "--property", name, "--value", unit).strip()


def records(host: BootedRoot, bootstrap: str) -> int:
    text = host.run("pipeline", "topic", "offsets", "clicks", "-b", bootstrap, "--json", check=False)
    return sum(each["offset"] for each in json.loads(text)["partitions"]) if text.startswith("{") else 0


def is_in_sync(host: BootedRoot) -> bool:
    text = host.run("pipeline", "cluster", "describe", "--json", "-b", EAST, check=False)
    told = json.loads(text) if text.startswith("{") else {}
    return len(told.get("brokers", ())) == 3 and not (told["under_replicated"] or told["offline"])


def test_a_broker_that_is_stopped_hands_its_leaders_over(host: BootedRoot) -> None:
    wait_for("all replicas are in sync", lambda: is_in_sync(host))
    producer = RunningProducer(host)
    for broker in (1, 2, 3):
        host.run("systemctl", "stop", f"pipeline-broker@{broker}")
        assert shown(host, f"pipeline-broker@{broker}", "Result") == "success"
        host.run("systemctl", "start", f"pipeline-broker@{broker}")
        wait_for("all replicas are in sync", lambda: is_in_sync(host))
    told = producer.end()
    assert told["errors"] == []
    assert told["acknowledged"] == told["sent"] == records(host, EAST)
    assert told["longest_s"] < LONGEST_WAIT_S, told
    wait_for("the mirror has copied all", lambda: records(host, HUB) == told["sent"])


def test_a_mirror_that_hangs_is_started_again_and_copies_the_rest(host: BootedRoot) -> None:
    drop_in = Path(f"/proc/{host.pid}/root/run/systemd/system/{MIRROR}.service.d/watchdog.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Service]\nWatchdogSec=3\n")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", MIRROR)
    assert shown(host, MIRROR, "StatusText") == "ready"
    host.run("kill", "-STOP", shown(host, MIRROR, "MainPID"))
    host.run("sh", "-c", f"seq 1000 | pipeline produce clicks -b {EAST}")
    host.wait_for("systemctl", "show", "--property=NRestarts", MIRROR, printed="NRestarts=1\n")
    wait_for("the mirror has copied all", lambda: records(host, HUB) == records(host, EAST))
    said = host.run("journalctl", "--output=cat", "--no-pager", f"--unit={MIRROR}")
    assert "Watchdog timeout (limit 3s)!" in said


def test_a_broker_at_its_limit_of_memory_is_ended_and_goes_on_when_it_has_more(host: BootedRoot) -> None:
    host.run("systemctl", "set-property", "--runtime", HUB_BROKER, "MemoryMax=30M")
    host.run("systemctl", "restart", HUB_BROKER, check=False)
    host.wait_for("systemctl", "show", "--property=NRestarts", HUB_BROKER, printed="NRestarts=2\n")
    said = host.run("journalctl", "--output=cat", "--no-pager", f"--unit={HUB_BROKER}")
    assert "code=killed, status=9/KILL" in said
    host.run("systemctl", "set-property", "--runtime", HUB_BROKER, "MemoryMax=infinity")
    host.wait_for("systemctl", "show", "--property=ActiveState", HUB_BROKER, printed="ActiveState=active\n")
    host.run("sh", "-c", f"seq 1000 | pipeline produce clicks -b {EAST}")
    wait_for("the mirror has copied all", lambda: records(host, HUB) == records(host, EAST) > 0)


def test_a_stop_ends_the_mirror_before_brokers_and_these_before_zookeeper(host: BootedRoot) -> None:
    host.run("systemctl", "stop", "pipeline.target")
    for unit in UNITS:
        host.wait_for("systemctl", "is-active", unit, printed="inactive")
    assert [shown(host, unit, "Result") for unit in UNITS] == ["success"] * len(UNITS)
    zookeeper, *brokers, mirror = (int(shown(host, unit, "InactiveEnterTimestampMonotonic")) for unit in UNITS)
    assert mirror < min(brokers) <= max(brokers) < zookeeper
