"""Complete hours of real producers, brokers, mirror, load and audit: records are lost or late, parts are away."""

import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.audit.counting.lives import open_audited_producer
from pipeline.cli import foreground
from pipeline.cli.child_services import ServiceUnit
from pipeline.cli.demo.datacenters import HUB, Datacenters
from pipeline.cli.load.complete import Marking, mark_hours
from pipeline.cli.terminal.connect import connected, wall_clock
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import ProducerConfig
from pipeline.records.batch import iterate_headers
from pipeline.records.tally import HOUR_MS
from tests.support.copies import read_report

TOPIC = "visits"
FIRST_HOUR_MS = 1_700_002_800_000
NAMES = [f"2023-11-{14 + (hour + 23) // 24}T{(hour + 23) % 24:02d}:00:00Z" for hour in range(8)]
BATCHES, RECORDS = 2, 7
DEADLINE_S = 240


class Site:
    """The datacenters, and the files of the topic that are loaded from the hub."""

    def __init__(self, datacenters: Datacenters, folder: Path) -> None:
        self.datacenters = datacenters
        self.folder = folder
        self.audit = datacenters.audit.url

    async def publish(self, datacenter: str, hour: int) -> None:
        """Publish some batches of an hour, which the producer counts."""
        async with (
            connected(self.datacenters.bootstrap[datacenter], None, "test") as cluster,
            open_audited_producer(
                cluster,
                ProducerConfig(),
                datacenter=datacenter,
                host="tests",
                clock=wall_clock,
                rng=Random(f"{datacenter} {hour} {wall_clock()}"),
                interval_s=1,
            ) as producer,
        ):
            for _ in range(BATCHES):
                for _ in range(RECORDS):
                    await producer.send(TOPIC, b"value", timestamp_ms=FIRST_HOUR_MS + hour * HOUR_MS)
                await producer.flush()

    async def until_unknown(self) -> None:
        """Wait until the audit has noticed that a cluster is away."""
        with trio.fail_after(DEADLINE_S):
            while (found := await read_report(self.datacenters, TOPIC)) is None or found["complete"]:
                await trio.sleep(0.2)

    async def until_report(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the report of some hour fulfils the condition."""
        found: dict[str, Any] | None = None
        with trio.move_on_after(DEADLINE_S):
            while found is None or not any(map(condition, found["hours"])):
                await trio.sleep(0.2)
                found = await read_report(self.datacenters, TOPIC)
            return
        raise AssertionError(found)

    async def until_copied(self, hour: int, batches: int = BATCHES) -> None:
        """Wait until the hub has batches of an hour, and has counted them."""
        await self.until_report(
            lambda found: found["hour"] == NAMES[hour] and found["stages"].get("replica", {}).get("batches") == batches
        )

    async def until_loaded(self, commit: int) -> None:
        """Wait until the table has a commit of this number."""
        with trio.fail_after(DEADLINE_S):
            while not (self.folder / TOPIC / "_commits" / f"{commit:020d}.json").exists():
                await trio.sleep(0.1)

    async def until_marked(self, hour: int, *markers: str) -> None:
        """Wait until an hour has these markers. It never has others on the way, but the first ones of these."""
        with trio.move_on_after(DEADLINE_S):
            while (found := self.markers(hour)) != sorted(markers):
                assert set(found) <= set(markers)
                await trio.sleep(0.1)
            return
        raise AssertionError(await self.complete())

    async def call(self, *arguments: str, root: Path | None = None) -> tuple[int, Any, str]:
        """Exit code, JSON and stderr of a command of `pipeline load`."""
        command = [sys.executable, "-m", "pipeline", "load", *arguments, "--topic", TOPIC, "--json"]
        command += ["--root", (root or self.folder).as_uri()]
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        said = done.stdout.decode()
        return done.returncode, json.loads(said) if said else None, done.stderr.decode()

    def load_options(self) -> list[str]:
        return ["-b", self.datacenters.bootstrap[HUB], "--set", "value.format=binary", "--datacenter", HUB]

    async def complete(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, generation or reason by hour, and stderr of `load complete`."""
        code, shown, stderr = await self.call("complete", "--audit", self.audit, *arguments)
        hours = [] if shown is None else shown["hours"]
        return code, {hour["hour"]: hour["generation"] or hour["why"] for hour in hours}, stderr

    def markers(self, hour: int) -> list[str]:
        """Names of the markers of an hour."""
        begin = NAMES[hour]
        folder = self.folder / TOPIC / "hourly" / begin[:10].replace("-", "/") / begin[11:13]
        return sorted(path.name for path in folder.glob("_*"))


@pytest.mark.long
@pytest.mark.timeout(1500)
async def test_an_hour_is_complete_only_if_all_of_it_is_known_to_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Datacenters(tmp_path / "site", [TOPIC]) as datacenters:
        for name in ("east", "west"):
            async with connected(datacenters.bootstrap[name], None, "test") as cluster:
                await create_topics(cluster, [NewTopic(name=TOPIC, partitions=1)])
        site = Site(datacenters, tmp_path / "lake")
        await _one_run_loads_and_marks(site)
        async with resident_load(site) as log:
            await _an_audit_that_is_away_or_slow(site, monkeypatch)
            await _a_cluster_that_is_away(site)
            await _lost_records(site)
            await _late_data(site)
        events = [json.loads(line) for line in log.read_text().splitlines() if line[0] == "{"]
        assert events[-1]["event"] == "stopped"
        last = [event for event in events if event["event"] == "hours_marked"][-1]
        assert (last["complete"], last["left"]) == (5, 0)
        reasons = {event["reason"] for event in events if event["event"] == "hours_not_marked"}
        assert {f"{site.audit}/v1/report?topic={TOPIC} cannot be reached: Connection refused"} <= reasons
        await _an_audit_that_knows_one_cluster(site, tmp_path)


@asynccontextmanager
async def resident_load(site: Site) -> AsyncIterator[Path]:
    """A resident load that marks hours, and its log."""
    command = [sys.executable, "-m", "pipeline", "load", "run", *site.load_options(), "--interval", "1s"]
    command += ["--topic", TOPIC, "--root", site.folder.as_uri(), "--complete", "--audit", site.audit]
    path = site.folder / "resident.log"
    with path.open("wb") as log:
        process = await trio.lowlevel.open_process(command, stderr=log)
    try:
        yield path
        process.terminate()
        with trio.fail_after(DEADLINE_S):
            assert await process.wait() == 0
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


async def _one_run_loads_and_marks(site: Site) -> None:
    for name in ("east", "west"):
        await site.publish(name, 0)
    await site.until_copied(0, 2 * BATCHES)
    code, shown, stderr = await site.call("run", *site.load_options(), "--complete", "--audit", site.audit)
    assert (code, stderr) == (0, ""), shown
    assert (shown["records"], [hour["generation"] for hour in shown["hours"]]) == (2 * BATCHES * RECORDS, [1])
    assert site.markers(0) == ["_COMPLETE"]


async def _an_audit_that_is_away_or_slow(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = site.datacenters.audit
    await audit.stop()
    await site.publish("east", 1)
    await site.until_loaded(2)
    code, _, stderr = await site.complete()
    assert (code, "cannot be reached: Connection refused" in stderr) == (1, True)
    assert site.markers(1) == []
    await site.datacenters.start_unit(audit)
    os.kill(site.datacenters.pids["audit"], signal.SIGSTOP)
    try:
        monkeypatch.setattr(foreground, "ANSWER_TIMEOUT_S", 0.5)
        marking = Marking(url=site.audit, grace_s=900, without=())
        with pytest.raises(foreground.ServiceError, match="timed out"):
            await trio.to_thread.run_sync(mark_hours, marking, TOPIC, site.folder.as_uri())
    finally:
        os.kill(site.datacenters.pids["audit"], signal.SIGCONT)
    await site.until_marked(1, "_COMPLETE")  # it has read all counts anew


async def _a_cluster_that_is_away(site: Site) -> None:
    broker = site.datacenters.brokers["west"]
    broker.kill()
    await broker.wait()
    await site.until_unknown()
    await site.publish("east", 2)
    await site.until_loaded(3)
    await site.until_copied(2)
    code, hours, _ = await site.complete()
    assert (code, [hours[NAMES[hour]] for hour in range(2)]) == (4, [1, 1])
    assert hours[NAMES[2]].startswith("the audit has not read all: west: ")
    assert site.markers(2) == []
    await site.datacenters.start_unit(broker)
    await site.until_marked(2, "_COMPLETE")


async def _lost_records(site: Site) -> None:
    """The live broker loses the last batch before it is copied, as by a power failure."""
    await site.datacenters.mirror.stop()
    await site.publish("east", 3)
    broker = site.datacenters.brokers["east"]
    broker.kill()
    await broker.wait()
    (segment,) = (broker.directory / "logs" / f"{TOPIC}-0").glob("*.log")
    data = segment.read_bytes()
    *_, (position, _header) = iterate_headers(data)
    segment.write_bytes(data[:position])
    await site.datacenters.start_unit(broker)
    await site.datacenters.start_unit(site.datacenters.mirror)
    await site.until_loaded(4)
    await site.until_report(
        lambda found: (
            found["hour"] == NAMES[3]
            and found["status"] == "missing"
            and found["stages"].get("loaded", {}).get("records") == RECORDS
        )
    )
    code, hours, _ = await site.complete()
    why = f"missing: east {TOPIC}-0: live: 7 records that were produced are missing"
    assert (code, hours[NAMES[3]][: len(why)]) == (4, why)
    assert site.markers(3) == []
    code, hours, stderr = await site.complete("--hour", NAMES[3], "--accept", "power failure", "--by", "ann")
    assert (code, hours[NAMES[3]]) == (0, 1), stderr
    code, known, _ = await site.call("hours")
    assert (code, known["hours"][3]["verdict"], known["hours"][3]["accepted_by"]) == (0, "missing", "ann")
    await site.publish("east", 4)
    await site.until_marked(4, "_COMPLETE")  # the acceptance holds in later runs


async def _late_data(site: Site) -> None:
    await site.publish("west", 0)
    await site.until_marked(0, "_COMPLETE", "_COMPLETE.2", "_REOPENED.2")
    code, hours, _ = await site.complete()
    assert (code, hours) == (0, {NAMES[hour]: 1 if hour else 2 for hour in range(5)})


async def _an_audit_that_knows_one_cluster(site: Site, tmp_path: Path) -> None:
    """Of the copied table no hour was marked yet, and the records of west have no witness."""
    copy = tmp_path / "copy"
    shutil.copytree(site.folder, copy, ignore=shutil.ignore_patterns("_COMPLETE*", "_REOPENED*"))
    settings = dict(site.datacenters.audit.settings)
    partial = ServiceUnit("audit", "audit", tmp_path / "partial", settings | {"live": settings["live"][:1]})
    await partial.start()
    try:
        with trio.fail_after(DEADLINE_S):
            hours: list[Any] = []
            while len(hours) < 5 or "has not read" in hours[0]["why"]:
                code, shown, _ = await site.call("complete", "--audit", partial.url, root=copy)
                hours = shown["hours"]
                assert (code, hours[0]["generation"] if hours else None) == (4, None)
        assert hours[0]["why"].startswith("the audit does not know the counts of commit")
        assert "the hour before is not complete" in hours[1]["why"]
    finally:
        await partial.stop()
