import random
from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.log.checkpoint import SYNC_FAILED
from pipeline.log.config import LogConfig
from pipeline.log.files import DiskFiles
from pipeline.testing.faulty_files import FaultyFiles
from tests.unit.log.conftest import Batches, Opener


@pytest.mark.parametrize("seed", range(8))
def test_records_flushed_after_a_failed_sync_and_a_restart_survive_a_loss_of_power(
    open_log: Opener, batches: Batches, small_segments: LogConfig, tmp_path: Path, seed: int
) -> None:
    faulty = FaultyFiles(DiskFiles(), random.Random(seed))
    log = open_log(small_segments, files=faulty)
    for _ in range(12):
        batches.append(log, batches.make(2))
    log.flush()
    recovery_point = log.recovery_point
    batches.append(log, batches.make(2))
    faulty.fail_sync_in = 1
    with pytest.raises(StorageError):
        log.flush()
    faulty = faulty.end_process()
    log = open_log(small_segments, files=faulty, recovery_point=recovery_point)
    assert log.log_end_offset == 26
    assert not (tmp_path / "events-0" / SYNC_FAILED).exists()
    batches.append(log, batches.make(2))
    log.flush()
    faulty.lose_power()
    log = open_log(small_segments, recovery_point=recovery_point)
    assert log.log_end_offset == 28
    assert [header.base_offset for header in batches.read_all(log)] == list(range(0, 28, 2))
