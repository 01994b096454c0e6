"""The length of windows: the brokers' rule for new tables, and what an old table's length means for its next load."""

from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.errors import ConfigurationError
from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.manifest import Manifest, OffsetRange
from pipeline.hadoop.commit.publication import Head, commit
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import LoadError, open_load
from pipeline.hadoop.ranges.cluster_offsets import TopicState
from pipeline.hadoop.ranges.plan import PartitionBounds

STATE = TopicState(
    name="visits", topic_id=None, bounds={0: PartitionBounds(log_start_offset=0, high_watermark=9, end=9)}
)


def config(root: Any, **settings: Any) -> LoadConfig:
    given = {"bootstrap.servers": "127.0.0.1:1", "topic": "visits", "root": str(root), "value.format": "binary"}
    return LoadConfig.from_settings(given | settings)


def table(root: Any, window_ms: Any) -> None:
    files, path = open_filesystem(str(root))
    loaded = OffsetRange(partition=0, start=0, end=5)
    manifest = Manifest(
        sequence=1,
        run_id="first",
        created_ms=0,
        topic="visits",
        topic_id=None,
        format="parquet",
        window_ms=window_ms,
        offsets={0: 5},
        ranges=(loaded,),
    )
    commit(files, topic_layout(path, "visits"), manifest, Head(manifest=None, sha256=None))


def prepare(root: Any, **settings: Any) -> Any:
    opened = open_load(config(root, **settings), *open_filesystem(str(root)), clock=lambda: 0)
    return trio.run(opened.prepare, STATE, None, {})


@pytest.mark.parametrize("window_ms", [7 * 60_000, 7_200_000, 86_400_000, 3_599_999])
def test_windows_divide_an_hour(tmp_path: Path, window_ms: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"window\.ms"):
        config(tmp_path, **{"window.ms": window_ms})
    with pytest.raises(ConfigurationError, match=r"window\.ms: must divide an hour, because"):
        config(tmp_path, **{"window.ms": 420_000})


def test_a_table_with_windows_that_can_be_set_no_more_goes_on_with_them(tmp_path: Path) -> None:
    table(tmp_path, 420_000)
    assert prepare(tmp_path).window_ms == 420_000
    assert prepare(tmp_path, **{"window.ms": 60_000}).window_ms == 420_000


def test_a_table_with_other_windows_says_what_to_set(tmp_path: Path) -> None:
    table(tmp_path, 60_000)
    with pytest.raises(LoadError, match=r"window\.ms is 600000, but the manifests have 60000: set window\.ms=60000"):
        prepare(tmp_path)
    assert prepare(tmp_path, **{"window.ms": 60_000}).window_ms == 60_000
    assert prepare(tmp_path / "new").window_ms == 600_000
