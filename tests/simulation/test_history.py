"""The checks themselves, on made-up histories."""

import pytest

from pipeline.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.testing.simulation.history import Acknowledged, History, check_history
from pipeline.testing.simulation.observer import Appends

HERE = TopicPartition("orders", 0)


def history_of(*acknowledged: tuple[bytes, int]) -> History:
    history = History()
    for value, offset in acknowledged:
        history.sent[value] = HERE
        history.acknowledged.append(Acknowledged(value, HERE, Offset(offset)))
    return history


def problems(history: History, *values: bytes) -> list[str]:
    log = {Offset(offset): value for offset, value in enumerate(values)}
    return history.problems + list(check_history(history, {HERE: log}))


def test_a_history_that_is_as_promised() -> None:
    history = history_of((b"a", 0), (b"b", -1))
    history.read("reader", HERE, 0, Offset(0), b"a")
    history.read("reader", HERE, 1, Offset(1), b"b")
    history.ended("reader", HERE, Offset(1), Offset(2))
    history.fetched_commit("group", HERE, Offset(1), Offset(1))
    assert problems(history, b"a", b"b") == []


@pytest.mark.parametrize(
    ("history", "log", "expected"),
    [
        (history_of((b"a", 0)), [], "lost"),
        (history_of((b"a", 1), (b"b", 0)), [b"a", b"b"], "moved"),
        (history_of((b"a", 0)), [b"a", b"a"], "doubled"),
        (history_of((b"a", 0)), [b"a", b"x"], "nobody sent"),
    ],
)
def test_logs_that_contradict_the_history_are_found(history: History, log: list[bytes], expected: str) -> None:
    assert any(expected in problem for problem in problems(history, *log))


def test_a_refused_record_must_not_be_there() -> None:
    history = history_of((b"a", 0))
    history.sent[b"b"] = HERE
    history.refused[b"b"] = None
    assert any("refused" in problem for problem in problems(history, b"a", b"b"))


def test_records_that_were_read_must_stay() -> None:
    history = history_of((b"a", 0))
    history.read("reader", HERE, 0, Offset(0), b"z")
    assert any("unseen" in problem for problem in problems(history, b"a"))


def test_readers_must_agree_and_go_forward() -> None:
    history = history_of((b"a", 0), (b"b", 1))
    history.read("one", HERE, 0, Offset(0), b"a")
    history.read("two", HERE, 0, Offset(0), b"b")
    history.read("two", HERE, 1, Offset(0), b"a")
    history.read("two", HERE, 1, Offset(2), b"c")
    history.ended("one", HERE, Offset(2), Offset(1))
    history.fetched_commit("group", HERE, Offset(2), Offset(1))
    assert len(history.problems) == 5


def test_an_epoch_has_one_leader_in_one_life() -> None:
    appends = Appends()
    appends.appended((HERE, None), LeaderEpoch(1), (BrokerId(1), 1))
    appends.appended((HERE, None), LeaderEpoch(1), (BrokerId(1), 1))
    assert list(appends.problems()) == []
    appends.appended((HERE, None), LeaderEpoch(1), (BrokerId(1), 2))
    assert any("several leaders" in problem for problem in appends.problems())
