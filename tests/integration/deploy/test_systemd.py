"""The units under a real systemd: order of a start, faults, stops, and how little a service may do."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.debian import BootedRoot, DebianRoot, booted_root, debian_root

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # with the build of the package

MAX_EXPOSURE = 1.5
"""Of 10, as `systemd-analyze security` judges: what is left is the network, which services are for."""

TEMPLATES = ("zookeeper", "broker", "mirror", "registry", "audit", "load")
UNITS = ("pipeline-zookeeper@1", "pipeline-broker@1", "pipeline-registry@east", "pipeline-audit@east")
SETTINGS = {
    "zookeeper-1.properties": """
        dataDir=/var/lib/pipeline/zookeeper-1
        clientPort=2181
        admin.enableServer=false
    """,
    "broker-1.toml": """
        broker.id = 1
        datacenter = "east"
        listeners = "PLAINTEXT://127.0.0.1:9092"
        http.listen = "127.0.0.1:9080"
        log.dirs = "/var/lib/pipeline/broker-1"
        zookeeper.connect = "127.0.0.1:2181"
    """,
    "registry-east.toml": """
        bootstrap.servers = "127.0.0.1:9092"
        http.listen = "127.0.0.1:8081"
        kafkastore.topic.replication.factor = 1
    """,
    "audit-east.toml": """
        http.listen = "127.0.0.1:8085"
        snapshot.dir = "/var/lib/pipeline/audit-east"
        [[live]]
        name = "east"
        bootstrap.servers = "127.0.0.1:9092"
    """,
    "load-lake.toml": """
        bootstrap.servers = "127.0.0.1:9092"
        root = "file:///var/lib/pipeline/load-lake"
        topics.include = "visits"
        value.format = "binary"
    """,
}


@pytest.fixture(scope="module")
def host(installed: DebianRoot, tmp_path_factory: Any) -> Iterator[BootedRoot]:
    """A host whose services were started as an operator does."""
    with debian_root(tmp_path_factory.mktemp("host") / "root", installed) as root:
        for name, text in SETTINGS.items():
            (root.path / "etc/pipeline" / name).write_text(text)
        with booted_root(root, "east-1") as booted:
            booted.run("systemctl", "enable", "pipeline.target", *UNITS)
            booted.run("systemctl", "start", "pipeline.target")
            yield booted


def shown(host: BootedRoot, unit: str, name: str) -> str:
    return host.run("systemctl", "show", "--property", name, "--value", unit).strip()


def journal(host: BootedRoot, unit: str) -> list[str]:
    """Return the messages of a unit and of systemd about it."""
    return host.run("journalctl", "--output=cat", "--no-pager", f"--unit={unit}").splitlines()


def restarted(host: BootedRoot, unit: str, restarts: int) -> None:
    """Wait until systemd has started a unit again, and the service is ready."""
    host.wait_for("systemctl", "show", "--property=NRestarts,ActiveState", unit, printed=f"NRestarts={restarts}\n")
    host.wait_for("systemctl", "is-active", unit, printed="active\n")
    while shown(host, unit, "ActiveState") != "active":
        pass


def test_units_are_well_formed_and_may_do_little(host: BootedRoot) -> None:
    files = [f"/lib/systemd/system/pipeline-{name}@.service" for name in TEMPLATES]
    files += ["/lib/systemd/system/pipeline-load@.timer"]
    files += [f"/lib/systemd/system/{name}.target" for name in ("pipeline", "pipeline-zookeeper", "pipeline-brokers")]
    assert host.run("systemd-analyze", "verify", *files) == ""
    for name in TEMPLATES:
        judged = host.run("systemd-analyze", "security", "--no-pager", f"pipeline-{name}@x.service")
        (exposure,) = re.findall(r"Overall exposure level .*: ([\d.]+)", judged)
        assert float(exposure) <= MAX_EXPOSURE, judged


def test_units_of_others_are_left_alone(host: BootedRoot) -> None:
    foreign = Path(f"/proc/{host.pid}/root/run/systemd/system/pipeline-exporter.service")
    foreign.write_text("[Service]\nExecStart=/bin/true\n")
    host.run("systemctl", "daemon-reload")
    assert shown(host, "pipeline-exporter.service", "DropInPaths") == ""
    assert shown(host, "pipeline-audit@east.service", "User") == "pipeline"


def test_services_are_ready_in_order(host: BootedRoot) -> None:
    times = [int(shown(host, unit, "ActiveEnterTimestampMonotonic")) for unit in UNITS]
    assert times[0] < times[1] < min(times[2:])
    assert shown(host, "pipeline-broker@1", "StatusText") == "ready"
    for unit in UNITS[1:]:
        events = [json.loads(line)["event"] for line in journal(host, unit) if line.startswith("{")]
        assert events[0] == "starting"
        assert any(event.endswith("_ready") for event in events)


def test_the_journal_holds_json_of_all_services(host: BootedRoot) -> None:
    for unit in UNITS:
        entries = host.run(
            "journalctl", "--output=json", "--no-pager", f"--unit={unit}", "_TRANSPORT=stdout"
        ).splitlines()
        documents = [json.loads(text) for text in (json.loads(entry)["MESSAGE"] for entry in entries) if text[0] == "{"]
        assert documents
        assert all({"event", "level", "timestamp"} <= set(document) for document in documents)


def test_a_service_runs_as_its_user_and_writes_in_its_directory_alone(host: BootedRoot) -> None:
    pid = shown(host, "pipeline-broker@1", "MainPID")
    assert host.run("ps", "-o", "user=", "-p", pid).strip() == "pipeline"
    inside = ("nsenter", "-t", pid, "-m", "--")
    touch = (
        "for each in /etc/pipeline /opt/pipeline /var/lib/pipeline /var/lib/pipeline/broker-1; do touch $each/x; done"
    )
    refused = host.run(*inside, "sh", "-c", touch, check=False)
    assert refused.count("Read-only file system") == 3
    host.run(*inside, "rm", "/var/lib/pipeline/broker-1/x")


def test_a_killed_broker_is_started_again_and_serves_its_records(host: BootedRoot) -> None:
    host.run("pipeline", "topic", "create", "visits", "-b", "127.0.0.1:9092")
    host.run("sh", "-c", "echo '/home' | pipeline produce visits -b 127.0.0.1:9092")
    host.run("kill", "-KILL", shown(host, "pipeline-broker@1", "MainPID"))
    restarted(host, "pipeline-broker@1", 1)
    assert host.run("pipeline", "consume", "visits", "-b", "127.0.0.1:9092") == "/home\n"


def test_a_service_whose_loop_hangs_is_ended_by_the_watchdog_and_started_again(host: BootedRoot) -> None:
    unit = "pipeline-registry@east"
    drop_in = Path(f"/proc/{host.pid}/root/run/systemd/system/{unit}.service.d/watchdog.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Service]\nWatchdogSec=3\n")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", unit)
    host.run("kill", "-STOP", shown(host, unit, "MainPID"))
    restarted(host, unit, 1)
    said = "\n".join(journal(host, unit))
    assert "Watchdog timeout (limit 3s)!" in said
    assert "Fatal Python error: Aborted" in said  # with the stack of each thread


def test_wrong_settings_are_told_once_and_not_tried_again(host: BootedRoot) -> None:
    settings = Path(f"/proc/{host.pid}/root/etc/pipeline/broker-2.toml")
    settings.write_text("broker.id = 'two'\n")
    host.run("systemctl", "start", "pipeline-broker@2", check=False)
    assert shown(host, "pipeline-broker@2", "ActiveState") == "failed"
    assert shown(host, "pipeline-broker@2", "ExecMainStatus") == "2"
    assert shown(host, "pipeline-broker@2", "NRestarts") == "0"
    assert "broker.id" in "\n".join(journal(host, "pipeline-broker@2"))
    host.run("systemctl", "reset-failed", "pipeline-broker@2")


def test_a_timer_loads_a_topic(host: BootedRoot) -> None:
    host.run("systemctl", "enable", "--now", "pipeline-load@lake.timer")
    assert "pipeline-load@lake.timer" in host.run("systemctl", "list-timers", "--no-pager")
    host.run("systemctl", "start", "pipeline-load@lake.service")
    files = host.run("pipeline", "load", "files", "--topic", "visits", "--root", "file:///var/lib/pipeline/load-lake")
    assert files.endswith(".parquet\n")
    metrics = host.run("runuser", "-u", "nobody", "--", "cat", "/run/pipeline-metrics/load-lake.prom")
    assert 'topic="visits"' in metrics


def test_a_stop_ends_services_in_order_and_cleanly(host: BootedRoot) -> None:
    host.run("systemctl", "stop", "pipeline.target")
    for unit in UNITS:
        host.wait_for("systemctl", "is-active", unit, printed="inactive")
        assert shown(host, unit, "Result") == "success"
    times = [int(shown(host, unit, "InactiveEnterTimestampMonotonic")) for unit in UNITS]
    assert max(times[2:]) < times[1] < times[0]
    for unit in UNITS[1:]:
        last = [json.loads(line) for line in journal(host, unit) if line.startswith("{")][-2:]
        assert [document["event"] for document in last] == ["stopping", "stopped"]
        assert last[-1]["reason"] == "SIGTERM"
