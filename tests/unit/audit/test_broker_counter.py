"""Counting along: every batch once, through restarts, lost reports, logs that lost their end and new leaders."""

import itertools
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.broker_counter import MAX_APPENDED
from pipeline.audit.checkpoints import PartitionCheckpoints
from pipeline.audit.message import AuditEvent, EpochClaim
from pipeline.audit.older_ledger import Ledger
from pipeline.log.files import DiskFiles
from pipeline.records.tally import Counts
from tests.support.counted_logs import (
    CLICKS,
    INTERNAL,
    WINDOW_MS,
    Log,
    counter,
    header,
    ledger_counts,
    load,
)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Any:
    (tmp_path / str(CLICKS)).mkdir()
    return PartitionCheckpoints([tmp_path], DiskFiles())


def test_appended_batches_are_told_by_window(checkpoints: PartitionCheckpoints) -> None:
    log, broker, ledger = Log(), counter(checkpoints), Ledger()
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 10, 7), (2, WINDOW_MS, 8)))
    (event,) = broker.take_events()
    ledger.apply(event)
    assert event.revision == 5
    assert ledger_counts(ledger) == log.expected() == {0: Counts(3, 100, 1, 7), WINDOW_MS: Counts(2, 100, 1, 8)}
    broker.published([event])
    assert broker.take_events() == []


def test_internal_topics_are_not_counted(checkpoints: PartitionCheckpoints) -> None:
    broker = counter(checkpoints)
    log = Log(batches=[header(0)])
    log.topic_partition = INTERNAL
    load(broker, log)
    broker.appended(INTERNAL, [header(1)])
    broker.truncated(INTERNAL)
    broker.removed(INTERNAL)
    assert broker.take_events() == []


def test_counts_that_could_not_be_published_are_reported_again(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 10, 7)))
    events = broker.take_events()
    assert broker.take_events() == []
    broker.put_back(events)
    assert broker.take_events() == events


def test_a_log_that_lost_its_end_is_counted_anew(checkpoints: PartitionCheckpoints) -> None:
    log, broker, ledger = Log(), counter(checkpoints), Ledger()
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 0, 7), (2, 0, 8)))
    broker.published(broker.take_events())
    log.batches.pop()
    log.lead(1)
    restarted = counter(checkpoints)
    load(restarted, log)
    (event,) = restarted.take_events()
    assert event.windows == log.expected()
    ledger.apply(event)
    assert ledger_counts(ledger) == log.expected()


def test_a_log_that_lost_all_voids_what_was_told_of_it(checkpoints: PartitionCheckpoints) -> None:
    log, broker, ledger = Log(), counter(checkpoints), Ledger()
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 0, 7)))
    told = broker.take_events()
    broker.published(told)
    log.batches.clear()
    log.lead(1)
    restarted = counter(checkpoints)
    load(restarted, log)
    untold = restarted.take_events()
    restarted.put_back(untold)
    for event in [*told, *restarted.take_events(), *told]:
        ledger.apply(event)
    assert ledger_counts(ledger) == {}


def test_a_log_that_lost_its_end_and_grew_again_is_not_taken_for_the_old_one(checkpoints: PartitionCheckpoints) -> None:
    log, broker, ledger = Log(), counter(checkpoints), Ledger()
    load(broker, log)
    broker.appended(CLICKS, log.append((1, 0, 7)))
    told = broker.take_events()
    broker.published(told)
    log.batches.clear()
    log.lead(1)
    restarted = counter(checkpoints)
    load(restarted, log)
    restarted.appended(CLICKS, log.append((1, 0, 8)))
    again = counter(checkpoints)
    load(again, log)
    for event in [*told, *again.take_events()]:
        ledger.apply(event)
    assert ledger_counts(ledger) == log.expected()


def test_a_topic_created_again_is_counted_by_itself(checkpoints: PartitionCheckpoints, tmp_path: Path) -> None:
    broker = counter(checkpoints, itertools.count().__next__)
    former, log, ledger = Log(), Log(uuid.UUID(int=2)), Ledger()
    load(broker, former)
    broker.appended(CLICKS, former.append((3, 0, 7), (3, 0, 8), (1, WINDOW_MS, 9)))
    late = broker.take_events()
    broker.removed(CLICKS)
    load(broker, log)
    broker.appended(CLICKS, log.append((2, 0, 5)))
    broker.published(late)
    for event in [*broker.take_events(), *late]:
        ledger.apply(event)
    assert ledger_counts(ledger) == log.expected()


def test_a_damaged_checkpoint_only_costs_time(checkpoints: PartitionCheckpoints, tmp_path: Path) -> None:
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 0, 7)))
    broker.published(broker.take_events())
    (tmp_path / str(CLICKS) / "audit-checkpoint").write_bytes(b"\x00" * 40)
    restarted = counter(checkpoints)
    load(restarted, log)
    assert restarted.take_events()[0].windows == log.expected()


def stored(checkpoints: PartitionCheckpoints) -> AuditEvent:
    found = checkpoints.read(CLICKS)
    assert found is not None
    return found


@pytest.fixture
def appending(checkpoints: PartitionCheckpoints, tmp_path: Path) -> Any:
    """A broker that told of two batches: the second is appended to the checkpoint."""
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    for shape in [(3, 0, 7), (2, WINDOW_MS, 8)]:
        broker.appended(CLICKS, log.append(shape))
        broker.published(broker.take_events())
    assert (tmp_path / str(CLICKS) / "audit-checkpoint").read_bytes().count(b"\n") == 2
    return log, broker


def test_a_counter_appends_changed_windows_and_resumes_from_its_checkpoint(
    appending: Any, checkpoints: PartitionCheckpoints
) -> None:
    log, _ = appending
    found = stored(checkpoints)
    assert (found.revision, found.windows) == (log.log_end_offset, log.expected())
    restarted = counter(checkpoints)
    log.headers = lambda _offset: pytest.fail("was read")
    load(restarted, log)
    (event,) = restarted.take_events()
    assert (event.claims, event.windows) == ((EpochClaim(0, 0),), log.expected())
    assert restarted.take_events() == []


def test_a_line_that_was_not_appended_to_its_end_is_not_there(
    appending: Any, checkpoints: PartitionCheckpoints, tmp_path: Path
) -> None:
    log, _ = appending
    path = tmp_path / str(CLICKS) / "audit-checkpoint"
    path.write_bytes(path.read_bytes()[:-1])
    assert stored(checkpoints).revision == 3
    restarted = counter(checkpoints)
    load(restarted, log)
    restarted.published(restarted.take_events())
    assert stored(checkpoints).windows == log.expected()


def test_a_checkpoint_is_written_whole_again_before_it_grows_long(
    appending: Any, checkpoints: PartitionCheckpoints, tmp_path: Path
) -> None:
    log, broker = appending
    path = tmp_path / str(CLICKS) / "audit-checkpoint"
    lines = []
    for number in range(2 * MAX_APPENDED):
        broker.appended(CLICKS, log.append((1, number % 3 * WINDOW_MS, number)))
        broker.published(broker.take_events())
        lines.append(path.read_bytes().count(b"\n"))
        assert stored(checkpoints).windows == log.expected()
    assert (min(lines), max(lines)) == (1, MAX_APPENDED + 1)


def test_the_whole_checkpoint_is_written_after_a_failure(
    appending: Any, checkpoints: PartitionCheckpoints, tmp_path: Path
) -> None:
    log, broker = appending
    path = tmp_path / str(CLICKS) / "audit-checkpoint"
    path.unlink()
    for shape in [(1, 0, 9), (1, 0, 10)]:
        broker.appended(CLICKS, log.append(shape))
        broker.published(broker.take_events())
    assert stored(checkpoints).windows == log.expected()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 3 * WINDOW_MS), st.integers(0, 2**32 - 1)),
        st.tuples(st.sampled_from(["publish", "lose", "kill after sending", "kill", "power failure"])),
    ),
    max_size=20,
)


@given(steps)
def test_whatever_happens_the_ledger_ends_exact(tmp_path_factory: pytest.TempPathFactory, history: Any) -> None:
    directory = tmp_path_factory.mktemp("log")
    (directory / str(CLICKS)).mkdir()
    checkpoints = PartitionCheckpoints([directory], DiskFiles())
    now_ms = itertools.count().__next__
    log, ledger, broker = Log(), Ledger(), counter(checkpoints, now_ms)
    load(broker, log)
    for kind, *shape in history:
        if kind == "append":
            broker.appended(CLICKS, log.append(tuple(shape)))
            continue
        events = broker.take_events() if kind != "kill" else []
        if kind in {"publish", "kill after sending", "power failure"}:
            for event in events:
                ledger.apply(event)
        if kind in {"publish", "power failure"}:
            broker.published(events)
        if kind == "lose":
            broker.put_back(events)
        if kind == "power failure":
            del log.batches[len(log.batches) // 2 :]
        if kind in {"kill", "kill after sending", "power failure"}:
            log.lead(log.leader_epoch + 1)
            broker = counter(checkpoints, now_ms)
            load(broker, log)
    for event in broker.take_events():
        ledger.apply(event)
    assert ledger_counts(ledger) == log.expected()
