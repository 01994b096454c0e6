"""Members of a group that counts, killed again and again: nothing looks lost or doubled, and nothing falsely exact."""

import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import AuditedHour, Expectations, Status
from pipeline.audit.ledger.ledger import Ledger
from pipeline.client.admin.groups import CommittedOffset, commit_offsets, fetch_offsets
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import TopicPartition
from pipeline.processes import free_port
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import clock
from tests.support.foreign_way import counting_hub
from tests.support.reported_hours import hours_of, read_reports, spans_of, wait_for_reports

GROUP = "g"
CLICKS = [TopicPartition("clicks", number) for number in range(2)]
FIRST_HOUR_MS = clock() // HOUR_MS * HOUR_MS - 3 * HOUR_MS
KILLS = 12
RECORDS = 900
DEADLINE_S = 90


@asynccontextmanager
async def published(directory: Path) -> AsyncIterator[Cluster]:
    """A cluster that counts, with records of two hours, a few in each batch."""
    settings = {"group_initial_rebalance_delay_ms": 0, "group_min_session_timeout_ms": 500}
    async with counting_hub(directory, listeners=f"PLAINTEXT://127.0.0.1:{free_port()}", **settings) as hub:
        await create_topics(hub, [NewTopic(name="clicks", partitions=len(CLICKS), replication_factor=1)])
        async with open_producer(hub, ProducerConfig(linger_ms=0), clock=clock, rng=Random(1)) as producer:
            for number in range(RECORDS):
                time_ms = FIRST_HOUR_MS + number // 4 % 2 * HOUR_MS
                await producer.send("clicks", b"%d" % number, partition=number % 2, timestamp_ms=time_ms)
                if number % 14 == 0:
                    await producer.flush()
        yield hub


class Member:
    """A member in a process of its own."""

    def __init__(self, hub: Cluster) -> None:
        bootstrap = ",".join(str(broker.address) for broker in hub.view.brokers.values())
        command = [sys.executable, "-m", "tests.support.counted_member", bootstrap, GROUP]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    async def commits(self, count: int) -> None:
        """Wait for so many commits of it, or for its last record."""
        output = self.process.stdout
        assert output is not None
        for _ in range(count):
            with trio.move_on_after(5):
                await trio.to_thread.run_sync(output.readline, abandon_on_cancel=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


async def read_to_the_end(hub: Cluster) -> None:
    """Have one more member commit all that is left."""
    member = Member(hub)
    try:
        with trio.fail_after(DEADLINE_S):
            while True:
                stored = await fetch_offsets(hub, GROUP)
                if sum(place.offset for place in stored.values() if place is not None) >= RECORDS - 2:
                    break
                await trio.sleep(0.1)
        # What the last member has committed is reported within its interval.
        ends = {partition: place.offset for partition, place in stored.items() if place is not None}
        await wait_for_reports(
            hub,
            lambda found: all(spans_of(found, Tier.GROUP, each)[-1:][0][1] >= ends[each] for each in CLICKS),
            DEADLINE_S,
        )
    finally:
        member.kill()


def judged(reports: Sequence[CountReport]) -> list[AuditedHour]:
    ledger = Ledger(settle_ms=0)
    for report in reports:
        ledger.apply(report)
    now_ms = clock()
    expected = Expectations(
        live_clusters=["hub"],
        replica_cluster=None,
        partitions={("hub", "clicks"): len(CLICKS)},
        read_to_ms={"hub": now_ms},
    )
    return list(Judge(ledger, grace_ms=0, pending_max_ms=HOUR_MS).judge(expected, now_ms).hours())


@pytest.mark.long
async def test_members_that_are_killed_make_no_difference(tmp_path: Path) -> None:
    random = Random(KILLS)
    async with published(tmp_path) as hub:
        for _ in range(KILLS):
            member = Member(hub)
            await member.commits(random.randrange(1, RECORDS // 3 // KILLS))
            await trio.sleep(random.random() * 0.05)
            member.kill()
        await read_to_the_end(hub)
        reports = await read_reports(hub)
    spans = {each: spans_of(reports, Tier.GROUP, each) for each in CLICKS}
    holes = 0  # offsets that nobody counted
    for each in spans.values():
        for (_, end), (start, _) in itertools.pairwise(each):
            assert end <= start
            holes += end < start
    consumed = {(hour.partition, hour.start_ms): hour.sums[0] for hour in hours_of(reports, Tier.GROUP, GROUP)}
    live = {(hour.partition, hour.start_ms): hour.sums[0] for hour in hours_of(reports, Tier.BROKER)}
    assert all(records <= live[key] for key, records in consumed.items())
    statuses = {hour.status for hour in judged(reports)}
    # The last records, fewer than a commit has, are not committed.
    assert statuses <= {Status.EXACT, Status.UNKNOWN, Status.PENDING}
    if holes:
        assert Status.EXACT not in statuses or consumed == live
        assert any("committed without a count" in each.text for hour in judged(reports) for each in hour.findings)


@pytest.mark.long
async def test_offsets_that_are_set_back_make_no_difference(tmp_path: Path) -> None:
    async with published(tmp_path) as hub:
        await read_to_the_end(hub)
        with trio.fail_after(DEADLINE_S):
            while True:  # the member that was killed is in the group until its session ends
                try:
                    await commit_offsets(hub, GROUP, {CLICKS[0]: CommittedOffset(offset=100)})
                    break
                except Exception:
                    await trio.sleep(0.2)
        await read_to_the_end(hub)
        reports = await wait_for_reports(hub, lambda found: len(spans_of(found, Tier.GROUP, CLICKS[0])) == 2)
    hours = judged(reports)
    assert {hour.status for hour in hours} <= {Status.UNKNOWN, Status.PENDING, Status.EXACT}
    assert any("consumed again" in each.text for hour in hours for each in hour.findings)
