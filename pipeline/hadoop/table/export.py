"""Export of a table as plain folders, for Hive and other engines that read whole folders.

    <to>/dt=2026-11-25/hour=10/<file>    style `hive`
    <to>/2026/11/25/10/<file>            style `hourly`
    <to>/_EXPORT                         the commit and the style that the folders hold

Invariants:

A. A visible file is a whole copy of a committed file: it is copied under a name with a leading dot, which Hive and
   Spark skip, and renamed.
B. A run compares the folders with the table and does what is missing, so that it heals whatever an earlier run left.
C. Only files with names of a load, in folders of the style, are deleted; folders of loaded tables are refused. New
   files appear before old ones go: while a compaction is followed, a reader of the folders may see records twice, and
   none are missing.
"""

import json
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pipeline.hadoop.commit.checkpoints import read_state
from pipeline.hadoop.commit.layout import PathFormat, hour_path, run_of, topic_layout
from pipeline.hadoop.commit.manifest import DataFile
from pipeline.hadoop.files.doors import FileSystem, PathExistsError, PathNotFoundError, RenamingStore
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.table.snapshot import TableError

STATE_FILE: Final = "_EXPORT"
_HOURS: Final = {"hive": r"/dt=[\d-]{10}/hour=\d\d", "hourly": r"/\d{4}/\d\d/\d\d/\d\d"}
_MANIFEST: Final = re.compile(r"/_commits/\d{20}\.json$")
_COPIED_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Result of a run: the commit that the folders hold now, and how many files came and went."""

    sequence: int
    added: int
    removed: int


def export_table(root: str, topic: str, to: str, style: PathFormat) -> ExportResult:
    """Make the folders below the URL `to` hold exactly the committed data files of a topic.

    Raises TableError if nothing is committed, or if `to` holds loaded tables, or an export of another topic or style;
    StorageError.
    """
    files, path = open_filesystem(root)
    target, folder = open_filesystem(to)
    return export_files(files, path, topic, target, folder, style)


def export_files(
    files: FileSystem, root: str, topic: str, target: FileSystem, folder: str, style: PathFormat
) -> ExportResult:
    """Do the same on open file systems."""
    layout = topic_layout(root, topic)
    state = read_state(files, layout)
    if state.last is None:
        raise TableError(f"{topic} has no commits in {layout.topic_root}")
    present = {info.path: info.size_bytes for info in target.list_files(folder, recursive=True)}
    _check_folder(target, folder, topic, style, present)
    wanted = {f"{folder}/{exported_name(file, style)}": file for file in state.data_files()}
    missing = [name for name, file in wanted.items() if present.get(name) != file.bytes]
    for name in missing:
        _copy(files, layout.absolute(wanted[name].path), target, name, is_there=name in present)
    of_style = re.compile(re.escape(folder) + _HOURS[style] + r"/\.?(?P<name>[^/.]+\.[a-z]+)(?:\.[0-9a-f]{8}\.part)?")
    old = [
        path
        for path in present
        if path not in wanted and (match := of_style.fullmatch(path)) is not None and run_of(match["name"])
    ]
    removed = sum(target.delete(name) for name in old)
    _write_state(target, folder, {"topic": topic, "style": style, "commit": state.sequence})
    return ExportResult(sequence=state.sequence, added=len(missing), removed=removed)


def exported_name(file: DataFile, style: PathFormat) -> str:
    """Return the path of a data file below the folder of the export."""
    assert file.hour_ms is not None
    return f"{hour_path(file.hour_ms, style)}/{file.path.rsplit('/', 1)[-1]}"


def _copy(files: FileSystem, source: str, target: FileSystem, name: str, *, is_there: bool) -> None:
    """Copy a file under a hidden name and rename it, unless the store shows only whole files anyway (invariant A).

    True for `is_there`: a file of another size has the name, and goes first.
    """
    directory, _, base = name.rpartition("/")
    # A name of its own, so that no other export writes to what is renamed here.
    hidden = f"{directory}/.{base}.{secrets.token_hex(4)}.part" if isinstance(target, RenamingStore) else name
    if is_there and hidden == name:
        target.delete(name)
    with files.open(source) as data, target.create(hidden) as sink:
        while block := data.read(_COPIED_BYTES):
            sink.write(block)
    if not isinstance(target, RenamingStore):
        return
    if is_there:
        target.delete(name)
    try:
        target.rename_exclusive(hidden, name)
    except PathExistsError:  # another export was quicker
        target.delete(hidden)


def _check_folder(target: FileSystem, folder: str, topic: str, style: PathFormat, present: Iterable[str]) -> None:
    beside = (info.path for info in target.list_files(f"{folder.rpartition('/')[0]}/_commits"))
    if any(_MANIFEST.search(path) for path in (*present, *beside)):
        raise TableError(f"{folder} holds loaded tables, or is a part of one; export to a folder of its own")
    with suppress(PathNotFoundError, ValueError, KeyError):  # a run died while it wrote the file
        known = json.loads(target.read(f"{folder}/{STATE_FILE}"))
        if (known["topic"], known["style"]) != (topic, style):
            raise TableError(
                f"{folder} holds an export of {known['topic']} in the style {known['style']}; export to another folder"
            )


def _write_state(target: FileSystem, folder: str, state: dict[str, object]) -> None:
    """Replace the state file. A crash between leaves none, and the next run writes it: it decides nothing else."""
    target.delete(f"{folder}/{STATE_FILE}")
    with suppress(PathExistsError), target.create(f"{folder}/{STATE_FILE}") as sink:
        sink.write(json.dumps(state).encode())
