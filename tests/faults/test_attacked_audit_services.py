"""Two audit services at once on a real broker; garbage and bombs in `_audit`: their reports stay as they were."""

import json
import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import trio

from pipeline.audit.counting.broker_counter import BrokerCounter, BrokerLife
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.counting.publisher import open_publisher
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.cli.child_services import ServiceUnit
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.log.files import DiskFiles
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS
from tests.support.bombs import bomb
from tests.support.brokers import clock, serving_cluster
from tests.support.sizes import size

FIRST_HOUR_MS = 1_700_002_800_000
HOURS = 3
TOPIC = "clicks"
EVENTS = TopicPartition(AUDIT_TOPIC, 0)
GRACE_MS = 1_000
INTERVAL_S = 0.2
DEADLINE_S = 400
RECORDS_OF_A_BATCH = 400
LIVE_S = 120
KILL_EVERY_S = 10
MIB = 1 << 20
GROWTH_BYTES = 300 * MIB
"""Memory that a service may take more than before, whatever is written to the audit topic."""

EVENT: dict[str, Any] = {
    "version": 3, "tier": "broker", "cluster": "east", "name": "", "instance": "", "process": "666", "created_ms": 5,
    "window_ms": 600_000, "topics": [["strange", "id"]],
}  # fmt: skip
HUGE = 2**63


def column(**columns: Any) -> dict[str, Any]:
    """An event of one row with these columns."""
    return {**EVENT, "rows": {"size": 1, "span_ms": [HOUR_MS], **{name: [each] for name, each in columns.items()}}}


UNREADABLE: Sequence[bytes] = [
    b"", b"\0", b"\xff" * 100, b"null", b"[]", b"{}", b"x" * 3_000, b"[" * 3_000, b'{"a":' * 1_500,
    json.dumps(EVENT).encode()[:-9],
    *(json.dumps(each).encode() for each in (
        {**EVENT, "version": 4}, {**EVENT, "version": "3"}, {**EVENT, "tier": "emperor"}, {**EVENT, "created_ms": HUGE},
        {**EVENT, "created_ms": float("nan")}, {**EVENT, "window_ms": float("inf")}, {**EVENT, "topics": 7},
        {**EVENT, "topics": [["a"]]}, {**EVENT, "rows": {"size": 10**9}}, {**EVENT, "rows": {"size": -1}},
        {**EVENT, "rows": []}, {**EVENT, "claims": [[1, 0, 0, 0]]}, {**EVENT, "life": {"host": "h"}},
        {**EVENT, "skipped": [[0, 0, 0, 0, 0, HUGE, "lost"]]}, {**EVENT, "latencies": [[0, 0, "p", [[1]]]]},
        column(records=HUGE), column(records=1.5), column(records="1"), column(partition=-1), column(topic=1),
        column(partition=2**31), column(start_ms=-HUGE - 1),
    )),
]  # fmt: skip
"""Records that are no events of a known version."""

REFUSED: Sequence[bytes] = [
    json.dumps(each).encode()
    for each in (
        column(records=HUGE - 1, revision=5), column(records=-5, revision=5), column(bytes=-1), column(revision=-1),
        column(partition=2**31 - 1), column(start_ms=7), column(start_ms=-(2**62) - HOUR_MS),
        {**column(records=5), "rows": {"size": 1, "span_ms": [-600_000], "records": [5]}},
        {**column(records=5), "rows": {"size": 1, "span_ms": [0], "records": [5]}},
    )
]  # fmt: skip
"""Events whose rows no ledger may take."""

ODD: Sequence[bytes] = [
    json.dumps({**EVENT, "topics": [[name, "id"]], "cluster": cluster}).encode()
    for name in ("", "../../etc", "a\0b", "\x1b[31m", "x" * 40_000, "<script>", "_audit", "clicks-0")
    for cluster in ("east", "atlantis", "")
]
"""Events that say nothing, of topics and clusters with odd names."""


def batches_of(values: Sequence[bytes], count: int, codec: Codec, rng: Random) -> list[bytearray]:
    """So many records of these values, in random order."""
    batches = []
    for _ in range(-(-count // RECORDS_OF_A_BATCH)):
        builder = BatchBuilder(codec, 8 * MIB)
        for value in rng.choices(values, k=min(count, RECORDS_OF_A_BATCH)):
            assert builder.append(b"key", value, (), clock())
        batches.append(builder.build())
        count -= RECORDS_OF_A_BATCH
    return batches


async def write(cluster: Cluster, batch: bytes | bytearray) -> bool:
    """Append a batch to the audit topic as anybody may; return False if the broker refuses it."""
    done = await raw_produce(cluster, {EVENTS: batch}, keep_offsets=False, timeout_s=DEADLINE_S, is_repeatable=True)
    return done[EVENTS].error is None


@asynccontextmanager
async def counted_cluster(directory: Path) -> AsyncIterator[Cluster]:
    """A broker that counts, with three hours of a producer that counts."""
    life = BrokerLife(broker_id=1, host="b", started_ms=clock(), interval_ms=round(INTERVAL_S * 1000))
    counter = BrokerCounter("east", 600_000, PartitionCheckpoints([directory], DiskFiles()), clock, life)
    async with (
        serving_cluster(directory, observer=counter) as cluster,
        open_publisher(cluster, counter, clock=clock, rng=Random(1)) as publisher,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(publisher.run, INTERVAL_S)
        await create_topics(cluster, [NewTopic(name=TOPIC, partitions=2)])
        async with open_audited_producer(
            cluster, ProducerConfig(), datacenter="east", host="h", clock=clock, rng=Random(2), interval_s=INTERVAL_S
        ) as producer:
            for number in range(HOURS * 20):
                await producer.send(TOPIC, b"value", timestamp_ms=FIRST_HOUR_MS + number * HOUR_MS // 20)
            await producer.flush()
        yield cluster
        nursery.cancel_scope.cancel()


def service(directory: Path, name: str, cluster: Cluster) -> ServiceUnit:
    address = next(iter(cluster.view.brokers.values())).address
    live = [{"name": "east", "bootstrap.servers": str(address)}]
    return ServiceUnit(name, "audit", directory / name, {"pending.grace.ms": GRACE_MS, "live": live})


async def ask(unit: ServiceUnit, path: str, **parameters: str) -> Any:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.get(f"{unit.url}{path}", params=parameters)
    return answer.json() if answer.status_code == 200 and path.startswith("/v1") else answer.text


async def hours_of(unit: ServiceUnit) -> Any:
    """What a service says of the topic: all but the time at which it said so."""
    report = await ask(unit, "/v1/report", topic=TOPIC)
    return report["hours"] if isinstance(report, dict) else report


async def until_read(unit: ServiceUnit, cluster: Cluster) -> dict[str, Any]:
    """Wait until a service has read all that the audit topic holds now."""
    end = (await list_offsets(cluster, {EVENTS: LATEST}, timeout_s=60))[EVENTS].offset
    with trio.fail_after(DEADLINE_S):
        while True:
            report = await ask(unit, "/v1/report", topic=TOPIC)
            state: dict[str, Any] = report["clusters"]["east"] if isinstance(report, dict) else {}
            if state.get("events", -1) >= end:
                return state
            await trio.sleep(0.2)


async def until_exact(unit: ServiceUnit) -> Any:
    hours: Any = None
    with trio.move_on_after(DEADLINE_S):
        while not isinstance(hours, list) or [hour["status"] for hour in hours] != ["exact"] * HOURS:
            await trio.sleep(0.2)
            hours = await hours_of(unit)
        return hours
    raise AssertionError(hours)


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


@pytest.mark.long
@pytest.mark.parametrize(
    "records",
    [
        pytest.param(6_000, marks=pytest.mark.timeout(900)),
        pytest.param(size(200_000, 1_000_000), marks=pytest.mark.timeout(3_600)),
    ],
)
async def test_garbage_in_the_audit_topic_changes_no_report_of_two_services(tmp_path: Path, records: int) -> None:
    rng = Random(17)
    async with counted_cluster(tmp_path / "log") as cluster:
        one, two = (service(tmp_path, name, cluster) for name in ("one", "two"))
        try:
            pids = [await unit.start() for unit in (one, two)]
            before = await until_exact(one)
            assert await until_exact(two) == before
            sizes = [resident_bytes(pid) for pid in pids]
            written = 0
            for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTD):
                for batch in batches_of(UNREADABLE, records // 3, codec, rng):
                    assert await write(cluster, batch)
                written += records // 3
            for batch in batches_of([*REFUSED, *ODD], 2_000, Codec.ZSTD, rng):
                assert await write(cluster, batch)
            state = await until_read(one, cluster)
            assert state["unreadable"] >= written
            assert await hours_of(one) == before
            for unit in (one, two):
                unit.kill()
                await unit.wait()
            pids = [await unit.start() for unit in (one, two)]
            for unit in (one, two):
                state = await until_read(unit, cluster)
                assert state["unreadable"] >= written
                assert await until_exact(unit) == before
                assert refused_rows(str(await ask(unit, "/metrics"))) > 0
            for codec in (Codec.GZIP, Codec.ZSTD):
                for plain_bytes in (20 * MIB, 200 * MIB):
                    await write(cluster, bomb(codec, plain_bytes, clock()))
            for unit, pid, size in zip((one, two), pids, sizes, strict=True):
                await until_read(unit, cluster)
                # What is in a batch that cannot be opened is not known: it may have been counts.
                assert [hour["status"] for hour in await hours_of(unit)] in (["exact"] * HOURS, ["unknown"] * HOURS)
                assert resident_bytes(pid) < size + GROWTH_BYTES, resident_bytes(pid) // MIB
            assert await hours_of(one) == await hours_of(two)
        finally:
            for unit in (one, two):
                await unit.stop()


async def send_until(stop: trio.Event, cluster: Cluster, sent: list[int]) -> None:
    """Send records of all hours by producers that count, one life after the other."""
    rng = Random(3)
    for life in count():
        if stop.is_set():
            return
        async with open_audited_producer(
            cluster, ProducerConfig(), datacenter="east", host="h", clock=clock, rng=Random(life), interval_s=INTERVAL_S
        ) as producer:
            for _ in range(200):
                at_ms = FIRST_HOUR_MS + rng.randrange(HOURS * HOUR_MS)
                await producer.send(TOPIC, b"live", timestamp_ms=at_ms)
                sent.append(at_ms)
                await trio.sleep(0.01)
            await producer.flush()


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_two_services_that_are_killed_in_turn_beside_live_traffic_report_the_same(tmp_path: Path) -> None:
    async with counted_cluster(tmp_path / "log") as cluster:
        units = [service(tmp_path, name, cluster) for name in ("one", "two")]
        sent: list[int] = []
        try:
            for unit in units:
                await unit.start()
            ends_at, stop = trio.current_time() + LIVE_S, trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_until, stop, cluster, sent)
                for number in count():
                    await trio.sleep_until(min(ends_at, trio.current_time() + KILL_EVERY_S))
                    if trio.current_time() >= ends_at:
                        break
                    unit = units[number % 2]
                    unit.kill()
                    await unit.wait()
                    await unit.start()
                stop.set()
            for unit in units:
                await until_read(unit, cluster)
            one, two = [await until_exact(unit) for unit in units]
            assert one == two
            counted = sum(hour["stages"]["live"]["records"] for hour in one)
            assert counted == HOURS * 20 + len(sent)
        finally:
            for unit in units:
                await unit.stop()


def refused_rows(metrics: str) -> float:
    (line,) = (line for line in metrics.splitlines() if line.startswith("audit_rows_refused_total "))
    return float(line.split()[1])
