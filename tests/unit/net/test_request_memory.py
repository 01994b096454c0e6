import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.net.request_memory import (
    CHECK_S,
    MAX_WAIT_S,
    MIN_BYTES_PER_CHECK,
    Claim,
    ClaimState,
    RequestMemory,
)


def test_what_fits_is_given_at_once_and_given_back() -> None:
    memory, claim = RequestMemory(100), Claim()
    assert memory.take(claim, 60, 0) == (claim,)
    assert memory.take(claim, 40, 0) == (claim,)
    assert memory.held == claim.held == 100
    memory.complete(claim)
    assert memory.release(claim) == []
    assert memory.held == claim.held == 0 and claim.state is ClaimState.IDLE


def test_who_began_first_goes_first() -> None:
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


def test_the_oldest_goes_on_when_all_wait() -> None:
    memory = RequestMemory(100)
    first, second = Claim(), Claim()
    memory.take(first, 50, 0)
    memory.take(second, 50, 0)
    assert memory.take(second, 50, 0) == []
    assert memory.take(first, 50, 0) == [first]
    assert memory.held == 150
    assert memory.take(first, 100, 0) == [first]
    memory.complete(first)
    assert memory.release(first) == [second]
    assert memory.held == 100


def test_nothing_is_bounded_without_a_capacity() -> None:
    memory, claim = RequestMemory(None), Claim()
    assert memory.take(claim, 2**40, 0) == (claim,)
    assert memory.overdue(1000) == ()


def test_who_is_slow_or_waits_too_long_is_ended_while_somebody_waits() -> None:
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
def test_all_are_served_in_the_end_and_the_bound_is_exceeded_by_one_request_at_most(seed: int, count: int) -> None:
    """Requests of any size up to the capacity, that take their memory by doubling, in any order of events."""
    order, capacity = random.Random(seed), 1000
    memory = RequestMemory(capacity)
    sizes = {Claim(): order.randint(1, capacity) for _ in range(count)}
    handled = 0
    while sizes:
        movable = [claim for claim in sizes if claim.state is not ClaimState.WAITING]
        assert movable, "all wait"
        claim = order.choice(movable)
        if claim.state is ClaimState.COMPLETE:
            memory.release(claim)
            del sizes[claim]
            handled += 1
        elif claim.held == sizes[claim]:
            memory.complete(claim)
        elif order.random() < 0.05:
            memory.release(claim)
            del sizes[claim]
        else:
            memory.take(claim, min(max(claim.held, 10), sizes[claim] - claim.held), 0)
        assert memory.held == sum(claim.held for claim in sizes) < 2 * capacity
        assert memory.waiting == sum(claim.state is ClaimState.WAITING for claim in sizes)
    assert memory.held == 0
