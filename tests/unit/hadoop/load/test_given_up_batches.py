"""A truncation that was accepted counts once, also if the topic has no new records yet."""

import random
from pathlib import Path

from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load.job import open_load
from pipeline.hadoop.ranges.plan import LoadPlan
from tests.support.walked_loads import NO_SPARK, TOPIC, WINDOW_MS, Source, WalkedLoad, load_once


def clock() -> int:
    return 1


def test_a_batch_that_was_given_up_is_asked_for_no_more(tmp_path: Path) -> None:
    source, files, root = Source(random.Random(1)), LocalFileSystem(), str(tmp_path)
    source.grow(2)
    first = load_once(root, files, source, "r1", 1, clock, 3_600_000).manifest
    assert [end.partition for end in first.ends] == [0, 1]
    opened = open_load(source.config(root, 3_600_000), files, root, clock=clock, run_id="r2")
    given_up = OffsetRange(partition=0, start=first.ends[0].base_offset, end=first.offsets[0])
    load = WalkedLoad(
        config=opened.config,
        clock=clock,
        run_id="r2",
        files=files,
        layout=opened.layout,
        store=opened.store,
        head=opened.head,
        topic_id=None,
        window_ms=WINDOW_MS,
        plan=LoadPlan(ranges=(), skipped=(given_up,)),
        schemas=(),
        source=source,
    )
    manifest = load.run(NO_SPARK).manifest
    assert manifest is not None
    assert (manifest.topic, manifest.offsets, manifest.lost) == (
        TOPIC,
        first.offsets,
        {0: given_up.end - given_up.start},
    )
    assert manifest.ends == first.ends[1:]
