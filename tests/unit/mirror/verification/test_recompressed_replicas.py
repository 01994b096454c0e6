"""Verification of replicas in another codec than their sources: by contents, and never equal where these differ."""

from pathlib import Path

import pytest

from pipeline.cli.mirror.verify import details_of
from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.verification import sides
from pipeline.mirror.verification.comparison import NOT_OPENED, DifferenceKind
from pipeline.mirror.verification.verifier import CopyVerdict
from pipeline.model import TopicPartition
from pipeline.records.batch import HEADER_SIZE, read_header, write_header
from pipeline.records.compression import Codec
from pipeline.records.recompression import recompressed
from tests.support.mirrors import Site, batch_at, make, put
from tests.unit.mirror.verification.test_verification import forget_feature, kinds, verify

COUNT = 30


def words(number: int) -> bytes:
    return b"GET /pages/%d HTTP/1.1 " % number * 20


def plain(number: int) -> bytes:
    return batch_at(2 * number, words(number), words(-number))


def packed(batch: bytes) -> bytes:
    made = bytes(recompressed(memoryview(batch), Codec.ZSTD).data)
    assert made != batch
    return made


def with_header(batch: bytes, **fields: int) -> bytes:
    written = bytearray(batch)
    write_header(written, read_header(written)._replace(**fields))
    return bytes(written)


async def copied(site: Site, replica: list[bytes], source: list[bytes] | None = None) -> None:
    await make(site.east, mirror_source="elsewhere")
    await make(site.hub, mirror_source="east")
    for batch in source or [plain(number) for number in range(COUNT)]:
        await put(site.east, batch)
    for batch in replica:
        await put(site.hub, batch)


def replicas(changes: dict[int, bytes] | None = None) -> list[bytes]:
    """Half of the batches recompressed, as after a live change; some are others."""
    made = [plain(number) if number < COUNT // 2 else packed(plain(number)) for number in range(COUNT)]
    for number, batch in (changes or {}).items():
        made[number] = batch
    return made


@pytest.fixture(params=["summed", "fetched"])
def may_fetch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, site: Site) -> bool:
    """False if the source's broker sums, True if the source is fetched, as one of Apache Kafka is."""
    if request.param == "fetched":
        forget_feature(monkeypatch, site)
    return bool(request.param == "fetched")


@pytest.mark.long
@pytest.mark.parametrize("is_deep", [False, True])
async def test_a_recompressed_replica_is_equal_by_contents(site: Site, may_fetch: bool, is_deep: bool) -> None:
    await copied(site, replicas())
    report = await verify(site, may_fetch=may_fetch, is_deep=is_deep)
    assert (report.verdict, kinds(report), report.comparison.uncompared) == (CopyVerdict.EQUAL, [], [])
    assert (report.comparison.compared.batches, report.lag) == (COUNT, 0)
    assert report.comparison.compared.size_bytes == sum(len(plain(number)) for number in range(COUNT))
    assert report.comparison.by_contents >= COUNT // 2
    document = report.to_json()
    assert document["batches_by_contents"] == report.comparison.by_contents
    (line,) = details_of(document)
    assert "contents of" in line
    assert "not bytes" in line


async def test_a_replica_of_the_same_bytes_is_not_opened(site: Site) -> None:
    await copied(site, [plain(number) for number in range(COUNT)])
    report = await verify(site)
    assert (report.verdict, report.comparison.by_contents) == (CopyVerdict.EQUAL, 0)
    assert details_of(report.to_json()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(packed(batch_at(40, words(20), words(20))), id="another record"),
        pytest.param(with_header(packed(plain(20)), max_timestamp=1_700_000_000_001), id="another time"),
        pytest.param(with_header(packed(plain(20)), producer_id=7, producer_epoch=0, base_sequence=0), id="producer"),
        pytest.param(with_header(packed(plain(20)), attributes=Codec.ZSTD | 0x10), id="transactional"),
        pytest.param(with_header(plain(20), attributes=Codec.ZSTD), id="cannot be opened"),
        pytest.param(with_header(packed(plain(20)), record_count=1), id="number of records"),
    ],
)
async def test_other_contents_in_another_codec_are_different(site: Site, may_fetch: bool, other: bytes) -> None:
    await copied(site, replicas({20: other}))
    report = await verify(site, may_fetch=may_fetch)
    assert (report.verdict, kinds(report)) == (CopyVerdict.DIFFERENT, [(DifferenceKind.OTHER, 40, 41)])
    assert report.comparison.by_contents > 0


@pytest.mark.long
async def test_lost_and_extra_batches_of_a_recompressed_replica_are_found(site: Site, may_fetch: bool) -> None:
    whole = replicas()
    await copied(site, [batch for number, batch in enumerate(whole) if number not in (3, 22)])
    report = await verify(site, may_fetch=may_fetch)
    assert kinds(report) == [(DifferenceKind.MISSING, 6, 7), (DifferenceKind.MISSING, 44, 45)]
    assert report.comparison.compared.batches == COUNT


async def test_a_batch_that_neither_side_can_open_is_equal_to_its_own_copy_alone(site: Site, tmp_path: Path) -> None:
    closed = with_header(plain(20), attributes=Codec.GZIP)
    source = [closed if number == 20 else plain(number) for number in range(COUNT)]
    await copied(site, replicas({20: closed}), source)
    report = await verify(site)
    assert (report.verdict, kinds(report)) == (CopyVerdict.EQUAL, [])
    path = tmp_path / "hub" / "clicks-0" / f"{0:020}.log"
    content = bytearray(path.read_bytes())
    content[sum(map(len, replicas()[:20])) + HEADER_SIZE + 3] ^= 1
    path.write_bytes(content)
    report = await verify(site)
    assert (DifferenceKind.DAMAGED_REPLICA, 40) in [found[:2] for found in kinds(report)]
    assert report.verdict is CopyVerdict.DIFFERENT


async def test_a_flipped_bit_of_a_recompressed_batch_is_found(site: Site, tmp_path: Path) -> None:
    await copied(site, replicas())
    path = tmp_path / "hub" / "clicks-0" / f"{0:020}.log"
    content = bytearray(path.read_bytes())
    content[sum(map(len, replicas()[:21])) - 2] ^= 1
    path.write_bytes(content)
    report = await verify(site)
    assert report.verdict is CopyVerdict.DIFFERENT
    assert (DifferenceKind.OTHER, 40, 41) in kinds(report)
    assert (DifferenceKind.DAMAGED_REPLICA, 40) in [found[:2] for found in kinds(report)]


async def test_a_broker_that_cannot_compare_contents_leaves_them_not_compared(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_one(_cluster: Cluster, _topic_partition: TopicPartition) -> bool:
        return False

    await copied(site, replicas())
    monkeypatch.setattr(sides, "can_sum_contents", no_one)
    report = await verify(site)
    assert (report.verdict, kinds(report)) == (CopyVerdict.NOT_COMPARED, [])
    uncompared = report.comparison.uncompared
    assert {each.reason for each in uncompared} == {NOT_OPENED}
    assert (uncompared[0].from_offset, uncompared[-1].up_to_offset) == (COUNT, 2 * COUNT)
