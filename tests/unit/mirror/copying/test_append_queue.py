"""Appends to the hub: which pieces they hold, in which order, and what a slow leader holds up."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.mirror.copying.append_queue import MAX_JOINED_BYTES, REQUESTS_OF_A_LEADER, AppendQueue, Piece
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.schema import ZERO_UUID

MAX_BYTES = 4 * MAX_JOINED_BYTES
BIG = MAX_JOINED_BYTES


def copies_of(count: int) -> list[PartitionCopy]:
    found = []
    for number in range(count):
        partition = TopicPartition("t", number)
        source = SourcePartition(cluster="east", partition=partition, topic_id=ZERO_UUID)
        found.append(PartitionCopy(Assignment(source=source, replica=partition), position=0))
    return found


def piece(copy: PartitionCopy, position: int, size: int, epoch: int = 0) -> Piece:
    batches = FetchedBatches(
        topic_partition=copy.source,
        data=memoryview(bytes([position % 256]) * size),
        position=position,
        next_offset=position + 1,
        high_watermark=0,
        log_start_offset=0,
        leader_epochs=((epoch, position),),
    )
    return Piece(copy, copy.fetch, batches)


def queue_by(leaders: int = 1) -> AppendQueue:
    return AppendQueue(lambda partition: BrokerId(partition.partition % leaders))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5 * MAX_JOINED_BYTES)), max_size=12), st.integers(1, 3))
def test_pieces_go_once_in_order_and_in_bounded_requests(drawn: Any, leaders: int) -> None:
    copies, queue = copies_of(4), queue_by(leaders)
    ends = [0] * 4
    for number, size in drawn:
        queue.add(piece(copies[number], ends[number], size))
        ends[number] += 1
    under_way = queue.begin(MAX_BYTES)
    while under_way:
        planned = under_way.pop(0)
        sizes = [len(each.batches.data) for each in planned.pieces]
        assert len(sizes) == 1 or sum(sizes) <= MAX_BYTES
        for each in planned.pieces:
            assert each.is_due
            assert planned.leader == each.copy.source.partition % leaders
            each.copy.position = each.batches.next_offset
        queue.end(planned)
        under_way += queue.begin(MAX_BYTES)
        assert sum(other.leader == planned.leader for other in under_way) <= REQUESTS_OF_A_LEADER
    assert [copy.position for copy in copies] == ends
    assert queue.size_bytes == 0
    assert not any(queue.holds(copy.source) for copy in copies)


def test_small_pieces_that_follow_each_other_are_joined() -> None:
    (copy,), queue = copies_of(1), queue_by()
    for position, epoch in enumerate((5, 5, 6)):
        queue.add(piece(copy, position, 10, epoch))
    queue.add(piece(copy, 3, BIG))
    ((joined,),) = (planned.pieces for planned in queue.begin(MAX_BYTES))
    assert bytes(joined.batches.data) == bytes([0] * 10 + [1] * 10 + [2] * 10)
    assert (joined.batches.position, joined.batches.next_offset) == (0, 3)
    assert joined.batches.leader_epochs == ((5, 0), (6, 2))
    assert queue.begin(MAX_BYTES) == []  # the rest waits until this is appended


def test_a_partition_whose_append_failed_holds_up_no_other_one() -> None:
    (failed, other), queue = copies_of(2), queue_by()
    for copy in (failed, other):
        queue.add(piece(copy, 0, BIG))
        queue.add(piece(copy, 1, BIG))
    (planned,) = queue.begin(MAX_BYTES)
    failed.position, other.position = None, 1
    queue.end(planned)
    (planned,) = queue.begin(MAX_BYTES)
    assert [each.copy for each in planned.pieces] == [other]
    assert not queue.holds(failed.source)


def test_what_was_fetched_before_a_new_location_is_void_even_at_the_same_offset() -> None:
    (copy,), queue = copies_of(1), queue_by()
    queue.add(piece(copy, 0, 10))
    copy.fetch += 1
    assert queue.begin(MAX_BYTES) == []
    assert queue.size_bytes == 0


def test_what_was_fetched_since_a_new_location_goes_even_behind_older_pieces() -> None:
    (copy, rejected), queue = copies_of(2), queue_by()
    for each in (copy, rejected):
        queue.add(piece(each, 0, 10))
    copy.fetch += 1
    rejected.is_rejected, rejected.position = True, None
    renewed = PartitionCopy(rejected.assignment, position=0)
    for each in (copy, renewed):
        queue.add(piece(each, 0, 10))
    (planned,) = queue.begin(MAX_BYTES)
    assert [each.copy for each in planned.pieces] == [copy, renewed]
    queue.end(planned)
    assert queue.size_bytes == 0


def test_a_leader_that_does_not_answer_holds_up_its_own_partitions_alone() -> None:
    (slow, quick, later), queue = copies_of(3), queue_by(leaders=2)
    queue.add(piece(slow, 0, BIG))
    queue.add(piece(quick, 0, BIG))
    assert sorted(planned.leader or 0 for planned in queue.begin(MAX_BYTES)) == [0, 1]
    assert slow.is_appending and quick.is_appending
    queue.add(piece(slow, 1, BIG))
    queue.add(piece(later, 0, BIG))
    assert [planned.leader for planned in queue.begin(MAX_BYTES)] == [0]  # the second one under way
    assert queue.waiting_for(BrokerId(0)) == [slow]
    queue.drop([slow.source])
    assert queue.size_bytes == 3 * BIG


def test_partitions_with_few_bytes_come_first() -> None:
    (backlog, live), queue = copies_of(2), queue_by()
    for position in range(8):
        queue.add(piece(backlog, position, MAX_BYTES))
    queue.add(piece(live, 0, 10))
    first, second = queue.begin(MAX_BYTES)
    assert [each.copy for each in first.pieces] == [live]
    assert [each.copy for each in second.pieces] == [backlog]
