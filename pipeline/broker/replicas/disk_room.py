"""Room on the disks of the log dirs, measured again and again, for metrics, `/readyz`, logs and `cluster describe`.

Invariants:

- A log dir counts as full while less than FULL_BYTES are free, and for REFUSAL_COUNTS_S after a write that was refused
  for lack of room: a write may need more than is free, and whoever stops writing sees no further refusal.
- The log says once that a log dir is full, and once that it has room again.
- A disk that does not answer delays nobody; its last figures stay.
"""

from pathlib import Path
from typing import Final

import trio

from pipeline.broker.runtime.disk_threads import STALLED_S, DiskThreads
from pipeline.diagnostics import get_logger
from pipeline.errors import StorageError
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.files import Volume

ROOM_CHECK_S: Final = 5.0
FULL_BYTES: Final = 1 << 20
"""Largest batch by default (`message.max.bytes`)."""
REFUSAL_COUNTS_S: Final = 60.0

logger = get_logger(__name__)


class DiskRoom:
    """Room of each log dir that is online. `volumes` holds the last figures."""

    def __init__(self, directories: LogDirectories, disks: DiskThreads) -> None:
        self._directories = directories
        self._disks = disks
        self._refused_at: dict[Path, float] = {}
        self.volumes: dict[Path, Volume] = {}
        self.full: dict[Path, str] = {}
        """A sentence for each log dir that is full."""

    @property
    def problem(self) -> str | None:
        """A sentence about the log dirs that are full, or None."""
        return "; ".join(self.full.values()) or None

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            for directory in self._directories.opened:
                await self._measure(directory)
            await trio.sleep(ROOM_CHECK_S)

    async def _measure(self, directory: LogDirectory) -> None:
        path = directory.path
        try:
            volume = await measured_volume(self._disks, directory)
        except StorageError:  # the log dir is offline
            self.volumes.pop(path, None)
            self.full.pop(path, None)
            return
        if volume is not None:
            self.volumes[path] = volume
        refusal, directory.refusal = directory.refusal, None
        if refusal is not None:
            self._refused_at[path] = trio.current_time()
        self._judge(path, "" if refusal is None else f" ({refusal.reason})")

    def _judge(self, path: Path, reason: str) -> None:
        volume = self.volumes.get(path)
        lacks_room = volume is not None and volume.usable_bytes < FULL_BYTES
        is_refused = self._refused_at.get(path, -REFUSAL_COUNTS_S) + REFUSAL_COUNTS_S > trio.current_time()
        if not (lacks_room or is_refused):
            if self.full.pop(path, None) is not None:
                logger.info("disk_has_room", log_dir=str(path))
            return
        free = "" if volume is None else f": {volume.usable_bytes} of {volume.total_bytes} bytes are free"
        said = f"log dir {path} is full{free}{reason}; make room, then writes continue by themselves"
        if path not in self.full:
            logger.warning("disk_full", log_dir=str(path), reason=said)
        self.full[path] = said


async def measured_volume(disks: DiskThreads, directory: LogDirectory) -> Volume | None:
    """Return the room of a log dir, None if its disk does not answer in time. Raises StorageError if it is offline."""
    if not disks.is_stalled(directory.path):
        with trio.move_on_after(STALLED_S):
            return await disks.run(directory.path, directory.volume, abandon_on_cancel=True)
    return None
