"""High watermarks of new leaders, whose Fetch answers may be behind what was acknowledged, or of another log."""

import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying import high_watermarks
from pipeline.mirror.copying.copies import PartitionCopy, SourceCopies
from pipeline.mirror.copying.high_watermarks import HighWatermarks
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.pauses import Pauses
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.topics.flows import SourceFlows
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.mirrors import CLICKS, Site, make, mirror_settings, publish, until


async def asking(site: Site, position: int) -> tuple[HighWatermarks, PartitionCopy]:
    """A source of three records of leader epoch 0, and a copy whose replica ends at `position`."""
    await make(site.east)
    await publish(site.east, b"a", b"b", b"c")
    config = CurrentConfig(MirrorConfig.from_settings(mirror_settings("east")))
    copies = SourceCopies("east", SourceFlows([]), MirrorMetrics(CollectorRegistry()), config, Pauses())
    topic_id = (await site.east.topic("clicks")).id
    copies.assign(
        Assignment(source=SourcePartition(cluster="east", partition=CLICKS, topic_id=topic_id), replica=CLICKS)
    )
    copy = copies.states[CLICKS]
    copy.position, copy.leader_epoch = position, 0
    copy.progress.note_position(position)
    return HighWatermarks(copies, site.east, config), copy


async def test_an_answer_to_fetch_counts_once_the_leader_has_named_its_high_watermark_to_list_offsets(
    site: Site,
) -> None:
    watermarks, copy = await asking(site, 1)
    watermarks.note_fetched([(CLICKS, 1)], trio.current_time())
    assert copy.progress.high_watermark is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watermarks.run)
        await until(lambda: copy.progress.high_watermark == 3)
        nursery.cancel_scope.cancel()
    watermarks.note_fetched([(CLICKS, 1)], trio.current_time())  # sent before the leader knew all
    assert copy.progress.high_watermark == 3
    watermarks.note_fetched([(CLICKS, 4)], trio.current_time())
    assert copy.progress.high_watermark == 4


async def test_a_leader_that_lost_records_before_the_position_names_no_high_watermark(site: Site) -> None:
    watermarks, copy = await asking(site, 4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watermarks.run)
        await until(lambda: copy.is_truncated)
        nursery.cancel_scope.cancel()
    assert copy.position is None
    assert copy.progress.high_watermark is None
    watermarks.note_fetched([(CLICKS, 4)], trio.current_time())
    assert copy.progress.high_watermark is None


async def test_a_leader_that_is_too_old_to_confirm_its_log_is_believed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_args: object, **_options: object) -> None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    monkeypatch.setattr(high_watermarks, "ask_ends_once", refuse)
    watermarks, copy = await asking(site, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watermarks.run)
        await until(lambda: copy.progress.high_watermark == 3)
        nursery.cancel_scope.cancel()
