"""A disk that fails on demand, and a machine that loses power: wraps any `Files`.

What it can do:

- the n-th sync or rename from now fails with an input/output error; as on Linux, what a failed sync should have
  brought to disk is not brought there by a later sync that succeeds;
- the disk hangs below a directory: calls there of the kinds that `hangs_in` names wait until `released`;
- the disk is full after so many bytes: a write stores what fits and is refused;
- the machine stops at the n-th change of the disk from now (`Crash`), which is carried out, not or in part;
- `lose_power` leaves of each file what was synced, and of the rest what a disk may hold after that: nothing, a
  beginning, zeros or garbage up to the old length, or a hole with good data behind it. Names that were made, changed
  or removed are certain only after `sync_directory`; of the others, a beginning in their order survives.

Every choice comes from the random generator passed in, so a seed repeats a run. Syncs do not reach the wrapped files.
"""

import random
import threading
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import DiskFullError, SegmentClosedError, StorageError
from pipeline.log.files import FileLock, Files, LogFile, Volume

HANG_LIMIT_S = 60.0
CHANGES = frozenset({"sync", "rename", "removal", "creation", "sync_directory"})
"""Kinds of calls that hang unless a test chooses others; others are "opening", of a file that is there, "read", of
bytes that are not in the page cache, and "volume"."""
UNBOUNDED_BYTES = 1 << 40
"""Size of a disk whose capacity is not bounded: that of this machine would make each run another one."""


class Crash(BaseException):
    """The machine stopped. No `except` of the program under test should catch it."""


@dataclass(slots=True)
class _State:
    """State of a file on disk: all before `changed_from`, and the `old_tail` that lay there before the change."""

    changed_from: int | None = None
    old_tail: bytes = b""
    write_ends: list[int] = field(default_factory=list)
    sync_failed: bool = False


@dataclass(slots=True)
class _NameChange:
    directory: Path
    undo: Callable[[], None]


class FaultyFile:
    """An open file of `FaultyFiles`."""

    def __init__(self, disk: "FaultyFiles", inner: LogFile, state: _State) -> None:
        self._disk = disk
        self._inner = inner
        self._state = state

    @property
    def path(self) -> Path:
        return self._inner.path

    def fileno(self) -> int:
        return self._inner.fileno()

    def size(self) -> int:
        return self._inner.size()

    def read_at(self, size: int, position: int, *, waits: bool = True) -> bytes:
        if not waits and self._disk.hangs(self.path, "read"):
            raise SegmentClosedError(f"{self.path} is not in the page cache at {position}")
        self._disk.hang(self.path, "read")
        return self._inner.read_at(size, position, waits=waits)

    def read_into(self, buffer: memoryview, position: int) -> int:
        return self._inner.read_into(buffer, position)

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        view = memoryview(data)
        crashes = self._disk.is_last_change()
        room = self._disk.room_for(len(view), position, self.size())
        count = self._disk.rng.randint(0, room) if crashes else room
        self._change(position)
        self._inner.write_at(view[:count], position)
        self._state.write_ends.append(position + count)
        if crashes:
            raise Crash
        if count < len(view):
            raise DiskFullError(str(self.path), "No space left on device")

    def truncate(self, size: int) -> None:
        if size != self.size():
            self._disk.change(lambda: self._truncate(size))

    def _truncate(self, size: int) -> None:
        self._disk.used_bytes += size - self.size()
        self._change(min(size, self.size()))
        self._inner.truncate(size)

    def sync(self) -> None:
        self._disk.hang(self.path, "sync")
        self._disk.change(self._sync)

    def _sync(self) -> None:
        if self._disk.sync_fails():
            self._state.sync_failed = True
            raise StorageError(str(self.path), "Input/output error")
        if not self._state.sync_failed:
            self._state.changed_from, self._state.old_tail, self._state.write_ends = None, b"", []

    def _change(self, position: int) -> None:
        state = self._state
        if state.changed_from is None:
            state.old_tail = self._inner.read_at(max(0, self.size() - position), position)
            state.changed_from = min(position, self.size())
        elif position < state.changed_from:
            state.old_tail = self._inner.read_at(state.changed_from - position, position) + state.old_tail
            state.changed_from = position


def _nothing() -> None:
    """Do nothing besides the crash."""


class FaultyFiles:
    """`inner`, with faults. Each fault is armed by setting its attribute; None disarms it."""

    def __init__(self, inner: Files, rng: random.Random) -> None:
        self.inner = inner
        self.rng = rng
        self.fail_sync_in: int | None = None
        self.has_refused_a_sync = False
        self.fail_rename_in: int | None = None
        self.crash_in: int | None = None
        self.capacity_bytes: int | None = None
        self.hangs_below: Path | None = None
        self.hangs_in: Set[str] = CHANGES
        self.released = threading.Event()
        self.hanging = 0
        """Calls that wait now."""
        self.on_crash: Callable[[], None] = _nothing
        self.boot = inner.boot_id()
        self.used_bytes = 0
        self.changes = 0
        self._stopped = False
        self._states: dict[Path, _State] = {}
        self._name_changes: list[_NameChange] = []
        self._locks: list[FileLock] = []

    # Faults

    def hangs(self, path: Path, kind: str) -> bool:
        """True if the disk hangs there in such calls."""
        is_meant = self.hangs_below is not None and kind in self.hangs_in and path.is_relative_to(self.hangs_below)
        return is_meant and not self.released.is_set()

    def hang(self, path: Path, kind: str) -> None:
        """Wait if the disk hangs there in such calls. A thread that is never released ends after HANG_LIMIT_S."""
        if self.hangs(path, kind):
            self.hanging += 1
            self.released.wait(HANG_LIMIT_S)
            self.hanging -= 1

    def is_last_change(self) -> bool:
        """Count a change of the disk. True if it is the one at which the machine stops."""
        if self._stopped:
            raise Crash
        self.changes += 1
        if self.crash_in is not None:
            self.crash_in -= 1
            self._stopped = self.crash_in <= 0
            if self._stopped:
                self.on_crash()
        return self._stopped

    def change(self, action: Callable[[], None]) -> None:
        """Carry out a change that is done or not done, unless the machine stops."""
        if not self.is_last_change():
            action()
            return
        if self.rng.random() < 0.5:
            action()
        raise Crash

    def room_for(self, size: int, position: int, file_size: int) -> int:
        """Take room on the disk and return how many of `size` bytes fit."""
        growth = max(0, position + size - file_size)
        if self.capacity_bytes is not None:
            missing = max(0, growth - max(0, self.capacity_bytes - self.used_bytes))
            growth -= missing
            size -= missing
        self.used_bytes += growth
        return size

    def sync_fails(self) -> bool:
        """True if this is the sync that fails."""
        if self.fail_sync_in is None:
            return False
        self.fail_sync_in -= 1
        if self.fail_sync_in > 0:
            return False
        self.fail_sync_in = None
        self.has_refused_a_sync = True
        return True

    def end_process(self) -> "FaultyFiles":
        """End every use of this object, as when its process is killed; returns the disk for the next process.

        What was written stays, and what was not synced stays at risk.
        """
        self._stopped = True
        for lock in self._locks:
            lock.release()
        following = FaultyFiles(self.inner, self.rng)
        following.boot = self.boot
        following.capacity_bytes, following.used_bytes = self.capacity_bytes, self.used_bytes
        following._states, following._name_changes = self._states, self._name_changes
        return following

    def lose_power(self) -> None:
        """End every use of this object and leave in the wrapped files what a disk may hold then."""
        self._stopped = True
        for lock in self._locks:
            lock.release()
        for change in reversed(self._name_changes[self.rng.randint(0, len(self._name_changes)) :]):
            try:
                change.undo()
            except StorageError:
                continue  # the directory it was in is gone
        for path, state in self._states.items():
            if state.changed_from is not None and self.inner.exists(path):
                file = self.inner.open(path)
                content = _left_of(file.read_at(file.size(), 0), state.changed_from, state, self.rng)
                file.truncate(0)
                file.write_at(content, 0)

    # Files

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        is_new = create and not self.inner.exists(path)
        self.hang(path, "creation" if is_new else "opening")
        if is_new:
            self.change(lambda: self._create(path))
        inner = self.inner.open(path)
        return FaultyFile(self, inner, self._states.setdefault(path, _State()))

    def _create(self, path: Path) -> None:
        self.inner.open(path, create=True)
        self._changed_name(path, lambda: self.inner.unlink(path))

    def exists(self, path: Path) -> bool:
        return self.inner.exists(path)

    def is_directory(self, path: Path) -> bool:
        return self.inner.is_directory(path)

    def size(self, path: Path) -> int:
        return self.inner.size(path)

    def names(self, directory: Path) -> list[str]:
        return self.inner.names(directory)

    def volume(self, path: Path) -> Volume:
        self.hang(path, "volume")
        total = UNBOUNDED_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return Volume(total_bytes=total, usable_bytes=max(0, total - self.used_bytes))

    def make_directory(self, path: Path) -> None:
        if not self.inner.exists(path):
            self.change(lambda: self._make_directory(path))

    def _make_directory(self, path: Path) -> None:
        self.inner.make_directory(path)
        self._changed_name(path, lambda: self.inner.remove_tree(path))

    def rename(self, source: Path, target: Path) -> None:
        self.hang(source, "rename")
        if self.fail_rename_in is not None:
            self.fail_rename_in -= 1
            if self.fail_rename_in <= 0:
                self.fail_rename_in = None
                raise StorageError(str(source), "Input/output error")
        self.change(lambda: self._rename(source, target))

    def _rename(self, source: Path, target: Path) -> None:
        replaced = self._content(target) if self.inner.exists(target) else None
        self.inner.rename(source, target)
        replaced_state = self._states.pop(target, None)
        if source in self._states:
            self._states[target] = self._states.pop(source)

        def undo() -> None:
            self.inner.rename(target, source)
            if target in self._states:
                self._states[source] = self._states.pop(target)
            if replaced is not None:
                _restore(self.inner, target, replaced)
            if replaced_state is not None:
                self._states[target] = replaced_state

        self._changed_name(target, undo)

    def unlink(self, path: Path) -> None:
        self.hang(path, "removal")
        if self.inner.exists(path):
            self.change(lambda: self._unlink(path))

    def _unlink(self, path: Path) -> None:
        removed = self._content(path)
        self._states.pop(path, None)
        self.inner.unlink(path)
        self._changed_name(path, lambda: _restore(self.inner, path, removed))

    def remove_tree(self, path: Path) -> None:
        if not self.inner.exists(path):
            return
        self.hang(path, "removal")
        for name in self.inner.names(path):
            self.unlink(path / name)
        self.change(lambda: self.inner.remove_tree(path))

    def sync_directory(self, path: Path) -> None:
        self.hang(path, "sync_directory")
        self.change(lambda: self._sync_directory(path))

    def _sync_directory(self, path: Path) -> None:
        if self.sync_fails():
            raise StorageError(str(path), "Input/output error")
        self._name_changes = [change for change in self._name_changes if change.directory != path]

    def lock(self, path: Path) -> FileLock | None:
        lock = self.inner.lock(path)
        if lock is not None:
            self._locks.append(lock)
        return lock

    def file_id(self, path: Path) -> str:
        return self.inner.file_id(path)

    def boot_id(self) -> str:
        return self.boot

    def _changed_name(self, path: Path, undo: Callable[[], None]) -> None:
        self._name_changes.append(_NameChange(path.parent, undo))

    def _content(self, path: Path) -> bytes:
        """Return the content of a file that is about to lose its name."""
        file = self.inner.open(path)
        size = file.size()
        self.used_bytes -= size
        return file.read_at(size, 0)


def _left_of(content: bytes, changed_from: int, state: _State, rng: random.Random) -> bytes:
    certain, rest = content[:changed_from], content[changed_from:]
    if state.old_tail and rng.random() < 0.5:
        return certain + state.old_tail
    ends = [end - changed_from for end in state.write_ends if 0 <= end - changed_from <= len(rest)]
    kept = rng.choice([rng.randint(0, len(rest)), *ends[-3:]])
    stop = rng.randint(kept, len(rest))
    lost = rng.choice(["missing", "zeros", "garbage", "hole", "nothing"])
    if lost == "missing":
        return certain + rest[:kept]
    if lost == "zeros":
        return certain + rest[:kept] + bytes(stop - kept)
    if lost == "garbage":
        return certain + rest[:kept] + rng.randbytes(stop - kept)
    if lost == "hole":
        return certain + rest[:kept] + bytes(stop - kept) + rest[stop:]
    return content


def _restore(files: Files, path: Path, content: bytes) -> None:
    file = files.open(path, create=True)
    file.truncate(0)
    file.write_at(content, 0)
