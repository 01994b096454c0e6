"""The image and the compose file, run by podman on a Debian host of its own, which reaches no image registry."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.version import VERSION
from tests.support.debian import BootedRoot, DebianRoot, base, booted_root, debian_root
from tests.support.hadoop_image import write_hadoop_build
from tests.support.packages import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]  # with the build of the package

PODMAN = ("podman", "runc", "netavark", "aardvark-dns", "iptables")
PODMAN_COMPOSE = "podman-compose==1.6.0"
BASE = "localhost/debian:bookworm"
IMAGES = {"pipeline": "all", "pipeline-services": "services"}
"""Targets of the Containerfile, the last of which is the default, by the names of their images."""
SERVICES = {
    "broker": ("broker-1.toml", 9080),
    "mirror": ("mirror-hub.toml", 9180),
    "registry": ("registry-hub.toml", 8081),
    "audit": ("audit-hub.toml", 8085),
}
"""Settings and HTTP ports of the hub."""
BUILD_TIMEOUT_S = 500
COMPOSE = (
    "sh",
    "-euc",
    'cd /root/container; export PYTHONPATH=/opt/compose; exec python3 -m podman_compose "$@"',
    "sh",
)
BUILD = ("podman", "build", "--format=docker", "--isolation=chroot", "--network=host")
HADOOP = "docker.io/apache/hadoop:3.4.1"
LAKE = "hdfs://namenode:8020/lake"


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
            file = "--file=/root/container/Containerfile"
            for tag, target in IMAGES.items():
                options = (f"--tag={tag}", f"--target={target}", f"--build-arg=BASE={BASE}", file)
                booted.run(*BUILD, *options, "/dist", timeout_s=BUILD_TIMEOUT_S)
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


@pytest.mark.parametrize("name", IMAGES)
def test_the_image_needs_no_privilege_and_writes_nothing_in_its_root(host: BootedRoot, name: str) -> None:
    run = ("podman", "run", "--rm", "--read-only", "--tmpfs=/tmp", "--cap-drop=all", f"localhost/{name}")
    assert f"pipeline {VERSION} " in host.run(*run, "--version")
    (image,) = json.loads(host.run("podman", "image", "inspect", f"localhost/{name}"))
    assert image["Config"]["User"] == "10001:10001"
    assert "HEALTH_URL" in " ".join(image["Healthcheck"]["Test"])


def test_the_image_of_the_services_is_small_and_says_what_it_lacks(host: BootedRoot) -> None:
    below, whole, small = (
        json.loads(host.run("podman", "image", "inspect", name))[0]["Size"]
        for name in (BASE, "localhost/pipeline", "localhost/pipeline-services")
    )
    print(f"on top of Debian: {whole - below} bytes, {small - below} of the services alone")
    assert small - below < (whole - below) / 2
    load = "load run --topics visits --root file:///tmp/lake -b 127.0.0.1:9 --set value.format=binary"
    told = host.run("sh", "-c", f"podman run --rm localhost/pipeline-services {load} 2>&1 || echo exit $?")
    assert "is not installed, and this command needs it: install the whole package" in told
    assert told.endswith("exit 1\n")


def test_two_live_datacenters_and_a_hub_come_up_and_a_record_reaches_the_hub(host: BootedRoot) -> None:
    compose_up(host)
    hub = ("podman", "exec", "container_hub-broker_1", "pipeline")
    produce(host, "hello")
    host.wait_for(*hub, "consume", "visits", "-b", "hub:9092", printed="hello\n")  # once the mirror has the topic
    names = host.run("podman", "ps", "--format", "{{.Names}}").split()
    assert len(names) == 9
    for name in names:
        host.run("podman", "healthcheck", "run", name)
    run_from_the_small_image(host, SERVICES)
    produce(host, "again")
    small = ("podman", "exec", "small-broker", "pipeline")
    host.wait_for(*small, "consume", "visits", "-b", "hub:9092", printed="hello\nagain\n")
    host.run("podman", "rm", "--force", *(f"small-{noun}" for noun in SERVICES))
    host.run(*COMPOSE, "down", "--volumes")
    assert host.run("podman", "ps", "--quiet") == ""


def test_the_profile_lake_loads_into_hdfs(host: BootedRoot) -> None:
    """Hadoop's image is one of our own: no image registry is reached."""
    write_hadoop_build(host.path / "root/hadoop")
    host.run(
        *BUILD, "--build-arg=BASE=localhost/pipeline", f"--tag={HADOOP}", "/root/hadoop", timeout_s=BUILD_TIMEOUT_S
    )
    compose_up(host, "--profile", "lake")
    produce(host, "hello")
    load = ("podman", "exec", "container_load_1", "pipeline", "load")
    try:
        host.wait_for(*load, "status", "--root", LAKE, "--json", printed='"visits"', timeout_s=900)
    except TimeoutError:
        for name in ("load", "datanode", "namenode"):
            print(host.run("podman", "logs", "--tail", "40", f"container_{name}_1"))
        raise
    verify = ("verify", "--config", "/etc/pipeline/load-lake.toml", "--root", LAKE, "--topic", "visits")
    print(host.run(*load, *verify, "-b", "hub:9092", timeout_s=300))
    names = host.run("podman", "ps", "--format", "{{.Names}}").split()
    assert len(names) == 14
    for name in names:
        if "node" not in name:
            host.run("podman", "healthcheck", "run", name)
    host.run(*COMPOSE, "--profile", "lake", "down", "--volumes")
    assert host.run("podman", "ps", "--quiet") == ""


def compose_up(host: BootedRoot, *options: str) -> None:
    """Start the company of the compose file, and create its topic."""
    render = ("deploy", "render", "/root/container/company.toml", "/root/container/rendered")
    program = ("podman", "run", "--rm", "--user=0", "--volume=/root/container:/root/container", "localhost/pipeline")
    host.run("rm", "-rf", "/root/container/rendered")
    host.run(*program, *render)
    host.run(*COMPOSE, *options, "up", "-d", timeout_s=BUILD_TIMEOUT_S)
    create = ("podman", "exec", "container_east-broker_1", "pipeline", "topic", "create", "visits", "-b", "east:9092")
    host.wait_for(*create, printed="Created", timeout_s=120)


def produce(host: BootedRoot, text: str) -> None:
    """Send a record to the live datacenter east."""
    command = "podman exec -i container_east-broker_1 pipeline produce visits -b east:9092 --datacenter east"
    host.run("sh", "-c", f"echo {text} | {command}")


def run_from_the_small_image(host: BootedRoot, services: Mapping[str, tuple[str, int]]) -> None:
    """Replace services of the hub by those of the image without Spark and Java, until all are healthy."""
    for noun, (settings, port) in services.items():
        host.run("podman", "stop", f"container_hub-{noun}_1")
        volumes = ["--volume=/root/container/rendered/hub/etc/pipeline:/etc/pipeline:ro"]
        if noun in ("broker", "audit"):
            volumes.append(f"--volume=container_hub-{noun}:/var/lib/pipeline")
        how = (
            "--detach",
            "--pod=pod_container",
            "--read-only",
            "--tmpfs=/tmp",
            "--cap-drop=all",
            "--network=container:container_hub_1",
        )
        url = f"--env=HEALTH_URL=http://127.0.0.1:{port}/healthz"
        command = (noun, "start", "--config", f"/etc/pipeline/{settings}")
        host.run("podman", "run", *how, f"--name=small-{noun}", url, *volumes, "localhost/pipeline-services", *command)
        host.wait_for("sh", "-c", f"podman healthcheck run small-{noun} && echo healthy", printed="healthy")
