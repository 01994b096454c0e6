"""Chooses the small files of a table that one larger file can take the place of. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from pipeline.hadoop.commit.manifest import DataFile


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileGroup:
    """Files that are joined only with one another: those of a partition, an hour, and a format of the rows."""

    partition: int
    hour_ms: int
    suffix: str
    record_type: str
    schema_id: int

    @classmethod
    def of(cls, file: DataFile) -> Self:
        """Return the group of a data file."""
        assert file.hour_ms is not None
        return cls(
            partition=file.partition,
            hour_ms=file.hour_ms,
            suffix=file.path.rsplit(".", 1)[-1],
            record_type=file.record_type or "",
            schema_id=-1 if file.schema_id is None else file.schema_id,
        )


def small_files(files: Iterable[DataFile], target_bytes: int) -> list[DataFile]:
    """Return files of at most half of the target, in groups that have at least two of them, ordered by offset."""
    groups: dict[FileGroup, list[DataFile]] = {}
    for file in files:
        if not file.quarantined and 2 * file.bytes <= target_bytes:
            groups.setdefault(FileGroup.of(file), []).append(file)
    ordered = (sorted(groups[key], key=_by_offset) for key in sorted(groups) if len(groups[key]) > 1)
    return [file for group in ordered for file in group]


def plan_compaction(
    files: Iterable[DataFile], kinds: Mapping[str, str], target_bytes: int
) -> list[tuple[DataFile, ...]]:
    """Return files to join, at least two at a time, in the order of their offsets, of at most the target's bytes.

    files: as `small_files` gave them.
    kinds: by path a text that is equal for files whose rows have the same schema and codec.
    Files whose offsets overlap are not joined, so that a file's rows stay in the order of their offsets.
    """
    joined: list[list[DataFile]] = []
    current: dict[tuple[FileGroup, str], list[DataFile]] = {}
    for file in files:
        key = (FileGroup.of(file), kinds[file.path])
        group = current.get(key)
        has_room = group is not None and sum(each.bytes for each in group) + file.bytes <= target_bytes
        if group is None or not has_room or file.first_offset <= group[-1].last_offset:
            group = current[key] = []
            joined.append(group)
        group.append(file)
    return [tuple(group) for group in joined if len(group) > 1]


def _by_offset(file: DataFile) -> tuple[int, int, str]:
    return file.first_offset, file.last_offset, file.path
