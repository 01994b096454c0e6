"""Files of a checkpoint as columns: sums and paths of hundreds of thousands of files need no objects. Pure.

Arrow is imported with the first columns: a load of a table without a checkpoint does without it.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.hadoop.commit.manifest import AsideBatch, DataFile

if TYPE_CHECKING:
    import pyarrow as pa

_TEXTS: Final = ("path", "record_type")
_NUMBERS: Final = ("hour_ms", "records", "bytes", "first_offset", "last_offset", "crc32c", "schema_id")
_OF_BATCH: Final = ("base_offset", "window_start_ms", "records", "bytes", "crc", "aside")


class FileTotals(NamedTuple):
    """Numbers of data files and of their records, without the quarantine."""

    files: int
    records: int


class ColumnFiles(Mapping[str, DataFile]):
    """Files by path, in the order of their rows. Objects of all files are made once one is asked for."""

    def __init__(self, columns: "pa.StructArray") -> None:
        """`columns` is an array of `file_type` without nulls, whose paths differ."""
        self.columns = columns

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {path: row for row, path in enumerate(self.columns.field("path").to_pylist())}

    @cached_property
    def _files(self) -> dict[str, DataFile]:
        fields = [field.name for field in self.columns.type]
        lists = [self.columns.field(name).to_pylist() for name in fields[:-1]]
        batches = (tuple(AsideBatch(**batch) for batch in each) for each in self.columns.field("batches").to_pylist())
        made = (DataFile(**dict(zip(fields, row, strict=True))) for row in zip(*lists, batches, strict=True))
        return {file.path: file for file in made}

    def __getitem__(self, path: str) -> DataFile:
        return self._files[path]

    def __contains__(self, path: object) -> bool:
        return path in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ColumnFiles) and self.columns.equals(other.columns):
            return True
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment] # as a dict

    def changed(self, removed: Collection[str], added: Mapping[str, DataFile]) -> "ColumnFiles":
        """Return the files without those of the paths `removed`, and `added` after them."""
        import numpy as np
        import pyarrow as pa

        kept = np.ones(len(self), dtype=np.bool_)
        kept[[self._rows[path] for path in removed]] = False
        return ColumnFiles(pa.concat_arrays([self.columns.filter(pa.array(kept)), as_columns(added.values())]))

    def totals(self) -> FileTotals:
        """Return the sums over data files."""
        import pyarrow.compute as pc

        held = self.columns.field("records").filter(self.columns.field("hour_ms").is_valid())
        return FileTotals(len(held), pc.sum(held, min_count=0).as_py())


def changed(
    files: Mapping[str, DataFile], removed: Collection[str], added: Mapping[str, DataFile]
) -> Mapping[str, DataFile]:
    """Return `files` without those of the paths `removed`, and `added` after them."""
    if isinstance(files, ColumnFiles):
        return files.changed(removed, added) if removed or added else files
    return {path: file for path, file in files.items() if path not in removed} | dict(added)


def totals_of(files: Mapping[str, DataFile]) -> FileTotals:
    """Return the sums over data files."""
    if isinstance(files, ColumnFiles):
        return files.totals()
    held = [file.records for file in files.values() if not file.quarantined]
    return FileTotals(len(held), sum(held))


def columns_of(files: Mapping[str, DataFile]) -> "pa.StructArray":
    """Return files as an array of `file_type`."""
    return files.columns if isinstance(files, ColumnFiles) else as_columns(files.values())


def as_columns(files: Collection[DataFile]) -> "pa.StructArray":
    """Return files as an array of `file_type`."""
    import pyarrow as pa

    kind = file_type()
    columns = []
    for field in kind:
        values: list[Any] = [getattr(file, field.name) for file in files]
        if field.name == "batches":
            values = [[{name: getattr(batch, name) for name in _OF_BATCH} for batch in each] for each in values]
        columns.append(pa.array(values, field.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def file_type() -> Any:
    """Return the type of a file in a checkpoint: a struct of the fields of DataFile, `batches` last."""
    import pyarrow as pa

    batches = pa.list_(pa.struct([pa.field(name, pa.int64()) for name in _OF_BATCH]))
    return pa.struct(
        [
            *(pa.field(name, pa.string()) for name in _TEXTS),
            pa.field("partition", pa.int32()),
            *(pa.field(name, pa.int64()) for name in _NUMBERS),
            pa.field("batches", batches),
        ]
    )
