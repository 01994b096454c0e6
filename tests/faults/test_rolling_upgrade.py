"""The previous release is replaced by this one service by service while clients run, and no client sees an error."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random

import httpx
import pytest
import trio

from pipeline.cli.demo.datacenters import HUB, Datacenters
from pipeline.version import VERSION
from tests.support.cluster.rolling import restart_all
from tests.support.cluster.systems import PROGRAM, local_places, our_cluster, with_warnings
from tests.support.copies import check_copies
from tests.support.previous_release import PREVIOUS_VERSION, previous_program
from tests.support.traffic import Published, make_topic, traffic

TOPIC = "clicks"
SEED = 20110613
BROKERS = 3
QUICK_GROUPS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 10}
SCHEMAS = {
    "first": '{"type": "record", "name": "Click", "fields": [{"name": "page", "type": "string"}]}',
    "second": '{"type": "record", "name": "Click", "fields": [{"name": "page", "type": "string"}, '
    '{"name": "ms", "type": "long", "default": 0}]}',
}
HTTP_DEADLINE_S = 30
DEADLINE_S = 120
POLL_S = 0.1
RECORDS_BEFORE = 200


def started_versions(log: Path) -> list[str]:
    """Return the version of each start that a service's log tells of."""
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    return [line["version"] for line in map(json.loads, lines) if line.get("event") == "starting"]


@pytest.mark.long
def test_no_error_reaches_clients_while_brokers_are_upgraded_and_taken_back(tmp_path: Path) -> None:
    """Every broker gets this release, and then the previous one again: an upgrade that disappoints can be undone."""
    previous = previous_program()
    with with_warnings(tmp_path), our_cluster(tmp_path, local_places(BROKERS), QUICK_GROUPS, previous) as cluster:
        cluster.start()
        done = restart_all(
            cluster,
            topics=4,
            partitions=6,
            replicas=3,
            records_per_s=500,
            programs=[previous, PROGRAM, previous],
        )
        assert done.verdict.faults == []
    for number in range(1, BROKERS + 1):
        assert started_versions(tmp_path / f"{number}.log") == [PREVIOUS_VERSION, VERSION, PREVIOUS_VERSION]
    wait_s = done.verdict.longest_wait_s
    print(f"{done.verdict.acknowledged} records while {BROKERS} brokers were upgraded and taken back: none failed, ")
    print(f"lost or doubled; longest wait for an acknowledgement {wait_s:.1f} s")


@pytest.mark.long
async def test_a_company_is_upgraded_service_by_service(tmp_path: Path) -> None:
    """The audit's hours stay exact, the registry knows its schemas, and a load goes on where the former one ended."""
    previous = previous_program()
    async with Datacenters(tmp_path / "company", [TOPIC]) as datacenters:
        units = [*datacenters.brokers.values(), datacenters.registry, datacenters.mirror, datacenters.audit]
        await _replace_program(datacenters, previous)  # nothing was written yet
        published = await make_topic(datacenters, TOPIC)
        ids = {await _register(datacenters, SCHEMAS["first"])}
        async with traffic(datacenters.bootstrap, TOPIC, published, Random(SEED)):
            await _until_acknowledged(published.values(), RECORDS_BEFORE)
            await _load(previous, datacenters, tmp_path / "lake")
            await _replace_program(datacenters, PROGRAM)
            await _until_acknowledged(published.values(), RECORDS_BEFORE)
        acknowledged = await check_copies(datacenters, TOPIC, published)
        for notes in published.values():
            assert not notes.failed
        ids.add(await _register(datacenters, SCHEMAS["first"]))
        assert len(ids) == 1, "the registry gave a schema that it had another id"
        assert await _register(datacenters, SCHEMAS["second"]) not in ids
        await _load(PROGRAM, datacenters, tmp_path / "lake")
        assert await _loaded(datacenters, tmp_path / "lake") == acknowledged
        for unit in units:
            versions = started_versions(unit.directory / f"{unit.noun}.log")
            assert versions == [VERSION, PREVIOUS_VERSION, VERSION], unit.name
    print(f"{acknowledged} records of {len(published)} datacenters: none failed, lost or doubled, every hour exact")


async def _replace_program(datacenters: Datacenters, program: Sequence[str]) -> None:
    """Restart each service with another program, in the order of docs/deploy/operations.md."""
    live = [unit for name, unit in datacenters.brokers.items() if name != HUB]
    for unit in (datacenters.brokers[HUB], *live, datacenters.registry, datacenters.mirror, datacenters.audit):
        await unit.stop()
        unit.program = program
        await datacenters.start_unit(unit)


async def _until_acknowledged(published: Collection[Published], more: int) -> None:
    """Wait until each of these has so many more records acknowledged."""
    wanted = {id(notes): len(notes.acknowledged) + more for notes in published}
    with trio.fail_after(DEADLINE_S):
        while any(len(notes.acknowledged) < wanted[id(notes)] for notes in published):
            await trio.sleep(POLL_S)


async def _register(datacenters: Datacenters, schema: str) -> int:
    """Return the id of a schema."""
    url = f"{datacenters.registry.url}/subjects/{TOPIC}-value/versions"
    async with httpx.AsyncClient(timeout=HTTP_DEADLINE_S, trust_env=False) as client:
        answer = await client.post(url, json={"schema": schema})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])


async def _load(program: Sequence[str], datacenters: Datacenters, lake: Path) -> None:
    place = ["--topic", TOPIC, "--root", str(lake), "-b", datacenters.bootstrap[HUB]]
    await _run([*program, "load", "run", *place, "--set", "value.format=binary"])


async def _loaded(datacenters: Datacenters, lake: Path) -> int:
    """Return the records of the table, each of which is as it is in the topic."""
    place = ["--topic", TOPIC, "--root", str(lake), "-b", datacenters.bootstrap[HUB]]
    found = json.loads(await _run([*PROGRAM, "load", "verify", *place, "--set", "value.format=binary", "--json"]))
    return int(found["records"])


async def _run(command: Sequence[str]) -> str:
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, (command, done.stderr.decode()[-3000:])
    return done.stdout.decode()
