"""The rule of a topic that shows what is on the disk, on made-up logs."""

import pytest

from pipeline.model import Offset
from pipeline.testing.simulation.history import History
from pipeline.testing.simulation.sightings import SIGHTINGS, Sightings


@pytest.fixture
def sightings() -> Sightings:
    """Two records were sent, and the first one was read."""
    made: Sightings = Sightings.__new__(Sightings)
    made.history = History(sent={b"a": SIGHTINGS, b"b": SIGHTINGS})
    made.history.read("watcher", SIGHTINGS, 0, Offset(0), b"a")
    return made


@pytest.mark.parametrize("log", [[b"a"], [b"a", b"b"]])
def test_a_record_that_nobody_read_may_be_lost(sightings: Sightings, log: list[bytes]) -> None:
    assert list(sightings.check({Offset(offset): value for offset, value in enumerate(log)}, log)) == []
    assert list(sightings.check(None, log)) == []


@pytest.mark.parametrize("log", [[], [b"b"]])
def test_a_record_that_was_read_must_be_there(sightings: Sightings, log: list[bytes]) -> None:
    led = list(sightings.check({Offset(offset): value for offset, value in enumerate(log)}, log))
    assert [problem for problem in led if problem.startswith("unseen")] == led != []
    assert len(list(sightings.check(None, log))) == 1
