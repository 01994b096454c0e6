"""A failed cluster that follows the promoted topic: what only it has is saved before its topic is deleted."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.cli.mirror.failover import read_table
from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.resource_configs import describe_topic_settings_at
from pipeline.client.admin.topics import list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.metadata import TopicMetadata
from pipeline.errors import PipelineError
from pipeline.log.files import DiskFiles
from pipeline.mirror.failover.failback import ReversalError, ReversedTopic, Reverser, ranges_to_save
from pipeline.mirror.failover.promotion import Promoter
from pipeline.model import BrokerId, TopicPartition
from pipeline.processes import free_port
from pipeline.records.batch import HEADER_SIZE, iterate_headers
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records
from tests.support.bombs import batch_of
from tests.support.brokers import clock, serving_cluster
from tests.support.copies import read_logs
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    Site,
    make,
    mirroring_of,
    publish,
    put,
    read,
    until_copied,
)
from tests.support.request_deaths import dies_at

OTHER = TopicPartition("clicks", 1)


async def reverse(
    site: Site, directory: Path, topic: str = "clicks", *, old: Cluster | None = None, dry_run: bool = False
) -> ReversedTopic:
    entries = await read_table(site.hub, [topic])
    reverser = Reverser(
        site.hub,
        old or site.east,
        "east",
        "hub",
        directory,
        DiskFiles(),
        clock=clock,
        rng=Random(1),
        timeout_s=DEADLINE_S,
    )
    return await reverser.reverse(topic, entries, [], dry_run=dry_run)


async def fail_over(site: Site, *topics: str) -> None:
    """Each topic has two copied records and, behind the promotion, a record at the hub and two at its source."""
    for topic in topics:
        await make(site.east, topic, partitions=2)
        await publish(site.east, b"a", b"b", topic=topic)
    async with site.mirroring():
        for topic in topics:
            await until_copied(site.hub, TopicPartition(topic, 0), b"a", b"b")
    for topic in topics:
        await Promoter(site.hub, clock=clock, timeout_s=DEADLINE_S).promote(topic)
        await publish(site.east, b"lost", b"tail", topic=topic)
        await publish(site.hub, b"hub", topic=topic)
        await publish(site.hub, b"other", topic=topic, partition=1)


def saved_values(directory: Path, done: ReversedTopic) -> list[tuple[int, int, bytes | None]]:
    return [
        (saved.partition, record.offset, record.value)
        for saved in done.ranges
        for record in iterate_records((directory / saved.file).read_bytes())
    ]


@pytest.mark.parametrize(
    ("start", "end", "copied", "gaps", "expected"),
    [
        (0, 5, (0, 5), [], []),
        (0, 7, (0, 5), [], [(5, 7)]),
        (0, 4, (0, 5), [], []),
        (0, 7, (2, 5), [], [(0, 2), (5, 7)]),
        (3, 7, (2, 5), [], [(5, 7)]),
        (6, 7, (2, 5), [], [(6, 7)]),
        (0, 7, (0, 5), [(1, 2)], [(1, 3), (5, 7)]),
        (0, 7, (0, 5), [(1, 3), (2, 9)], [(1, 4), (4, 5), (5, 7)]),
        (0, 7, (9, 9), [], [(0, 7)]),
        (0, 0, (0, 0), [], []),
    ],
)
def test_all_that_the_replica_lacks_is_saved_once(
    start: int, end: int, copied: tuple[int, int], gaps: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    found = ranges_to_save(start, end, *copied, gaps)
    assert [(first, after) for first, after, _ in found] == expected


async def test_the_lost_records_are_saved_and_the_failed_cluster_follows(site: Site, tmp_path: Path) -> None:
    await fail_over(site, "clicks")
    directory = tmp_path / "saved"
    shown = await reverse(site, directory, dry_run=True)
    assert [(each.partition, each.first, each.end) for each in shown.ranges] == [(0, 2, 4)]
    assert not directory.exists()
    assert len(await read(site.east, CLICKS)) == 4
    done = await reverse(site, directory)
    assert saved_values(directory, done) == [(0, 2, b"lost"), (0, 3, b"tail")]
    assert await reverse(site, directory) == done
    async with mirroring_of(site.east, hub=site.hub):
        await until_copied(site.east, CLICKS, b"a", b"b", b"hub")
        await until_copied(site.east, OTHER, b"other")
        await publish(site.hub, b"next")
        await until_copied(site.east, CLICKS, b"a", b"b", b"hub", b"next")
    assert await read(site.east, CLICKS) == await read(site.hub, CLICKS)


@pytest.mark.long
async def test_the_commands_show_what_they_did(site: Site, tmp_path: Path) -> None:
    await fail_over(site, "clicks")
    (hub,), (east,), (west,) = (each.config.bootstrap for each in (site.hub, site.east, site.west))

    async def pipeline(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "pipeline", "mirror", *arguments, "--bootstrap", str(hub), "clicks"]
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert done.returncode == code, done.stderr
        return (done.stdout if code == 0 else done.stderr).decode()

    shown = await pipeline("promote", f"--source-bootstrap=east={east}")
    assert shown.splitlines()[1].split()[:5] == ["clicks-0", "east/clicks-0", "2", "4", "2"]
    assert "clicks was promoted before, at " in shown
    assert "unknown" in (await pipeline("promote", "--dry-run")).splitlines()[1]
    options = (f"--source-bootstrap=east={east}", f"--directory={tmp_path / 'saved'}")
    assert "clicks would be deleted and created again; 1 range of offsets to save" in await pipeline(
        "reverse", "--dry-run", *options
    )
    wrong = (f"--source-bootstrap=east={west}", f"--directory={tmp_path / 'saved'}")
    assert "the addresses lead to cluster" in await pipeline("reverse", *wrong, code=1)
    done = await pipeline("reverse", *options)
    assert done.splitlines()[1].split()[:3] == ["clicks-0", "2", "3"]
    settings = tomllib.loads(done[done.index("destination.bootstrap.servers") :])
    assert (settings["topics"], settings["sources"][0]["name"]) == (["clicks"], "hub")
    dumped = [
        sys.executable,
        "-m",
        "pipeline",
        "log",
        "dump",
        "--records",
        str(tmp_path / f"saved/clicks-0/{2:020}.log"),
    ]
    assert "lost" in (await trio.run_process(dumped, capture_stdout=True)).stdout.decode()


def log_in(directory: Path, name: str, password: str) -> str:
    """Write a file of client settings, and return its path."""
    path = directory / f"{name}.properties"
    user = f"sasl.mechanism=PLAIN\nsasl.username={name}\nsasl.password={password}\n"
    path.write_text(f"security.protocol=SASL_PLAINTEXT\n{user}")
    return str(path)


@pytest.mark.long
async def test_the_hub_and_the_failed_cluster_have_users_of_their_own(tmp_path: Path) -> None:
    async def pipeline(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "pipeline", *arguments]
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert done.returncode == code, done.stderr
        return (done.stdout if code == 0 else done.stderr).decode()

    def secured(name: str, port: int) -> dict[str, Any]:
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{port}",
            "sasl_enabled_mechanisms": "PLAIN",
            "plain_sasl_jaas_config": f'x.PlainLoginModule required user_{name}="{name}-secret";',
            "connection_failed_authentication_delay_ms": "10",
        }

    ports = {"east": free_port(), "hub": free_port()}
    users = {name: log_in(tmp_path, name, f"{name}-secret") for name in ports}
    async with (
        serving_cluster(tmp_path / "east", **secured("east", ports["east"])) as east,
        serving_cluster(tmp_path / "west") as west,
        serving_cluster(tmp_path / "hub", **secured("hub", ports["hub"])) as hub,
    ):
        await fail_over(Site(east, west, hub), "clicks")
        options = (
            *("mirror", "reverse", "clicks", "--bootstrap", f"127.0.0.1:{ports['hub']}"),
            *("--source-bootstrap", f"east=127.0.0.1:{ports['east']}", "--directory", str(tmp_path / "saved")),
        )
        refused = await pipeline(*options, "--client-config", users["hub"], code=1)
        assert f"no broker answers at 127.0.0.1:{ports['east']} within" in refused
        assert "Invalid username or password" in refused
        assert "hub-secret" not in refused
        assert len(await read(east, CLICKS)) == 4
        apart = ("--client-config", users["hub"], "--source-client-config", users["east"])
        done = await pipeline(*options, *apart)
        assert done.splitlines()[1].split()[:3] == ["clicks-0", "2", "3"]
        assert "clicks is a replica of the hub now" in done


async def test_records_that_the_hub_has_deleted_are_saved(site: Site, tmp_path: Path) -> None:
    await fail_over(site, "clicks")
    await delete_records(site.hub, {CLICKS: 1}, timeout_s=DEADLINE_S)
    done = await reverse(site, tmp_path / "saved")
    assert saved_values(tmp_path / "saved", done) == [(0, 0, b"a"), (0, 2, b"lost"), (0, 3, b"tail")]


async def test_copies_that_cannot_be_compared_are_saved_whole(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail_over(site, "clicks")

    async def cannot(*_args: object) -> bool:
        return False

    for name in ("can_sum_ranges", "can_sum_contents"):
        monkeypatch.setattr(f"pipeline.mirror.failover.failback.{name}", cannot)
    done = await reverse(site, tmp_path / "saved")
    assert [value for _, _, value in saved_values(tmp_path / "saved", done)] == [b"a", b"b", b"lost", b"tail"]


async def test_records_whose_copies_are_damaged_are_saved(site: Site, tmp_path: Path) -> None:
    await fail_over(site, "clicks")
    path = tmp_path / "hub" / "clicks-0" / f"{0:020}.log"
    content = bytearray(path.read_bytes())
    content[HEADER_SIZE + 3] ^= 1
    path.write_bytes(content)
    done = await reverse(site, tmp_path / "saved")
    assert [value for _, _, value in saved_values(tmp_path / "saved", done)] == [b"a", b"b", b"lost", b"tail"]


class SlowReverser(Reverser):
    """Reverser that waits before it saves anything."""

    begun = trio.Event()
    may_go_on = trio.Event()

    async def _plan(self, *args: Any) -> Any:
        self.begun.set()
        await self.may_go_on.wait()
        return await super()._plan(*args)


async def test_two_commands_at_once_do_not_write_to_one_directory(site: Site, tmp_path: Path) -> None:
    await fail_over(site, "clicks")
    entries = await read_table(site.hub, ["clicks"])
    slow = SlowReverser(
        site.hub,
        site.east,
        "east",
        "hub",
        tmp_path / "saved",
        DiskFiles(),
        clock=clock,
        rng=Random(1),
        timeout_s=DEADLINE_S,
    )
    done: list[ReversedTopic] = []

    async def run_slowly() -> None:
        done.append(await slow.reverse("clicks", entries, []))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_slowly)
        await slow.begun.wait()
        with pytest.raises(ReversalError, match="another command writes to"):
            await reverse(site, tmp_path / "saved")
        slow.may_go_on.set()
    assert saved_values(tmp_path / "saved", done[0]) == [(0, 2, b"lost"), (0, 3, b"tail")]
    assert await reverse(site, tmp_path / "saved") == done[0]


@pytest.mark.long
@pytest.mark.parametrize("is_changed", [False, True])
async def test_recompressed_copies_are_compared_by_contents(site: Site, tmp_path: Path, is_changed: bool) -> None:
    values = [b"GET /pages/%d " % number * 100 for number in range(3)]
    await make(site.east)
    await publish(site.east, *values[: 2 if is_changed else 3])
    async with site.mirroring(compression_type="zstd"):
        await until_copied(site.hub, CLICKS, *values[: 2 if is_changed else 3])
    if is_changed:
        await publish(site.east, values[2])
        log = (await read_logs(site.east, [CLICKS]))[CLICKS]
        start, header = list(iterate_headers(log))[-1]
        payload = log[start + HEADER_SIZE :]
        payload[-2] ^= 1
        await put(site.hub, bytes(batch_of(bytes(payload), header, Codec.ZSTD)))
    await Promoter(site.hub, clock=clock, timeout_s=DEADLINE_S).promote("clicks")
    await publish(site.east, b"tail")
    done = await reverse(site, tmp_path / "saved")
    assert [(each.first, each.end) for each in done.ranges] == [(0, 4) if is_changed else (3, 4)]


async def test_nothing_is_deleted_unless_all_is_known(site: Site, tmp_path: Path) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
    with pytest.raises(ReversalError, match="was not promoted"):
        await reverse(site, tmp_path)
    await Promoter(site.hub, clock=clock, timeout_s=DEADLINE_S).promote("clicks")
    with pytest.raises(ReversalError, match="the addresses lead to cluster"):
        await reverse(site, tmp_path, old=site.west)
    assert await read(site.east, CLICKS) == [(0, b"a")]


async def test_a_replica_that_is_not_in_sync_stops_the_deletion(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail_over(site, "clicks")

    async def list_with_a_lost_broker(cluster: Cluster, **settings: float) -> dict[str, TopicMetadata]:
        found = (await list_topics(cluster, **settings))["clicks"]
        lost = {
            number: replace(each, replicas=(*each.replicas, BrokerId(7))) for number, each in found.partitions.items()
        }
        return {"clicks": replace(found, partitions=lost)}

    monkeypatch.setattr("pipeline.mirror.failover.failback.list_topics", list_with_a_lost_broker)
    with pytest.raises(ReversalError, match="replicas of clicks-0 of east are not in sync: start all brokers there"):
        await reverse(site, tmp_path)
    await publish(site.east, b"not fenced")


async def test_a_file_that_lost_bytes_stops_the_deletion(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail_over(site, "clicks")
    directory = tmp_path / "saved"

    async def refuse(*_args: object, **_settings: object) -> None:
        raise PipelineError("no deletion now")

    with monkeypatch.context() as patched:
        patched.setattr("pipeline.mirror.failover.failback.delete_topics", refuse)
        with pytest.raises(PipelineError, match="no deletion now"):
            await reverse(site, directory)
    (file,) = directory.glob("clicks-0/*.log")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(ReversalError, match="restore the file"):
        await reverse(site, directory)
    assert len(await read(site.east, CLICKS)) == 4
    file.write_bytes(content)
    assert (await reverse(site, directory)).is_done


@pytest.mark.long
@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_reversal_that_dies_anywhere_is_finished(site: Site, tmp_path: Path, is_sent: bool) -> None:
    topics = [f"clicks{number}" for number in range(1, 36)]
    await fail_over(site, *topics)
    states = set()
    for number, topic in enumerate(topics, 1):
        directory = tmp_path / f"saved{number}"

        async def command(old: Cluster) -> None:
            await reverse(site, directory, topic, old=old)  # noqa: B023

        if not await dies_at(number, site.east, command, is_sent=is_sent):
            break
        entries = await read_table(site.hub, [topic])
        present = (await site.east.fetch_all_topics()).topics.get(topic)
        is_old = present is not None and present.id == entries[TopicPartition(topic, 0)].source.topic_id
        has_manifest = (directory / f"{topic}.json").exists()
        assert is_old or has_manifest
        states.add((is_old, has_manifest))
        done = await reverse(site, directory, topic)
        assert saved_values(directory, done) == [(0, 2, b"lost"), (0, 3, b"tail")]
        settings = await describe_topic_settings_at(site.east, None, topic, ["mirror.source"], timeout_s=DEADLINE_S)
        assert settings == {"mirror.source": "hub"}
    else:
        pytest.fail("the command never came to its end")
    assert states >= {(True, False), (False, True)}  # between the two lies a single request
