"""Metrics of single runs: a file that keeps what the runs before counted, also of runs that fail."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.errors import PipelineError
from pipeline.hadoop.load.job import NOTHING_NEW, LoadError, LoadResult
from pipeline.hadoop.load.many import TopicResult
from pipeline.hadoop.load.metrics import write_metrics


def shown(path: Path) -> dict[str, float]:
    samples = [sample for family in text_string_to_metric_families(path.read_text()) for sample in family.samples]
    return {
        sample.name.removeprefix("pipeline_load_")
        + "".join(f" {value}" for name, value in sample.labels.items() if name != "load"): sample.value
        for sample in samples
        if not sample.name.endswith("_created")
    }


def committed(records: int, quarantined: int = 0) -> LoadResult:
    return LoadResult(committed=True, manifest=None, records=records, quarantined=quarantined)


def outcome(topic: str, result: LoadResult | None, error: Any = None, lag: int = 0) -> TopicResult:
    return TopicResult(topic=topic, seconds=2.5, result=result, error=error, lag=lag)


def test_a_run_adds_to_what_the_runs_before_counted(tmp_path: Path) -> None:
    path = tmp_path / "lake.prom"
    write_metrics(path, [outcome("clicks", committed(10, quarantined=3)), outcome("visits", NOTHING_NEW)], 1_000)
    write_metrics(path, [outcome("clicks", committed(5)), outcome("visits", None, LoadError("visits", "no"), 7)], 2_000)
    now = shown(path)
    assert (now["records_total clicks"], now["commits_total clicks"], now["quarantined_records_total clicks"]) == (
        15,
        2,
        3,
    )
    assert (now["lag_records visits"], now["failures_total visits"], now["duration_seconds visits"]) == (7, 1, 2.5)
    assert (now["last_success_timestamp_seconds clicks"], now["last_success_timestamp_seconds visits"]) == (2, 1)
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_that_cannot_begin_counts_and_keeps_the_time_of_the_last_success(tmp_path: Path) -> None:
    path = tmp_path / "lake.prom"
    write_metrics(path, [outcome("clicks", committed(10))], 1_000)
    for _ in range(2):
        write_metrics(path, None, 9_000)
    now = shown(path)
    assert (now["failed_rounds_total"], now["last_success_timestamp_seconds clicks"]) == (2, 1)


def test_two_loads_of_a_topic_on_one_host_are_told_apart(tmp_path: Path) -> None:
    """Node exporter shows one of several series with the same labels, of whatever files, and reports no error."""
    seen = []
    for name in ("lake", "table"):
        path = tmp_path / f"{name}.prom"
        write_metrics(path, [outcome("clicks", committed(10))], 1_000)
        write_metrics(path, None, 9_000)
        families = text_string_to_metric_families(path.read_text())
        seen += [(sample.name, *sample.labels.items()) for family in families for sample in family.samples]
    assert len(set(seen)) == len(seen)


def test_a_file_of_an_older_version_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "lake.prom"
    path.write_text('pipeline_load_last_success_timestamp_seconds{topic="clicks"} 1.0\n')
    write_metrics(path, None, 9_000)
    assert shown(path)["last_success_timestamp_seconds clicks"] == 1


def test_a_file_that_is_none_of_a_load_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "lake.prom"
    path.write_text("pipeline_load_records_total{topic=")
    write_metrics(path, [outcome("clicks", committed(10))], 1_000)
    assert shown(path)["records_total clicks"] == 10


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"metrics cannot be written to .*none/lake\.prom: No such file"):
        write_metrics(tmp_path / "none" / "lake.prom", [], 1_000)
