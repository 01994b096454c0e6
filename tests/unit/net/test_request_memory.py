import random
import weakref

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.net.request_memory import (
    CHECK_S,
    MAX_WAIT_S,
    MIN_BYTES_PER_CHECK,
    Claim,
    ClaimState,
    RequestMemory,
    share,
)


def test_memory_is_granted_at_once_while_it_fits_and_released() -> None:
    memory, claim = RequestMemory(100), Claim()
    assert memory.take(claim, 60, 0) == (claim,)
    assert memory.take(claim, 40, 0) == (claim,)
    assert memory.held == claim.held == 100
    memory.complete(claim)
    assert memory.release(claim) == []
    assert memory.held == claim.held == 0 and claim.state is ClaimState.IDLE


def test_the_request_that_began_first_gets_memory_first() -> None:
    memory = RequestMemory(100)
    eldest, first, second, third = Claim(), Claim(), Claim(), Claim()
    for claim, size in ((eldest, 10), (first, 50), (second, 40)):
        memory.take(claim, size, 0)
    assert memory.take(third, 10, 0) == []
    memory.complete(first)
    assert memory.take(second, 60, 0) == []
    assert memory.release(first) == [], "the third would fit, but the second is older"
    assert memory.release(eldest) == [second]
    assert memory.release(second) == [third]


def test_memory_that_an_older_request_will_need_is_reserved() -> None:
    memory = RequestMemory(100)
    first, second = Claim(), Claim()
    memory.take(first, 20, 0, whole=70)
    assert memory.take(second, 30, 0, whole=80) == (second,)
    assert memory.take(second, 1, 0) == [], "the first, that has still to come, would not fit"
    assert memory.take(first, 50, 0) == (first,)
    memory.complete(first)
    assert memory.release(first) == [second]
    assert memory.take(second, 49, 0) == (second,)
    assert memory.held == 80


def test_a_single_request_may_be_larger_than_the_memory() -> None:
    memory = RequestMemory(100)
    first, second = Claim(), Claim()
    memory.take(first, 60, 0, whole=150)
    assert memory.take(second, 10, 0) == []
    assert memory.take(first, 90, 0) == (first,)
    assert memory.release(first) == [second]


def test_each_kind_of_request_has_its_minimum_and_the_rest_that_others_leave() -> None:
    one, other = RequestMemory(90, 20), RequestMemory(80, 10)
    share((one, other))
    large, small, late, younger = Claim(), Claim(), Claim(), Claim()
    assert one.take(large, 90, 0) == (large,)
    assert other.take(small, 10, 0, whole=30) == (small,)
    assert other.take(small, 20, 0) == [], "beyond the least, and there is no more"
    assert one.take(late, 20, 0) == []
    assert one.release(large) == [late, small]
    assert (one.held, other.held) == (20, 30)
    assert other.take(large, 60, 0) == []
    assert one.take(younger, 20, 0) == [], "one of the other kind waits for longer"
    assert other.release(small) == [large, younger]


def test_requests_are_not_bounded_without_a_capacity() -> None:
    memory, claim = RequestMemory(None), Claim()
    assert memory.take(claim, 2**40, 0) == (claim,)
    assert memory.overdue(1000) == ()


def test_slow_and_overdue_requests_are_ended_while_others_wait() -> None:
    memory = RequestMemory(100)
    slow, quick, late = Claim(), Claim(), Claim()
    memory.take(slow, 50, 0)
    memory.take(quick, 50, 0)
    assert memory.overdue(0) == () and memory.overdue(CHECK_S) == (), "nobody waits"
    memory.take(late, 50, CHECK_S)
    assert memory.overdue(2 * CHECK_S) == [], "first seen now"
    slow.moved_bytes += MIN_BYTES_PER_CHECK - 1
    quick.moved_bytes += MIN_BYTES_PER_CHECK
    assert memory.overdue(3 * CHECK_S) == [slow]
    assert memory.release(slow) == [late]

    memory.take(slow, 50, 0)
    memory.complete(quick)
    memory.complete(late)
    assert memory.overdue(MAX_WAIT_S) == []
    assert memory.overdue(MAX_WAIT_S + 1) == [slow], "what is being handled is not hurried"


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 12))
def test_every_request_is_served_in_the_end_within_the_bound(seed: int, count: int) -> None:
    """Requests of any size up to their capacity, of three kinds, that take memory by doubling, in any order."""
    order, capacity, leasts = random.Random(seed), 1000, (100, 0, 60)
    kinds = [RequestMemory(capacity - sum(leasts) + least, least) for least in leasts]
    share(kinds)
    sizes: dict[Claim, tuple[RequestMemory, int]] = {}
    for _ in range(count):
        kind = order.choice(kinds)
        sizes[Claim()] = kind, order.randint(1, kind.capacity or 0)
    while sizes:
        movable = [claim for claim in sizes if claim.state is not ClaimState.WAITING]
        assert movable, "all wait"
        claim = order.choice(movable)
        memory, size = sizes[claim]
        if claim.state is ClaimState.COMPLETE or order.random() < 0.05:
            memory.release(claim)
            del sizes[claim]
        elif claim.held == size:
            memory.complete(claim)
        else:
            memory.take(claim, min(max(claim.held, 10), size - claim.held), 0, size)
        assert sum(kind.held for kind in kinds) == sum(claim.held for claim in sizes) <= capacity
        assert sum(kind.waiting for kind in kinds) == sum(claim.state is ClaimState.WAITING for claim in sizes)
    assert all(kind.held == 0 for kind in kinds)


def test_a_released_claim_does_not_keep_its_connection() -> None:
    class Connection:
        def end(self, reason: str) -> None: ...

        def go_on(self) -> None: ...

    connection, memory = Connection(), RequestMemory(100)
    claim = Claim(connection.end, connection.go_on)
    memory.take(claim, 60, 0.0)
    owner = weakref.ref(connection)
    memory.release(claim)
    del connection
    assert owner() is None
