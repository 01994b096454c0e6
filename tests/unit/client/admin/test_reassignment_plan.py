import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.client.admin.reassignment_plan import parse_plan, plan_reassignment, plan_to_json
from pipeline.errors import ConfigurationError
from pipeline.model import BrokerId, TopicPartition

Placed = dict[TopicPartition, tuple[BrokerId, ...]]


def placed(**topics: list[tuple[int, ...]]) -> Placed:
    return {
        TopicPartition(topic, index): tuple(map(BrokerId, replicas))
        for topic, partitions in topics.items()
        for index, replicas in enumerate(partitions)
    }


def brokers(*ids: int, **racks: str) -> dict[BrokerId, str | None]:
    return {BrokerId(broker): racks.get(f"b{broker}") for broker in ids}


def test_a_plan_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="is nested too deeply"):
        parse_plan("[" * 100_000)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Placed, dict[BrokerId, str | None]]:
    allowed = draw(st.sets(st.integers(1, 8), min_size=1, max_size=6))
    with_racks = draw(st.booleans())
    racks = {BrokerId(b): draw(st.sampled_from("xyz")) if with_racks else None for b in sorted(allowed)}
    current: Placed = {}
    for topic in draw(st.sets(st.sampled_from("abc"), min_size=1)):
        factor = draw(st.integers(1, min(3, len(racks))))
        for index in range(draw(st.integers(1, 6))):
            replicas = draw(st.permutations(range(1, 9)))[:factor]
            current[TopicPartition(topic, index)] = tuple(map(BrokerId, replicas))
    return current, racks


@settings(max_examples=80)
@given(clusters())
def test_reassignment_plans_keep_their_promises(cluster: tuple[Placed, dict[BrokerId, str | None]]) -> None:
    current, racks = cluster
    plan = plan_reassignment(current, racks)
    after = {**current, **plan}
    rack_count = len(set(racks.values()))
    for partition, replicas in after.items():
        assert len(replicas) == len(set(replicas)) == len(current[partition])
        assert set(replicas) <= set(racks)
        assert len({racks[broker] for broker in replicas}) == min(len(replicas), rack_count)
    if rack_count == 1:
        for topic in {partition.topic for partition in after}:
            counts = Counter(b for partition, replicas in after.items() if partition.topic == topic for b in replicas)
            assert max(counts[b] for b in racks) - min(counts[b] for b in racks) <= 1
    assert plan_reassignment(after, racks) == {}, "a cluster that was put in order stays as it is"


def test_a_balanced_cluster_moves_nothing() -> None:
    assert plan_reassignment(placed(t=[(1, 2), (2, 3), (3, 1)]), brokers(1, 2, 3)) == {}


def test_a_broker_that_leaves_gives_away_only_its_own() -> None:
    current = placed(t=[(1, 2), (2, 3), (3, 1), (1, 2)])
    plan = plan_reassignment(current, brokers(1, 2, 4))
    moved = sum(len(set(plan[partition]) - set(current[partition])) for partition in plan)
    assert moved == 2, "two replicas were on broker 3"
    assert all(3 not in replicas for replicas in plan.values())


def test_a_broker_that_comes_takes_its_share() -> None:
    current = placed(t=[(1, 2), (2, 3), (3, 1), (1, 2), (2, 3), (3, 1)])
    plan = plan_reassignment(current, brokers(1, 2, 3, 4))
    assert sum(len(set(plan[partition]) - set(current[partition])) for partition in plan) == 3
    leaders = Counter(replicas[0] for replicas in {**current, **plan}.values())
    assert max(leaders.values()) - min(leaders[b] for b in brokers(1, 2, 3, 4)) <= 1


def test_many_small_topics_are_evened_out_together() -> None:
    alone: list[tuple[int, ...]] = [(1,)]
    current = placed(**{f"t{number}": alone for number in range(6)})
    after = {**current, **plan_reassignment(current, brokers(1, 2, 3))}
    assert Counter(replicas[0] for replicas in after.values()) == {1: 2, 2: 2, 3: 2}


def test_a_plan_may_change_preferred_leaders_alone() -> None:
    current = placed(t=[(1, 2), (1, 2)])
    assert plan_reassignment(current, brokers(1, 2)) == {TopicPartition("t", 0): (2, 1)}


def test_leaders_are_evened_out_over_others() -> None:
    """Broker 1 shares nothing with 3, so 2 passes one on."""
    current = placed(t=[(1, 2), (1, 2), (1, 2), (2, 3), (2, 3), (3, 4), (4, 3)])
    after = {**current, **plan_reassignment(current, brokers(1, 2, 3, 4))}
    leaders = Counter(replicas[0] for replicas in after.values())
    assert max(leaders.values()) - min(leaders.values()) <= 1


def test_replicas_go_into_other_racks() -> None:
    racks = brokers(1, 2, 3, b1="x", b2="x", b3="y")
    assert plan_reassignment(placed(t=[(1, 2)]), racks) in (
        {TopicPartition("t", 0): (1, 3)},
        {TopicPartition("t", 0): (3, 2)},
    )


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="names 1 brokers, but t-0 has 2 replicas"):
        plan_reassignment(placed(t=[(1, 2)]), brokers(1))


def test_the_form_of_kafkas_tool() -> None:
    plan = placed(t=[(1, 2), (2,)])
    assert parse_plan(json.dumps(plan_to_json(plan))) == plan
    theirs = '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,1],"log_dirs":["any","any"]}]}'
    assert parse_plan(theirs) == placed(t=[(3, 1)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "partitions"),
        ("[", "Expecting"),
        ('{"version":2,"partitions":[]}', "version"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[]}]}', "replicas"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[1,1]}]}', "twice"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":["/d"]}]}', "log dir"),
        (
            '{"partitions":[{"topic":"t","partition":0,"replicas":[1]},{"topic":"t","partition":0,"replicas":[2]}]}',
            "twice",
        ),
    ],
)
def test_plans_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_plan(text)
