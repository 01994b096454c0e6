"""Verifies partitions and log directories from outside, and reports each defect with its place. Writes nothing.

Checks the checksum and the order of every batch; that a partition has a segment, and that each segment begins where the
one before ends, unless a `.gap` says otherwise; both indexes against their segment; producer snapshots; leader epochs
against the batches; the topic id; and the checkpoints of a log directory against its logs. Files and partitions that
their broker deletes meanwhile are skipped.
"""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from pipeline.errors import StorageError
from pipeline.log.checkpoint import (
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    decode_offsets,
    decode_partition_metadata,
)
from pipeline.log.files import storage_error
from pipeline.log.index import OFFSET_ENTRY, TIME_ENTRY
from pipeline.log.inspection.files import IndexCheck, Problem, read_batches
from pipeline.log.leader_epochs import LEADER_EPOCHS
from pipeline.log.partition_files import may_be_partition, parse_directory_name
from pipeline.log.producer_state import ProducerStates
from pipeline.log.segment_names import (
    GAP_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_offsets,
    segment_path,
)
from pipeline.model import MAX_INT64, Offset, TopicPartition

Advance = Callable[[int], None]
"""Reports the number of bytes read since the last call."""


class Verifier:
    """Verification of logs. `advance` gets the progress; `settle` waits a moment for a file that may be growing."""

    def __init__(self, advance: Advance, settle: Callable[[], None]) -> None:
        self.segments = 0
        self.batches = 0
        self._advance = advance
        self._settle = settle

    def verify(self, directory: Path) -> Iterator[Problem]:
        """Verify a partition's directory, or a log directory with all its partitions. Raises StorageError."""
        partitions = partition_directories(directory)
        if not partitions and not (directory / META_PROPERTIES).exists():
            yield from self._partition(directory)
            return
        checkpoints, problems = _read_checkpoints(directory)
        yield from problems
        for path, topic_partition in partitions.items():
            ends: list[int] = []
            yield from self._partition(path, ends)
            for name, offsets in checkpoints.items():
                offset = offsets.get(topic_partition)
                if ends and offset is not None and offset > ends[0]:
                    yield Problem(directory / name, None, f"{topic_partition} at {offset}, its log ends at {ends[0]}")

    def _partition(self, directory: Path, ends: list[int] | None = None) -> Iterator[Problem]:
        """Verify a partition; appends its log end offset to `ends`."""
        epochs, problems = read_leader_epochs(directory / LEADER_EPOCHS)
        yield from problems
        names = _names(directory)
        if not segment_offsets(names or (), LOG_SUFFIX):
            self._settle()  # a log that begins anew has none for a moment
            names = _names(directory)
        if names is None:
            return
        bases = segment_offsets(names, LOG_SUFFIX)
        end: int | None = None if bases else 0
        if not bases and (names or ends is None):  # a crash may leave a partition's directory that is empty
            yield Problem(directory, None, "holds no segment")
        for number, base_offset in enumerate(bases):
            path = segment_path(directory, base_offset, LOG_SUFFIX)
            try:
                if end is not None:
                    yield from self._start(path, base_offset, end)
                end = yield from self._segment(path, base_offset, epochs, is_last=number == len(bases) - 1)
            except StorageError as error:
                if not path.exists():
                    end = None
                    continue
                yield Problem(Path(error.path), None, error.reason)
                end = None
        for name in sorted(_names(directory) or ()):
            if name.endswith(SNAPSHOT_SUFFIX):
                yield from self._snapshot(directory / name)
        yield from self._topic_id(directory)
        if ends is not None and end is not None:
            ends.append(end)

    def _start(self, path: Path, base_offset: int, end: int) -> Iterator[Problem]:
        """Check the start of a segment; while a cleaner replaces segments, one may be missing for a moment."""
        problems = list(_check_start(path, base_offset, end))
        if problems:
            self._settle()
            there = segment_offsets(_names(path.parent) or (), LOG_SUFFIX)
            if any(end <= between < base_offset for between in there):
                return
        yield from problems

    def _snapshot(self, path: Path) -> Iterator[Problem]:
        problems = list(check_snapshot(path))
        if problems:
            self._settle()  # it is not written at once
            problems = list(check_snapshot(path))
        yield from problems

    def _topic_id(self, directory: Path) -> Iterator[Problem]:
        """Check the topic id: an invalid file keeps its partition from opening once records are on the disk."""
        path = directory / PARTITION_METADATA
        for is_second_look in (False, True):
            content = _read_text(path)
            try:
                if content is not None:
                    decode_partition_metadata(content.encode())
            except ValueError as error:
                if is_second_look:
                    yield Problem(path, None, f"holds no topic id: {error}")
                else:
                    self._settle()  # the file of a new partition is not written at once
            else:
                return

    def _segment(
        self, path: Path, base_offset: int, epochs: Sequence[tuple[int, int]], *, is_last: bool
    ) -> Generator[Problem, None, int | None]:
        """Verify a segment; returns the offset after its last batch, None if that is not known."""
        self.segments += 1
        checks: dict[str, IndexCheck] = {}
        for suffix, entry in ((INDEX_SUFFIX, OFFSET_ENTRY), (TIME_INDEX_SUFFIX, TIME_ENTRY)):
            index = path.with_suffix(suffix)
            if index.exists():
                checks[suffix] = IndexCheck(index, base_offset, entry)
            elif not is_last:
                self._settle()  # it is swapped before its segment
                if not index.exists() and path.exists():
                    yield Problem(index, None, "is missing")
        offset_index, time_index = checks.get(INDEX_SUFFIX), checks.get(TIME_INDEX_SUFFIX)
        next_offset = base_offset
        for batch in read_batches(path, self._settle):
            if isinstance(batch, Problem):
                yield batch
                return None
            header = batch.header
            self.batches += 1
            self._advance(header.size_bytes)
            if batch.problem is not None:
                yield Problem(path, batch.position, f"batch at offset {header.base_offset}: {batch.problem}")
            if header.base_offset < next_offset:
                reason = f"offset {header.base_offset} where {next_offset} or a later one is due"
                yield Problem(path, batch.position, reason)
            if not _is_epoch_at(epochs, header.base_offset, header.partition_leader_epoch):
                reason = f"batch at offset {header.base_offset} of leader epoch {header.partition_leader_epoch}"
                yield Problem(path, batch.position, f"{reason} contradicts {LEADER_EPOCHS}")
            next_offset = max(next_offset, header.next_offset)
            if offset_index is not None:
                offset_index.see_position(batch)
            if time_index is not None:
                time_index.see_time(batch)
        for check in checks.values():
            check.end()
            yield from check.problems
        return next_offset


def partition_directories(directory: Path) -> Mapping[Path, TopicPartition]:
    """The partitions in a log directory, in the order of their names. Raises StorageError."""
    try:
        names = sorted(path for path in directory.iterdir() if path.is_dir())
        found = {path: parse_directory_name(path.name) for path in names}
        return {path: name for path, name in found.items() if name is not None and _may_be_partition(path)}
    except OSError as error:
        raise storage_error(directory, error) from error


def _names(directory: Path) -> list[str] | None:
    """All names in a partition's directory; None if it is not there any more. Raises StorageError."""
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(directory, error) from error


def _may_be_partition(path: Path) -> bool:
    names = _names(path)
    return names is not None and may_be_partition(names)


def log_bytes(directory: Path) -> int:
    """The approximate number of bytes that `Verifier.verify` reads."""
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            if name.endswith(LOG_SUFFIX):
                with suppress(OSError):  # deleted meanwhile
                    size += Path(parent, name).stat().st_size
    return size


def read_leader_epochs(path: Path) -> tuple[list[tuple[int, int]], list[Problem]]:
    """Pairs of epoch and first offset, none if there is no file. Raises StorageError."""
    content = _read_text(path)
    if content is None:
        return [], []
    try:
        version, count, *lines = content.splitlines()
        epochs = [(int(epoch), int(offset)) for epoch, offset in (line.split(" ") for line in lines)]
        if int(version) != 0 or int(count) != len(epochs):
            raise ValueError("its number of lines")
    except ValueError:
        return [], [Problem(path, None, "is not a checkpoint of leader epochs, or cut off")]
    problems = [
        Problem(path, None, f"epoch {after} does not come after {before}")
        for before, after in pairwise(epochs)
        if after[0] <= before[0] or after[1] < before[1]
    ]
    return epochs, problems


def _is_epoch_at(epochs: Sequence[tuple[int, int]], offset: int, epoch: int) -> bool:
    """Return True if a batch may have this epoch; behind the checkpoint's last one it may have a newer one."""
    found = [known for known, start in epochs if start <= offset]
    if not found:
        return True
    return epoch >= found[-1] if len(found) == len(epochs) else epoch == found[-1]


def _check_start(path: Path, base_offset: int, end: int) -> Iterator[Problem]:
    """Check that a segment begins where the one before ends."""
    if base_offset < end:
        yield Problem(path, None, f"begins at {base_offset}, but the segment before ends at {end}")
    elif base_offset > end:
        gap = _read_text(path.with_suffix(GAP_SUFFIX))
        if gap is None or gap.strip() != str(end):
            yield Problem(path, None, f"begins at {base_offset}, but the one before ends at {end}: records are lost")


def check_snapshot(path: Path) -> Iterator[Problem]:
    """The defects of a snapshot of producers by itself."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    producers = ProducerStates(expiration_ms=MAX_INT64)
    try:
        offset = int(path.name.removesuffix(SNAPSHOT_SUFFIX))
        producers.restore(content)
    except ValueError as error:
        yield Problem(path, None, str(error))
        return
    newest = max(producers.last_offsets(), default=-1)
    if newest >= offset:
        yield Problem(path, None, f"tells of offset {newest}, but is of what was before {offset}")


def _read_checkpoints(directory: Path) -> tuple[dict[str, dict[TopicPartition, Offset]], list[Problem]]:
    found, problems = {}, []
    for name in OFFSET_CHECKPOINTS:
        content = _read_text(directory / name)
        if content is not None:
            try:
                found[name] = decode_offsets(content.encode())
            except ValueError as error:
                problems.append(Problem(directory / name, None, str(error)))
    return found, problems


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(path, error) from error
