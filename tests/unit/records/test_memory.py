import threading
from collections.abc import Callable

import pytest

from pipeline.errors import MemoryExhaustedError
from pipeline.records.memory import MAX_OPENED_BYTES, MIN_OPENED_BYTES, MemoryBudget, max_opened_bytes

DEADLINE_S = 60


def started(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_charge_waits_until_others_give_back() -> None:
    budget = MemoryBudget(100)
    is_charged = threading.Event()

    def charge() -> None:
        with budget.charged(60, wait_s=DEADLINE_S):
            is_charged.set()

    with budget.charged(60):
        thread = started(charge)
        assert not is_charged.wait(0.05)
        assert budget.held_bytes == 60
    thread.join(DEADLINE_S)
    assert is_charged.is_set()
    assert (budget.held_bytes, budget.max_held_bytes) == (0, 60)


def test_a_wait_ends_at_its_deadline_with_what_to_do() -> None:
    budget = MemoryBudget(100)
    with (
        budget.charged(60),
        pytest.raises(MemoryExhaustedError, match=r"raise opened\.batches\.max\.bytes"),
        budget.charged(60, wait_s=0.01),
    ):
        pass
    with budget.charged(100, wait_s=0):
        assert budget.held_bytes == 100


def test_a_charge_beyond_the_capacity_is_given_alone() -> None:
    budget = MemoryBudget(100)
    with budget.charged(1000, wait_s=0), pytest.raises(MemoryExhaustedError), budget.charged(1, wait_s=0.01):
        pass
    with budget.charged(1), pytest.raises(MemoryExhaustedError), budget.charged(1000, wait_s=0.01):
        pass


def test_small_charges_do_not_overtake_a_large_one_that_waits() -> None:
    budget = MemoryBudget(100)
    given: list[str] = []
    turns = {"large": 90, "small": 10}

    def charge(name: str) -> None:
        with budget.charged(turns[name], wait_s=DEADLINE_S):
            given.append(name)

    with budget.charged(50):
        large = started(lambda: charge("large"))
        while not budget.waiting:
            threading.Event().wait(0.001)
        small = started(lambda: charge("small"))
        while budget.waiting < 2:
            threading.Event().wait(0.001)
        assert given == []
    for thread in (large, small):
        thread.join(DEADLINE_S)
    assert given == ["large", "small"]


def test_a_larger_capacity_lets_those_go_on_that_wait() -> None:
    budget = MemoryBudget(100)

    def charge() -> None:
        with budget.charged(60, wait_s=DEADLINE_S):
            pass

    with budget.charged(60):
        thread = started(charge)
        budget.resize(200)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("max_message_bytes", "bound"),
    [(0, MIN_OPENED_BYTES), (1_048_588, MIN_OPENED_BYTES), (50 << 20, 800 << 20), (2**31 - 1, MAX_OPENED_BYTES)],
)
def test_the_bound_of_a_batch_follows_the_topic(max_message_bytes: int, bound: int) -> None:
    assert max_opened_bytes(max_message_bytes) == bound
