"""Runs the first pod of each StatefulSet of a manifest on this machine: pods.py MANIFEST WORK_FOLDER SECRET_FOLDER.

To be run in mount and network namespaces of its own (`unshare --mount --net`), as root. Containers run as the manifest
says: their commands, environment, files and volumes, on a read-only root; probes decide when the next pod starts. In
place of Kubernetes' DNS /etc/hosts has the names of pods and Services. Prints what happened as JSON.
"""

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
READY_S = 120
STOP_S = 60
ORDER = ("dc-zookeeper", "dc-broker", "dc-registry")
DOMAIN = "data.svc.cluster.local"


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def prepare(names: Sequence[str]) -> None:
    """Make the folders that the image has, without changing those of the machine, and the names of the cluster."""
    _run("ip", "link", "set", "lo", "up")
    _run("mount", "-t", "tmpfs", "tmpfs", "/mnt")
    for folder in ("/etc", "/var/lib", "/opt"):
        upper, work = (Path("/mnt") / kind / folder.replace("/", "-") for kind in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir(parents=True)
        _run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={folder},upperdir={upper},workdir={work}", folder)
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for place in ("/etc/pipeline/chart", "/etc/pipeline/secrets", "/run/pipeline", "/var/lib/pipeline/disk-0"):
        Path(place).mkdir(parents=True)
    Path("/opt/pipeline").symlink_to(ROOT / ".venv")
    with Path("/etc/hosts").open("a", encoding="ascii") as hosts:
        hosts.writelines(f"127.0.0.1 {name}.{DOMAIN}\n" for name in names)


class Pod:
    """The first pod of a StatefulSet."""

    def __init__(self, each: Mapping[str, Any], files: Mapping[str, str], work: Path, secrets: Path) -> None:
        self.name = f"{each['metadata']['name']}-0"
        self.spec = each["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.work = work / self.name
        for volume in ("chart", "run", "tmp", "data", "disk-0"):
            (self.work / volume).mkdir(parents=True)
        for name, text in files.items():
            (self.work / "chart" / name).write_text(text)
        (self.work / "secrets").symlink_to(secrets)

    def start(
        self, container: Mapping[str, Any], command: Sequence[str] | None = None, **streams: Any
    ) -> "subprocess.Popen[bytes]":
        """Start the container's command, or another one in it."""
        mounts = sorted(container["volumeMounts"], key=lambda mount: mount["name"] == "tmp")  # hides the others
        binds = [f"mount --bind {self.work / mount['name']} {mount['mountPath']}" for mount in mounts]
        read_only = [f"mount -o remount,bind,ro {place}" for place in ("/etc", "/opt", "/")]
        script = " && ".join([*binds, *read_only, 'exec setpriv --no-new-privs --bounding-set=-all "$@"'])
        given = command or container["command"]
        with (self.work / "log").open("ab") as log:
            return subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", script, "sh", *given],
                env=self._environment(container),
                **{"stdout": log, "stderr": log, **streams},
            )

    def run(self, *command: str, given: bytes = b"") -> str:
        """Return what a command prints in the container. Raises CalledProcessError."""
        process = self.start(self.container, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        printed, _ = process.communicate(given, timeout=READY_S)
        if process.returncode != 0:
            raise RuntimeError(f"{command}: {(self.work / 'log').read_text()[-4000:]}")
        return printed.decode()

    def _environment(self, container: Mapping[str, Any]) -> dict[str, str]:
        fields = {"metadata.name": self.name, "status.podIP": "127.0.0.1", "spec.nodeName": "node-1"}
        given = {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container.get("env", ())
        }
        path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": "/tmp", "NUMBA_CACHE_DIR": "/tmp/numba", **given}

    def is_ready(self) -> bool:
        """Carry out the readiness probe."""
        probe = self.container["readinessProbe"]
        if "exec" in probe:
            return self.start(self.container, probe["exec"]["command"]).wait(STOP_S) == 0
        asked = probe["httpGet"]
        url = f"{asked['scheme'].lower()}://127.0.0.1:{asked['port']}{asked['path']}"
        try:
            with urllib.request.urlopen(url, timeout=10, context=ssl._create_unverified_context()):
                return True
        except OSError:
            return False

    def wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for the readiness probe. Raises RuntimeError with the log."""
        end = time.monotonic() + READY_S
        while not self.is_ready():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name} is not ready: {(self.work / 'log').read_text()[-4000:]}")
            time.sleep(0.5)

    def stop(self, process: "subprocess.Popen[bytes]") -> int:
        """Stop as Kubernetes does: `preStop`, then SIGTERM."""
        hook = self.container.get("lifecycle", {}).get("preStop", {}).get("exec")
        if hook and self.start(self.container, hook["command"]).wait(STOP_S) != 0:
            raise RuntimeError(f"preStop of {self.name} failed")
        process.terminate()
        return process.wait(STOP_S)


def main() -> None:
    """Run the pods, write and read a record, and stop them."""
    objects = [each for each in yaml.safe_load_all(Path(sys.argv[1]).read_text()) if each is not None]
    sets = {each["metadata"]["name"]: each for each in objects if each["kind"] == "StatefulSet"}
    maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    services = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    prepare([*services, *(f"{name}-0.{each['spec']['serviceName']}" for name, each in sets.items())])
    running: list[tuple[Pod, subprocess.Popen[bytes]]] = []
    done: dict[str, Any] = {"ready": [], "exit_codes": {}}
    try:
        for name in ORDER:
            pod = Pod(sets[name], maps[name], *map(Path, sys.argv[2:]))
            for container in pod.spec.get("initContainers", ()):
                if pod.start(container).wait(STOP_S) != 0:
                    raise RuntimeError(f"{container['name']} of {pod.name}: {(pod.work / 'log').read_text()}")
            running.append((pod, pod.start(pod.container)))
            pod.wait_until_ready(running[-1][1])
            done["ready"].append(pod.name)
            if "acls.sh" in maps[name]:
                pod.run("sh", "/etc/pipeline/chart/acls.sh")
        broker, is_secured = running[1][0], "admin.properties" in maps["dc-broker"]
        login = ["--client-config", "/etc/pipeline/chart/admin.properties"] if is_secured else []
        place = ["clicks", "-b", f"dc-bootstrap.{DOMAIN}:9092", *login]
        broker.run("pipeline", "topic", "create", *place)
        broker.run("pipeline", "produce", *place, given=b"a\nb\n")
        done["records"] = broker.run("pipeline", "consume", *place).split()
        for pod, process in reversed(running):
            done["exit_codes"][pod.name] = pod.stop(process)
    finally:
        for _, process in running:
            process.kill()
    print(json.dumps(done))


if __name__ == "__main__":
    main()
