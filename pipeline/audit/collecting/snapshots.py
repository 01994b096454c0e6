"""Snapshots of a collector: its ledger and how far it has read, so that a start need not read all events again.

A snapshot is never needed, and never believed without proof. It is thrown away if anything does not fit: another
program, other clusters, a wrong digest, a file of somebody else. Then everything is read again.

Invariants:

A. A snapshot is taken between two portions of events. So its ledger has what is before its positions, and nothing else.
B. Files are complete once they have their names, and have digests of their contents. The file `snapshot` is renamed
   last, and names the others. A process that is killed leaves the snapshot before this one.
C. Whether the topic is still the one that was read (its id, its leader epoch, its end) is checked by whoever reads on,
   as after a lost connection.

Rows of old hours are in a file for each table, which is written once and named by its digest.
"""

import hashlib
import os
import pickle
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from pipeline.audit.collecting.file_shelf import make_folder
from pipeline.audit.collecting.reading import ReadingState
from pipeline.audit.ledger.keys import Int64s
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.row_table import HOUR_ROW, WINDOW_ROW
from pipeline.audit.ledger.shelving import KEY_BYTES, Shelf, ShelvedRows, TopicIndex
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError

NAME: Final = "snapshot"
DIGEST_BYTES: Final = 32
_ROWS: Final = "rows-"
_NEW: Final = ".new"
_TYPES: Final = {"hour": HOUR_ROW, "window": WINDOW_ROW}
_OWN_MODULES: Final = ("pipeline.audit.", "pipeline.model", "pipeline.records.tally")
_FOREIGN_CLASSES: Final = {
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "dict"),
    ("collections", "defaultdict"),
    ("collections", "deque"),
    ("collections", "OrderedDict"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("uuid", "UUID"),
}

logger = get_logger(__name__)


def _program_digest() -> bytes:
    """Return a digest of all code that gives a snapshot its meaning."""
    digest = hashlib.blake2b(f"{platform.python_version()} {np.__version__}".encode(), digest_size=DIGEST_BYTES)
    root = Path(__file__).parent.parent
    others = [root.parent / "model.py", root.parent / "records" / "tally.py"]  # of _OWN_MODULES
    for path in [*sorted(root.rglob("*.py")), *others]:
        digest.update(f"{path.relative_to(root.parent)} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.digest()


_PROGRAM: Final = _program_digest()
"""Digest of the code that this process runs: of its files as it is imported, as an upgrade may replace them later."""


class SnapshotError(PipelineError):
    """A snapshot cannot be used or written."""


class NoShelfRoomError(SnapshotError):
    """A snapshot is whole, but the shelf has no room for its old hours."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Ledger of a collector, and how far it has read each cluster."""

    ledger: Ledger
    states: Mapping[str, ReadingState]


class SnapshotFolder:
    """Keeps the newest snapshot in a folder that belongs to one service. For one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[int, tuple[ShelvedRows, str]] = {}
        """By identity: rows on the shelf that have a file, and its name."""
        self._index: TopicIndex | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Write a snapshot. The ledger must not change meanwhile. Raises SnapshotError; then the one before remains."""
        try:
            before = set(self._folder.glob(f"{_ROWS}*"))
            try:
                self._write(snapshot)
            except BaseException:
                self._remove_rows(before)  # of a snapshot that could not be finished: they may fill the disk
                raise
            self._remove_rows(set())
        except (OSError, pickle.PickleError, PipelineError) as error:
            raise SnapshotError(f"no snapshot could be written to {self._folder}: {error}") from error

    def _remove_rows(self, others: set[Path]) -> None:
        """Remove what is not whole, and rows that neither the newest snapshot has nor `others` are."""
        (self._folder / (NAME + _NEW)).unlink(missing_ok=True)
        kept = {name for _, name in self._written.values()}
        for path in self._folder.glob(f"{_ROWS}*"):
            if path.name not in kept and path not in others:
                path.unlink()

    def _write(self, snapshot: Snapshot) -> None:
        new = self._folder / (NAME + _NEW)
        with _opened_new(new) as file:
            file.write(_PROGRAM)
            file.write(bytes(DIGEST_BYTES))
            pickler = _Pickler(_HashingFile(file), self, snapshot.ledger.shelf)
            pickler.dump((snapshot.ledger, dict(snapshot.states)))
            file.seek(DIGEST_BYTES)
            file.write(pickler.file.digest.digest())
            _sync(file)
        _sync_folder(self._folder)  # invariant B: files of rows first
        new.replace(self._folder / NAME)
        self._written = pickler.rows
        _sync_folder(self._folder)

    def file_of(self, rows: ShelvedRows) -> str:
        """Return the name of the file that has these rows, which is written if there is none. Raises OSError."""
        known = self._written.get(id(rows))
        if known is not None and (self._folder / known[1]).exists():
            return known[1]
        data = rows.shelf.get(rows.place, rows.bytes_in_all)
        path = self._folder / (_ROWS + _digest(data).hex())
        if not path.exists():
            new = path.with_suffix(_NEW)
            with _opened_new(new) as file:
                file.write(data)
                _sync(file)
            new.replace(path)
        return path.name

    def load(self, shelf: Shelf | None, clusters: set[str]) -> Snapshot | None:
        """Return the snapshot, with its old rows on this shelf; None if none fits: the log says why."""
        try:
            ledger, states = self._read(self._folder / NAME, shelf)
            if set(states) != clusters:
                raise SnapshotError(f"it is of the clusters {', '.join(sorted(states))}")
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever a damaged file does
            logger.warning("audit_snapshot_not_used", folder=str(self._folder), error=str(error))
            if not isinstance(error, OSError | NoShelfRoomError):  # with room, the next start may use it
                self.forget()
            return None
        return Snapshot(ledger, states)

    def _read(self, path: Path, shelf: Shelf | None) -> tuple[Ledger, dict[str, ReadingState]]:
        with path.open("rb") as file:
            self._check_owner(file)
            if file.read(DIGEST_BYTES) != _PROGRAM:
                raise SnapshotError("it is of another version of the program")
            wanted = file.read(DIGEST_BYTES)
            digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
            while part := file.read(1 << 20):
                digest.update(part)
            if digest.digest() != wanted:
                raise SnapshotError("its digest is wrong: the file is damaged")
            file.seek(2 * DIGEST_BYTES)
            ledger, states = _Unpickler(file, self, shelf).load()
        return ledger, states

    def _check_owner(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise SnapshotError("others than this user may have written it")

    def rows_of(self, name: str, size: int, kind: str, totals: tuple[int, int, int, int], shelf: Shelf) -> ShelvedRows:
        """Return the rows in a file, put on a shelf. Raises SnapshotError, OSError."""
        try:
            data = (self._folder / name).read_bytes()
        except FileNotFoundError as error:
            raise SnapshotError(f"{name} is gone") from error
        dtype = _TYPES[kind]
        if name != _ROWS + _digest(data).hex() or len(data) != size * (KEY_BYTES + dtype.itemsize):
            raise SnapshotError(f"{name} is damaged")
        place = shelf.put(data)
        if place is None:
            raise NoShelfRoomError("its old hours do not fit spill.max.bytes, or the disk")
        keys: Int64s = np.frombuffer(data, np.int64, size)
        rows = ShelvedRows(
            shelf=shelf, place=place, size=size, dtype=dtype, index=TopicIndex.of(keys, self._index), totals=totals
        )
        self._index = rows.index
        self._written[id(rows)] = rows, name
        return rows

    def forget(self) -> None:
        """Remove the snapshot: it does not belong to the topics any more. If the disk refuses, the log says so."""
        try:
            (self._folder / NAME).unlink(missing_ok=True)
        except OSError as error:  # a later start finds again that the snapshot does not fit
            logger.warning("audit_snapshot_not_removed", folder=str(self._folder), error=str(error))


class _HashingFile:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)


class _Pickler(pickle.Pickler):
    def __init__(self, file: _HashingFile, folder: SnapshotFolder, shelf: Shelf | None) -> None:
        super().__init__(file, protocol=5)
        self.file = file
        self._shelf = shelf
        self.rows: dict[int, tuple[ShelvedRows, str]] = {}
        self._folder = folder

    def reducer_override(self, value: Any) -> Any:
        """Write members of enumerations by class and value: some versions of Python name them by `getattr`."""
        return (type(value), (value.value,)) if isinstance(value, Enum) else NotImplemented

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, ShelvedRows):
            name = self._folder.file_of(value)
            self.rows[id(value)] = value, name
            kind = next(kind for kind, dtype in _TYPES.items() if dtype == value.dtype)
            return "rows", name, value.size, kind, value.totals
        return ("shelf",) if value is self._shelf and value is not None else None


class _Unpickler(pickle.Unpickler):
    """Reads nothing but values of the audit and arrays."""

    def __init__(self, file: BinaryIO, folder: SnapshotFolder, shelf: Shelf | None) -> None:
        super().__init__(file)
        self._folder = folder
        self._shelf = shelf

    def persistent_load(self, pid: Any) -> Any:
        if self._shelf is None:
            raise SnapshotError("there is no shelf for its old hours")
        if pid[0] == "shelf":
            return self._shelf
        _, name, size, kind, totals = pid
        return self._folder.rows_of(name, size, kind, totals, self._shelf)

    def find_class(self, module: str, name: str) -> Any:
        found = None
        if module.startswith(_OWN_MODULES) or (module, name) in _FOREIGN_CLASSES:
            found = super().find_class(module, name)
        if not isinstance(found, type) and (module, name) not in _FOREIGN_CLASSES:
            raise SnapshotError(f"it has a {module}.{name}")
        return found


def snapshots_in(folder: str) -> SnapshotFolder | None:
    """Return what keeps snapshots in a folder; None for an empty name. Raises ConfigurationError."""
    if not folder:
        return None
    make_folder(Path(folder), "snapshot.dir")
    return SnapshotFolder(Path(folder))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _opened_new(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
