"""A real API server of Kubernetes with its store and controllers, from Go modules, and no machine that runs pods.

A test that first needs them builds them into .cache/kubernetes, which takes up to an hour on two cores. What a kubelet
would say of its pods, a test says.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import yaml

from bench.processes import ServerProcess, ended
from pipeline.processes import free_port
from tests.support.kubernetes import CACHE, VERSIONS, held

VERSION = VERSIONS[-1]
TOKEN = "a-token-of-this-machine"
DEADLINE_S = 120.0
POLL_S = 0.1
BUILD_TIMEOUT_S = 5400
LONG_AGO = timedelta(minutes=10)
"""How long a pod has been ready when a test first says so: longer than any `minReadySeconds`."""


@cache
def server(name: str) -> str:
    """Return the path of etcd, kube-apiserver or kube-controller-manager, which is built if it is not there."""
    path = CACHE / "bin" / name
    with held():
        if not path.exists():
            _build(name, path)
    return str(path)


def _build(name: str, path: Path) -> None:
    """Build a program whose module refers to its neighbours by folders: releases of them have the same number."""
    if name == "etcd":
        module, version, of_neighbours, package = "go.etcd.io/etcd/server/v3", "v3.6.8", "v3.6.8", "."
    else:
        module, package = "k8s.io/kubernetes", f"./cmd/{name}"
        version, of_neighbours = f"v{VERSION}", f"v0{VERSION[1:]}"
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOWORK": "off", "CGO_ENABLED": "0"}

    def go(*arguments: str, folder: Path | None = None) -> str:
        return subprocess.run(
            ["go", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=BUILD_TIMEOUT_S,
        ).stdout

    source = Path(json.loads(go("mod", "download", "-json", f"{module}@{version}"))["Dir"])
    folder = CACHE / f"source-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    described = json.loads(go("mod", "edit", "-json", folder=folder))
    required = {each["Path"] for each in described["Require"]}
    for replaced in described["Replace"] or ():
        if replaced["New"]["Path"].startswith("."):
            neighbour = replaced["Old"]["Path"]
            go("mod", "edit", f"-dropreplace={neighbour}", folder=folder)
            if neighbour in required:
                go("mod", "edit", f"-require={neighbour}@{of_neighbours}", folder=folder)
    version_flag = f"-X k8s.io/component-base/version.gitVersion={version}"
    go("build", "-trimpath", "-ldflags", f"-s -w {version_flag}", "-o", str(path), package, folder=folder)
    shutil.rmtree(folder)


class KubernetesApi:
    """The API, for a test that plays the kubelets of all machines."""

    def __init__(self, url: str, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.Client(base_url=url, verify=False, headers=headers, trust_env=False, timeout=30)

    def objects(self, path: str) -> dict[str, dict[str, Any]]:
        """Return the objects of a list, such as `api/v1/namespaces/data/pods`, by name."""
        found = self.client.get(path).raise_for_status().json()["items"]
        return {each["metadata"]["name"]: each for each in found}

    def pods(self, part: str) -> dict[str, dict[str, Any]]:
        """Return the pods of a part of the chart in the namespace `data`, by name."""
        found = self.objects(f"/api/v1/namespaces/data/pods?labelSelector=app.kubernetes.io/component%3D{part}")
        return {name: pod for name, pod in found.items() if "deletionTimestamp" not in pod["metadata"]}

    def say(self, pod: str, *, is_ready: bool) -> None:
        """Say what a kubelet would say of a pod that runs."""
        now = datetime.now(UTC)
        since = (now - LONG_AGO).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = "True" if is_ready else "False"
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        conditions = [
            {"type": kind, "status": status if "Ready" in kind else "True", "lastTransitionTime": since}
            for kind in kinds
        ]
        answer = self.client.patch(
            f"/api/v1/namespaces/data/pods/{pod}/status",
            json={"status": {"phase": "Running", "startTime": since, "conditions": conditions}},
            headers={"Content-Type": "application/strategic-merge-patch+json"},
        )
        answer.raise_for_status()

    def evict(self, pod: str) -> int:
        """Ask for an eviction, as `kubectl drain` does; return the HTTP status: 429 if a budget forbids it."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "data"}}
        return self.client.post(f"/api/v1/namespaces/data/pods/{pod}/eviction", json=body).status_code

    def close(self) -> None:
        """End the connections."""
        self.client.close()


def wait_for(what: str, condition: Any) -> Any:
    """Return the first true value of `condition()`. Raises TimeoutError."""
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {DEADLINE_S:.0f} s")
        time.sleep(POLL_S)
    return found


@contextmanager
def kubernetes_api(folder: Path) -> Iterator[KubernetesApi]:
    """Run etcd, API server and controllers until the block ends."""
    ports = {name: free_port() for name in ("etcd", "peers", "api", "controllers")}
    keys = _service_account_keys(folder)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
    url = f"https://127.0.0.1:{ports['api']}"
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(_kubeconfig(url)))
    etcd = f"http://127.0.0.1:{ports['etcd']}"
    peers = f"http://127.0.0.1:{ports['peers']}"
    with ExitStack() as stack:

        def run(name: str, port: int, options: Mapping[str, str]) -> None:
            command = [server(name), *(f"--{option}={value}" for option, value in options.items())]
            process = stack.enter_context(ended(ServerProcess(command, port, folder / f"{name}.log")))
            process.launch()
            process.wait_for_port()

        store = {"data-dir": str(folder / "etcd"), "listen-client-urls": etcd, "advertise-client-urls": etcd}
        store |= {"listen-peer-urls": peers, "initial-advertise-peer-urls": peers}
        run("etcd", ports["etcd"], store | {"initial-cluster": f"default={peers}", "unsafe-no-fsync": "true"})
        run(
            "kube-apiserver",
            ports["api"],
            {
                "etcd-servers": etcd,
                "bind-address": "127.0.0.1",
                "secure-port": str(ports["api"]),
                "cert-dir": str(folder / "certificates"),
                "token-auth-file": str(folder / "tokens.csv"),
                "authorization-mode": "RBAC",
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-account-key-file": str(keys.with_suffix(".pub")),
                "service-account-signing-key-file": str(keys),
                "service-cluster-ip-range": "10.0.0.0/24",
            },
        )
        api = KubernetesApi(url, kubeconfig)
        stack.callback(api.close)
        wait_for("the API server is ready", lambda: api.client.get("/readyz").status_code == 200)
        run(
            "kube-controller-manager",
            ports["controllers"],
            {
                "kubeconfig": str(kubeconfig),
                "bind-address": "127.0.0.1",
                "secure-port": str(ports["controllers"]),
                "cert-dir": str(folder / "certificates"),
                "service-account-private-key-file": str(keys),
                "leader-elect": "false",
            },
        )
        yield api


def _service_account_keys(folder: Path) -> Path:
    private = folder / "accounts.pem"
    command = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(private)]
    subprocess.run(command, check=True, capture_output=True)
    public = ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(private.with_suffix(".pub"))]
    subprocess.run(public, check=True, capture_output=True)
    return private


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "this",
        "clusters": [{"name": "this", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "this", "context": {"cluster": "this", "user": "admin"}}],
    }
