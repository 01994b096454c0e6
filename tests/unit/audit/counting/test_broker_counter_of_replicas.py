"""Counting along on every replica: what is committed counts once, whoever leads."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audit.counting import broker_counter, replica_sums
from pipeline.audit.counting.broker_counter import FOLLOWER_ROUNDS
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.windows import HOURS_KEPT
from pipeline.audit.events.report import CountReport, RowClaim
from pipeline.log.files import DiskFiles
from pipeline.records.tally import HOUR_MS
from tests.support.counted_replicas import (
    CLICKS,
    WINDOW_MS,
    Log,
    counter,
    held,
    hours_of,
    load,
    only,
    rows_of,
    summed,
    tell,
    told,
    with_rows,
)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Any:
    (tmp_path / str(CLICKS)).mkdir()
    return PartitionCheckpoints([tmp_path], DiskFiles())


def replica_of(leader: Any, *, batches: Any = None, start: int = 0) -> Any:
    """A follower that has copied so many batches, of which none is known to be committed yet."""
    copied = list(leader.batches[:batches])
    return Log(batches=copied, log_start_offset=start, is_leader=False, leader_epoch=leader.leader_epoch, committed=0)


def test_only_committed_batches_are_reported(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(committed=2), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 0, 7), (2, 0, 8)))
    assert told(*broker.take_reports()) == {}
    tell(broker, CLICKS, log.append((1, 0, 9)))
    log.committed = 5
    report = only(broker.take_reports())
    assert (set(report.rows["revision"].tolist()), told(report)) == ({5}, summed(log.batches[:2]))
    log.committed = 6
    assert told(report, *broker.take_reports()) == log.expected()


def test_batches_truncated_before_their_commit_never_count(checkpoints: PartitionCheckpoints) -> None:
    log, broker = Log(is_leader=False, committed=0), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 0, 7), (2, 0, 8)))
    broker.take_reports()
    tell(broker, CLICKS, log.append((2, 0, 9)))
    del log.batches[1:]
    broker.truncated(CLICKS)
    log.leader_epoch = 1
    tell(broker, CLICKS, log.append((1, 0, 10)))
    log.committed = log.log_end_offset
    log.lead(2)
    assert told(*broker.take_reports()) == log.expected()


def test_a_follower_that_begins_elsewhere_forgets_what_it_never_knew_to_be_committed(
    checkpoints: PartitionCheckpoints,
) -> None:
    log, broker = Log(is_leader=False, committed=0), counter(checkpoints)
    load(broker, log)
    tell(broker, CLICKS, log.append((3, 0, 7)))
    log.batches, log.log_start_offset = [], 10
    broker.truncated(CLICKS)
    tell(broker, CLICKS, log.append((1, 0, 10)))
    log.committed = log.log_end_offset
    log.lead(1)
    assert told(*broker.take_reports()) == log.expected()


def test_a_follower_tells_seldom_and_a_new_leader_at_once(checkpoints: PartitionCheckpoints) -> None:
    leader = Log()
    leader.append((3, 0, 7), (2, WINDOW_MS, 8))
    log, broker = replica_of(leader), counter(checkpoints)
    load(broker, log)
    log.committed = 5
    rounds = [broker.take_reports() for _ in range(FOLLOWER_ROUNDS)]
    assert [len(with_rows(reports)) for reports in rounds] == [0] * (FOLLOWER_ROUNDS - 1) + [1]
    broker.published(rounds[-1])
    log.lead(1)
    reports = broker.take_reports()
    assert (only(reports).claims, rows_of(only(reports).rows)) == ((RowClaim(0, 0, 1, 5),), log.expected())
    broker.put_back(reports)
    again = only(broker.take_reports())
    assert (again.claims, rows_of(again.rows)) == ((RowClaim(0, 0, 1, 5),), log.expected())


def test_reported_and_unreported_batches_of_a_dead_leader_count_once(
    checkpoints: PartitionCheckpoints, tmp_path: Path
) -> None:
    leader, first = Log(), counter(checkpoints)
    load(first, leader)
    tell(first, CLICKS, leader.append((3, 0, 7)))
    before = first.take_reports()
    tell(first, CLICKS, leader.append((2, 0, 8), (1, WINDOW_MS, 9)))
    log, second = replica_of(leader), counter(checkpoints)
    load(second, log)
    log.lead(1)
    tell(second, CLICKS, log.append((1, 0, 10)))
    log.committed = log.log_end_offset
    late = first.take_reports()
    assert told(*before, *second.take_reports(), *late, *before) == log.expected()


def test_an_unclean_election_takes_back_what_was_told_beyond_it(checkpoints: PartitionCheckpoints) -> None:
    leader, first = Log(), counter(checkpoints)
    load(first, leader)
    tell(first, CLICKS, leader.append((3, 0, 7), (2, 0, 8), (1, WINDOW_MS, 9)))
    before = first.take_reports()
    log, second = replica_of(leader, batches=1), counter(checkpoints)
    load(second, log)
    log.committed = log.log_end_offset
    log.lead(1)
    after = second.take_reports()
    assert told(*before, *after) == told(*after, *before) == log.expected()
    del leader.batches[1:]
    first.truncated(CLICKS)
    leader.is_leader, leader.leader_epoch = False, 1
    leader.lead(2)
    assert told(*before, *after, *first.take_reports()) == log.expected()


def test_a_leader_that_died_without_a_report_is_claimed_for_with_all_rows(checkpoints: PartitionCheckpoints) -> None:
    """Its election was unclean, and its follower leads before it knows the first commit of that epoch."""
    leader, first = Log(), counter(checkpoints)
    load(first, leader)
    tell(first, CLICKS, leader.append((3, 0, 7), (2, 0, 8), (1, 0, 9)))
    before = first.take_reports()
    log, second = replica_of(leader, batches=2), counter(checkpoints)
    log.lead(1)
    log.append((1, HOUR_MS, 10))
    log.committed = 5
    log.lead(2)
    load(second, log)
    early = second.take_reports()
    tell(second, CLICKS, log.append((1, HOUR_MS, 11)))
    log.committed = log.log_end_offset
    late = second.take_reports()
    assert held(*before, *early, *late) == hours_of(log.expected())


def test_an_unclean_election_takes_nothing_back_of_the_many_hours_that_it_did_not_touch(
    checkpoints: PartitionCheckpoints,
) -> None:
    """Each row says how far all was counted: so all rows of the dead leader are void, also those of old hours."""
    leader, first = Log(), counter(checkpoints)
    load(first, leader)
    log, second = replica_of(leader), counter(checkpoints)
    load(second, log)
    kept = leader.append(*((2, number * HOUR_MS, number) for number in range(HOURS_KEPT)))
    tell(first, CLICKS, kept)
    log.batches += kept
    tell(second, CLICKS, kept)
    log.committed = log.log_end_offset
    followed = [report for _ in range(FOLLOWER_ROUNDS) for report in second.take_reports()]
    second.published(followed)
    tell(first, CLICKS, leader.append((1, HOUR_MS, 77)))  # late, and lost
    before = first.take_reports()
    log.lead(1)
    after = second.take_reports()
    assert with_rows(followed) and with_rows(before)
    for reports in ([followed, before, after], [before, after, followed], [after, followed, before]):
        assert told(*itertools.chain(*reports)) == log.expected()
        assert held(*itertools.chain(*reports)) == hours_of(log.expected())


def test_a_replica_without_the_beginning_takes_nothing_back(checkpoints: PartitionCheckpoints) -> None:
    leader, first = Log(), counter(checkpoints)
    load(first, leader)
    tell(first, CLICKS, leader.append((3, 0, 7), (2, 0, 8)))
    before = first.take_reports()
    log, second = replica_of(leader, start=3), counter(checkpoints)
    del log.batches[0]
    load(second, log)
    log.committed = log.log_end_offset
    log.lead(1)
    tell(second, CLICKS, log.append((1, HOUR_MS, 9)))
    log.committed = log.log_end_offset
    after = second.take_reports()
    assert only(after).positions["counted_from"].tolist() == [3]
    assert told(*before, *after) == summed([*leader.batches, log.batches[-1]])


class Cluster:
    """Three replicas of a partition, each with its broker's counter."""

    def __init__(self, directory: Any) -> None:
        self.sent: list[Any] = []
        self.epoch = 0
        self.logs = [Log(is_leader=number == 0, committed=0) for number in range(3)]
        self.stores, self.brokers = [], []
        for number, log in enumerate(self.logs):
            (directory / str(number) / str(CLICKS)).mkdir(parents=True)
            self.stores.append(PartitionCheckpoints([directory / str(number)], DiskFiles()))
            self.brokers.append(counter(self.stores[number]))
            load(self.brokers[number], log)
        self.leader = 0

    def append(self, shape: Any) -> None:
        tell(self.brokers[self.leader], CLICKS, self.logs[self.leader].append(shape))

    def follow(self, number: Any) -> None:
        """One follower catches up: its tail of another epoch goes, then it copies all there is."""
        leader, log = self.logs[self.leader], self.logs[number]
        shared = sum(1 for mine, theirs in zip(log.batches, leader.batches, strict=False) if mine == theirs)
        if number == self.leader:
            return
        if shared < len(log.batches):
            del log.batches[shared:]
            self.brokers[number].truncated(CLICKS)
        log.batches += leader.batches[shared:]
        log.leader_epoch = leader.leader_epoch
        tell(self.brokers[number], CLICKS, leader.batches[shared:])
        log.committed = min(leader.committed, log.log_end_offset)

    def commit(self) -> None:
        """All follow, and the high watermark passes what they have."""
        for number in range(3):
            self.follow(number)
        self.logs[self.leader].committed = self.logs[self.leader].log_end_offset

    def fail_over(self, number: Any) -> None:
        """The leader dies and comes back as a follower; one that has all that is committed leads."""
        known = self.logs[self.leader].committed
        if self.logs[number].log_end_offset < known:
            return
        self.restart(self.leader)
        self.logs[self.leader].is_leader = False
        self.leader, self.epoch = number, self.epoch + 1
        self.logs[number].lead(self.epoch)

    def elect_uncleanly(self, number: Any) -> None:
        """The leader dies, and a replica leads that may lack what was committed. All others are truncated to it."""
        if number == self.leader:
            return
        self.restart(self.leader)
        self.logs[self.leader].is_leader = False
        self.leader, self.epoch = number, self.epoch + 1
        leader = self.logs[number]
        leader.lead(self.epoch)
        leader.committed = leader.log_end_offset
        for other in range(3):
            self.logs[other].committed = min(self.logs[other].committed or 0, self._shared_end(other))
            self.follow(other)

    def _shared_end(self, number: int) -> int:
        """Where a replica goes on from the leader's log, and its high watermark falls to if it is higher."""
        pairs = zip(self.logs[number].batches, self.logs[self.leader].batches, strict=False)
        return int(max([0, *(mine.next_offset for mine, theirs in pairs if mine == theirs)]))

    def restart(self, number: Any) -> None:
        self.brokers[number] = counter(self.stores[number])
        load(self.brokers[number], self.logs[number])

    def tell(self, number: Any, ends: str = "published") -> None:
        """A broker reports: all arrives and is checkpointed, or it is killed before that, or nothing arrives."""
        reports = self.brokers[number].take_reports()
        if ends != "lost":
            self.sent += reports
        if ends == "published":
            self.brokers[number].published(reports)
        elif ends == "lost":
            self.brokers[number].put_back(reports)
        else:
            self.restart(number)


cluster_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.tuples(st.integers(1, 5), st.integers(0, 3 * WINDOW_MS), st.integers(0, 99))),
        st.tuples(st.sampled_from(["follow", "fail_over", "restart", "tell"]), st.integers(0, 2)),
        st.tuples(st.just("tell"), st.integers(0, 2), st.sampled_from(["killed", "lost"])),
        st.tuples(st.just("commit")),
    ),
    max_size=30,
)


@pytest.mark.long
@settings(max_examples=80)
@given(cluster_steps, st.integers(1, 6), st.integers(0, 6), st.integers(1, 3))
def test_the_reports_end_with_the_committed_batches_whichever_leaders_die(
    tmp_path_factory: pytest.TempPathFactory, history: Any, max_fresh: int, max_waiting: int, max_pending: int
) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(broker_counter, "MAX_FRESH", max_fresh)
        monkeypatch.setattr(replica_sums, "MAX_WAITING", max_waiting)
        monkeypatch.setattr(replica_sums, "MAX_PENDING", max_pending)
        for kind, *arguments in history:
            getattr(cluster, kind)(*arguments)
        cluster.commit()
        cluster.tell(cluster.leader)
    assert told(*cluster.sent) == cluster.logs[cluster.leader].expected()
    for broker in cluster.brokers:
        sums = broker._sums
        waiting = [table for replica in broker._replicas.values() for table in replica.waiting]
        assert sums._waiting == sum(map(len, waiting))
        assert len(sums._pending.rows()) <= len(broker._replicas) * max_pending * 6


def _interleaved(reports: Sequence[CountReport], order: Random) -> list[CountReport]:
    """Return reports in another order, some of them twice: any."""
    return order.sample([*reports, *reports], len(reports) * 2)


@pytest.mark.long
@settings(max_examples=80)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("append"),
                st.tuples(
                    st.integers(1, 5),
                    st.one_of(st.integers(0, 3 * WINDOW_MS), st.integers(0, 20).map(lambda hour: hour * HOUR_MS)),
                    st.integers(0, 99),
                ),
            ),
            st.tuples(
                st.sampled_from(["follow", "elect_uncleanly", "fail_over", "restart", "tell"]), st.integers(0, 2)
            ),
            st.tuples(st.just("commit")),
        ),
        max_size=30,
    ),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_unclean_elections_take_back_what_they_lost_and_no_more(
    tmp_path_factory: pytest.TempPathFactory, history: Any, max_fresh: int, order: Random
) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(broker_counter, "MAX_FRESH", max_fresh)
        for kind, *arguments in history:
            getattr(cluster, kind)(*arguments)
        cluster.commit()
        cluster.tell(cluster.leader)
    expected = cluster.logs[cluster.leader].expected()
    assert told(*cluster.sent) == expected
    assert held(*cluster.sent) == hours_of(expected)
    assert held(*_interleaved(cluster.sent, order)) == hours_of(expected)


@pytest.mark.long
def test_each_step_may_be_followed_by_another_leader(tmp_path: Path) -> None:
    """Leaders change after every append, copy, commit and report, in turn and in any of these orders."""
    moves: list[Any] = [("append", (2, 0, 7)), ("follow", 0), ("follow", 1), ("follow", 2), ("commit",), ("tell",)]
    for number, order in enumerate(itertools.permutations(moves, 3)):
        cluster = Cluster(tmp_path / str(number))
        for step, (kind, *arguments) in enumerate([move for move in order for _ in range(2)]):
            given_arguments = [cluster.leader] if kind == "tell" else arguments
            getattr(cluster, kind)(*given_arguments)
            cluster.fail_over((cluster.leader + 1 + step % 2) % 3)
        cluster.commit()
        cluster.tell(cluster.leader)
        assert told(*cluster.sent) == cluster.logs[cluster.leader].expected(), order


def test_a_leader_that_leads_no_more_says_so_with_the_next_report(checkpoints: PartitionCheckpoints) -> None:
    """Its life signs would vouch for what the next leader appends."""
    log, broker = Log(), counter(checkpoints)
    log.append((3, 0, 7))
    load(broker, log)
    assert only(broker.take_reports()).positions["is_leader"].tolist() == [True]
    log.is_leader = False
    reports = broker.take_reports()
    assert only(reports).positions["is_leader"].tolist() == [False]
    broker.put_back(reports)
    assert only(broker.take_reports()).positions["is_leader"].tolist() == [False]
    assert len(with_rows(broker.take_reports())) == 0


def test_a_broker_that_stops_reports_all_replicas_and_its_end(checkpoints: PartitionCheckpoints) -> None:
    leader = Log()
    leader.append((3, 0, 7))
    log, broker = replica_of(leader), counter(checkpoints)
    load(broker, log)
    log.committed = 3
    before = broker.take_reports()
    assert (len(with_rows(before)), [each.life.is_ended for each in before if each.life]) == (0, [False])
    broker.end()
    reports = broker.take_reports()
    assert rows_of(only(reports).rows) == log.expected()
    assert [each.life.is_ended for each in reports if each.life] == [True]
