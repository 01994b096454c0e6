"""Offsets that a table holds in its quarantine: a record there is in no data file, also if it could be decoded now."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pipeline.hadoop.avro.avro_schema import OFFSET, VALUE
from pipeline.hadoop.avro.quarantine_reader import quarantined_records
from pipeline.hadoop.commit.manifest import DataFile
from pipeline.hadoop.upkeep.table import Table
from pipeline.records.batch import read_header

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedOffsets:
    """Ranges of offsets by partition, as first offsets and ends, both ascending."""

    ranges: Mapping[int, tuple[Int64s, Int64s]]

    @classmethod
    def of(cls, table: Table, files: Iterable[DataFile]) -> Self:
        """Read quarantine files of a table. Raises DamagedFileError, QuarantineFileError, StorageError."""
        found: dict[int, list[tuple[int, int]]] = {}
        for file in files:
            for record in quarantined_records(table.read(file), file.path):
                found.setdefault(file.partition, []).append(_extent(record))
        columns = {partition: np.array(sorted(extents), np.int64).T for partition, extents in found.items()}
        return cls(ranges={partition: (starts, ends) for partition, (starts, ends) in columns.items()})

    def holds(self, partition: int, offsets: Int64s) -> NDArray[np.bool_]:
        """Mark offsets of a partition that are in the quarantine."""
        if partition not in self.ranges:
            return np.zeros(len(offsets), dtype=np.bool_)
        starts, ends = self.ranges[partition]
        before = np.searchsorted(starts, offsets, side="right") - 1
        return (before >= 0) & (offsets < ends[before])


def _extent(record: Mapping[str, object]) -> tuple[int, int]:
    """Return first offset and end of a record or of an unopened batch; further pieces of a batch have none."""
    offset, value = record[OFFSET], record[VALUE]
    assert isinstance(offset, int)
    if "_records" not in record:
        return offset, offset + 1
    if record["_piece"]:
        return offset, offset
    assert isinstance(value, bytes)
    return offset, read_header(value).next_offset
