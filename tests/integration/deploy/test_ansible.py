"""The playbooks on three hosts that boot systemd: a cluster is installed, changed, restarted, upgraded under load."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from tests.support.ansible_hosts import AnsibleHosts, Played, address_of, ansible_hosts
from tests.support.debian import debian_root, why_not
from tests.support.packages import debian_package

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
NAMES = ["east-1", "east-2", "east-3"]
BROKERS = [f"pipeline-broker@{number}.service" for number in (1, 2, 3)]
BOOTSTRAP = ",".join(f"{address_of(number)}:9092" for number in (1, 2, 3))
NEXT_VERSION = "99.0"


def description(settings: str = "") -> str:
    roles = {"east-1": '["registry"]', "east-3": '["audit"]'}
    hosts = "".join(
        f'[[hosts]]\nname = "{name}"\naddress = "{address_of(number)}"\ndatacenter = "east"\nzookeeper = {number}\n'
        f'brokers = [{number}]\ndisks = ["/data/1"]\nroles = {roles.get(name, "[]")}\n\n'
        for number, name in enumerate(NAMES, 1)
    )
    return f'[[datacenters]]\nname = "east"\n\n{hosts}[settings.broker]\nnum.partitions = 3\n{settings}'


class Site:
    """The description, its render, and the hosts."""

    def __init__(self, directory: Path, hosts: AnsibleHosts) -> None:
        self.hosts = hosts
        self._description = directory / "company.toml"
        self._rendered = directory / "rendered"
        self.inventory = self._rendered / "ansible" / "inventory.yml"

    def render(self, settings: str = "") -> None:
        self._description.write_text(description(settings))
        done = CliRunner().invoke(app, ["deploy", "render", str(self._description), str(self._rendered)])
        assert done.exit_code == 0, done.output

    def play(self, playbook: str, **variables: object) -> Played:
        return self.hosts.play(playbook, self.inventory, **variables)

    def run(self, *command: str) -> str:
        return self.hosts.hosts["east-1"].run(*command)

    def starts(self) -> list[str]:
        """Return the process ids of the brokers."""
        return [self.hosts.start_of(name, unit) for name, unit in zip(NAMES, BROKERS, strict=True)]

    def values(self) -> set[str]:
        """Return the value of `log.retention.hours` of all brokers."""
        described = json.loads(self.run("pipeline", "broker", "describe", "--bootstrap", BOOTSTRAP, "--json"))
        return {broker["settings"]["log.retention.hours"]["value"] for broker in described["brokers"]}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with debian_root(tmp_path / "base") as base:
        base.run("apt-get", "update")
        base.run("apt-get", "install", "--yes", "--no-install-recommends", "python3-apt")
        (base.path / "etc/dpkg/dpkg.cfg.d/fast").write_text("force-unsafe-io\n")
        with ansible_hosts(tmp_path, base, NAMES) as hosts:
            yield Site(tmp_path, hosts)


def succeed(played: Played) -> Played:
    assert played.code == 0, played.output[-6000:]
    return played


@contextmanager
def producing(directory: Path) -> Iterator[None]:
    """Publish records all the time; fail if one was not acknowledged."""
    log = directory / "produce.log"
    with log.open("w") as file:
        lines = subprocess.Popen(["sh", "-c", "while echo record; do sleep 0.05; done"], stdout=subprocess.PIPE)
        command = [sys.executable, "-m", "pipeline", "produce", "clicks", "--bootstrap", BOOTSTRAP]
        assert lines.stdout is not None
        with lines.stdout as read_by_producer:
            producer = subprocess.Popen(command, stdin=read_by_producer, stdout=file, stderr=file)
        try:
            yield
            assert producer.poll() is None, log.read_text()
        finally:
            lines.kill()
            lines.wait()
            code = producer.wait(60)
    assert code == 0, log.read_text()


def test_a_cluster_is_installed_changed_restarted_and_upgraded(site: Any, tmp_path: Any) -> None:
    package = debian_package()
    site.render()
    succeed(site.play("site.yml", pipeline_package=package))
    assert site.run("systemctl", "is-enabled", "pipeline.target", BROKERS[0]).split() == ["enabled", "enabled"]
    again = succeed(site.play("site.yml", pipeline_package=package))
    assert again.count("changed") == dict.fromkeys(NAMES, 0), again.output

    site.run("pipeline", "topic", "create", "clicks", "--replication-factor", "3", "--bootstrap", BOOTSTRAP)
    with producing(tmp_path):
        change_settings(site)
        stop_at_the_first_that_does_not_come_back(site)
        upgrade(site, package, next_package(package, tmp_path))


def change_settings(site: Site) -> None:
    before = site.starts()
    site.render("log.retention.hours = 100\n")
    changed = succeed(site.play("site.yml"))
    assert changed.count("changed") == dict.fromkeys(NAMES, 2), changed.output  # a file, and a restart
    assert not set(site.starts()) & set(before)
    assert site.values() == {"100"}


def stop_at_the_first_that_does_not_come_back(site: Site) -> None:
    before = site.starts()
    settings = site.hosts.hosts["east-2"].path / "etc/pipeline/broker-2.toml"
    text = settings.read_text()
    settings.write_text(text + "no.such.setting = 1\n")
    stopped = site.play("rolling-restart.yml")
    assert stopped.code != 0
    first, second, third = site.starts()
    assert first not in {before[0], "0"}
    assert (second, third) == ("0", before[2])
    settings.write_text(text)
    succeed(site.play("site.yml"))
    assert site.starts()[2] == before[2]


def upgrade(site: Site, package: Path, later: Path) -> None:
    before = site.starts()
    refused = site.play("site.yml", pipeline_package=later)
    assert refused.code != 0
    assert "run upgrade.yml" in refused.output
    succeed(site.play("upgrade.yml", pipeline_package=later))
    for host in site.hosts.hosts.values():
        assert host.run("dpkg-query", "--show", "--showformat=${Version}", "pipeline") == NEXT_VERSION
    assert not set(site.starts()) & set(before)
    again = succeed(site.play("upgrade.yml", pipeline_package=later))
    assert again.count("changed") == dict.fromkeys(NAMES, 0), again.output


def next_package(package: Path, directory: Path) -> Path:
    """Return the same package with a later version."""
    tree = directory / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    control = tree / "DEBIAN" / "control"
    lines = control.read_text().splitlines()
    control.write_text(
        "\n".join(f"Version: {NEXT_VERSION}" if line.startswith("Version:") else line for line in lines) + "\n"
    )
    later = directory / f"pipeline_{NEXT_VERSION}_amd64.deb"
    subprocess.run(["dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, later], check=True)
    shutil.rmtree(tree)
    return later
