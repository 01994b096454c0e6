"""Hosts for Ansible: roots that boot systemd, with sshd, in network namespaces on one bridge. Needs root."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.debian import BootedRoot, DebianRoot, booted_root, debian_root

ROOT = Path(__file__).parents[2]
PLAYBOOKS = ROOT / "deploy" / "ansible"
NETWORK = "10.211.77"
BRIDGE = "pipeline-test"
LOCK = Path(tempfile.gettempdir()) / "pipeline-test-bridge.lock"
"""Held by the test whose hosts have the bridge, the addresses and the names: there is one of each on a machine."""
PLAY_TIMEOUT_S = 900.0


def address_of(number: int) -> str:
    """Return the address of a host by its number, from 1."""
    return f"{NETWORK}.{10 + number}"


@dataclass(frozen=True, slots=True)
class Played:
    """The end of a run of Ansible."""

    code: int
    output: str

    def count(self, kind: str) -> dict[str, int]:
        """Return a count of the recap by host: `changed`, `failed`, `ok`, ..."""
        return {
            host: int(number)
            for host, number in re.findall(rf"^(\S+)\s+: ok=.*\b{kind}=(\d+)", self.output, re.MULTILINE)
        }


class AnsibleHosts:
    """Booted hosts, and Ansible on this machine to change them."""

    def __init__(self, directory: Path, hosts: Mapping[str, BootedRoot]) -> None:
        self.hosts = hosts
        self._directory = directory

    def play(
        self, playbook: str, inventory: Path, *, limit: str = "all", kill_at: str | None = None, **variables: object
    ) -> Played:
        """Run a playbook. `kill_at`: text of its output after which Ansible and its connections are killed."""
        options = [each for name, value in variables.items() for each in ("-e", f"{name}={value}")]
        key = ["--private-key", str(self._directory / "key")]
        ssh = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ControlPersist=60s"
        environment = {
            **os.environ,
            "ANSIBLE_HOME": str(self._directory / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_SSH_ARGS": f"-o ControlMaster=auto {ssh}",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self._directory / "cp"),
        }
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        process = subprocess.Popen(
            [program, "-i", str(inventory), "-l", limit, "-u", "root", *key, *options, str(PLAYBOOKS / playbook)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        lines = []
        with process.stdout:
            for line in process.stdout:
                lines.append(line)
                if kill_at is not None and kill_at in line:
                    os.killpg(process.pid, signal.SIGKILL)
        return Played(process.wait(PLAY_TIMEOUT_S), "".join(lines))

    def start_of(self, host: str, unit: str) -> str:
        """Return what tells one start of a service from another: its process id."""
        return self.hosts[host].run("systemctl", "show", "--property=MainPID", "--value", unit).strip()


@contextmanager
def ansible_hosts(directory: Path, base: DebianRoot, names: list[str]) -> Iterator[AnsibleHosts]:
    """Boot hosts above a root that no longer changes; the addresses are those of `address_of`."""
    with ExitStack() as stack:
        fcntl.flock(stack.enter_context(LOCK.open("w")), fcntl.LOCK_EX)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / "key")
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        stack.callback(_run, "ip", "link", "delete", BRIDGE)
        _run("ip", "address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        hosts = {}
        for number, name in enumerate(names, 1):
            network = f"pipeline-{name}"
            _add_network(stack, network, number)
            root = stack.enter_context(debian_root(directory / name, base))
            _let_in(root, (directory / "key.pub").read_text())
            hosts[name] = stack.enter_context(booted_root(root, name, network=network))
        yield AnsibleHosts(directory, hosts)


def _add_network(stack: ExitStack, network: str, number: int) -> None:
    """Make a network namespace with an address on the bridge."""
    outside = f"pl-test-{number}"
    _run("ip", "netns", "add", network)
    stack.callback(_run, "ip", "netns", "delete", network)
    _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", network)
    stack.callback(_run, "ip", "link", "delete", outside)  # with the namespace it would go at some later time
    _run("ip", "link", "set", outside, "master", BRIDGE, "up")
    for command in (
        ("address", "add", f"{address_of(number)}/24", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
        ("link", "set", "lo", "up"),
    ):
        _run("ip", "-n", network, *command)


def _let_in(root: DebianRoot, key: str) -> None:
    keys = root.path / "root/.ssh/authorized_keys"
    keys.parent.mkdir(mode=0o700, exist_ok=True)
    keys.write_text(key)
    shutil.chown(keys, 0, 0)
    (root.path / "etc/ssh/sshd_config.d/test.conf").write_text("PermitRootLogin prohibit-password\nUsePAM no\n")


def _run(*command: Any) -> None:
    subprocess.run(list(map(str, command)), check=True)
