"""Recompression of a flow's batches: other bytes, the same records, and a comparison that knows it."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import IsolationLevel, ProducerConfig
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.config import CompressionType
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.copying.destination import Appended, ReplicaPlace
from pipeline.mirror.copying.divergence import LastBatches
from pipeline.mirror.copying.recompression import RecompressingDestination
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.epochs import SourceEpochs
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.records.batch import HEADER_SIZE, BatchHeader, iterate_headers, read_header, write_header
from pipeline.records.batch_sums import frame_of
from pipeline.records.compression import Codec
from pipeline.records.recompression import recompressed
from pipeline.records.record import iterate_records
from tests.support.bombs import batch_of
from tests.support.brokers import clock
from tests.support.copies import read_logs
from tests.support.loop_steps import measured_steps
from tests.support.mirrors import (
    CLICKS,
    Site,
    batch_at,
    make,
    mirror_settings,
    publish,
    put,
    reason_of,
    settings_of,
    until,
    until_copied,
    until_said,
)

ZSTD: dict[str, Any] = {"compression_type": "zstd"}
FAR = 99
"""An epoch that no broker of the source has reached."""


def words(number: int) -> bytes:
    return b"GET /pages/%d HTTP/1.1 " % number * 40


async def publish_in(cluster: Cluster, codec: Codec, *values: bytes) -> None:
    """All values in one batch of the codec."""
    config = ProducerConfig(linger_ms=1000, compression=codec)
    async with open_producer(cluster, config, clock=clock, rng=Random(1)) as producer:
        for value in values:
            await producer.send("clicks", value, partition=0)


async def log_of(cluster: Cluster, partition: TopicPartition = CLICKS) -> bytes:
    return bytes((await read_logs(cluster, [partition]))[partition])


def headers_of(log: bytes) -> list[BatchHeader]:
    return [header for _, header in iterate_headers(log)]


def placed(batch: bytes | bytearray) -> BatchHeader:
    """The header of a batch, as `log_of` has it."""
    return read_header(batch)._replace(partition_leader_epoch=0)


def copied_bytes(site: Site) -> float | None:
    labels = {"source": "east", "topic": "clicks", "partition": "0"}
    return site.metrics.get_sample_value("mirror_copied_bytes_total", labels)


async def apply(service: MirrorService, **settings: Any) -> None:
    version = service.status()["settings"]["version"]
    await service.settings.apply(mirror_settings("east", "west", **settings), version)


async def test_batches_of_all_codecs_become_zstd_with_the_same_records(site: Site) -> None:
    await make(site.east)
    for codec in Codec:
        await publish_in(site.east, codec, *(words(number) for number in range(20)))
    async with site.mirroring(**ZSTD) as service:
        await until(lambda: service.status()["flows"][0]["lag"] == 0)
        assert {flow["compression_type"] for flow in service.status()["flows"]} == {"zstd"}
    source, replica = await log_of(site.east), await log_of(site.hub)
    assert {header.codec for header in headers_of(replica)} == {Codec.ZSTD}
    assert list(iterate_records(replica)) == list(iterate_records(source))
    assert [frame_of(header) for header in headers_of(replica)] == [frame_of(header) for header in headers_of(source)]
    assert copied_bytes(site) == len(source)
    taken, made, refused = (
        site.metrics.get_sample_value(f"mirror_{name}_total", {"source": "east"})
        for name in ("recompressed_bytes", "recompressed_to_bytes", "batches_not_opened")
    )
    assert taken is not None
    assert made is not None
    assert (taken - made, refused) == (len(source) - len(replica), 0)
    (native,) = [header for header in headers_of(source) if header.codec is Codec.ZSTD]
    assert native in headers_of(replica)


async def test_recompression_is_off_by_default_and_changed_live(site: Site) -> None:
    await make(site.east)
    values = [words(number) for number in range(3)]
    async with site.mirroring() as service:
        await publish(site.east, values[0])
        await until_copied(site.hub, CLICKS, *values[:1])
        planned = await service.settings.plan(mirror_settings("east", "west", **ZSTD))
        assert [each["setting"] for each in planned["settings"]] == ["compression.type"]
        assert planned["need_restart"] == []
        assert [[each["setting"] for each in flow["settings"]] for flow in planned["flows"]] == 2 * [
            ["compression.type"]
        ]
        await apply(service, **ZSTD)
        await publish(site.east, values[1])
        await until_copied(site.hub, CLICKS, *values[:2])
        await apply(service)
        await publish(site.east, values[2])
        await until_copied(site.hub, CLICKS, *values)
    found = [header.codec for header in headers_of(await log_of(site.hub))]
    assert found == [Codec.NONE, Codec.ZSTD, Codec.NONE]


async def test_append_mode_appends_recompressed_batches(site: Site) -> None:
    await make(site.east)
    values = [words(number) for number in range(4)]
    for codec in (Codec.NONE, Codec.GZIP):
        await publish_in(site.east, codec, *values)
    async with site.mirroring(destination_mode="append", **ZSTD):
        await until_copied(site.hub, CLICKS, *values, *values)
    replica = headers_of(await log_of(site.hub))
    assert [(header.codec, header.record_count) for header in replica] == 2 * [(Codec.ZSTD, 4)]
    async with site.mirroring(destination_mode="append") as service:  # a restart finds its place
        await publish(site.east, b"last")
        await until_copied(site.hub, CLICKS, *values, *values, b"last")
        assert reason_of(service) is None


async def test_a_batch_that_cannot_be_opened_is_copied_as_it_is(site: Site) -> None:
    await make(site.east, mirror_source="elsewhere")
    await put(site.east, batch_at(0, words(0)))
    damaged = bytearray(batch_at(1, words(1)))
    write_header(damaged, read_header(damaged)._replace(attributes=Codec.GZIP))
    await put(site.east, bytes(damaged))
    await put(site.east, batch_at(2, words(2)))
    async with site.mirroring(**ZSTD) as service:
        await until(lambda: service.status()["flows"][0]["lag"] == 0)
        assert reason_of(service) is None
    first, second, third = headers_of(await log_of(site.hub))
    assert (first.codec, third.codec) == (Codec.ZSTD, Codec.ZSTD)
    assert second == placed(damaged)
    assert site.metrics.get_sample_value("mirror_batches_not_opened_total", {"source": "east"}) == 1


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, ZSTD])
async def test_the_replica_s_own_compression_type_changes_no_copy(site: Site, settings: dict[str, Any]) -> None:
    await make(site.east)
    await make(site.hub, mirror_source="east", compression_type="gzip")
    await publish(site.east, words(1))
    async with site.mirroring(**settings):
        await until_copied(site.hub, CLICKS, words(1))
    assert (await settings_of(site.hub))["compression.type"] == "gzip"
    (header,) = headers_of(await log_of(site.hub))
    assert header.codec is (Codec.ZSTD if settings else Codec.NONE)


class Taking:
    """A destination in memory, which takes what is appended."""

    isolation = IsolationLevel.READ_UNCOMMITTED

    def __init__(self) -> None:
        self.taken: list[tuple[TopicPartition, bytes]] = []

    async def open(self) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        raise NotImplementedError

    async def locate(self, copy: PartitionCopy) -> ReplicaPlace:
        raise NotImplementedError

    async def append(self, due: Sequence[tuple[PartitionCopy, FetchedBatches]]) -> Mapping[TopicPartition, Appended]:
        self.taken += [(copy.source, bytes(batches.data)) for copy, batches in due]
        return {copy.source: Appended(replica_end=batches.next_offset) for copy, batches in due}

    async def last_header(self, copy: PartitionCopy, end: int, /) -> BatchHeader | None:
        raise NotImplementedError

    async def last_batches(self, source: Cluster, copy: PartitionCopy, end: int, /) -> LastBatches:
        raise NotImplementedError


def fetched(number: int, data: bytes) -> tuple[PartitionCopy, FetchedBatches]:
    partition = TopicPartition("clicks", number)
    source = SourcePartition(cluster="east", partition=partition, topic_id=UUID(int=1))
    copy = PartitionCopy(Assignment(source=source, replica=partition), position=0)
    end = headers_of(data)[-1].next_offset
    batches = FetchedBatches(
        topic_partition=partition,
        data=memoryview(data),
        position=0,
        next_offset=end,
        high_watermark=end,
        log_start_offset=0,
    )
    return copy, batches


def recompressing(taking: Taking) -> RecompressingDestination:
    metrics = MirrorMetrics(CollectorRegistry())
    return RecompressingDestination(taking, lambda _source, _topic: CompressionType.ZSTD, metrics)


async def test_the_event_loop_opens_nothing_and_the_order_stays() -> None:
    texts = [Random(number).randbytes(400_000).hex().encode() for number in range(12)]
    batches = [in_codec(batch_at(2 * number, text, b"last"), Codec.GZIP) for number, text in enumerate(texts)]
    due = [fetched(number, b"".join(batches[number::3])) for number in range(3)]
    taking = Taking()
    with measured_steps() as steps:
        results = await recompressing(taking).append(due)
    assert steps.longest_s < 0.05  # the whole takes several times as long
    assert [partition for partition, _ in taking.taken] == [copy.source for copy, _ in due] == list(results)
    for (_, before), (_, after) in zip(due, taking.taken, strict=True):
        assert {header.codec for header in headers_of(after)} == {Codec.ZSTD}
        assert list(iterate_records(after)) == list(iterate_records(before.data))
        assert results[before.topic_partition].replica_end == before.next_offset


async def test_a_copy_that_ends_while_its_batches_are_recompressed_is_not_appended() -> None:
    due = [fetched(number, in_codec(batch_at(0, words(number) * 2000), Codec.GZIP)) for number in range(2)]
    taking = Taking()
    results: list[Mapping[TopicPartition, Appended]] = []

    async def append() -> None:
        results.append(await recompressing(taking).append(due))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append)
        for _ in range(2):  # by then it has begun; to wait longer would let its thread finish
            await trio.lowlevel.checkpoint()
        assert taking.taken == []
        due[0][0].position = None
    assert [partition.partition for partition, _ in taking.taken] == [1]
    assert list(results[0]) == [due[1][0].source]


async def forget_epochs(site: Site) -> None:
    """Have the hub remember an epoch that the source does not know, so that the last batches are compared."""
    journal = EpochJournal(site.hub, clock=clock, rng=Random(1))
    await journal.open()
    topic_id = (await site.east.topic("clicks")).id
    await journal.replace(SourceEpochs(source="east", partition=CLICKS, topic_id=topic_id, entries=((FAR, 0),)))


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, ZSTD])
async def test_a_recompressed_replica_is_known_by_its_last_batch(site: Site, settings: dict[str, Any]) -> None:
    await make(site.east)
    await publish_in(site.east, Codec.LZ4, words(1), words(2), words(3))
    async with site.mirroring(**ZSTD):
        await until_copied(site.hub, CLICKS, words(1), words(2), words(3))
    assert headers_of(await log_of(site.hub))[-1].codec is Codec.ZSTD
    await forget_epochs(site)
    await publish(site.east, b"c")
    async with site.mirroring(**settings) as service:
        await until_copied(site.hub, CLICKS, words(1), words(2), words(3), b"c")
        assert reason_of(service) is None


def packed(batch: bytes) -> bytes:
    made = bytes(recompressed(memoryview(batch), Codec.ZSTD).data)
    assert made != batch
    return made


def in_codec(batch: bytes, codec: Codec) -> bytes:
    return bytes(batch_of(batch[HEADER_SIZE:], read_header(batch), codec))


def with_header(batch: bytes, **fields: int) -> bytes:
    written = bytearray(batch)
    write_header(written, read_header(written)._replace(**fields))
    return bytes(written)


PLAIN = batch_at(1, words(1), words(2))


@pytest.mark.long
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(packed(batch_at(1, words(1), words(3))), id="another record"),
        pytest.param(with_header(packed(PLAIN), max_timestamp=1_700_000_000_001), id="another time"),
        pytest.param(with_header(packed(PLAIN), producer_id=7, producer_epoch=0, base_sequence=0), id="producer"),
        pytest.param(with_header(PLAIN, attributes=Codec.ZSTD), id="cannot be opened"),
        pytest.param(packed(batch_at(1, words(1) + words(2))), id="another number of records"),
    ],
)
async def test_another_last_batch_in_zstd_halts(site: Site, other: bytes) -> None:
    await make(site.east, mirror_source="elsewhere")
    await put(site.east, batch_at(0, b"a"))
    await put(site.east, PLAIN)
    await make(site.hub, mirror_source="east")
    await put(site.hub, batch_at(0, b"a"))
    await put(site.hub, other)
    await forget_epochs(site)
    await put(site.east, batch_at(3, b"c"))
    async with site.mirroring(**ZSTD) as service:
        end = read_header(other).next_offset
        await until_said(service, f"hold different batches at offset {end - 1}")
    assert headers_of(await log_of(site.hub))[-1] == placed(other)
