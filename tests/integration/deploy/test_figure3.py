"""Figure 3 of the paper in network namespaces: a broker dies while users publish, nothing is lost, nothing is left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.figure3 import networks
from deploy.figure3.errors import FigureError
from deploy.figure3.lifecycle import pid_of, require_this_machine
from deploy.figure3.plan import FOLDER, PIDS, ROOT, Part, Plan
from tests.support.marked_processes import MARK, marked

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

DEADLINE_S = 600
KILLED = "east-2.broker-2"
COUNT = "import sys, urllib.request as u; sys.exit(u.urlopen(sys.argv[1]).read() == b'{}')"


class Figure:
    """The figure of this test: all its processes bear a mark."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.plan = Plan()

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = ["env", f"{MARK}={self.mark}", sys.executable, "-m", "deploy.figure3", *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str, code: int = 0) -> str:
        with self.start(*arguments) as process:
            said, complaint = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, said + complaint
        return said

    def part(self, name: str) -> Part:
        (part,) = (part for part in self.plan.parts if part.name == name)
        return part

    def pids(self) -> dict[str, int | None]:
        return {part.name: pid_of(part) for part in self.plan.parts}

    def has_read(self) -> bool:
        """True once the online consumer of the first live datacenter has read something."""
        ask = networks.inside(networks.USERS, [sys.executable, "-c", COUNT, self.plan.readers["east"]])
        return subprocess.run(ask, check=False).returncode == 0


@pytest.fixture
def figure(tmp_path: Path) -> Iterator[Figure]:
    try:
        require_this_machine()
    except FigureError as error:
        pytest.skip(str(error))
    if networks.existing_hosts():
        pytest.skip("a figure is up on this machine")
    figure = Figure(f"figure3-{tmp_path}")
    try:
        yield figure
    finally:
        figure.run("down")


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_broker_dies_while_users_publish(figure: Figure) -> None:
    figure.run("up")
    assert "down" not in figure.run("status")
    with figure.start("measure", "--seconds", "20", "--rate", "200", "--json") as measure:
        wait_until(figure.has_read)
        before = figure.pids()
        killed = before[KILLED]
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: pid_of(figure.part(KILLED)) is None)
        assert [line.split()[0] for line in figure.run("status", code=1).splitlines() if "down" in line] == [KILLED]
        figure.run("up")
        said, complaint = measure.communicate(timeout=DEADLINE_S)
    assert measure.returncode == 0, said + complaint  # the audit's report: every hour is exact
    document = json.loads(said)
    assert document["failed_requests"] == 0
    assert document["records"] >= 20 * 200
    records = {name: delays["records"] for name, delays in document["delays_ms"].items()}
    names = ("brokers", "online consumers", "hub", "HDFS commit")
    assert records == dict.fromkeys(names, document["records"])
    assert document["delays_ms"]["hub"]["p50"] >= figure.plan.delay_ms
    after = figure.pids()
    assert {name for name in after if after[name] != before[name]} == {KILLED}

    started = marked(figure.mark)
    assert len(started) >= len(after)
    figure.part("hub-2.mirror-hub").pid_file.unlink()  # as after a crash: what has no file is found all the same
    figure.part("hub-4.spark-worker").pid_file.unlink()
    figure.run("down")
    assert marked(figure.mark) == {}
    assert networks.existing_hosts() == set()
    assert not FOLDER.exists()
    assert [pid for pid in started if Path(f"/tmp/hsperfdata_root/{pid}").exists()] == []
    figure.run("status", code=1)
    figure.run("down")  # once more does no harm


def test_an_up_that_is_killed_is_gone_on_with_and_two_do_not_meet(figure: Figure) -> None:
    """Nothing runs twice, and `down` works also if the programs of the parts cannot be found."""
    with figure.start("up") as killed:
        wait_until(lambda: list(PIDS.glob("1/*")))
        with figure.start("up") as second:
            assert second.stderr is not None
            assert "another command is at work" in second.stderr.readline()
            killed.kill()
            killed.communicate()
            said, complaint = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 0, said + complaint
    assert "down" not in figure.run("status")
    for part in figure.plan.parts:
        running = " ".join(part.command).encode()
        on_host = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in networks.processes_on(part.host)]
        assert [line.replace(b"\0", b" ").strip() for line in on_host].count(running) <= 1, part.name
    (FOLDER / "rendered" / "rendered-files").write_text("")
    (FOLDER / "rendered" / "prometheus" / "targets.json").unlink()
    figure.run("down")
    assert (marked(figure.mark), networks.existing_hosts(), FOLDER.exists()) == ({}, set(), False)


def test_the_figure_of_another_checkout_is_left_alone(figure: Figure, tmp_path: Path) -> None:
    networks.create(tmp_path, {}, {})
    try:
        for command in ("up", "down"):
            with figure.start(command) as refused:
                _, complaint = refused.communicate(timeout=DEADLINE_S)
            assert (refused.returncode, str(tmp_path) in complaint) == (1, True)
        assert networks.existing_hosts() == {networks.USERS}
    finally:
        networks.remove()
