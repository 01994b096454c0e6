import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigurationError
from pipeline.hadoop.commit.layout import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    PATH_FORMATS,
    PathFormat,
    TaskAttempt,
    check_run_id,
    data_file,
    hour_folder,
    hour_of_folder,
    manifest_sequences,
    place_of_rows,
    quarantine_file,
    run_of,
    topic_layout,
)
from pipeline.records.tally import HOUR_MS, window_start

ATTEMPT = TaskAttempt(run_id="r1", task=3, attempt=17)


def test_file_names_tell_hour_offsets_and_run() -> None:
    layout = topic_layout("/data/", "clicks")
    assert layout.manifest(7) == "/data/clicks/_commits/00000000000000000007.json"
    folder = hour_folder(1_700_000_000_000 // HOUR_MS * HOUR_MS, "hourly")
    name = data_file(folder, 2, 40, ATTEMPT, 0, "parquet")
    assert name == "hourly/2023/11/14/22/2-40-r1-3-17-0.parquet"
    other = data_file(hour_folder(hour_of_folder(folder) or 0, "hive"), 2, 40, ATTEMPT, 0, "parquet")
    assert other == "hive/dt=2023-11-14/hour=22/2-40-r1-3-17-0.parquet"
    assert place_of_rows(name) == place_of_rows(other)
    assert layout.relative(layout.absolute(name)) == name
    assert run_of(layout.absolute(name)) == run_of(quarantine_file(2, 40, ATTEMPT, 1)) == "r1"
    assert run_of("/data/clicks/hourly/2023/11/14/22/notes.txt") is None


@pytest.mark.parametrize("path_format", PATH_FORMATS)
@pytest.mark.parametrize("timestamp_ms", [-1, 0, MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS])
def test_any_timestamp_with_a_year_has_a_folder(timestamp_ms: int, path_format: PathFormat) -> None:
    hour_ms = window_start(timestamp_ms, HOUR_MS)
    folder = hour_folder(hour_ms, path_format)
    assert folder.startswith(f"{path_format}/")
    assert hour_of_folder(topic_layout("/data", "clicks").absolute(folder)) == hour_ms


@pytest.mark.parametrize(
    "folder", ["hourly/2023/13/01/00", "hive/dt=2023-11-14/hour=24", "hive/2023/11/14/22", "hour=7"]
)
def test_folders_of_no_hour(folder: str) -> None:
    assert hour_of_folder(folder) is None


@given(st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS))
def test_an_hour_holds_its_timestamps(timestamp_ms: int) -> None:
    hour_ms = window_start(timestamp_ms, HOUR_MS)
    assert 0 <= timestamp_ms - hour_ms < HOUR_MS
    assert hour_ms % HOUR_MS == 0


def test_manifests_among_other_files() -> None:
    layout = topic_layout("/data", "clicks")
    names = [layout.manifest(12), layout.manifest(2), layout.temporary_manifest(13, "r1"), "/data/clicks/_commits/x"]
    assert manifest_sequences(names) == [2, 12]


@pytest.mark.parametrize("topic", ["", "..", "a/b", "a b"])
def test_invalid_topic_names_are_refused(topic: str) -> None:
    with pytest.raises(ConfigurationError, match="topic"):
        topic_layout("/data", topic)


@pytest.mark.parametrize("run_id", ["", "A", "a-b", "a/b", "a" * 41])
def test_invalid_run_ids_are_refused(run_id: str) -> None:
    with pytest.raises(ConfigurationError, match="run_id"):
        check_run_id(run_id)
