"""The locks of a log and of its log dir, in the order in which one thread may take several of them.

| lock | guards |
|---|---|
| `LogDirectory.moving` | the names of partitions' directories |
| `Deletions._renaming` | segments that are out of their logs until their files are renamed |
| `LogLocks.change` | where the log begins and ends: one roll in a thread, truncation or expiry at a time |
| `Flusher.lock` | the recovery point and the leader epochs on the disk: one flush at a time |
| `LogLocks.files` | names and open files of segments, `clean_offset`, `truncations` |
| `LogLocks.snapshot` | each replacement of `UnifiedLog.snapshot`; during an append, the open file that it writes to |
| `OffsetCheckpoints.writing` | the checkpoint files of the log dir |
| `AbortedTransactions._writing` | the tail of the index of aborted transactions while it is moved to a file |
| `AbortedTransactions._tail_lock`, `KnownProducers._lock` | a number or a few bytes in memory |

Readers take none of these: they read `UnifiedLog.snapshot` once. The event loop takes `LogLocks.snapshot` and the last
line's locks, which nobody holds while a disk is waited for (a replacement, a close of files), and `change` without
waiting. An append releases `LogLocks.snapshot` before it rolls a log with `waits_for_disk`.
"""

import threading


class LogLocks:
    """The locks that parts of one log share."""

    __slots__ = ("change", "files", "snapshot")

    def __init__(self) -> None:
        self.change = threading.Lock()
        self.files = threading.Lock()
        self.snapshot = threading.Lock()
