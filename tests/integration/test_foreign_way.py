"""The whole way from a cluster whose brokers do not count: audited producer, reader, mirror, hub and a group."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.audit.counting.counted_consumers import open_counted_group_consumer
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.events.report import CountReport
from pipeline.audit.judgement.verdicts import Stage
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.group.config import GroupConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import TopicPartition
from pipeline.records.batch import iterate_headers
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import clock, serving_cluster
from tests.support.foreign_way import INTERVAL_S, LIVE, ForeignWay, counted_mirror, counting_hub, reading
from tests.support.mirrors import put
from tests.support.reported_hours import read_reports

pytestmark = pytest.mark.long

DEADLINE_S = 120
CLICKS = [TopicPartition("clicks", number) for number in range(2)]
FIRST_HOUR_MS = clock() // HOUR_MS * HOUR_MS - 3 * HOUR_MS
HOURS = 2
MAX_BEGINNINGS = 30


async def publish(source: Cluster, count: int = 40) -> None:
    """Records of some hours, by a producer that counts."""
    async with open_audited_producer(
        source,
        ProducerConfig(linger_ms=0),
        datacenter=LIVE,
        host="web-1",
        clock=clock,
        rng=Random(1),
        interval_s=INTERVAL_S,
    ) as producer:
        for number in range(count):
            time_ms = FIRST_HOUR_MS + number % HOURS * HOUR_MS
            await producer.send("clicks", b"%d" % number, partition=number // 2 % 2, timestamp_ms=time_ms)
            if number % 7 == 0:
                await producer.flush()


async def consume(cluster: Cluster, count: int) -> None:
    config = GroupConfig(group_id="g", auto_offset_reset=OffsetReset.EARLIEST)
    async with open_counted_group_consumer(
        cluster, config, datacenter="hub", host="here", clock=clock, rng=Random(), interval_s=INTERVAL_S
    ) as member:
        streams = await member.create_message_streams({"clicks": 1})
        with trio.fail_after(DEADLINE_S):
            seen = 0
            async for _ in streams["clicks"][0]:
                seen += 1
                if seen == count:
                    break
        await member.commit_offsets()


async def test_a_way_without_loss_is_exact_at_every_stage(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path / LIVE) as source, counting_hub(tmp_path / "hub") as hub:
        await create_topics(source, [NewTopic(name="clicks", partitions=len(CLICKS), replication_factor=1)])
        way = ForeignWay(source, hub, CLICKS)
        async with reading(source, source), counted_mirror(source, hub, ["clicks"]):
            await publish(source)
            await consume(hub, 25)
            await consume(hub, 15)
            hours = await way.wait_for("exact", HOURS)
            for hour in hours.values():
                counts = {str(stage): counts.records for stage, counts in hour.stages.items()}
                assert counts == dict.fromkeys(("produced", "live", "mirrored", "replica", "consumed:g"), 20)
                assert "consumed:g of kafka" in hour.rests_on or any("consumed:g" in each for each in hour.rests_on)


async def test_a_batch_that_the_hub_lacks_is_named(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path / LIVE) as source, counting_hub(tmp_path / "hub") as hub:
        await create_topics(source, [NewTopic(name="clicks", partitions=len(CLICKS), replication_factor=1)])
        async with counted_mirror(source, hub, ["clicks"]) as mirror:  # makes the replica
            with trio.fail_after(DEADLINE_S):
                while sum(line["lag"] == 0 for line in mirror.status()["sources"][0]["partitions"]) < len(CLICKS):
                    await trio.sleep(0.05)
        await publish(source)
        lost = await copy_all_but_one(source, hub)
        async with reading(source, source):
            hours = await ForeignWay(source, hub, CLICKS).wait_for("missing", HOURS)
        (finding,) = [finding for hour in hours.values() for finding in hour.findings]
        assert finding.at == Stage(tier="replica")
        assert (finding.source, finding.records) == (CLICKS[0], lost)


async def copy_all_but_one(source: Cluster, hub: Cluster) -> int:
    """Copy all batches as a mirror does, without the third of the first partition. Return its number of records."""
    lost = 0
    for partition in CLICKS:
        await source.topic(partition.topic)
        async with open_consumer(source, ConsumerConfig()) as consumer:
            consumer.assign({partition: 0})
            with trio.fail_after(DEADLINE_S):
                while consumer.position(partition) < 20:
                    for batches in await consumer.poll_batches():
                        for number, (start, header) in enumerate(iterate_headers(batches.data)):
                            if partition == CLICKS[0] and number == 2 and not lost:
                                lost = header.record_count
                                continue
                            await put(hub, bytes(batches.data[start : start + header.size_bytes]), partition)
    return lost


async def test_without_the_reader_nothing_is_exact(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path / LIVE) as source, counting_hub(tmp_path / "hub") as hub:
        await create_topics(source, [NewTopic(name="clicks", partitions=len(CLICKS), replication_factor=1)])
        way = ForeignWay(source, hub, CLICKS)
        async with counted_mirror(source, hub, ["clicks"]):
            await publish(source)
            hours = await way.wait_for("unknown", HOURS)
        for hour in hours.values():
            assert any("clicks" in str(witness) for witness in hour.missing_witnesses)


async def publish_also_now(source: Cluster) -> None:
    """Records of some hours, and one of a producer that does not count, in the hour that is being written."""
    await publish(source)
    async with open_producer(source, ProducerConfig(), clock=clock, rng=Random(2)) as producer:
        await producer.send("clicks", b"now", partition=0)


async def test_hours_that_a_stopped_reader_has_not_seen_to_their_end_are_never_exact(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path / LIVE) as source, counting_hub(tmp_path / "hub") as hub:
        await create_topics(source, [NewTopic(name="clicks", partitions=len(CLICKS), replication_factor=1)])
        way = ForeignWay(source, hub, CLICKS)
        async with counted_mirror(source, hub, ["clicks"]):
            async with reading(source, source):
                await publish_also_now(source)
                await way.wait_for_each(*["exact"] * HOURS, "pending")
            later = await way.judge(later_ms=2 * HOUR_MS)
        written_ms = max(later)
        assert {str(hour.status) for hour in later.values() if hour.hour_ms < written_ms} == {"exact"}
        assert str(later[written_ms].status) == "unknown"
        assert any("of kafka that leads clicks" in str(witness) for witness in later[written_ms].missing_witnesses)


def beginnings(reports: Sequence[CountReport]) -> list[Sequence[CountReport]]:
    """Beginnings of an audit topic: all, or some of all lengths if there are many on a slow machine."""
    step = -(-len(reports) // MAX_BEGINNINGS)
    return [reports[:count] for count in range(len(reports), 0, -step)]


async def test_counters_that_stop_at_any_report_make_no_false_verdict(tmp_path: Path) -> None:
    """Beginnings of one audit topic beside those of the other, as if nothing came after them."""
    async with serving_cluster(tmp_path / LIVE) as source, counting_hub(tmp_path / "hub") as hub:
        await create_topics(source, [NewTopic(name="clicks", partitions=len(CLICKS), replication_factor=1)])
        way = ForeignWay(source, hub, CLICKS)
        async with reading(source, source), counted_mirror(source, hub, ["clicks"]):
            await publish_also_now(source)
            await way.wait_for_each(*["exact"] * HOURS, "pending")
        of_source, of_hub = await read_reports(source), await read_reports(hub)
    now_ms = clock() + 2 * HOUR_MS
    seen = Counter[str]()
    for counted_at_source, counted_at_hub in product(beginnings(of_source), beginnings(of_hub)):
        for hour in way.judge_reports([*counted_at_source, *counted_at_hub], now_ms).values():
            assert str(hour.status) in {"exact", "unknown"}, hour
            seen[str(hour.status)] += 1
            if str(hour.status) == "exact":
                counted = {str(stage): counts.records for stage, counts in hour.stages.items()}
                counted.pop("mirrored", None)  # what the replica has is exact, also before the mirror says so
                assert counted == dict.fromkeys(("produced", "live", "replica"), 20), hour
    assert seen["exact"] >= HOURS
    assert seen["unknown"] > HOURS
