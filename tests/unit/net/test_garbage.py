import gc

from pipeline.net.garbage import RARE_THRESHOLD, YOUNG_OBJECTS, RareCollections, SlowCollections, expect_large_answers


def test_full_collections_are_rare_until_the_last_large_request_ends() -> None:
    before, rare = gc.get_threshold(), RareCollections()
    with rare:
        assert gc.get_threshold() == (*before[:2], RARE_THRESHOLD)
        with rare:
            pass
        assert gc.get_threshold() == (*before[:2], RARE_THRESHOLD)
    assert gc.get_threshold() == before


def test_objects_that_survived_a_slow_full_collection_are_not_scanned_again() -> None:
    for slow_s, is_frozen in ((1000.0, False), (-1.0, True)):
        collections = SlowCollections(slow_s)
        collections.watch()
        kept: list[list[object]] = [[] for _ in range(1000)]
        frozen = gc.get_freeze_count()
        try:
            gc.collect(1)
            assert gc.get_freeze_count() == frozen
            gc.collect()
            assert (gc.get_freeze_count() > frozen + len(kept)) == is_frozen
        finally:
            gc.callbacks.remove(collections.note)
            gc.unfreeze()


def test_an_answer_about_thousands_of_partitions_begins_no_collection() -> None:
    before = gc.get_threshold()
    collections: list[str] = []
    gc.collect()
    try:
        expect_large_answers()
        gc.callbacks.append(lambda phase, _: collections.append(phase))
        answer = [(number, [number]) for number in range(YOUNG_OBJECTS // 4)]
        assert not collections
        answer += [(number, [number]) for number in range(YOUNG_OBJECTS)]
        assert collections, "garbage does not pile up"
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*before)
