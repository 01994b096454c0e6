"""Chooses what `load clean` deletes: files that no commit lists which can still be read, and old manifests. Pure.

Invariants:

A. The state after every commit from the `base` on can be read: its checkpoint, and all manifests after it, are kept.
B. A file stays as long as the base or a manifest after it lists it.
C. A file that nothing lists is deleted only if its run has no mark, or is dead and its next mark was won. A run
   without a mark has ended: it left its mark before its first file. So files are listed before marks are read, and
   marks before manifests.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pipeline.hadoop.commit.layout import is_clock, run_of, temporary_run_of
from pipeline.hadoop.files.doors import FileInfo

KEPT_COMMITS: Final = 10
"""Last commits whose manifests never expire: each load reports the counts of the last ones again."""


class Reason(StrEnum):
    """Reasons why a file is deleted."""

    ORPHAN = "orphan"
    """Written by a run that died."""
    REMOVED = "removed"
    """Taken out of the table by a commit that is older than all that can be read."""
    EXPIRED = "expired"
    """Manifest or checkpoint older than the oldest commit that can be read."""
    TEMPORARY = "temporary"
    """Manifest or checkpoint that was never renamed, or the clock of a run that died."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Deletion:
    """A file to delete, by its path on the file system."""

    reason: Reason
    path: str
    bytes: int


def choose_base(manifest_times_ms: Mapping[int, int], first_base: int, now_ms: int, retention_ms: int) -> int:
    """Return the oldest commit that has to be readable: the newest one older than the retention, or `first_base`.

    manifest_times_ms: when each manifest was written, by the file system's time.
    first_base: the oldest commit that can be read now.
    """
    if not manifest_times_ms:
        return first_base
    end = max(manifest_times_ms)
    base = first_base
    for number in sorted(manifest_times_ms):
        if number > end - KEPT_COMMITS or now_ms - manifest_times_ms[number] <= retention_ms:
            break
        base = max(base, number)
    return base


def unlisted_files(
    written: Mapping[str, int], reachable: Collection[str], live_runs: Collection[str], dead_runs: Collection[str]
) -> list[Deletion]:
    """Return data files and temporary files to delete.

    written: size by path of the files that were listed first.
    reachable: paths that the base or a manifest after it lists.
    live_runs, dead_runs: runs with marks; the next marks of the dead ones were won.
    """
    found = []
    for path, size in written.items():
        temporary_run = temporary_run_of(path)
        run = temporary_run or run_of(path)
        if run is None or run in live_runs or path in reachable:
            continue
        reason = Reason.ORPHAN if run in dead_runs else Reason.REMOVED
        found.append(Deletion(reason=Reason.TEMPORARY if temporary_run else reason, path=path, bytes=size))
    return sorted(found)


def old_clocks(written: Iterable[FileInfo], before_ms: int) -> list[Deletion]:
    """Return files by which runs learned the time, and which they did not live to delete."""
    left = (info for info in written if is_clock(info.path) and info.modified_ms < before_ms)
    return [Deletion(reason=Reason.TEMPORARY, path=info.path, bytes=info.size_bytes) for info in left]


def expired(numbered: Iterable[tuple[int, str, int]], base: int) -> list[Deletion]:
    """Return manifests (number, path, size) up to `base`, ascending, so that a crash leaves no hole between others."""
    ordered: Sequence[tuple[int, str, int]] = sorted(numbered)
    return [Deletion(reason=Reason.EXPIRED, path=path, bytes=size) for number, path, size in ordered if number <= base]
