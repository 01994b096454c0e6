"""Location of many partitions: bounds of what is under way, and independence of the sources' brokers."""

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio

from pipeline.errors import DeadlineExceededError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying import kept_offsets
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.copying.divergence import MAX_COMPARED, last_batches
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.mirror.service import MirrorService
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.list_offsets import ListOffsetsRequest
from pipeline.provenance import Origin
from tests.support.brokers import replicated_cluster, serving_cluster
from tests.support.mirrors import Site, make, mirror_settings, mirroring_of, publish, until


def caught_up(service: MirrorService) -> int:
    (source,) = (source for source in service.status()["sources"] if source["name"] == "east")
    found: int = source["states"].get("caught_up", 0)
    return found


async def test_a_broker_of_a_source_that_hangs_delays_no_partitions_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicated_cluster(tmp_path / "east", 2) as brokers, serving_cluster(tmp_path / "hub") as hub:
        east = brokers.cluster
        await make(east, partitions=80)
        await east.topic("clicks")
        request = east.request

        async def hang(broker: BrokerId, message: Any, *, timeout_s: float, lane: str = "") -> Any:
            if broker == 1 and isinstance(message, ListOffsetsRequest):
                await trio.sleep(timeout_s)
                raise DeadlineExceededError("hangs")
            return await request(broker, message, timeout_s=timeout_s, lane=lane)

        monkeypatch.setattr(east, "request", hang)
        async with mirroring_of(hub, None, {"produce.timeout.ms": 600_000}, east=east) as service:
            await until(lambda: caught_up(service) == 40)


@pytest.mark.long
async def test_few_recompressed_replicas_are_compared_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = 3 * MAX_COMPARED
    settings: dict[str, Any] = {"compression_type": "zstd", "produce_timeout_ms": 60_000}  # also of comparisons
    await make(site.east, partitions=partitions)
    for number in range(partitions):
        await publish(site.east, b"x" * 2000, partition=number)
    async with site.mirroring(**settings) as service:
        await until(lambda: caught_up(service) == partitions)
    compare, under_way, most = last_batches, 0, 0

    async def count(*sides: Any, timeout_s: float) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await compare(*sides, timeout_s=timeout_s)
        finally:
            under_way -= 1

    monkeypatch.setattr(kept_offsets, "last_batches", count)
    async with site.mirroring(**settings) as service:
        await until(lambda: caught_up(service) == partitions)
        assert most == MAX_COMPARED


async def test_a_replica_with_batches_that_are_not_committed_yet_is_continued_once_they_are(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise such a batch may be committed later, and be taken for what the source has at its offset by then."""
    await make(site.east)
    await publish(site.east, b"first")
    async with site.mirroring() as service:
        await until(lambda: caught_up(service) == 1)
    replica = TopicPartition("clicks", 0)
    topic_id = (await site.east.topic("clicks")).id
    origin = Origin(
        source="east", path=(str(site.east.view.cluster_id),), topic="clicks", topic_id=topic_id, partition=0
    )
    source = SourcePartition(cluster="east", partition=replica, topic_id=topic_id)
    copy = PartitionCopy(Assignment(source=source, replica=replica), token=origin.token(), copier_epoch=1)
    kept = kept_offsets.KeptOffsets(site.hub, CurrentConfig(MirrorConfig.from_settings(mirror_settings("east"))))
    assert (await kept.locate(copy)).replica_end == 1
    monkeypatch.setattr(kept, "_end_of", AsyncMock(return_value=0))
    with pytest.raises(kept_offsets.UncommittedTailError, match="waits until offsets 0 to 0 of clicks-0 are committed"):
        await kept.locate(copy)
