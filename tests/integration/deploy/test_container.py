"""The image and the compose file, run by podman on a Debian host of its own, which reaches no image registry."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.version import VERSION
from tests.support.debian import BootedRoot, DebianRoot, base, booted_root, debian_root
from tests.support.packages import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # with the build of the package

PODMAN = ("podman", "runc", "netavark", "aardvark-dns", "iptables")
PODMAN_COMPOSE = "podman-compose==1.6.0"
BASE = "localhost/debian:bookworm"
BUILD_TIMEOUT_S = 500
COMPOSE = """
cd /root/container
export PYTHONPATH=/opt/compose
exec python3 -m podman_compose "$@"
"""


@pytest.fixture(scope="module")
def host(debian: DebianRoot, tmp_path_factory: Any) -> Iterator[BootedRoot]:
    """A host with podman, and the image built on it: the base is the tests' bare Debian."""
    directory: Path = tmp_path_factory.mktemp("host")
    with debian_root(directory / "root", debian) as root:
        install_podman(root)
        shutil.copytree(ROOT / "deploy/container", root.path / "root/container")
        (root.path / "dist").mkdir()
        (root.path / "package.deb").rename(root.path / "dist/pipeline_0.0.0_amd64.deb")
        with storage(root, directory / "storage"), booted_root(root, "containers") as booted:
            archive = f"tar -C {base()} -c . | nsenter --target={booted.pid} --all podman import - {BASE}"
            subprocess.run(["sh", "-c", archive], check=True, stdout=subprocess.DEVNULL)
            build = ("podman", "build", "--format=docker", "--isolation=chroot", "--network=host", "--tag=pipeline")
            file = "--file=/root/container/Containerfile"
            booted.run(*build, f"--build-arg=BASE={BASE}", file, "/dist", timeout_s=BUILD_TIMEOUT_S)
            yield booted


def install_podman(root: DebianRoot) -> None:
    """Install podman and podman-compose, and let podman ask for no more than this machine allows."""
    shutil.copy("/etc/resolv.conf", root.path / "etc/resolv.conf")
    root.run("apt-get", "update", "-qq")
    root.run("apt-get", "install", "-qq", "--yes", "--no-install-recommends", *PODMAN)
    target = str(root.path / "opt/compose")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", target, PODMAN_COMPOSE], check=True)
    limits = subprocess.run(["sh", "-c", "ulimit -Hn"], capture_output=True, text=True, check=True).stdout.strip()
    (root.path / "etc/containers/containers.conf").write_text(
        f'[containers]\ndefault_ulimits = ["nofile={limits}:{limits}", "nproc=10000:10000"]\n'
        '[engine]\nruntime = "runc"\n'  # crun knows no mixture of cgroups of both versions
    )


@contextmanager
def storage(root: DebianRoot, directory: Path) -> Iterator[None]:
    """A directory of this machine for images: layers of containers cannot lie on the layers of a root."""
    mounted = root.path / "var/lib/containers"
    directory.mkdir()
    mounted.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", directory, mounted], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", mounted], check=True)
        shutil.rmtree(directory, ignore_errors=True)


def test_the_image_needs_no_privilege_and_writes_nothing_in_its_root(host: BootedRoot) -> None:
    run = ("podman", "run", "--rm", "--read-only", "--tmpfs=/tmp", "--cap-drop=all", "localhost/pipeline")
    assert f"pipeline {VERSION} " in host.run(*run, "--version")
    (image,) = json.loads(host.run("podman", "image", "inspect", "localhost/pipeline"))
    assert image["Config"]["User"] == "10001:10001"
    assert "HEALTH_URL" in " ".join(image["Healthcheck"]["Test"])


def test_two_live_datacenters_and_a_hub_come_up_and_a_record_reaches_the_hub(host: BootedRoot) -> None:
    render = ("deploy", "render", "/root/container/company.toml", "/root/container/rendered")
    program = ("podman", "run", "--rm", "--user=0", "--volume=/root/container:/root/container", "localhost/pipeline")
    host.run(*program, *render)
    compose = ("sh", "-euc", COMPOSE, "sh")
    host.run(*compose, "up", "-d")
    east, hub = (("podman", "exec", f"container_{name}-broker_1", "pipeline") for name in ("east", "hub"))
    host.wait_for(*east, "topic", "create", "visits", "-b", "east:9092", printed="Created", timeout_s=120)
    produce = "echo hello | podman exec -i container_east-broker_1 pipeline produce visits -b east:9092"
    host.run("sh", "-c", f"{produce} --datacenter east")
    host.wait_for(*hub, "consume", "visits", "-b", "hub:9092", printed="hello\n")  # once the mirror has the topic
    names = host.run("podman", "ps", "--format", "{{.Names}}").split()
    assert len(names) == 9
    for name in names:
        host.run("podman", "healthcheck", "run", name)
    host.run(*compose, "down")
    assert host.run("podman", "ps", "--quiet") == ""
