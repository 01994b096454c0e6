import gc

from pipeline.net.garbage import RARE_THRESHOLD, RareCollections


def test_full_collections_are_rare_until_the_last_large_request_ends() -> None:
    before, rare = gc.get_threshold(), RareCollections()
    with rare:
        assert gc.get_threshold() == (*before[:2], RARE_THRESHOLD)
        with rare:
            pass
        assert gc.get_threshold() == (*before[:2], RARE_THRESHOLD)
    assert gc.get_threshold() == before
