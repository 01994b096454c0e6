"""The sparse indexes of a segment, in Kafka's format: offset to position, and timestamp to offset.

`.index` holds entries of (relative offset int32, position int32): the batch at `position` ends with that offset.
`.timeindex` holds entries of (timestamp int64, relative offset int32): no record up to that offset is newer than
the timestamp, and the batch that ends with that offset has it.

Invariants:

- Keys rise strictly from entry to entry.
- An index is a hint made from the log: it is written without sync, and rebuilt if it contradicts the log.
- Memory does not grow with the log: the newest entries are in memory, the others are read from the file when needed.
- The file is open only while something is done with it, unless it is held: a broker has many more indexes than it may
  have open files.
- A look-up makes no file: that would wait for whatever hangs in the same directory.
"""

import struct
from bisect import bisect_left, bisect_right
from pathlib import Path

from pipeline.errors import StorageError
from pipeline.log.files import Files, LogFile

_SPILL_BYTES = 4096
_BLOCK_ENTRIES = 512

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")


class Index:
    """Pairs of numbers, sorted by the first: a file, and behind it a tail that is still in memory."""

    __slots__ = ("_entry", "_file", "_files", "_stored", "_tail", "is_tail_full", "last", "path")

    def __init__(self, files: Files, path: Path, entry: struct.Struct) -> None:
        self._files = files
        self._entry = entry
        self._file: LogFile | None = None
        self._stored = 0
        self._tail = bytearray()
        self.path = path
        self.last: tuple[int, int] | None = None
        self.is_tail_full = False
        """True if it is time to `spill`."""

    @classmethod
    def load(cls, files: Files, path: Path, entry: struct.Struct) -> "Index | None":
        """The index in a file, or None if its length or the order of first and last entry shows damage."""
        index = cls(files, path, entry)
        if not files.exists(path):
            return None
        index._stored, rest = divmod(files.size(path), entry.size)
        if rest:
            return None
        if index._stored:
            file = index.open()
            first = index._read(file, 0)
            index.last = index._read(file, index._stored - 1)
            if index._stored > 1 and first[0] >= index.last[0]:
                return None
        return index

    def __len__(self) -> int:
        return self._stored + len(self._tail) // self._entry.size

    def append(self, key: int, value: int) -> None:
        """Add an entry, in memory, if its key is beyond the last one."""
        if self.last is None or key > self.last[0]:
            self._tail += self._entry.pack(key, value)
            self.last = (key, value)
            self.is_tail_full = len(self._tail) >= _SPILL_BYTES

    def spill(self) -> None:
        """Move the tail to the file, which is there afterwards even without entries. Raises StorageError."""
        file = self.open()
        if self._stored == 0:
            file.truncate(0)
        if self._tail:
            file.write_at(self._tail, self._stored * self._entry.size)
            self._stored += len(self._tail) // self._entry.size
            self._tail, self.is_tail_full = bytearray(), False

    def sync(self) -> None:
        """Return once the file would survive a crash. Raises StorageError."""
        self.open().sync()

    def floor(self, key: int, *, waits: bool = True) -> tuple[int, int] | None:
        """The last entry whose key is at most `key`. Without `waits` raises SegmentClosedError if it is not cached."""
        unpack = self._entry.unpack_from
        tail = self._tail  # replaced by a spill, which may happen in another thread
        if tail and key >= unpack(tail, 0)[0]:
            return self._floor_within(tail, key)
        if not self._stored:
            return None
        file, low, high = self._stored_file(), 0, self._stored
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self._read(file, middle, waits=waits)[0] <= key:
                low = middle
            else:
                high = middle
        if low == high:
            return None
        return self._floor_within(self._read_block(file, low, high - low, waits=waits), key)

    def is_at_hand(self, key: int) -> bool:
        """True if `floor` opens no file for this key and all above."""
        tail = self._tail
        return self._file is not None or not self._stored or (bool(tail) and key >= self._unpack(tail, 0)[0])

    def last_below(self, value: int) -> tuple[int, int] | None:
        """The last entry whose value is below `value`, where values rise as well."""
        if self.last is None or self.last[1] < value:
            return self.last
        entries = self._entries()
        count = self._count_below(entries, value)
        return self._unpack(entries, count - 1) if count else None

    def beginning(self, value: int) -> "Index":
        """The entries whose value is below `value`, as an index with the same path whose file is yet to be written."""
        entries = self._entries()
        count = self._count_below(entries, value)
        index = Index(self._files, self.path, self._entry)
        index._tail = bytearray(entries[: count * self._entry.size])
        index.last = self._unpack(entries, count - 1) if count else None
        index.is_tail_full = len(index._tail) >= _SPILL_BYTES
        return index

    def _entries(self) -> bytes:
        stored = self._read_block(self._stored_file(), 0, self._stored) if self._stored else b""
        return stored + self._tail

    def _count_below(self, entries: bytes, value: int) -> int:
        numbers = range(len(entries) // self._entry.size)
        return bisect_left(numbers, value, key=lambda number: self._unpack(entries, number)[1])

    def _unpack(self, entries: bytes | bytearray, number: int) -> tuple[int, int]:
        found: tuple[int, int] = self._entry.unpack_from(entries, number * self._entry.size)
        return found

    def _floor_within(self, block: bytes | bytearray, key: int) -> tuple[int, int] | None:
        unpack, size = self._entry.unpack_from, self._entry.size
        number = bisect_right(range(len(block) // size), key, key=lambda entry: int(unpack(block, entry * size)[0]))
        if number == 0:
            return None
        found: tuple[int, int] = unpack(block, (number - 1) * size)
        return found

    def _read(self, file: LogFile, number: int, *, waits: bool = True) -> tuple[int, int]:
        found: tuple[int, int] = self._entry.unpack(self._read_block(file, number, 1, waits=waits))
        return found

    def _read_block(self, file: LogFile, number: int, count: int, *, waits: bool = True) -> bytes:
        size = self._entry.size
        block = file.read_at(count * size, number * size, waits=waits)
        if len(block) != count * size:
            raise StorageError(str(self.path), f"ends before its entry {number + count}; start the broker again")
        return block

    def open(self) -> LogFile:
        """Open the file, created if there is none."""
        file = self._file
        return self._files.open(self.path, create=True) if file is None else file

    def _stored_file(self) -> LogFile:
        held = self._file
        if held is not None:
            return held
        try:
            file = self._files.open(self.path)
        except StorageError:
            held = self._file
            if held is None:
                raise
            return held
        held = self._file  # a file is held open before it is renamed: the name may be another file's by now
        return file if held is None else held

    def hold_open(self) -> None:
        """Keep the file open, whatever becomes of its name, unless it is empty."""
        if self._stored:
            self._file = self._stored_file()

    @property
    def is_held(self) -> bool:
        """True if it keeps the file open."""
        return self._file is not None

    def release(self) -> None:
        """Keep the file open no longer."""
        self._file = None
