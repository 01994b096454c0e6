from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.broker.topics.placement import Pattern, alternate_racks, find_pattern, place_replicas
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode, KafkaError

RACKS = st.dictionaries(st.integers(0, 30).map(BrokerId), st.sampled_from("abcd"), min_size=1, max_size=9)
PLACES = st.integers(0, 8)


def no_racks(*brokers: int) -> dict[BrokerId, str | None]:
    return {BrokerId(broker): None for broker in brokers}


@settings(max_examples=60)
@given(RACKS, st.booleans(), st.data(), PLACES, PLACES)
def test_replicas_are_distinct_and_even(
    drawn: dict[BrokerId, str], with_racks: bool, data: st.DataObject, start: int, shift: int
) -> None:
    racks = {broker: rack if with_racks else None for broker, rack in drawn.items()}
    factor = data.draw(st.integers(1, len(racks)))
    count = data.draw(st.integers(1, 40))
    placed = place_replicas(count, racks, replication_factor=factor, pattern=Pattern(start, shift))
    assert sorted(placed) == list(range(count))
    for replicas in placed.values():
        assert len(set(replicas)) == len(replicas) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in placed.values())
    assert max(leaders[broker] for broker in racks) - min(leaders[broker] for broker in racks) <= 1


@settings(max_examples=60)
@given(RACKS, st.booleans(), st.data(), PLACES, PLACES)
def test_a_topic_grows_in_its_own_pattern(
    drawn: dict[BrokerId, str], with_racks: bool, data: st.DataObject, start: int, shift: int
) -> None:
    racks = {broker: rack if with_racks else None for broker, rack in drawn.items()}
    factor = data.draw(st.integers(1, len(racks)))
    at_once = place_replicas(20, racks, replication_factor=factor, pattern=Pattern(start, shift))
    current = {index: at_once[index] for index in range(20)[: data.draw(st.integers(1, 19))]}
    added = place_replicas(
        20 - len(current),
        racks,
        replication_factor=factor,
        pattern=find_pattern(current, racks),
        first=len(current),
    )
    leaders = {index: replicas[0] for index, replicas in {**current, **added}.items()}
    assert leaders == {index: replicas[0] for index, replicas in at_once.items()}
    if not with_racks:
        assert {**current, **added} == at_once


def test_replicas_are_placed_as_kafkas_documentation_shows() -> None:
    """The example of Kafka's own documentation of the algorithm: five brokers, ten partitions, start and shift 0."""
    placed = place_replicas(10, no_racks(0, 1, 2, 3, 4), replication_factor=3, pattern=Pattern(0, 0))
    assert list(placed.values()) == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


def test_followers_of_one_broker_are_spread() -> None:
    placed = place_replicas(12, no_racks(1, 2, 3, 4), replication_factor=2, pattern=Pattern(0, 0))
    assert {replicas[1] for replicas in placed.values() if replicas[0] == 1} == {2, 3, 4}


def test_brokers_of_racks_take_turns() -> None:
    """The example of Kafka's own documentation: six brokers in three racks."""
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    named = {BrokerId(broker): rack for broker, rack in racks.items()}
    assert alternate_racks(named) == [0, 3, 1, 5, 4, 2]
    placed = place_replicas(7, named, replication_factor=3, pattern=Pattern(0, 0))
    assert placed[0] == (0, 3, 1)
    assert placed[6] == (0, 4, 2), "the second round shifts the followers by a whole set of racks"


def test_some_brokers_without_rack() -> None:
    with pytest.raises(KafkaError, match=r"Not all brokers have rack information.*: 2") as raised:
        alternate_racks({BrokerId(1): "a", BrokerId(2): None})
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(("factor", "words"), [(0, "larger than 0"), (4, "larger than available brokers: 3")])
def test_replication_factors_refused(factor: int, words: str) -> None:
    with pytest.raises(KafkaError, match=words) as raised:
        place_replicas(1, no_racks(1, 2, 3), replication_factor=factor, pattern=Pattern(0, 0))
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_the_pattern_of_a_topic_whose_brokers_went() -> None:
    assert find_pattern({0: (BrokerId(9),)}, no_racks(1, 2)) == Pattern(0, 0)
    assert find_pattern({}, no_racks(1, 2)) == Pattern(0, 0)
    assert find_pattern({0: (BrokerId(2), BrokerId(9))}, no_racks(1, 2)) == Pattern(1, 1)
