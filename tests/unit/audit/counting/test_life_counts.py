"""Counts of the lives of mirrors and members: what is reported, put back, reported again, and when a life has ended."""

from collections.abc import Sequence
from random import Random

from pipeline.audit.counting.group_counter import GroupCounter
from pipeline.audit.counting.mirror_counter import MirrorCounter
from pipeline.audit.events.encoding import decode_count_report, encode_count_report, portions
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.mirrors import batch_at

CLICKS, VIEWS = TopicPartition("clicks", 0), TopicPartition("views", 3)


def fetched(partition: TopicPartition, first: int, batches: int = 1) -> FetchedBatches:
    """Batches of two records each."""
    data = b"".join(batch_at(first + 2 * number, b"a", b"b") for number in range(batches))
    return FetchedBatches(
        topic_partition=partition,
        data=memoryview(data),
        position=first,
        next_offset=first + 2 * batches,
        high_watermark=1000,
        log_start_offset=0,
    )


def mirror() -> MirrorCounter:
    return MirrorCounter(instance="m", host="h", window_ms=HOUR_MS // 6, interval_ms=1000, clock=lambda: 5)


def group() -> GroupCounter:
    return GroupCounter("east", "g", instance="a", host="h", window_ms=HOUR_MS // 6, interval_ms=1000, clock=lambda: 5)


def held(reports: Sequence[CountReport]) -> dict[tuple[str, str, str], tuple[int, int, int]]:
    """Records, and the run of offsets, of each life and topic, after a way through the audit topic."""
    found = {}
    rows: dict[tuple[str, str, str, int], tuple[int, int]] = {}
    for report in reports:
        for part in portions(report):
            read = decode_count_report(encode_count_report(part))
            instance = read.counter.instance
            for row in read.rows[read.rows["span_ms"] == HOUR_MS]:
                key = read.counter.cluster, instance, read.topics[row["topic"]].name, int(row["start_ms"])
                rows[key] = max(rows.get(key, (0, 0)), (int(row["revision"]), int(row["records"])))
            for position in read.positions:
                topic = read.topics[position["topic"]].name
                run = int(position["counted_from"]), int(position["end_offset"])
                found[read.counter.cluster, instance, topic] = run
    return {
        key: (sum(records for at, (_, records) in rows.items() if at[:3] == key), *run) for key, run in found.items()
    }


def test_a_mirror_counts_by_source_and_partition() -> None:
    counter = mirror()
    counter.copied("east", fetched(CLICKS, 0, 3))
    counter.copied("east", fetched(VIEWS, 10))
    counter.copied("west", fetched(CLICKS, 0))
    counter.copied("east", fetched(TopicPartition("_internal", 0), 0))
    reports = counter.take_reports()
    assert {report.counter.tier for report in reports} == {Tier.MIRROR}
    assert held(reports) == {
        ("east", "m", "clicks"): (6, 0, 6),
        ("east", "m", "views"): (2, 10, 12),
        ("west", "m", "clicks"): (2, 0, 2),
    }
    assert [report.life.host for report in reports if report.life is not None] == ["h", "h"]


def test_a_copy_after_a_hole_is_of_another_life_and_the_life_before_ends() -> None:
    counter = mirror()
    counter.copied("east", fetched(CLICKS, 0))
    counter.copied("east", fetched(CLICKS, 8))
    reports = counter.take_reports()
    assert held(reports) == {("east", "m", "clicks"): (2, 0, 2), ("east", "m.1", "clicks"): (2, 8, 10)}
    ended = {report.counter.instance: report.life.is_ended for report in reports if report.life is not None}
    assert ended == {"m": True, "m.1": False}
    counter.published(reports)
    assert {report.counter.instance for report in counter.take_reports()} == {"m.1"}


def test_reports_that_failed_come_again_with_what_was_counted_since() -> None:
    counter = mirror()
    counter.copied("east", fetched(CLICKS, 0))
    failed = counter.take_reports()
    counter.copied("east", fetched(CLICKS, 2))
    counter.put_back(failed)
    again = counter.take_reports()
    assert held(again) == {("east", "m", "clicks"): (4, 0, 4)}
    counter.published(again)
    (alone,) = counter.take_reports()
    assert (len(alone.rows), len(alone.positions), alone.life is not None) == (0, 0, True)
    counter.report_again()
    assert held(counter.take_reports()) == held(again)


def test_a_life_whose_end_failed_to_be_published_ends_again() -> None:
    counter = mirror()
    counter.copied("east", fetched(CLICKS, 0))
    counter.copied("east", fetched(CLICKS, 8))
    counter.put_back(counter.take_reports())
    reports = counter.take_reports()
    assert {report.counter.instance for report in reports} == {"m", "m.1"}
    assert held(reports)["east", "m", "clicks"] == (2, 0, 2)


def test_partitions_with_holes_share_the_next_life() -> None:
    counter = mirror()
    for partition in (CLICKS, VIEWS):
        counter.copied("east", fetched(partition, 0))
        counter.copied("east", fetched(partition, 8))
    counter.copied("east", fetched(CLICKS, 20))
    lives = {instance for _, instance, _ in held(counter.take_reports())}
    assert lives == {"m", "m.1", "m.2"}


def test_a_member_counts_what_it_has_committed_alone() -> None:
    counter = group()
    counter.fetched(fetched(CLICKS, 0, 5))
    assert held(counter.take_reports()) == {}
    counter.committed({CLICKS: 5, VIEWS: 7})
    reports = counter.take_reports()
    assert {(report.counter.tier, report.counter.name) for report in reports} == {(Tier.GROUP, "g")}
    assert held(reports) == {("east", "a", "clicks"): (4, 0, 5)}
    counter.committed({CLICKS: 10})
    assert held(counter.take_reports()) == {("east", "a", "clicks"): (10, 0, 10)}


def test_random_failures_of_the_audit_topic_lose_nothing() -> None:
    for seed in range(30):
        random = Random(seed)
        counter, published = group(), []
        offset = position = 0
        for _ in range(60):
            match random.choice(["fetch", "commit", "publish", "fail", "lose"]):
                case "fetch":
                    count = random.randrange(1, 4)
                    counter.fetched(fetched(CLICKS, position, count))
                    position += 2 * count
                case "commit":
                    offset = random.randrange(offset, position + 1)
                    counter.committed({CLICKS: offset})
                case "publish" | "fail" as step:
                    reports = counter.take_reports()
                    if step == "fail":
                        counter.put_back(reports)
                    else:
                        published += reports
                        counter.published(reports)
                case "lose":
                    counter.given_up([CLICKS])
                    position = offset = offset - offset % 2
        published += counter.take_reports()
        found = held(published)
        total = sum(records for records, _, _ in found.values())
        ends = [end for _, _, end in found.values()]
        assert total == 2 * (max(ends, default=0) // 2)
