"""What goes into one append to the destination."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.mirror.copying.copier import requests_of
from pipeline.model import TopicPartition

MAX_BYTES = 100


def piece(partition: int, size: int, number: int) -> FetchedBatches:
    return FetchedBatches(
        topic_partition=TopicPartition("t", partition),
        data=memoryview(bytes(size)),
        position=number,
        next_offset=number + 1,
        high_watermark=0,
        log_start_offset=0,
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 150))))
def test_pieces_go_once_in_order_and_in_bounded_requests(drawn: Any) -> None:
    polled = [piece(partition, size, number) for number, (partition, size) in enumerate(drawn)]
    requests = requests_of(polled, MAX_BYTES)
    for partition in range(4):
        name = TopicPartition("t", partition)
        expected = [batches.position for batches in polled if batches.topic_partition == name]
        assert [request[name].position for request in requests if name in request] == expected
    for request in requests:
        assert len(request) == 1 or sum(len(batches.data) for batches in request.values()) <= MAX_BYTES


def test_pieces_that_fit_go_in_one_request() -> None:
    (request,) = requests_of([piece(0, 30, 0), piece(1, 30, 1), piece(2, 30, 2)], MAX_BYTES)
    assert len(request) == 3
