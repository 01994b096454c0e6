"""Room on the disks, as `/readyz` and the log show it."""

import random
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from pipeline.broker.replicas import disk_room
from pipeline.broker.replicas.disk_room import DiskRoom
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.errors import DiskFullError, StorageError
from pipeline.log.config import LogConfig
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.files import DiskFiles, Volume
from pipeline.model import BrokerId

TIMEOUT_S = 30
NOW_MS = 1_700_000_000_000


class Disk(DiskFiles):
    """A disk with a given room."""

    usable_bytes = 1 << 30

    def volume(self, path: Path) -> Volume:
        return Volume(total_bytes=1 << 40, usable_bytes=self.usable_bytes)


async def until(condition: Any) -> None:
    with trio.fail_after(TIMEOUT_S):
        while not condition():
            await trio.sleep(0.001)


async def test_a_full_log_dir_is_named_until_it_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_room, "ROOM_CHECK_S", 0.001)
    disk = Disk()
    directories = LogDirectories.open(
        [tmp_path / "one", tmp_path / "two"],
        disk,
        LogConfig(),
        broker_id=BrokerId(1),
        cluster_id="c",
        rng=random.Random(1),
        now_ms=NOW_MS,
    )
    one, two = directories.opened
    room = DiskRoom(directories, DiskThreads())
    with structlog.testing.capture_logs() as log:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(room.run)
            await until(lambda: one.path in room.volumes)
            assert (room.problem, room.volumes[one.path]) == (None, disk.volume(one.path))

            monkeypatch.setattr(disk_room, "REFUSAL_COUNTS_S", 0.2)
            with pytest.raises(DiskFullError), one.noticing_failure():
                raise DiskFullError("segment", "No space left on device")
            await until(lambda: room.problem)
            assert room.problem == (
                f"log dir {one.path} is full: 1073741824 of 1099511627776 bytes are free (No space left on device); "
                "make room, then writes continue by themselves"
            )
            await until(lambda: room.problem is None)  # nobody was refused for a while

            disk.usable_bytes = 4096
            await until(lambda: len(room.full) == 2)
            with pytest.raises(StorageError), two.noticing_failure():
                raise StorageError("segment", "Input/output error")
            await until(lambda: list(room.volumes) == [one.path])  # nothing is known of a log dir that failed
            disk.usable_bytes = 1 << 30
            await until(lambda: room.problem is None)
            nursery.cancel_scope.cancel()
    told = [f"{each['event']} {Path(each['log_dir']).name}" for each in log if each["event"].startswith("disk_")]
    assert told[:2] == ["disk_full one", "disk_has_room one"]
    assert sorted(told[2:4]) == ["disk_full one", "disk_full two"]  # looked at by two threads
    assert told[4:] == ["disk_has_room one"]
    one.close()
