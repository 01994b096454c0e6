"""Hosts of a rendered company on this machine: each has its own /etc/pipeline and /var/lib/pipeline, by mounts.

The hosts' addresses are of 127.0.0.0/8. A service is started as its unit would start it. Needs root.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

SETTINGS = Path("/etc/pipeline")
DATA = Path("/var/lib/pipeline")
UNIT = re.compile(r"pipeline-(\w+)@([\w.-]+)\.(?:service|timer)")

MOUNTS = """
set -eu
mount --make-rprivate /
for each in etc var/lib; do
    mkdir -p $1/over/$each $1/work/$each
    mount -t overlay -o lowerdir=/$each,upperdir=$1/over/$each,workdir=$1/work/$each overlay /$each
    mkdir -p /$each/pipeline
done
mount --bind $1/settings /etc/pipeline
mount --bind $1/data /var/lib/pipeline
echo mounted
exec sleep infinity
"""


class RenderedHost:
    """A host: its rendered folder, its secrets and data, and its running services. A context manager."""

    def __init__(self, rendered: Path, directory: Path, secrets: Mapping[str, str]) -> None:
        """`secrets`: text of each file in /etc/pipeline/secrets."""
        self.name = rendered.name
        self.units = (rendered / "units").read_text().split()
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        settings, data = directory / "settings", directory / "data"
        for path in (settings / "secrets", data):
            path.mkdir(parents=True)
        for path in (rendered / "etc" / "pipeline").iterdir():
            (settings / path.name).write_bytes(path.read_bytes())
        for name, text in secrets.items():
            (settings / "secrets" / name).write_text(text)

    def __enter__(self) -> Self:
        command = ["unshare", "--mount", "--kill-child", "--fork", "sh", "-c", MOUNTS, "sh", str(self._directory)]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        with self._holder.stdout as said:
            assert said.readline() == b"mounted\n"
        (child,) = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self._enter = ["nsenter", f"--mount=/proc/{child}/ns/mnt", f"--wd={self._directory}"]
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        self._holder.kill()
        self._holder.wait()

    def log(self, unit: str) -> Path:
        """Return the file of what a unit printed."""
        return self._directory / f"{unit}.log"

    def start(self, unit: str) -> None:
        """Start a unit, with its data folder, which systemd makes (StateDirectory)."""
        matched = UNIT.fullmatch(unit)
        assert matched is not None, unit
        role, instance = matched.groups()
        (self._directory / "data" / f"{role}-{instance}").mkdir(exist_ok=True)
        with self.log(unit).open("ab") as log:
            command = [*self._enter, *self._command(role, instance)]
            self._running[unit] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment() | self._flags(role)
            )

    def run(self, *command: str, check: bool = True, given: str | None = None) -> str:
        """Run a `pipeline` command, or another, as a person on the host would, and return what it printed."""
        done = subprocess.run(
            [*self._enter, *command],
            input=given or "",
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(),
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def assert_running(self) -> None:
        """Fail with the end of the log of a service that has ended."""
        for unit, process in self._running.items():
            assert process.poll() is None, f"{self.name}: {unit} has ended: {self.log(unit).read_text()[-3000:]}"

    def _environment(self) -> dict[str, str]:
        file = self._directory / "settings" / "admin.properties"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PIPELINE_")}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        return environment | ({"PIPELINE_CLIENT_CONFIG": str(SETTINGS / file.name)} if file.exists() else {})

    def _command(self, role: str, instance: str) -> Sequence[str | Path]:
        if role == "zookeeper":
            own_id = ["--config", str(SETTINGS / f"zookeeper-{instance}.properties"), "--id", instance]
            return ["pipeline", "zookeeper", "start", *own_id]
        verb = "run" if role == "load" else "start"
        return ["pipeline", role, verb, "--config", str(SETTINGS / f"{role}-{instance}.toml")]

    def _flags(self, role: str) -> dict[str, str]:
        """Return the flags of Java that the drop-in of the unit has."""
        users = SETTINGS / "secrets" / "zookeeper.jaas"
        is_secured = (self._directory / "settings" / "secrets" / users.name).exists()
        flags = f"-Djava.security.auth.login.config={users}"
        return {"SERVER_JVMFLAGS": flags} if role == "zookeeper" and is_secured else {}
