import random
from collections.abc import Collection

import pytest

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.topics.plan import WantedTopic, check_collision, check_topic_name, plan_growth, plan_topic
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode, KafkaError

CONFIG = BrokerConfig.from_settings(
    {"broker.id": 1, "log.dirs": "/d", "zookeeper.connect": "z:1", "num.partitions": 4, "default.replication.factor": 2}
)
RACKS = {BrokerId(number): None for number in (1, 2, 3)}


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "ä", "a/b", "a\n"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(KafkaError) as raised:
        check_topic_name(name)
    assert raised.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "a.b_c-9", "...", "a" * 249, "__offsets"])
def test_valid_topic_names_are_accepted(name: str) -> None:
    check_topic_name(name)


def refuse(code: ErrorCode, request: WantedTopic, *, existing: Collection[str] = ()) -> str:
    with pytest.raises(KafkaError) as raised:
        plan_topic(request, existing=existing, racks=RACKS, config=CONFIG, rng=random.Random(1))
    assert raised.value.code == code
    return str(raised.value)


def test_a_topic_by_default() -> None:
    plan = plan_topic(
        WantedTopic(name="t", settings={"segment.ms": "5"}),
        existing=(),
        racks=RACKS,
        config=CONFIG,
        rng=random.Random(1),
    )
    assert sorted(plan.partitions) == [0, 1, 2, 3]
    assert {len(replicas) for replicas in plan.partitions.values()} == {2}
    assert plan.settings == {"segment.ms": "5"}


def test_impossible_topics_are_refused() -> None:
    refuse(ErrorCode.TOPIC_ALREADY_EXISTS, WantedTopic(name="t", settings={}), existing=("t",))
    refuse(ErrorCode.INVALID_PARTITIONS, WantedTopic(name="t", partitions=0, settings={}))
    refuse(ErrorCode.INVALID_PARTITIONS, WantedTopic(name="t", partitions=5001, settings={}))
    refuse(ErrorCode.INVALID_REPLICATION_FACTOR, WantedTopic(name="t", replication_factor=0, settings={}))
    too_many = refuse(ErrorCode.INVALID_REPLICATION_FACTOR, WantedTopic(name="t", replication_factor=4, settings={}))
    assert "larger than available brokers: 3" in too_many
    assert "segment.byte" in refuse(ErrorCode.INVALID_CONFIG, WantedTopic(name="t", settings={"segment.byte": "1"}))


def test_manual_assignments_are_planned_or_refused() -> None:
    def assign(assignments: dict[int, tuple[int, ...]], **more: int) -> WantedTopic:
        made = {index: tuple(map(BrokerId, brokers)) for index, brokers in assignments.items()}
        return WantedTopic(name="t", assignments=made, settings={}, **more)

    plan = plan_topic(assign({1: (3,), 0: (2,)}), existing=(), racks=RACKS, config=CONFIG, rng=random.Random(1))
    assert plan.partitions == {0: (2,), 1: (3,)}
    refuse(ErrorCode.INVALID_REQUEST, assign({0: (1,)}, partitions=1))
    refuse(ErrorCode.INVALID_REPLICA_ASSIGNMENT, assign({1: (1,)}))
    refuse(ErrorCode.INVALID_REPLICA_ASSIGNMENT, assign({0: ()}))
    refuse(ErrorCode.INVALID_REPLICA_ASSIGNMENT, assign({0: (9,)}))
    assert "duplicate" in refuse(ErrorCode.INVALID_REPLICA_ASSIGNMENT, assign({0: (1, 1)}))
    assert "partition 0 has 2" in refuse(ErrorCode.INVALID_REPLICA_ASSIGNMENT, assign({0: (1, 2), 1: (1,)}))


def test_growth_goes_on_after_the_last_broker() -> None:
    current = {0: (BrokerId(2),), 1: (BrokerId(3),)}
    assert plan_growth(current, total=4, assignments=None, racks=RACKS) == {**current, 2: (1,), 3: (2,)}
    given_places = plan_growth(current, total=3, assignments=[(BrokerId(1),)], racks=RACKS)
    assert given_places == {**current, 2: (1,)}


@pytest.mark.parametrize(
    ("total", "assignments", "code"),
    [
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (9999, None, ErrorCode.INVALID_PARTITIONS),
        (4, [(BrokerId(1),)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [(BrokerId(9),)], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [(BrokerId(1), BrokerId(2))], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growth_to_fewer_or_misassigned_partitions_is_refused(
    total: int, assignments: list[tuple[BrokerId, ...]] | None, code: ErrorCode
) -> None:
    current = {0: (BrokerId(2),), 1: (BrokerId(3),)}
    with pytest.raises(KafkaError) as raised:
        plan_growth(current, total=total, assignments=assignments, racks=RACKS)
    assert raised.value.code == code


def test_topics_whose_metrics_would_be_one_are_refused() -> None:
    for name, other in (("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c")):
        with pytest.raises(KafkaError, match=f"Topic '{name}' collides with existing topics: {other}") as refused:
            check_collision(name, ["a", "ab", other, name])
        assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    check_collision("a.b", ["a.b", "a-b", "ab", "a.b.c"])
    refuse(ErrorCode.INVALID_TOPIC_EXCEPTION, WantedTopic(name="x_t", settings={}), existing=("x.t",))
