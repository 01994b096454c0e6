"""A company rendered from one description starts, and all of its services agree on names: in clear, and secured."""

import json
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.cli.secured.certificates import Authority
from tests.support.company_secrets import secrets_of_all_hosts, secrets_of_host
from tests.support.rendered_hosts import RenderedHost

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts with their own /etc/pipeline need mounts, and so root"),
]
TIMEOUT_S = 300.0
COMPANY = """
[[datacenters]]
name = "east"

[[datacenters]]
name = "hub"

[[hosts]]
name = "east-1"
address = "127.0.71.1"
datacenter = "east"
zookeeper = 1
brokers = [1]
roles = ["registry", "mirror"]

[[hosts]]
name = "hub-1"
address = "127.0.72.1"
datacenter = "hub"
rack = "a"
zookeeper = 1
brokers = [1, 2]
disks = ["/var/lib/pipeline/disk1", "/var/lib/pipeline/disk2"]
roles = ["registry", "mirror"]

[[hosts]]
name = "hub-2"
address = "127.0.72.2"
datacenter = "hub"
rack = "b"
zookeeper = 2
brokers = [3]
roles = ["registry", "mirror"]

[[hosts]]
name = "hub-3"
address = "127.0.72.3"
datacenter = "hub"
rack = "c"
zookeeper = 3
brokers = [4]
roles = ["audit", "load"]

[[mirrors]]
destination = "hub"
sources = ["east"]
topics = [".*"]

[[mirrors]]
destination = "east"
sources = ["hub"]
topics = ["_schemas"]

[[loads]]
name = "lake"
datacenter = "hub"
root = "file:///var/lib/pipeline/lake"
topics = "clicks"

# Others on this machine may have the usual ports on all addresses.
[ports]
zookeeper = 17181
zookeeper_follower = 17888
zookeeper_election = 17889
broker = 17092
broker_http = 17080
mirror = 17180
registry = 17081
audit = 17085

[settings.broker]
audit.interval.ms = 1000

[settings.audit]
pending.grace.ms = 5000
"""
SCHEMA = json.dumps({"type": "record", "name": "click", "fields": [{"name": "page", "type": "string"}]})
RECORDS = 100


def wait_for(condition: Callable[[], bool], what: str, hosts: list[RenderedHost]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        for host in hosts:
            host.assert_running()
        assert time.monotonic() < deadline_s, f"within {TIMEOUT_S:g} s: {what}"
        time.sleep(0.2)


@pytest.fixture(params=["open", "secured"])
def folder(request: Any, tmp_path: Path) -> Path:
    """The folder of a render."""
    secured = "[security]\ntls = true\nsasl = true\n" if request.param == "secured" else ""
    description = tmp_path / "company.toml"
    description.write_text(COMPANY + secured)
    rendered = tmp_path / "rendered"
    done = CliRunner().invoke(app, ["deploy", "render", str(description), str(rendered)])
    assert done.exit_code == 0, done.output
    return rendered


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def hosts(folder: Path, tmp_path: Path, authority: Authority) -> Iterator[list[RenderedHost]]:
    shared = secrets_of_all_hosts(authority)
    is_secured = (folder / "acls").is_dir()
    with ExitStack() as stack:
        found = []
        for path in sorted(each.parent for each in folder.glob("*/units")):
            address = f"127.0.{71 if path.name.startswith('east') else 72}.{path.name[-1]}"
            secrets = {**shared, **secrets_of_host(authority, path.name, address)} if is_secured else {}
            found.append(stack.enter_context(RenderedHost(path, tmp_path / "hosts" / path.name, secrets)))
        yield found


def start(hosts: list[RenderedHost], *roles: str) -> None:
    for host in hosts:
        for unit in host.units:
            if unit.split("@")[0].removeprefix("pipeline-") in roles:
                host.start(unit)


class Targets:
    """The HTTP servers that the rendered file names to Prometheus."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.groups = json.loads((folder / "prometheus" / "targets.json").read_text())
        self._trust = ssl.create_default_context(cadata=authority.certificate)

    def urls(self, *jobs: str) -> list[str]:
        return [
            f"{group['labels']['__scheme__']}://{group['targets'][0]}"
            for group in self.groups
            if group["labels"]["job"] in jobs
        ]

    def ready(self, *jobs: str) -> bool:
        with httpx.Client(verify=self._trust, trust_env=False, timeout=5) as client:
            try:
                return all(client.get(f"{url}/readyz").status_code == 200 for url in self.urls(*jobs))
            except httpx.TransportError:
                return False


def test_a_rendered_company_works(folder: Any, hosts: Any, authority: Any, tmp_path: Any) -> None:
    east, hub, *_ = hosts
    targets = Targets(folder, authority)
    start(hosts, "zookeeper", "broker")
    wait_for(lambda: targets.ready("broker"), "brokers are ready", hosts)
    for script in sorted((folder / "acls").glob("*.sh")):
        east.run("sh", str(script))
    start(hosts, "registry", "mirror", "audit")
    wait_for(lambda: targets.ready("registry", "mirror", "audit"), "all services are ready", hosts)

    bootstrap = {"east": "127.0.71.1:17092", "hub": "127.0.72.1:17092"}
    (registry,) = [url for url in targets.urls("registry") if "127.0.71.1" in url]
    (audit,) = targets.urls("audit")
    east.run("pipeline", "topic", "create", "clicks", "-b", bootstrap["east"])
    schema = tmp_path / "click.avsc"
    schema.write_text(SCHEMA)
    time_ms = int(time.time() * 1000) - 2 * 3_600_000  # an hour that is over
    lines = "".join(f'{time_ms}\t{{"page": "/{number}"}}\n' for number in range(RECORDS))
    options = ("-b", bootstrap["east"], "--registry", registry, "--schema", str(schema), "--timestamps")
    east.run("pipeline", "produce", "clicks", *options, given=lines)  # registered at the hub, by way of east
    wait_for(lambda: offsets_at(hub, bootstrap["hub"]) == RECORDS, "the hub has a copy of the records", hosts)
    report = json.loads(hub.run("pipeline", "audit", "report", "--audit", audit, "--wait", "90", "--json"))
    assert (report["verdict"], {hour["topic"] for hour in report["hours"]}) == ("exact", {"clicks"}), report
    for address in bootstrap.values():
        hub.run("pipeline", "cluster", "describe", "-b", address)

    drop_in = (folder / "hub-3/etc/systemd/system/pipeline-load@lake.service.d/render.conf").read_text()
    (options,) = re.findall(r'^Environment="AUDIT_OPTIONS=(.+)"$', drop_in, re.MULTILINE)
    command = ["pipeline", "load", "run", "--config", "/etc/pipeline/load-lake.toml", *options.split()]
    loaded = hosts[-1].run(*command)
    assert re.search(rf"^clicks +1 +{RECORDS} +0 +0 ", loaded, re.MULTILINE), loaded
    ranks = json.loads(hub.run("pipeline", "broker", "list", "-b", bootstrap["hub"], "--json"))["brokers"]
    assert {row["id"]: row["rack"] for row in ranks} == {1: "a", 2: "a", 3: "b", 4: "c"}


def offsets_at(host: RenderedHost, bootstrap: str) -> int:
    text = host.run("pipeline", "topic", "offsets", "clicks", "-b", bootstrap, "--json", check=False)
    return sum(each["offset"] for each in json.loads(text)["partitions"]) if text.startswith("{") else 0
