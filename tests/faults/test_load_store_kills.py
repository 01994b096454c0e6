"""Loads on a real HDFS, on local files and on S3 while everything dies: what is committed equals the source.

A seed chooses a step of a load (`load_steps.STEPS`) and a victim, who is killed or cut off while the load is held
there: the driver, its Python workers, the DataNode, the NameNode (both are started again, before or while the load goes
on), the connections to the NameNode (at the rename: after the NameNode has the request, or has answered it; some stay
cut until the load ends); or a second load runs to its end meanwhile. Loads of one driver follow one another, killed
drivers are replaced. After each load the outcome must be true, and the committed records must be those of the source.
"""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.hdfs import HdfsCluster, running_hdfs
from tests.support.load_steps import STEPS, StepServer, step_server
from tests.support.load_topic import LoadedTopic
from tests.support.name_node_proxy import NameNodeProxy, name_node_proxy
from tests.support.s3_server import BUCKET, ENVIRONMENT, running_s3
from tests.support.sizes import size
from tests.support.stepped_driver import Driver, stepped_driver

RECORDS = 60
SEEDS_OF_A_TOPIC = 20
LOCAL_VICTIMS = ("driver", "workers", "rival")
VICTIMS = (*LOCAL_VICTIMS, "datanode", "namenode", "network")
FEW_SEEDS = (7, 118, 37)
MANY_SEEDS = size(30, 200)
STORE_TIMEOUT_MS = 30_000

NOTHING_COMMITTED = {"StorageError", "PathNotFoundError", "PathExistsError", "LoadError", "CommitConflictError"}
"""Outcomes by which a load says that certainly nothing of it was committed."""


class Site:
    """Brokers, a store, and two drivers: one loads, the other one is its rival or its successor."""

    def __init__(self, folder: Path, bootstrap: str, steps: StepServer, hdfs: HdfsCluster | None, stack: ExitStack):
        self.folder, self.bootstrap, self.steps, self.hdfs, self._stack = folder, bootstrap, steps, hdfs, stack
        self.proxy: NameNodeProxy | None = None
        self.root = (folder / "lake").as_uri()
        self.driver_root = self.root
        if hdfs is not None:
            self.proxy = stack.enter_context(name_node_proxy(int(hdfs.url.rsplit(":", 1)[1])))
            self.root = f"{hdfs.url}/lake"
            self.driver_root = f"hdfs://127.0.0.1:{self.proxy.port}/lake"
        self._names = count(1)
        self.driver, self.rival = self.start_driver(), self.start_driver()

    def start_driver(self) -> Driver:
        name = f"driver-{next(self._names)}"
        return self._stack.enter_context(stepped_driver(self.steps, name, self.folder))

    def replace_driver(self) -> None:
        """The driver is dead: the rival takes its place."""
        self.driver, self.rival = self.rival, self.start_driver()

    def settings(self, topic: LoadedTopic) -> Any:
        return topic.settings(**{"root": self.driver_root, "store.timeout.ms": STORE_TIMEOUT_MS})


@pytest.fixture
def site(request: Any, tmp_path: Path) -> Iterator[Site]:
    with LocalCluster(tmp_path / "local") as local, ExitStack() as stack:
        (tmp_path / "hdfs").mkdir()
        hdfs = stack.enter_context(running_hdfs(tmp_path / "hdfs")) if request.param == "hdfs" else None
        yield Site(tmp_path, local.bootstrap, stack.enter_context(step_server()), hdfs, stack)


def disturb(site: Site, topic: LoadedTopic, victim: str, step: str, choice: random.Random) -> tuple[set[str], int]:
    """Let `victim` have its accident while the load is held at `step`, and let the load go on.

    Returns the outcomes that the load may have, and the number of commits of others.
    """
    held = site.driver.next()
    if held.step != step:
        raise AssertionError(f"the load ended with {held.outcome}: {site.driver.said()}")
    if victim == "driver":
        site.driver.kill()
        held.go_on()
        return {"killed"}, 0
    if victim == "workers":
        site.steps.kill_workers(site.driver.name)
        held.go_on()
        return {"committed"}, 0
    if victim == "rival":
        site.rival.load(site.settings(topic))
        outcome = site.rival.end()
        held.go_on()
        assert outcome == ("nothing new" if step == "publish" else "committed"), site.rival.said()
        return ({"committed"}, 0) if step == "publish" else ({"CommitConflictError"}, 1)
    if victim == "network":
        assert site.proxy is not None
        if step == "rename":
            is_answered, stays_dark = choice.random() < 0.5, choice.random() < 0.3
            site.proxy.cut_at(b"rename", awaits_answer=is_answered, stays_dark=stays_dark)
            held.go_on()
            if stays_dark:
                return {"CommitOutcomeUnknownError"}, 0
            # A request whose connection is gone may find that the driver has deleted what it was to rename.
            return {"committed"} if is_answered else {"committed", "StorageError"}, 0
        site.proxy.cut()
        held.go_on()
        return {"committed", "StorageError", "LoadError"}, 0
    assert site.hdfs is not None
    site.hdfs.kill(victim)
    if choice.random() < 0.5:
        site.hdfs.restart(victim)
        held.go_on()
    else:
        held.go_on()
        site.hdfs.restart(victim)
    return {"committed", "CommitOutcomeUnknownError", *NOTHING_COMMITTED} - {"CommitConflictError"}, 0


def run_seed(site: Site, topic: LoadedTopic, seed: int) -> str:
    choice = random.Random(seed)
    step, victim = choice.choice(STEPS), choice.choice(VICTIMS if site.hdfs else LOCAL_VICTIMS)
    if victim == "network" and choice.random() < 0.5:
        step = "rename"  # where it matters most
    name = f"seed {seed}: {victim} at {step}"
    topic.produce(RECORDS)
    before = len(topic.manifests())
    site.driver.load(site.settings(topic), stop_at=step)
    allowed, others = disturb(site, topic, victim, step, choice)
    outcome = "killed" if victim == "driver" else site.driver.end()
    assert outcome in allowed, f"{name}: {outcome}\n{site.driver.said()}"
    if site.proxy is not None:
        site.proxy.mend()
    if victim == "driver":
        site.replace_driver()
    commits = len(topic.manifests()) - before - others
    is_committed = outcome == "committed" or (outcome == "killed" and step == "publish")
    if outcome != "CommitOutcomeUnknownError":
        assert commits == int(is_committed), f"{name}: {outcome}, {commits} commits"
    committed = topic.check_equal()
    assert committed == topic.produced or not (is_committed or others), name
    return f"{victim} at {step}: {outcome}"


@pytest.mark.parametrize(
    ("site", "seeds"),
    [
        pytest.param("hdfs", FEW_SEEDS, marks=pytest.mark.long),
        pytest.param("hdfs", range(MANY_SEEDS), marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
        pytest.param("file", range(MANY_SEEDS), marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
    indirect=["site"],
)
def test_killed_at_any_step(site: Site, seeds: Any) -> None:
    outcomes: Counter[str] = Counter()
    topic = LoadedTopic(site.bootstrap, site.root)
    for number, seed in enumerate(seeds):
        if number and number % SEEDS_OF_A_TOPIC == 0:
            load_undisturbed(site, topic)
            topic = LoadedTopic(site.bootstrap, site.root)
        outcomes[run_seed(site, topic, seed)] += 1
    load_undisturbed(site, topic)
    print(*sorted(outcomes.items()), sep="\n")


def load_undisturbed(site: Site, topic: LoadedTopic) -> None:
    """What the accidents have kept back is committed now."""
    site.driver.load(site.settings(topic))
    assert site.driver.end() in {"committed", "nothing new"}, site.driver.said()
    assert topic.check_equal() == topic.produced


@pytest.mark.long
def test_killed_before_and_after_the_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_s3(tmp_path / "s3.log") as url, LocalCluster(tmp_path / "local") as local, ExitStack() as stack:
        for name, value in (ENVIRONMENT | {"AWS_ENDPOINT_URL": url}).items():
            monkeypatch.setenv(name, value)
        site = Site(tmp_path, local.bootstrap, stack.enter_context(step_server()), None, stack)
        site.root = site.driver_root = f"s3://{BUCKET}/lake"
        topic = LoadedTopic(site.bootstrap, site.root)
        for number, step in enumerate(("rename", "publish")):  # before and after the PUT
            topic.produce(RECORDS)
            site.driver.load(site.settings(topic), stop_at=step)
            held = site.driver.next()
            assert held.step == step, held
            site.driver.kill()
            held.go_on()
            site.replace_driver()
            assert len(topic.manifests()) == number
            assert topic.check_equal() == number * 2 * RECORDS
        topic.produce(RECORDS)
        load_undisturbed(site, topic)
