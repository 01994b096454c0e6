"""Promotion of replicas: copies end, producers begin, and what the source has beyond is counted or unknown."""

from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.cli.mirror.failover import SourceAddress, ask_sources, ask_uncopied, read_table
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.resource_configs import describe_topic_settings
from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.errors import DeadlineExceededError
from pipeline.mirror.failover.missing_records import CopiedPartition, MissingRecords, find_missing
from pipeline.mirror.failover.promotion import PromotedTopic, Promoter, PromotionError
from pipeline.model import TopicPartition
from pipeline.promotion import Promotion
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import LATEST
from tests.support.brokers import clock, replicated_cluster
from tests.support.group_moves import COPYING, after_a_round, commit, committed_offsets, groups_status, until_committed
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    NOBODY,
    Site,
    batch_at,
    make,
    mirroring_of,
    publish,
    put,
    read,
    until,
    until_copied,
    until_said,
)
from tests.support.request_deaths import dies_at
from tests.support.restorable import restorable

OTHER = TopicPartition("clicks", 1)


def promoter(hub: Cluster, timeout_s: float = DEADLINE_S) -> Promoter:
    return Promoter(hub, clock=clock, timeout_s=timeout_s)


async def settings_of(hub: Cluster, topic: str = "clicks") -> dict[str, str]:
    found = await describe_topic_settings(hub, [topic], ["mirror.source", "mirror.promoted"], timeout_s=DEADLINE_S)
    return found[topic]


async def ends_of(hub: Cluster, topic: str = "clicks", partitions: int = 2) -> tuple[int, ...]:
    wanted = {TopicPartition(topic, number): LATEST for number in range(partitions)}
    return tuple(one.offset for _, one in sorted((await list_offsets(hub, wanted, timeout_s=DEADLINE_S)).items()))


async def code_of_copy(hub: Cluster, topic: str = "clicks") -> ErrorCode | None:
    """Code with which the hub refuses a copy; None if the hub took the copy."""
    replica = TopicPartition(topic, 0)
    (end,) = await ends_of(hub, topic, 1)
    result = await raw_produce(hub, {replica: batch_at(end, b"copy")}, keep_offsets=True, timeout_s=DEADLINE_S)
    error = result[replica].error
    assert error is None or isinstance(error, KafkaError)
    return None if error is None else error.code


async def test_a_mirror_rests_and_producers_go_on_behind_the_promoted_end(site: Site) -> None:
    await make(site.east, partitions=2)
    await publish(site.east, b"a", b"b")
    await publish(site.east, b"c", partition=1)
    async with site.mirroring(refresh_interval_ms=500) as service:
        await until_copied(site.hub, CLICKS, b"a", b"b")
        await until_copied(site.hub, OTHER, b"c")
        promoted = await promoter(site.hub).promote("clicks")
        assert promoted.ends == (2, 1)
        await publish(site.hub, b"hub")
        await publish(site.east, b"late", b"later")
        for number in (0, 1):
            await until_said(service, "it is no longer a replica", partition=number)
        await create_partitions(site.east, {"clicks": 3})
        await site.east.refresh()
        await until_said(service, "it is no longer a replica", partition=2)
        assert (await site.hub.fetch_all_topics()).topics["clicks"].partitions.keys() == {0, 1}
        assert not (await settings_of(site.hub))["mirror.source"]
    async with site.mirroring() as service:  # a mirror that starts later leaves it alone, too
        await until_said(service, "it is no longer a replica")
    assert await read(site.hub, CLICKS) == [(0, b"a"), (1, b"b"), (2, b"hub")]
    again = await promoter(site.hub).promote("clicks")
    assert again == PromotedTopic(topic="clicks", at_ms=promoted.at_ms, ends=(2, 1), was_promoted=True)


async def test_a_dry_run_changes_nothing(site: Site) -> None:
    await make(site.hub, partitions=2, mirror_source="east")
    await put(site.hub, batch_at(0, b"a", b"b"))
    before = await settings_of(site.hub)
    shown = await promoter(site.hub).preview("clicks")
    assert shown == PromotedTopic(topic="clicks", at_ms=None, ends=(2, 0), was_promoted=False)
    assert await settings_of(site.hub) == before
    assert await code_of_copy(site.hub) is None


async def test_a_topic_that_is_no_replica_is_refused(site: Site) -> None:
    await make(site.hub)
    for attempt in (promoter(site.hub).preview, promoter(site.hub).promote):
        with pytest.raises(PromotionError, match=r"clicks is no replica: it has no mirror\.source"):
            await attempt("clicks")
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await attempt("nothing")


async def test_a_topic_whose_ends_would_not_fit_stays_a_replica(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await make(site.hub, partitions=2, mirror_source="east")
    monkeypatch.setattr("pipeline.promotion.MAX_TEXT_BYTES", 30)
    with pytest.raises(PromotionError, match="too many partitions"):
        await promoter(site.hub).promote("clicks")
    assert await code_of_copy(site.hub) is None


async def test_two_promotions_at_once_agree(site: Site) -> None:
    await make(site.hub, partitions=2, mirror_source="east")
    await put(site.hub, batch_at(0, b"a", b"b"))
    found: list[PromotedTopic] = []

    async def promote() -> None:
        found.append(await promoter(site.hub).promote("clicks"))
        await publish(site.hub, b"x")

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(promote)
    assert {(one.at_ms, one.ends) for one in found} == {(found[0].at_ms, (2, 0))}


@pytest.mark.long
@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_promotion_that_dies_anywhere_is_finished(site: Site, is_sent: bool) -> None:
    steps = []
    for number in range(1, 100):
        topic = f"clicks{number}"
        await make(site.hub, topic, partitions=2, mirror_source="east")
        await put(site.hub, batch_at(0, b"a", b"b"), TopicPartition(topic, 0))
        if not await dies_at(number, site.hub, lambda hub: promoter(hub).promote(topic), is_sent=is_sent):  # noqa: B023
            break
        settings = await settings_of(site.hub, topic)
        promotion = Promotion.parse(settings["mirror.promoted"]) if settings["mirror.promoted"] else None
        if promotion is None:
            steps.append("replica")
        elif promotion.ends is None:
            steps.append("begun")
            assert await code_of_copy(site.hub, topic) is ErrorCode.PRODUCER_FENCED
            assert settings["mirror.source"] == "east"
        else:
            steps.append("done")
            await publish(site.hub, b"x", topic=topic)
        finished = await promoter(site.hub).promote(topic)
        assert finished.ends == (2, 0)
        assert finished.was_promoted == (promotion is not None and promotion.ends is not None)
        assert promotion is None or finished.at_ms == promotion.at_ms
        await publish(site.hub, b"y", topic=topic)
        assert await code_of_copy(site.hub, topic) is ErrorCode.PRODUCER_FENCED
    assert list(dict.fromkeys(steps)) == ["replica", "begun", "done"]


async def test_a_source_that_is_ahead_is_counted_exactly_and_one_that_is_away_is_unknown(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a", b"b")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a", b"b")
        await make(site.west)
        await publish(site.west, b"w")
        await until_copied(site.hub, OTHER, b"w")
    await publish(site.east, b"c", b"d", b"e")
    promoted = await promoter(site.hub).promote("clicks")
    origins = await read_table(site.hub, ["clicks"])
    east, west = SourceAddress(site.east.config.bootstrap), SourceAddress(site.west.config.bootstrap)
    missing = await ask_sources(site.hub, {"east": east, "west": west}, [promoted], origins)
    ahead = missing[CLICKS]
    assert (ahead.high_watermark, ahead.offsets, ahead.reason) == (5, 3, None)
    assert ahead.bytes == 3 * len(batch_at(0, b"c"))  # all batches are of one size, so the estimate is right
    assert ahead.seconds is not None
    assert missing[OTHER] == MissingRecords(high_watermark=1, offsets=0, bytes=0, seconds=0)
    for sources, reason in (
        ({"west": west}, "the addresses of east were not given (--source-bootstrap east=HOST:PORT)"),
        ({"west": west, "east": SourceAddress(NOBODY.bootstrap)}, "the source does not answer: "),
        ({"west": west, "east": west}, "the addresses lead to cluster "),
    ):
        away = (await ask_sources(site.hub, sources, [promoted], origins, timeout_s=0.5))[CLICKS]
        assert (away.high_watermark, away.offsets, away.bytes, away.seconds) == (None, None, None, None)
        assert reason in (away.reason or "")


async def test_a_source_that_lost_copied_records_leaves_the_missing_ones_unknown(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a", b"b")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a", b"b")
    entry = (await read_table(site.hub, ["clicks"]))[CLICKS]
    missing = (await find_missing(site.hub, site.east, [CopiedPartition(entry, 3)], timeout_s=DEADLINE_S))[CLICKS]
    assert (missing.high_watermark, missing.offsets, missing.bytes, missing.seconds) == (2, None, None, None)
    assert "the source lost records that are copied" in (missing.reason or "")


async def test_a_source_that_has_other_records_than_the_copies_leaves_the_missing_ones_unknown(
    site: Site, tmp_path: Path
) -> None:
    """It was restored to an older copy, and has written beyond the end of the replica."""
    async with restorable(tmp_path / "restored") as east:
        async with east.running() as live:
            await make(live)
            await publish(live, b"a")
        east.back_up()
        async with east.running() as live, mirroring_of(site.hub, east=live):
            await publish(live, b"b", b"c")
            await until_copied(site.hub, CLICKS, b"a", b"b", b"c")
        east.restore()
        async with east.running() as live:
            await publish(live, b"d", b"e", b"f")
            promoted = await promoter(site.hub).promote("clicks")
            origins = await read_table(site.hub, ["clicks"])
            sources = {"east": SourceAddress(east.cluster.config.bootstrap)}
            missing = (await ask_sources(site.hub, sources, [promoted], origins))[CLICKS]
    assert (missing.high_watermark, missing.offsets, missing.bytes, missing.seconds) == (4, None, None, None)
    assert "other records than the copy before offset 3" in (missing.reason or "")


async def test_a_source_whose_batches_have_another_codec_than_the_copies_is_counted(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a" * 1000)
    async with mirroring_of(site.hub, None, {"compression_type": "zstd"}, east=site.east) as service:
        await until(lambda: service.status()["flows"][0]["lag"] == 0)
    await publish(site.east, b"c", b"d")
    promoted = await promoter(site.hub).promote("clicks")
    origins = await read_table(site.hub, ["clicks"])
    missing = (await ask_sources(site.hub, {"east": SourceAddress(site.east.config.bootstrap)}, [promoted], origins))[
        CLICKS
    ]
    assert (missing.high_watermark, missing.offsets, missing.reason) == (3, 2, None)


async def test_the_copy_of_a_topic_that_was_created_again_misses_an_unknown_number(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a", b"b")
    async with site.mirroring(gap_policy="skip"):
        await until_copied(site.hub, CLICKS, b"a", b"b")
        await delete_topics(site.east, ["clicks"])
        await make(site.east)
        await publish(site.east, b"new")
        await until_copied(site.hub, OTHER, b"new")
    promoted = await promoter(site.hub).promote("clicks")
    origins = await read_table(site.hub, ["clicks"])
    missing = await ask_sources(site.hub, {"east": SourceAddress(site.east.config.bootstrap)}, [promoted], origins)
    assert missing[OTHER] == MissingRecords(high_watermark=1, offsets=0, bytes=0, seconds=0)
    assert missing[CLICKS].offsets is None
    assert "was deleted and created again in east" in (missing[CLICKS].reason or "")


async def test_partitions_of_a_source_that_were_never_copied_are_shown(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
    await create_partitions(site.east, {"clicks": 3})
    await site.east.refresh()
    await publish(site.east, b"b", b"c", partition=2)
    origins = await read_table(site.hub, ["clicks"])
    found = (await ask_uncopied({"east": SourceAddress(site.east.config.bootstrap)}, origins))["clicks"]
    assert [(each["source"], each["source_partition"], each["missing"]["offsets"]) for each in found] == [
        ("east", 1, 0),
        ("east", 2, 2),
    ]
    for addresses in (NOBODY.bootstrap, site.west.config.bootstrap):
        assert await ask_uncopied({"east": SourceAddress(addresses)}, origins, timeout_s=0.5) == {}


async def test_a_leader_that_has_not_seen_the_promotion_holds_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicated_cluster(tmp_path, 2) as brokers:
        hub = brokers.cluster
        topic = NewTopic(name="clicks", partitions=1, replication_factor=2, configs={"mirror.source": "east"})
        await create_topics(hub, [topic])
        await put(hub, batch_at(0, b"a"))
        leader = brokers.leader("clicks")
        assert leader is not None
        replicas, held = brokers.handles[leader].replicas, list[Any]()
        with monkeypatch.context() as patched:
            patched.setattr(replicas, "reconfigure", lambda *args: held.append(args))
            with pytest.raises(DeadlineExceededError, match="Run the command again: it continues where it was"):
                await promoter(hub, 1).promote("clicks")
            assert await code_of_copy(hub) is None  # which is why nothing may be recorded yet
        assert Promotion.parse((await settings_of(hub))["mirror.promoted"]).ends is None
        for args in held:
            replicas.reconfigure(*args)
        assert (await promoter(hub).promote("clicks")).ends == (2,)
        await publish(hub, b"x")


@pytest.mark.long
async def test_the_mirror_copies_no_offsets_of_groups_to_promoted_topics(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a", b"b")
    await commit(site.east, "g", 1)
    async with site.mirroring(**COPYING, refresh_interval_ms=3_600_000) as service:  # it does not look at topics again
        await until_committed(site.hub, "g", {0: 1})
        await promoter(site.hub).promote("clicks")
        await commit(site.east, "g", 2)
        await commit(site.east, "new", 1)
        await after_a_round(service)
        await after_a_round(service)
        assert groups_status(service)["waiting"] == 0
    assert [await committed_offsets(site.hub, group) for group in ("g", "new")] == [{0: 1}, {}]
