"""High watermarks of new leaders, whose Fetch answers may be behind what was acknowledged."""

import trio
from prometheus_client import CollectorRegistry

from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.copies import SourceCopies
from pipeline.mirror.copying.high_watermarks import HighWatermarks
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.pauses import Pauses
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.topics.flows import SourceFlows
from tests.support.mirrors import CLICKS, Site, make, mirror_settings, publish, until


async def test_an_answer_to_fetch_counts_once_the_leader_has_named_its_high_watermark_to_list_offsets(
    site: Site,
) -> None:
    await make(site.east)
    await publish(site.east, b"a", b"b", b"c")
    config = CurrentConfig(MirrorConfig.from_settings(mirror_settings("east")))
    copies = SourceCopies("east", SourceFlows([]), MirrorMetrics(CollectorRegistry()), config, Pauses())
    watermarks = HighWatermarks(copies, site.east, config)
    topic_id = (await site.east.topic("clicks")).id
    copies.assign(
        Assignment(source=SourcePartition(cluster="east", partition=CLICKS, topic_id=topic_id), replica=CLICKS)
    )
    progress = copies.states[CLICKS].progress
    progress.note_position(1)
    watermarks.note_fetched(CLICKS, 1, trio.current_time())
    assert progress.high_watermark is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watermarks.run)
        await until(lambda: progress.high_watermark == 3)
        nursery.cancel_scope.cancel()
    watermarks.note_fetched(CLICKS, 1, trio.current_time())  # sent before the leader knew all
    assert progress.high_watermark == 3
    watermarks.note_fetched(CLICKS, 4, trio.current_time())
    assert progress.high_watermark == 4
