from functools import partial

from pipeline.broker.runtime.kept_memory import KeptMemory


def test_each_use_of_memory_has_its_minimum_and_the_rest_that_others_leave() -> None:
    kept, held = KeptMemory(400), [0, 0, 0]
    most = [kept.add_use(f"use {number}", partial(held.__getitem__, number)) for number in range(3)]
    assert [use() for use in most] == [200, 200, 200]
    held[0] = 200
    assert [use() for use in most] == [200, 100, 100]
    held[1] = 100
    assert most[2]() == 100
    assert list(kept.uses()) == [("use 0", 200, 200), ("use 1", 100, 100), ("use 2", 0, 100)]
    held[0] = 0
    assert most[2]() == 200
