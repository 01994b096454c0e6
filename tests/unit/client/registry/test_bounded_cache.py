import pytest

from pipeline.client.registry.bounded_cache import BoundedCache
from pipeline.errors import ConfigurationError


def test_the_oldest_entry_makes_room() -> None:
    cache: BoundedCache[int, str] = BoundedCache(2)
    assert [cache.put(number, str(number)) for number in (1, 2)] == ["1", "2"]
    cache.put(1, "again")
    assert dict(cache) == {1: "again", 2: "2"}
    cache.put(3, "3")
    assert dict(cache) == {2: "2", 3: "3"}


def test_a_capacity_of_none_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        BoundedCache(0)
