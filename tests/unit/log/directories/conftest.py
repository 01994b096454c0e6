"""Log dirs that are opened as a broker opens them."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.log.config import LogConfig
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles
from pipeline.model import BrokerId
from tests.unit.log.conftest import Batches

OpenDirectory = Callable[..., LogDirectory]


class CountingFiles(DiskFiles):
    """Counts the files that were opened."""

    opened = 0

    def open(self, path: Path, *, create: bool = False) -> Any:
        self.opened += 1
        return super().open(path, create=create)


@pytest.fixture
def open_directory(tmp_path: Path, batches: Batches) -> OpenDirectory:
    def open_it(
        config: LogConfig | None = None, *, broker_id: int = 1, cluster_id: str = "c", files: Any = None
    ) -> LogDirectory:
        return open_log_directory(
            tmp_path / "logs",
            files or DiskFiles(),
            config or LogConfig(),
            broker_id=BrokerId(broker_id),
            cluster_id=cluster_id,
            rng=random.Random(1),
            now_ms=batches.now_ms,
        )

    return open_it


def open_below(path: Path, directory: str) -> Any:
    opened = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link.name for link in opened if str(link).startswith(str(path / "logs" / directory))]
