"""The files of a table as of one commit, by the manifests alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pipeline.errors import ConfigurationError, PipelineError
from pipeline.hadoop.commit.checkpoints import (
    manifests_of,
    read_checkpoint,
    read_manifest,
    read_state,
    readable_commits,
)
from pipeline.hadoop.commit.layout import TopicLayout, topic_layout
from pipeline.hadoop.commit.manifest import DataFile
from pipeline.hadoop.files.doors import FileSystem
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.records.tally import HOUR_MS


class TableError(PipelineError):
    """A table cannot be read as it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSelection:
    """Rows of a table to read: the commit by number or time in ms (None: the last), type, quarantine, a time."""

    sequence: int | None = None
    timestamp_ms: int | None = None
    record_type: str | None = None
    quarantine: bool = False
    from_ms: int | None = None
    to_ms: int | None = None

    def may_hold(self, file: DataFile) -> bool:
        """Return False if no row of the file is of the time [from_ms, to_ms). Files in quarantine have no time."""
        if file.hour_ms is None:
            return True
        is_late = self.from_ms is None or file.hour_ms + HOUR_MS > self.from_ms
        return is_late and (self.to_ms is None or file.hour_ms < self.to_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """Files of one commit's table, oldest commit first."""

    root: str
    topic: str
    sequence: int
    files: tuple[DataFile, ...]

    def open(self) -> tuple[FileSystem, TopicLayout]:
        """Return the file system, and the paths of the topic there."""
        files, path = open_filesystem(self.root)
        return files, topic_layout(path, self.topic)


def read_snapshot(root: str, topic: str, selection: TableSelection) -> TableSnapshot:
    """Read the manifests. Raises TableError if there is no such commit, or for a missing or wrong record type."""
    files, path = open_filesystem(root)
    layout = topic_layout(path, topic)
    state = read_state(files, layout, up_to=_sequence(files, layout, topic, selection))
    live = state.data_files(quarantined=selection.quarantine)
    wanted = tuple(file for file in _of_type(topic, live, selection) if selection.may_hold(file))
    return TableSnapshot(
        root=root,
        topic=topic,
        sequence=state.sequence,
        files=wanted,
    )


def parse_time_ms(option: str, text: str) -> int:
    """Return a time in ms of `2026-11-25T10:00:00Z`, of a date (both UTC if no zone is given), or of ms since 1970."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(option, f"'{text}' is neither an ISO time nor ms since 1970") from error
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


def _sequence(files: FileSystem, layout: TopicLayout, topic: str, selection: TableSelection) -> int:
    """Return the number of the selected commit."""
    written = manifests_of(files, layout)
    if not written:
        raise TableError(f"{topic} has no commits in {layout.topic_root}")
    if selection.sequence is None and selection.timestamp_ms is None:
        return written[-1]
    known = [number for number in readable_commits(files, layout) if number <= written[-1]]
    if selection.sequence is not None:
        if selection.sequence not in known:
            raise TableError(f"{topic} has no commit {selection.sequence}, but {known[0]} to {known[-1]}")
        return selection.sequence
    assert selection.timestamp_ms is not None
    # Clocks of drivers may differ: the last commit that is not younger, and all before it.
    for sequence in reversed(known):
        has_manifest = sequence in written
        last = (
            read_manifest(files, layout, sequence)[0] if has_manifest else read_checkpoint(files, layout, sequence).last
        )
        if last is not None and last.created_ms <= selection.timestamp_ms:
            return sequence
    raise TableError(f"{topic} had no commit at that time; the oldest that is kept is {known[0]}")


def _of_type(topic: str, files: Sequence[DataFile], selection: TableSelection) -> tuple[DataFile, ...]:
    if selection.quarantine:
        return tuple(files)
    types = sorted({file.record_type for file in files if file.record_type is not None})
    if selection.record_type is None and len(types) > 1:
        raise TableError(f"{topic} has several record types; give one as recordType: {', '.join(types)}")
    if selection.record_type is None:
        return tuple(files)
    if selection.record_type not in types:
        known = ", ".join(types) or "none"
        raise TableError(f"{topic} has no record type {selection.record_type}; its types are: {known}")
    return tuple(file for file in files if file.record_type == selection.record_type)
