"""Brings the figure up and takes it down.

A part that runs is left alone, so `bring_up` also starts what has died. Nothing needs this process afterwards.

Invariants:

- Each part writes its process id before it begins, so a command that is killed leaves no part without one.
- `take_down` needs neither the description nor the programs of the parts: it works after everything that can go wrong.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from deploy.figure3 import networks
from deploy.figure3.errors import FigureError
from deploy.figure3.networks import inside, run
from deploy.figure3.page_views import TOPIC
from deploy.figure3.plan import (
    COMPANY,
    FOLDER,
    LIVE,
    NAME_NODE_HTTP_PORT,
    NAME_NODE_PORT,
    PIDS,
    ROOT,
    Part,
    Plan,
    system_haproxy,
)
from tests.support.hdfs import NAME_NODE, write_configuration

READY_S = 300.0
STOP_S = 30.0
PROBE_S = 5.0
POLL_S = 0.1
PARTITIONS = 4
HDFS_SETTINGS = {"dfs.namenode.datanode.registration.ip-hostname-check": "false"}
"""Addresses of the figure have no names."""
RENDERED = FOLDER / "rendered" / "rendered-files"
STAGES = range(1, 6)
BEGIN = ["sh", "-c", 'echo $$ >"$0" && mount --bind "$1" /var/lib && shift && exec "$@"']
"""Begins a part: it notes its process id, and gets a /var/lib of its own, as on a machine of its own."""


def require_namespaces() -> None:
    """Raises FigureError unless this process can make and remove network namespaces."""
    if not networks.is_command_available():
        raise FigureError("the figure needs root and iproute2 (`ip`), for network namespaces")


def require_this_machine() -> None:
    """Raises FigureError unless the figure can run here."""
    require_namespaces()
    if ROOT.is_relative_to("/var/lib"):
        raise FigureError("each host of the figure has a /var/lib of its own: move the repository out of /var/lib")
    if not (ROOT / ".cache" / "haproxy").is_dir() and system_haproxy() is None:
        raise FigureError("haproxy is missing: run `make install-test`")


def prepare(plan: Plan) -> None:
    """Make namespaces, folders and settings, unless they are there. Raises FigureError."""
    networks.require_own(FOLDER)
    expected = {*plan.hosts, *plan.subnets, networks.USERS}
    complete = FOLDER / "network-complete"
    if networks.existing_hosts() != expected or not complete.exists():
        networks.remove()
        complete.unlink(missing_ok=True)
        networks.create(FOLDER, plan.subnets, plan.hosts)
        for name in ("log", "tmp", "spark", *(f"pid/{stage}" for stage in STAGES)):
            (FOLDER / name).mkdir(parents=True, exist_ok=True)
        complete.touch()
    run(sys.executable, "-m", "pipeline", "deploy", "render", str(COMPANY), str(FOLDER / "rendered"), "--prune")
    for datacenter in LIVE:
        (FOLDER / f"haproxy-{datacenter}.cfg").write_text(plan.balancer_settings(datacenter))


def is_prepared() -> bool:
    """True if `prepare` has done its work, so that the parts are known."""
    return networks.USERS in networks.existing_hosts() and RENDERED.exists()


def bring_up(plan: Plan, say: Callable[[str], None]) -> None:
    """Start all parts that do not run, stage by stage. Call on the host USERS. Raises FigureError."""
    _format_hdfs(plan)
    for stage in STAGES:
        parts = [part for part in plan.parts if part.stage == stage]
        new = [part for part in parts if pid_of(part) is None]
        for part in new:
            _start(part)
        _wait_until_ready(new)
        if new:
            say(f"{', '.join(part.name for part in new)}")
        if stage == 3:
            _create_topics(plan)


def pid_of(part: Part) -> int | None:
    """Return the process id of a part; None if it does not run."""
    return _pid_in(part.pid_file)


def _pid_in(file: Path) -> int | None:
    """Return the process id in a file of a part, whose name begins with the host; None if it does not run."""
    try:
        pid = int(file.read_text())
    except (OSError, ValueError):
        return None
    return pid if networks.is_on(file.name.partition(".")[0], pid) else None


def _format_hdfs(plan: Plan) -> None:
    folder = FOLDER / "hdfs"
    if (folder / "name" / "current" / "VERSION").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_configuration(folder, plan.address(plan.lake_host), NAME_NODE_PORT, NAME_NODE_HTTP_PORT, HDFS_SETTINGS)
    run(*inside(plan.lake_host, [*plan.hdfs_command(), NAME_NODE, "-format", "-nonInteractive"]))


def _start(part: Part) -> None:
    own = FOLDER / "hosts" / part.host
    (own / "pipeline" / part.service).mkdir(parents=True, exist_ok=True)  # as StateDirectory of systemd
    command = [*BEGIN, str(part.pid_file), str(own), *part.command]
    java = f"-Djava.io.tmpdir={FOLDER / 'tmp'} -XX:-UsePerfData"
    environment = {**os.environ, "TMPDIR": str(FOLDER / "tmp"), "JAVA_TOOL_OPTIONS": java, **part.environment}
    with part.log.open("ab") as log:
        process = subprocess.Popen(
            inside(part.host, command),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while pid_of(part) != process.pid:
        if process.poll() is not None:
            raise FigureError(_how_it_ended(part))
        time.sleep(POLL_S / 10)


def _how_it_ended(part: Part) -> str:
    return f"{part.name} has ended; see {part.log}, which ends:\n{part.log.read_text()[-2000:]}"


def _wait_until_ready(parts: Iterable[Part]) -> None:
    deadline = time.monotonic() + READY_S
    for part in parts:
        while not is_ready(part):
            if pid_of(part) is None:
                raise FigureError(_how_it_ended(part))
            if time.monotonic() > deadline:
                raise FigureError(f"{part.name} is not ready after {READY_S:.0f} s; see {part.log}")
            time.sleep(POLL_S)


def is_ready(part: Part) -> bool:
    """True if a part runs and serves. Call on the host USERS."""
    if pid_of(part) is None:
        return False
    if part.ready.startswith("http://"):
        try:
            with urllib.request.urlopen(part.ready, timeout=PROBE_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
    host, _, port = part.ready.partition(":")
    if not host:
        return True
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=PROBE_S):
        return True
    return False


def _create_topics(plan: Plan) -> None:
    for datacenter in LIVE:
        options = ["--partitions", str(PARTITIONS), "--if-not-exists", "-b", plan.bootstrap(datacenter)]
        run(sys.executable, "-m", "pipeline", "topic", "create", TOPIC, *options)


def take_down() -> None:
    """Stop all parts, the last stage first, then end whatever is left, and remove all files. Raises FigureError."""
    networks.require_own(FOLDER)
    for stage in reversed(STAGES):
        _stop(sorted((PIDS / str(stage)).glob("*")))
    networks.remove()
    shutil.rmtree(FOLDER, ignore_errors=True)
    if FOLDER.exists():
        raise FigureError(f"{FOLDER} cannot be removed")


def _stop(pid_files: Iterable[Path]) -> None:
    stopping = [file for file in pid_files if (pid := _pid_in(file)) is not None and _send_end(pid)]
    deadline = time.monotonic() + STOP_S
    while any(_pid_in(file) is not None for file in stopping) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _send_end(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        return True
    return False
