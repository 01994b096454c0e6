"""Files of a checkpoint as columns: the same mapping as files of manifests, without an object for each."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pipeline.hadoop.commit.column_files import ColumnFiles, as_columns, changed, columns_of, totals_of
from pipeline.hadoop.commit.manifest import AsideBatch, DataFile

BATCHES = tuple(
    AsideBatch(base_offset=number, window_start_ms=0, records=5, bytes=90, crc=2**32 - 1, aside=2)
    for number in range(2)
)


def data_file(number: int) -> DataFile:
    is_aside = number % 4 == 3
    return DataFile(
        path=f"hourly/{number}",
        partition=number % 3,
        hour_ms=None if is_aside else -3_600_000 * number,
        records=number,
        bytes=2**40 + number,
        first_offset=number,
        last_offset=2 * number,
        crc32c=2**32 - 1 - number,
        record_type=None if number % 2 else "com.example.Visit",
        schema_id=None if number % 5 == 0 else number,
        batches=BATCHES if is_aside else (),
    )


def test_columns_are_the_mapping_that_they_were_made_of() -> None:
    files = {file.path: file for file in map(data_file, range(10))}
    columns = ColumnFiles(as_columns(files.values()))
    assert columns == files
    assert files == columns
    assert list(columns.items()) == list(files.items())
    assert ("hourly/3" in columns, "hourly/10" in columns, len(columns)) == (True, False, 10)
    assert columns == ColumnFiles(columns_of(files))
    assert columns != {**files, "hourly/4": replace(files["hourly/4"], records=5)}
    with pytest.raises(KeyError):
        columns["hourly/10"]
    assert ColumnFiles(as_columns([])) == {}


@pytest.mark.parametrize("seed", range(20))
def test_changes_and_sums_of_columns_are_those_of_a_dictionary(seed: int) -> None:
    randomness = random.Random(seed)
    files: Mapping[str, DataFile] = {file.path: file for file in map(data_file, range(randomness.randrange(20)))}
    columns: Mapping[str, DataFile] = ColumnFiles(as_columns(files.values()))
    for number in range(20, 60, 10):
        removed = {path for path in files if randomness.random() < 0.3}
        added = {file.path: file for file in map(data_file, range(number, number + randomness.randrange(4)))}
        files, columns = changed(files, removed, added), changed(columns, removed, added)
        assert list(columns.items()) == list(files.items())
        data = [file for file in files.values() if not file.quarantined]
        assert totals_of(columns) == totals_of(files) == (len(data), sum(file.records for file in data))
        assert columns_of(columns).equals(columns_of(files))
