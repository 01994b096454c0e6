"""Latencies by topic and window: cumulative, taken once, bounded."""

from typing import Any

import numpy as np
import pytest

from pipeline.audit.counting import latency_table
from pipeline.audit.counting.latency import LatencySketch
from pipeline.audit.counting.latency_table import WINDOWS_KEPT_BY_TOPIC, LatencyTable, TopicWindow

WINDOW_MS = 60_000


def add(table: LatencyTable, *rows: tuple[int, int, int, int]) -> None:
    columns: Any = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    table.add(*columns)


def sketch(*pairs: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    found = LatencySketch()
    found.add(*zip(*pairs, strict=True))
    return found.buckets()


def test_changed_windows_are_taken_once_and_are_cumulative() -> None:
    table = LatencyTable()
    add(table, (1, 0, 10, 5), (2, 0, 10, 1), (1, WINDOW_MS, 700, 2), (1, 0, 10, 4), (1, 0, 90, 1))
    assert table.take_changed() == [
        (TopicWindow(1, 0), sketch((10, 9), (90, 1))),
        (TopicWindow(1, WINDOW_MS), sketch((700, 2))),
        (TopicWindow(2, 0), sketch((10, 1))),
    ]
    assert table.take_changed() == []
    add(table, (2, 0, 11, 3))
    ((window, buckets),) = table.take_changed()
    assert (window, buckets) == (TopicWindow(2, 0), sketch((10, 1), (11, 3)))
    table.mark_changed([window, TopicWindow(2, WINDOW_MS), TopicWindow(9, 0)])
    assert table.take_changed() == [(window, buckets)]


def test_only_the_newest_windows_are_kept() -> None:
    table = LatencyTable()
    order = [5, 0, 9, 3, 7, 8, 1, 5, 3, 6]
    for start in order:
        add(table, (1, start, 10, 1))
        table.take_changed()
    add(table, *((1, start, 10, 1) for start in range(10)))
    assert [window.start_ms for window, _ in table.take_changed()] == sorted(range(10))[-WINDOWS_KEPT_BY_TOPIC:]


def test_a_forgotten_topic_begins_anew() -> None:
    table = LatencyTable()
    add(table, (1, 0, 10, 5), (2, 0, 10, 1))
    table.discard(1)
    table.mark_changed([TopicWindow(1, 0)])
    assert [window.topic for window, _ in table.take_changed()] == [2]
    add(table, (1, 0, 10, 1))
    assert table.take_changed() == [(TopicWindow(1, 0), sketch((10, 1)))]


def test_waiting_latencies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_table, "MAX_WAITING", 10)
    table = LatencyTable()
    for _ in range(100):
        add(table, (1, 0, 10, 5))
        assert len(table._waiting) <= 10
    assert table.take_changed() == [(TopicWindow(1, 0), sketch((10, 500)))]
