from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.log.directories.shutdown import close_log
from pipeline.log.leader_epochs import LEADER_EPOCHS, EpochStart, LeaderEpochs
from pipeline.model import LeaderEpoch, Offset
from tests.unit.log.conftest import Batches, Opener

STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=12)


def made(
    steps: Any,
) -> Any:
    """The cache, and the epoch of each offset."""
    epochs, epoch = LeaderEpochs(), 0
    of_offset: list[int] = []
    for step, records in steps:
        epoch += step
        epochs.begin(LeaderEpoch(epoch), Offset(len(of_offset)))
        of_offset += [epoch] * records
    return epochs, of_offset


@given(STEPS, st.integers(-1, 40), st.integers(0, 20), st.integers(0, 20))
def test_the_answer_is_that_of_a_log_in_which_every_record_is_looked_at(
    steps: Any, asked: int, cut: int, start: int
) -> None:
    epochs, of_offset = made(steps)
    end = min(cut, len(of_offset))
    if cut < len(of_offset):
        epochs.truncate_from_end(Offset(cut))
    start = min(start, end)
    epochs.truncate_from_start(Offset(start))
    epochs = LeaderEpochs.decode(epochs.encode())
    assert [entry.start_offset for entry in epochs.entries] == sorted({e.start_offset for e in epochs.entries})
    found = epochs.end_offset_for(LeaderEpoch(asked), Offset(end))
    if not 0 <= asked <= epochs.latest:
        assert found == (-1, -1)
        return
    written = [of_offset[offset] for offset in range(start, end)]
    not_above = [epoch for epoch in written if epoch <= asked]
    assert found.start_offset == start + len(not_above) or found.epoch == epochs.latest
    if not_above:
        assert found.epoch >= not_above[-1]


def test_the_file_is_kafkas() -> None:
    epochs = LeaderEpochs([EpochStart(LeaderEpoch(0), Offset(0)), EpochStart(LeaderEpoch(4), Offset(17))])
    assert epochs.encode() == b"0\n2\n0 0\n4 17\n"
    assert [epochs.end_offset_for(LeaderEpoch(epoch), Offset(20)) for epoch in (0, 2, 4, 5, -1)] == [
        (0, 17),
        (0, 17),
        (4, 20),
        (-1, -1),
        (-1, -1),
    ]
    for damaged in (b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\nx y\n", b"\xff"):
        with pytest.raises(ValueError, match=r"x|not|decode|unpack"):
            LeaderEpochs.decode(damaged)


def test_epochs_of_a_log_are_kept_and_found_again(open_log: Opener, batches: Batches, tmp_path: Path) -> None:
    log = open_log()
    batches.append(log, batches.make(3))
    log.begin_epoch(LeaderEpoch(7))
    assert log.end_offset_for(LeaderEpoch(7)) == (7, 3)
    assert log.end_offset_for(LeaderEpoch(5)) == (3, 3)
    assert [log.snapshot.epochs.epoch_at(Offset(offset)) for offset in (0, 2, 3)] == [3, 3, 7]
    path = tmp_path / "events-0" / LEADER_EPOCHS
    assert not path.exists()
    log.flush()
    assert path.read_text() == "0\n2\n3 0\n7 3\n"
    close_log(log)
    log = open_log(clean=True)
    assert log.end_offset_for(LeaderEpoch(6)) == (3, 3)
    close_log(log)
    for content in (None, b"nonsense", b"0\n1\n3 0\n", b"0\n2\n3 0\n9 40\n"):
        path.unlink() if content is None else path.write_bytes(content)
        log = open_log()
        assert log.end_offset_for(LeaderEpoch(3)) == (3, 3)
        log.flush()
    log.delete_records(Offset(2))
    assert log.end_offset_for(LeaderEpoch(1)) == (1, 2) == (1, log.log_start_offset)


def test_an_epoch_in_which_nothing_was_written_gives_way_to_an_older_one(open_log: Opener, batches: Batches) -> None:
    """A leader of epoch 5 that wrote nothing is sent by the next one what that had of epoch 4 before."""
    log = open_log()
    batches.append_copied(log, batches.copied(3, epoch=4, base_offset=0))
    log.begin_epoch(LeaderEpoch(5))
    batches.append_copied(log, batches.copied(2, epoch=4, base_offset=3))
    assert (log.last_epoch, log.end_offset_for(LeaderEpoch(4))) == (4, (4, 5))
    batches.append_copied(log, batches.copied(1, epoch=6, base_offset=5))
    assert log.end_offset_for(LeaderEpoch(5)) == (4, 5)
