"""Counting along: every batch once, through restarts, lost reports, logs that lost their end and new leaders."""

import itertools
import uuid
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audit.checkpoints import PartitionCheckpoints
from pipeline.audit.counters import FOLLOWER_TURNS, MAX_APPENDED, BrokerCounter, ProducerCounter
from pipeline.audit.ledger import Ledger
from pipeline.audit.message import Claim, Tier
from pipeline.audit.window import NOTHING, Counts, window_start
from pipeline.log.files import DiskFiles
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader

CLICKS = TopicPartition("clicks", 0)
INTERNAL = TopicPartition("_audit", 0)
WINDOW_MS = 600_000
FIRST_TOPIC_ID = uuid.UUID(int=1)


def header(base_offset, records=1, *, timestamp=0, crc=1, epoch=0):
    return BatchHeader(
        base_offset=base_offset,
        batch_length=88,
        partition_leader_epoch=epoch,
        magic=2,
        crc=crc,
        attributes=0,
        last_offset_delta=records - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=records,
    )


def summed(batches):
    windows = {}
    for one in batches:
        start = window_start(one.base_timestamp, WINDOW_MS)
        windows[start] = windows.get(start, NOTHING) + Counts.of(one)
    return windows


@dataclass(eq=False)
class Log:
    """A log as the broker shows it to its observer; alone it is all committed, and led."""

    topic_id: uuid.UUID = FIRST_TOPIC_ID
    batches: list = field(default_factory=list)
    log_start_offset: int = 0
    is_leader: bool = True
    leader_epoch: int = 0
    starts: dict = field(default_factory=lambda: {0: 0})
    committed: int | None = None
    topic_partition = CLICKS

    @property
    def log(self):
        return self

    @property
    def log_end_offset(self):
        return self.batches[-1].next_offset if self.batches else self.log_start_offset

    @property
    def high_watermark(self):
        return self.log_end_offset if self.committed is None else self.committed

    def lead(self, epoch):
        self.is_leader, self.leader_epoch = True, epoch
        self.starts[epoch] = self.log_end_offset

    def epoch_start(self, epoch):
        return self.starts.get(epoch)

    def append(self, *shapes):
        new = []
        for records, timestamp, crc in shapes:
            made = header(self.log_end_offset, records, timestamp=timestamp, crc=crc, epoch=self.leader_epoch)
            self.batches.append(made)
            new.append(made)
        return new

    def headers(self, offset):
        return iter([h for h in self.batches if h.next_offset > offset])

    def expected(self):
        return summed(self.batches)


@pytest.fixture
def checkpoints(tmp_path):
    (tmp_path / str(CLICKS)).mkdir()
    return PartitionCheckpoints([tmp_path], DiskFiles())


def counter(checkpoints, now_ms=lambda: 5):
    return BrokerCounter("east", WINDOW_MS, checkpoints, clock=now_ms)


def load(broker, log):
    broker.loaded(log)


def ledger_counts(ledger):
    found = ledger.counts("east", Tier.BROKER, CLICKS, WINDOW_MS)
    return {} if found is None else {start: report.counts for start, report in found.windows.items()}


def test_appended_batches_are_told_by_window(checkpoints):
    log, broker, ledger = Log(), counter(checkpoints), Ledger()
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 10, 7), (2, WINDOW_MS, 8)))
    (event,) = broker.take_events()
    ledger.apply(event)
    assert event.revision == 5
    assert ledger_counts(ledger) == log.expected() == {0: Counts(3, 100, 1, 7), WINDOW_MS: Counts(2, 100, 1, 8)}
    broker.published([event])
    assert broker.take_events() == []


def test_internal_topics_are_not_counted(checkpoints):
    broker = counter(checkpoints)
    log = Log(batches=[header(0)])
    log.topic_partition = INTERNAL
    broker.loaded(log)
    broker.appended(INTERNAL, [header(1)])
    broker.truncated(INTERNAL)
    broker.removed(INTERNAL)
    assert broker.take_events() == []


def test_what_could_not_be_published_is_told_again(checkpoints):
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 10, 7)))
    events = broker.take_events()
    assert broker.take_events() == []
    broker.put_back(events)
    assert broker.take_events() == events


def test_a_log_that_lost_its_end_is_counted_anew(checkpoints):
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


def test_a_log_that_lost_all_voids_what_was_told_of_it(checkpoints):
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


def test_a_log_that_lost_its_end_and_grew_again_is_not_taken_for_the_old_one(checkpoints):
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


def test_a_topic_created_again_is_counted_by_itself(checkpoints, tmp_path):
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


def test_a_damaged_checkpoint_only_costs_time(checkpoints, tmp_path):
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 0, 7)))
    broker.published(broker.take_events())
    (tmp_path / str(CLICKS) / "audit-checkpoint").write_bytes(b"\x00" * 40)
    restarted = counter(checkpoints)
    load(restarted, log)
    assert restarted.take_events()[0].windows == log.expected()


@pytest.fixture
def appending(checkpoints, tmp_path):
    """A broker that told of two batches: the second is appended to the checkpoint."""
    log, broker = Log(), counter(checkpoints)
    load(broker, log)
    for shape in [(3, 0, 7), (2, WINDOW_MS, 8)]:
        broker.appended(CLICKS, log.append(shape))
        broker.published(broker.take_events())
    assert (tmp_path / str(CLICKS) / "audit-checkpoint").read_bytes().count(b"\n") == 2
    return log, broker


def test_what_changed_is_appended_and_gone_on_from(appending, checkpoints):
    log, _ = appending
    found = checkpoints.read(CLICKS)
    assert (found.revision, found.windows) == (log.log_end_offset, log.expected())
    restarted = counter(checkpoints)
    log.headers = lambda _offset: pytest.fail("was read")
    load(restarted, log)
    (event,) = restarted.take_events()
    assert (event.claims, event.windows) == ((Claim(0, 0),), log.expected())
    assert restarted.take_events() == []


def test_a_line_that_was_not_appended_to_its_end_is_not_there(appending, checkpoints, tmp_path):
    log, _ = appending
    path = tmp_path / str(CLICKS) / "audit-checkpoint"
    path.write_bytes(path.read_bytes()[:-1])
    assert checkpoints.read(CLICKS).revision == 3
    restarted = counter(checkpoints)
    load(restarted, log)
    restarted.published(restarted.take_events())
    assert checkpoints.read(CLICKS).windows == log.expected()


def test_a_checkpoint_is_written_whole_again_before_it_grows_long(appending, checkpoints, tmp_path):
    log, broker = appending
    path = tmp_path / str(CLICKS) / "audit-checkpoint"
    lines = []
    for number in range(2 * MAX_APPENDED):
        broker.appended(CLICKS, log.append((1, number % 3 * WINDOW_MS, number)))
        broker.published(broker.take_events())
        lines.append(path.read_bytes().count(b"\n"))
        assert checkpoints.read(CLICKS).windows == log.expected()
    assert (min(lines), max(lines)) == (1, MAX_APPENDED + 1)


def test_after_a_failure_the_whole_checkpoint_is_written(appending, checkpoints, tmp_path):
    log, broker = appending
    path = tmp_path / str(CLICKS) / "audit-checkpoint"
    path.unlink()
    for shape in [(1, 0, 9), (1, 0, 10)]:
        broker.appended(CLICKS, log.append(shape))
        broker.published(broker.take_events())
    assert checkpoints.read(CLICKS).windows == log.expected()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 3 * WINDOW_MS), st.integers(0, 2**32 - 1)),
        st.tuples(st.sampled_from(["publish", "lose", "kill after sending", "kill", "power failure"])),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(steps)
def test_whatever_happens_the_ledger_ends_exact(tmp_path_factory, history):
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


def replica_of(leader, *, batches=None, start=0):
    """A follower that has copied so many batches, of which none is known to be committed yet."""
    copied = list(leader.batches[:batches])
    return Log(batches=copied, log_start_offset=start, is_leader=False, leader_epoch=leader.leader_epoch, committed=0)


def told(*events):
    ledger = Ledger()
    for event in events:
        ledger.apply(event)
    return ledger_counts(ledger)


def test_only_what_is_committed_is_told(checkpoints):
    log, broker = Log(committed=3), counter(checkpoints)
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 0, 7), (2, 0, 8)))
    assert told(*broker.take_events()) == {}
    broker.appended(CLICKS, log.append((1, 0, 9)))
    log.committed = 5
    (event,) = broker.take_events()
    assert (event.revision, told(event)) == (5, summed(log.batches[:2]))
    log.committed = 6
    assert told(event, *broker.take_events()) == log.expected()


def test_what_is_cut_off_before_it_was_committed_never_counts(checkpoints):
    log, broker = Log(is_leader=False, committed=0), counter(checkpoints)
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 0, 7), (2, 0, 8)))
    broker.take_events()
    broker.appended(CLICKS, log.append((2, 0, 9)))
    del log.batches[1:]
    broker.truncated(CLICKS)
    log.leader_epoch = 1
    broker.appended(CLICKS, log.append((1, 0, 10)))
    log.committed = log.log_end_offset
    log.lead(2)
    assert told(*broker.take_events()) == log.expected()


def test_a_follower_that_begins_elsewhere_forgets_what_it_never_knew_to_be_committed(checkpoints):
    log, broker = Log(is_leader=False, committed=0), counter(checkpoints)
    load(broker, log)
    broker.appended(CLICKS, log.append((3, 0, 7)))
    log.batches, log.log_start_offset = [], 10
    broker.truncated(CLICKS)
    broker.appended(CLICKS, log.append((1, 0, 10)))
    log.committed = log.log_end_offset
    log.lead(1)
    assert told(*broker.take_events()) == log.expected()


def test_a_follower_tells_seldom_and_a_new_leader_at_once(checkpoints):
    leader = Log()
    leader.append((3, 0, 7), (2, WINDOW_MS, 8))
    log, broker = replica_of(leader), counter(checkpoints)
    load(broker, log)
    log.committed = 5
    turns = [broker.take_events() for _ in range(FOLLOWER_TURNS)]
    assert [len(events) for events in turns] == [0] * (FOLLOWER_TURNS - 1) + [1]
    broker.published(turns[-1])
    log.lead(1)
    (event,) = broker.take_events()
    assert (event.claims, event.windows) == ((Claim(1, 5),), log.expected())
    broker.put_back([event])
    assert broker.take_events() == [event]


def test_what_a_dead_leader_told_and_what_it_did_not_counts_once(checkpoints, tmp_path):
    leader, first = Log(), counter(checkpoints)
    load(first, leader)
    first.appended(CLICKS, leader.append((3, 0, 7)))
    before = first.take_events()
    first.appended(CLICKS, leader.append((2, 0, 8), (1, WINDOW_MS, 9)))
    log, second = replica_of(leader), counter(checkpoints)
    load(second, log)
    log.lead(1)
    second.appended(CLICKS, log.append((1, 0, 10)))
    log.committed = log.log_end_offset
    late = first.take_events()
    assert told(*before, *second.take_events(), *late, *before) == log.expected()


def test_an_unclean_election_takes_back_what_was_told_beyond_it(checkpoints):
    leader, first = Log(), counter(checkpoints)
    load(first, leader)
    first.appended(CLICKS, leader.append((3, 0, 7), (2, 0, 8), (1, WINDOW_MS, 9)))
    before = first.take_events()
    log, second = replica_of(leader, batches=1), counter(checkpoints)
    load(second, log)
    log.committed = log.log_end_offset
    log.lead(1)
    after = second.take_events()
    assert told(*before, *after) == told(*after, *before) == log.expected()
    del leader.batches[1:]
    first.truncated(CLICKS)
    leader.is_leader, leader.leader_epoch = False, 1
    leader.lead(2)
    assert told(*before, *after, *first.take_events()) == log.expected()


def test_a_replica_without_the_beginning_takes_nothing_back(checkpoints):
    leader, first = Log(), counter(checkpoints)
    load(first, leader)
    first.appended(CLICKS, leader.append((3, 0, 7), (2, 0, 8)))
    before = first.take_events()
    log, second = replica_of(leader, start=3), counter(checkpoints)
    del log.batches[0]
    load(second, log)
    log.committed = log.log_end_offset
    log.lead(1)
    second.appended(CLICKS, log.append((1, WINDOW_MS, 9)))
    log.committed = log.log_end_offset
    assert told(*before, *second.take_events()) == summed([*leader.batches, log.batches[-1]])


class Cluster:
    """Three replicas of a partition, each with its broker's counter."""

    def __init__(self, directory):
        self.ledger, self.epoch = Ledger(), 0
        self.logs = [Log(is_leader=number == 0, committed=0) for number in range(3)]
        self.stores, self.brokers = [], []
        for number, log in enumerate(self.logs):
            (directory / str(number) / str(CLICKS)).mkdir(parents=True)
            self.stores.append(PartitionCheckpoints([directory / str(number)], DiskFiles()))
            self.brokers.append(counter(self.stores[number]))
            load(self.brokers[number], log)
        self.leader = 0

    def append(self, shape):
        self.brokers[self.leader].appended(CLICKS, self.logs[self.leader].append(shape))

    def follow(self, number):
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
        self.brokers[number].appended(CLICKS, leader.batches[shared:])
        log.committed = min(leader.committed, log.log_end_offset)

    def commit(self):
        """All follow, and the high watermark passes what they have."""
        for number in range(3):
            self.follow(number)
        self.logs[self.leader].committed = self.logs[self.leader].log_end_offset

    def fail_over(self, number):
        """The leader dies and comes back as a follower; one that has all that is committed leads."""
        known = self.logs[self.leader].committed
        if self.logs[number].log_end_offset < known:
            return
        self.restart(self.leader)
        self.logs[self.leader].is_leader = False
        self.leader, self.epoch = number, self.epoch + 1
        self.logs[number].lead(self.epoch)

    def restart(self, number):
        self.brokers[number] = counter(self.stores[number])
        load(self.brokers[number], self.logs[number])

    def tell(self, number, *, is_published=True):
        events = self.brokers[number].take_events()
        for event in events:
            self.ledger.apply(event)
        if is_published:
            self.brokers[number].published(events)


cluster_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.tuples(st.integers(1, 5), st.integers(0, 3 * WINDOW_MS), st.integers(0, 99))),
        st.tuples(st.sampled_from(["follow", "fail_over", "restart", "tell"]), st.integers(0, 2)),
        st.tuples(st.just("commit")),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(cluster_steps)
def test_whoever_leads_and_dies_the_ledger_ends_with_what_is_committed(tmp_path_factory, history):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    for kind, *arguments in history:
        getattr(cluster, kind)(*arguments)
    cluster.commit()
    cluster.tell(cluster.leader)
    assert ledger_counts(cluster.ledger) == cluster.logs[cluster.leader].expected()


def test_producers_tell_what_was_acknowledged_and_nothing_twice():
    producer, ledger = ProducerCounter("east", "one", WINDOW_MS, clock=lambda: 5), Ledger()
    other = ProducerCounter("east", "two", WINDOW_MS, clock=lambda: 5)
    producer.delivered(CLICKS, header(0, 3, crc=7))
    producer.delivered(INTERNAL, header(0, 3))
    first = producer.take_events()
    producer.delivered(CLICKS, header(3, 2, crc=8))
    second = producer.take_events()
    other.delivered(CLICKS, header(5, 1, crc=9))
    for event in [*second, *first, *other.take_events(), *second]:
        ledger.apply(event)
    found = ledger.counts("east", Tier.PRODUCER, CLICKS, WINDOW_MS)
    assert {start: report.counts for start, report in found.windows.items()} == {0: Counts(6, 300, 3, 24)}
    producer.put_back([replace(second[0])])
    assert producer.take_events()[0].windows == second[0].windows
