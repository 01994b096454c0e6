"""A datacenter of three hosts that the playbooks manage: its description, its render, and what its brokers say."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from pipeline.cli.main import app
from tests.support.ansible_hosts import AnsibleHosts, Played, address_of

SITE_NAMES = ["east-1", "east-2", "east-3"]
SITE_BROKERS = [f"pipeline-broker@{number}.service" for number in (1, 2, 3)]
SITE_ZOOKEEPERS = [f"pipeline-zookeeper@{number}.service" for number in (1, 2, 3)]
SITE_BOOTSTRAP = ",".join(f"{address_of(number)}:9092" for number in (1, 2, 3))


def site_description(settings: str, names: list[str]) -> str:
    """Return the description; `settings` come after those of brokers, and may begin further tables."""
    roles = {"east-1": '["registry"]', "east-3": '["audit", "load"]'}
    loads = '[[loads]]\nname = "lake"\ndatacenter = "east"\nroot = "file:///data/lake"\n\n' if "east-3" in names else ""
    hosts = "".join(
        f'[[hosts]]\nname = "{name}"\naddress = "{address_of(number)}"\ndatacenter = "east"\nzookeeper = {number}\n'
        f'brokers = [{number}]\ndisks = ["/data/1"]\nroles = {roles.get(name, "[]")}\n\n'
        for number, name in enumerate(names, 1)
    )
    return f'[[datacenters]]\nname = "east"\n\n{hosts}{loads}[settings.broker]\nnum.partitions = 3\n{settings}'


class AnsibleSite:
    """The description, its render, and the hosts."""

    def __init__(self, directory: Path, hosts: AnsibleHosts) -> None:
        self.hosts = hosts
        self._description = directory / "company.toml"
        self._rendered = directory / "rendered"
        self.inventory = self._rendered / "ansible" / "inventory.yml"

    def render(self, settings: str = "", names: list[str] = SITE_NAMES) -> None:
        """Render the description of these hosts."""
        self._description.write_text(site_description(settings, names))
        done = CliRunner().invoke(app, ["deploy", "render", str(self._description), str(self._rendered)])
        assert done.exit_code == 0, done.output

    def rendered(self, host: str, path: str) -> str:
        """Return the text of a rendered file."""
        return (self._rendered / host / path).read_text()

    def play(self, playbook: str, **options: Any) -> Played:
        """Run a playbook with the inventory of the render."""
        return self.hosts.play(playbook, self.inventory, **options)

    def run(self, *command: str) -> str:
        """Run a command on the first host."""
        return self.hosts.hosts[SITE_NAMES[0]].run(*command)

    def starts(self, units: list[str] = SITE_BROKERS) -> list[str]:
        """Return the process ids of the units, one of each host; "0": it does not run."""
        return [self.hosts.start_of(name, unit) for name, unit in zip(SITE_NAMES, units, strict=True)]

    def states(self, units: list[str] = SITE_BROKERS) -> list[str]:
        """Return the states of the units, one of each host: "active" if it is ready."""
        asked = ("systemctl", "show", "--property=ActiveState", "--value")
        return [self.hosts.hosts[name].run(*asked, unit).strip() for name, unit in zip(SITE_NAMES, units, strict=True)]

    def versions(self) -> list[str]:
        """Return the version of the package on each host."""
        asked = ("dpkg-query", "--show", "--showformat=${Version}", "pipeline")
        return [host.run(*asked) for host in self.hosts.hosts.values()]

    def retention(self) -> set[str]:
        """Return the values of `log.retention.hours` of all brokers."""
        described = json.loads(self.run("pipeline", "broker", "describe", "--bootstrap", SITE_BOOTSTRAP, "--json"))
        return {broker["settings"]["log.retention.hours"]["value"] for broker in described["brokers"]}


def succeed(played: Played) -> Played:
    """Return a run that has succeeded."""
    assert played.code == 0, played.output[-6000:]
    return played


@contextmanager
def producing(directory: Path, client_config: Path | None = None) -> Iterator[None]:
    """Publish records to the topic clicks all the time; fail if one was not acknowledged."""
    log = directory / "produce.log"
    environment = {**os.environ, **({"PIPELINE_CLIENT_CONFIG": str(client_config)} if client_config else {})}
    with log.open("w") as file:
        lines = subprocess.Popen(["sh", "-c", "while echo record; do sleep 0.05; done"], stdout=subprocess.PIPE)
        command = [sys.executable, "-m", "pipeline", "produce", "clicks", "--bootstrap", SITE_BOOTSTRAP]
        assert lines.stdout is not None
        with lines.stdout as read_by_producer:
            producer = subprocess.Popen(command, stdin=read_by_producer, stdout=file, stderr=file, env=environment)
        try:
            yield
            assert producer.poll() is None, log.read_text()
        finally:
            lines.kill()
            lines.wait()
            code = producer.wait(60)
    assert code == 0, log.read_text()
