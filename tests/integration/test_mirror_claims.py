"""What no other mirror does, item by item: each test shows a claim as a whole, the rooms' tests show its parts.

x3 is in tests/unit/mirror/topics/test_recreated_topics.py.
"""

import json
from collections.abc import AsyncIterator
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.client.admin.offsets import delete_records
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.errors import NetworkError
from pipeline.mirror.copying.resume import ResumeRequest
from pipeline.model import TopicPartition
from pipeline.protocol.messages.produce import ProduceRequest
from pipeline.records.batch import HEADER_SIZE, iterate_headers, write_crc
from tests.support.brokers import replicated_cluster, serving_cluster
from tests.support.copies import log_ends, read_logs
from tests.support.group_moves import COPYING, commit, until_committed
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    NOWHERE,
    Site,
    batch_at,
    make,
    mirroring_of,
    publish,
    read,
    settings_of,
    until,
    until_copied,
    until_said,
)

VALUES = [b"%d" % number for number in range(12)]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with (
        serving_cluster(tmp_path / "east") as east,
        serving_cluster(tmp_path / "west") as west,
        serving_cluster(tmp_path / "hub") as hub,
    ):
        yield Site(east, west, hub)


async def log_of(cluster: Cluster, partition: TopicPartition = CLICKS, start: int = 0) -> bytes:
    """All batches byte for byte, but for the leader epoch, each cluster's own."""
    return bytes((await read_logs(cluster, [partition], {partition: start}))[partition])


async def ends(cluster: Cluster, partitions: int = 1) -> list[int]:
    found = await log_ends(cluster, [TopicPartition("clicks", number) for number in range(partitions)])
    return list(found.values())


async def until_end(cluster: Cluster, partition: int, end: int) -> None:
    found: list[int] = []
    with trio.move_on_after(DEADLINE_S):
        while found[partition:] != [end]:
            await trio.sleep(0.02)
            topic = (await cluster.fetch_all_topics()).topics.get("clicks", NOWHERE)
            if partition in topic.partitions:
                found = await ends(cluster, partition + 1)
    assert found[partition:] == [end]


async def pipeline(*arguments: str, code: int = 0) -> str:
    shown = await trio.to_thread.run_sync(CliRunner().invoke, app, list(arguments))
    assert shown.exit_code == code, shown.output
    return shown.output


async def test_x1_batches_are_copied_at_their_offsets_without_being_opened(site: Site) -> None:
    """Also those that nobody could open: their checksum is right, and what it covers is nonsense."""
    await make(site.east)
    closed = []
    for seed in range(5):
        batch = bytearray(batch_at(0, *[b"x" * 40] * (seed + 1)))
        batch[HEADER_SIZE:] = bytearray((seed * 31 + place * 7) % 256 for place in range(len(batch) - HEADER_SIZE))
        write_crc(batch, 0, len(batch))
        closed.append(bytes(batch))
    for sent in closed[:3]:
        assert (await raw_produce(site.east, {CLICKS: sent}, keep_offsets=False, timeout_s=DEADLINE_S))[
            CLICKS
        ].error is None
    await delete_records(site.east, {CLICKS: 1}, timeout_s=DEADLINE_S)  # offsets begin at 1, in both
    async with site.mirroring():
        await until_end(site.hub, 0, 6)
        for sent in closed[3:]:
            await raw_produce(site.east, {CLICKS: sent}, keep_offsets=False, timeout_s=DEADLINE_S)
        await until_end(site.hub, 0, 15)
    copies = await log_of(site.hub, start=1)
    assert copies == await log_of(site.east, start=1)
    assert [header.base_offset for _, header in iterate_headers(copies)] == [1, 3, 6, 10]
    assert all(sent[HEADER_SIZE:] in copies for sent in closed[1:])


async def test_x2_a_gap_halts_or_is_skipped_and_is_in_the_ledger_before_anything_behind_it(site: Site) -> None:
    await make(site.east, partitions=3)
    for partition in range(3):
        await publish(site.east, *VALUES[:2], partition=partition)
    await delete_records(site.east, {TopicPartition("clicks", 2): 1}, timeout_s=DEADLINE_S)
    async with site.mirroring():
        for partition in range(3):
            await until_end(site.hub, partition, 2)
    for partition in range(3):
        await publish(site.east, *VALUES[2:6], partition=partition)
    await delete_records(site.east, {CLICKS: 4, TopicPartition("clicks", 1): 5}, timeout_s=DEADLINE_S)
    async with site.mirroring() as service:
        await until_said(service, "offsets 2 to 3", partition=0)
        await until_said(service, "offsets 2 to 4", partition=1)
        await until_end(site.hub, 2, 6)  # the others go on
        assert await ends(site.hub, 2) == [2, 2]
        await service.resumption.resume(ResumeRequest(names=["clicks-1"], skip=True))
        await until_end(site.hub, 1, 6)
        await until_said(service, "offsets 2 to 3", partition=0)
    async with site.mirroring(gap_policy="skip"):
        await until_end(site.hub, 0, 6)
    assert [offset for offset, _ in await read(site.hub, CLICKS)] == [0, 1, 4, 5]
    (bootstrap,) = site.hub.config.bootstrap
    listed = json.loads(await pipeline("mirror", "gaps", "--bootstrap", str(bootstrap), "--json"))
    assert sorted((gap["partition"], gap["reason"], gap["first"], gap["last"]) for gap in listed["gaps"]) == [
        (0, "retention", 2, 3),
        (1, "retention", 2, 4),
        (2, "start", 0, 0),
    ]


async def test_x4_a_mirror_that_dies_after_each_append_resumes_exactly_once_from_the_replica_s_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the append is lost each time, and nothing but the replica says how far the mirror came."""
    await make(site.east)
    died = trio.Event()
    request = site.hub.request

    async def die_after_append(broker: Any, message: Any, **settings: Any) -> Any:
        answer = await request(broker, message, **settings)
        if isinstance(message, ProduceRequest) and message.topic_data[0].name == "clicks":
            died.set()
            await trio.sleep_forever()
        return answer

    for number, value in enumerate(VALUES):
        await publish(site.east, value)
        died = trio.Event()
        with monkeypatch.context() as patch:
            patch.setattr(site.hub, "request", die_after_append)
            async with site.mirroring():
                with trio.fail_after(DEADLINE_S):
                    await died.wait()
        assert await ends(site.hub) == [number + 1]
    async with site.mirroring():
        await publish(site.east, b"last")
        await until_copied(site.hub, CLICKS, *VALUES, b"last")
    assert await log_of(site.hub) == await log_of(site.east)


async def test_x5_promote_and_reverse_print_what_is_missing_with_a_dry_run_first(site: Site, tmp_path: Path) -> None:
    await make(site.east)
    async with site.mirroring():
        await publish(site.east, *VALUES[:3])
        await until_copied(site.hub, CLICKS, *VALUES[:3])
    await publish(site.east, *VALUES[3:5])
    (hub,), (east,) = site.hub.config.bootstrap, site.east.config.bootstrap
    where = ("--bootstrap", str(hub), "--source-bootstrap", f"east={east}", "clicks")
    saved = tmp_path / "saved"
    tried = json.loads(await pipeline("mirror", "promote", "--dry-run", "--json", *where))
    assert (await log_ends(site.hub, [CLICKS]))[CLICKS] == 3
    assert "mirror.promoted" not in await settings_of(site.hub)
    done = json.loads(await pipeline("mirror", "promote", "--json", *where))
    for printed in (tried, done):
        ((partition,),) = (topic["partitions"] for topic in printed["topics"])
        missing = partition["missing"]
        assert (partition["end"], missing["high_watermark"], missing["offsets"]) == (3, 5, 2)
        assert missing["bytes"] == 2 * len(batch_at(0, b"0"))
        assert missing["seconds"] is not None
    await publish(site.hub, b"hub")
    listed = await pipeline("mirror", "reverse", "--dry-run", "--directory", str(saved), *where)
    assert "1 range of offsets to save" in listed
    assert not saved.exists()
    assert len(await read(site.east, CLICKS)) == 5
    await pipeline("mirror", "reverse", "--directory", str(saved), *where)
    await site.east.refresh()
    async with mirroring_of(site.east, hub=site.hub):
        await until_copied(site.east, CLICKS, *VALUES[:3], b"hub")
    assert [file.name for file in (saved / "clicks-0").iterdir()] == [f"{3:020}.log"]


async def test_x6_committed_offsets_are_equal_in_both_clusters_also_those_of_zookeeper(
    site: Site, zookeeper: str
) -> None:
    await make(site.east, partitions=2)
    for partition in (0, 1):
        await publish(site.east, *VALUES, partition=partition)
    sources = [{"name": "east", "bootstrap.servers": "given:1", "zookeeper.connect": zookeeper}]
    async with open_zookeeper(zookeeper) as client:
        await client.create("/consumers/old/offsets/clicks/1", b"4")
        await commit(site.east, "new", 7)
        await commit(site.east, "new", 0, partition=1)  # 0 is an offset like others
        async with mirroring_of(site.hub, None, {"sources": sources, **COPYING}, east=site.east):
            await until_committed(site.hub, "new", {0: 7, 1: 0})
            await until_committed(site.hub, "old", {1: 4})
            await commit(site.east, "new", 5)  # also backwards
            await client.set("/consumers/old/offsets/clicks/1", b"9")
            await until_committed(site.hub, "new", {0: 5, 1: 0})
            await until_committed(site.hub, "old", {1: 9})


@pytest.mark.parametrize("name", ["{topic}", "{source}.{topic}"], ids=["identity", "renamed"])
async def test_x7_a_loop_is_refused_by_the_clusters_that_records_have_passed(site: Site, name: str) -> None:
    """A-B-C-A, whatever the replicas' names are."""

    def flows(source: str) -> dict[str, Any]:
        return {"flows": [{"name": "all", "source": source, "topics": [".*clicks"], "replica.topic": name}]}

    await make(site.east)
    await publish(site.east, b"a")
    at_hub = name.format(source="east", topic="clicks")
    at_west = name.format(source="hub", topic=at_hub)
    async with (
        mirroring_of(site.hub, None, flows("east"), east=site.east),
        mirroring_of(site.west, None, flows("hub"), hub=site.hub),
        mirroring_of(site.east, None, flows("west"), west=site.west) as back,
    ):
        await until_copied(site.west, TopicPartition(at_west, 0), b"a")
        reason = f"{at_west} of west is itself a copy of hub's {at_hub} ("
        await until(lambda: reason in (back.status()["sources"][0]["error"] or ""))
        await publish(site.east, b"b")
        await until_copied(site.west, TopicPartition(at_west, 0), b"a", b"b")
    topics = (await site.east.fetch_all_topics()).topics
    assert [topic for topic in topics if "clicks" in topic] == ["clicks"]
    assert await read(site.east, CLICKS) == [(0, b"a"), (1, b"b")]


async def test_x8_lag_is_known_in_records_bytes_and_seconds_and_never_a_false_0(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = site.hub.request

    async def refuse_appends(broker: Any, message: Any, **settings: Any) -> Any:
        if isinstance(message, ProduceRequest):
            raise NetworkError("the hub is on strike")
        return await request(broker, message, **settings)

    async with replicated_cluster(tmp_path / "mortal", brokers=1) as east:
        await make(east.cluster)
        await publish(east.cluster, *VALUES[:4])
        metrics = CollectorRegistry()
        async with mirroring_of(site.hub, metrics, east=east.cluster) as service:

            def lag() -> tuple[int | None, int | None, float | None]:
                (source,) = service.status()["sources"]
                (line,) = source["partitions"] or [dict.fromkeys(("lag", "lag_bytes", "lag_seconds"))]
                return line["lag"], line["lag_bytes"], line["lag_seconds"]

            await until(lambda: lag() == (0, 0, 0.0))
            with monkeypatch.context() as patch:
                patch.setattr(site.hub, "request", refuse_appends)
                await publish(east.cluster, *VALUES[4:7])
                await until(lambda: lag()[0] == 3)
                seen = [lag()]
                while (seen[-1][2] or 0) < (seen[0][2] or 0) + 1:
                    await trio.sleep(0.05)
                    seen.append(lag())
                size = len(batch_at(0, b"4"))
                assert {(records, in_bytes) for records, in_bytes, _ in seen} == {(3, 3 * size)}
            await until(lambda: lag() == (0, 0, 0.0))
            await east.stop(1)
            await until(lambda: lag()[0] != 0)
            assert lag() == (None, None, None)
            assert service.status()["flows"][0]["lag"] is None
            labels = {"source": "east", "topic": "clicks", "partition": "0"}
            for unit in ("offsets", "bytes", "seconds"):
                assert isnan(metrics.get_sample_value(f"mirror_lag_{unit}", labels) or 0)
