"""Assignors: properties, whatever the members and topics are. `test_java_assignors.py` compares them with Java's."""

import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.consumer.consumer_protocol import MemberSubscription
from pipeline.client.group.assignors.members import Assigned, JoinedMember
from pipeline.client.group.assignors.sticky import NO_CLAIM, PartitionClaim, decode_previous, encode_previous
from pipeline.client.group.assignors.strategies import STRATEGIES
from pipeline.model import TopicPartition

TOPICS = ["a", "b", "c", "d"]
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7))
SUBSCRIBED = st.sets(st.sampled_from(TOPICS), min_size=1)
LISTS = st.lists(SUBSCRIBED, min_size=1, max_size=6)
EQUAL = st.builds(lambda topics, count: [topics] * count, SUBSCRIBED, st.integers(1, 6))


def joined(topics: Sequence[set[str]], static: Sequence[bool] = ()) -> list[JoinedMember]:
    is_static = [*static, *([False] * len(topics))]
    return [
        JoinedMember(
            id=f"member-{number}",
            instance_id=f"instance-{len(topics) - number}" if is_static[number] else None,
            subscription=MemberSubscription(topics=tuple(sorted(names))),
        )
        for number, names in enumerate(topics)
    ]


def again(name: str, members: Sequence[JoinedMember], assigned: Assigned, generation: int = 1) -> list[JoinedMember]:
    """The members when they join once more, with what they have by now."""
    found = []
    for member in members:
        owned = tuple(assigned.get(member.id, ()))
        user_data = STRATEGIES[name].user_data(owned, generation if owned else -1)
        subscription = MemberSubscription(
            topics=member.subscription.topics,
            user_data=user_data,
            owned=owned if STRATEGIES[name].is_cooperative else (),
            generation=generation if owned else -1,
        )
        found.append(JoinedMember(id=member.id, instance_id=member.instance_id, subscription=subscription))
    return found


def settle(name: str, counts: Mapping[str, int], members: Sequence[JoinedMember], assigned: Assigned) -> Assigned:
    """Rebalance until nobody has to give anything up, as cooperative members do."""
    for generation in range(2, 6):
        members = again(name, members, assigned, generation)
        before, assigned = assigned, STRATEGIES[name].assign(counts, members)
        if not any(set(before.get(member.id, ())) - set(assigned[member.id]) for member in members):
            return assigned
        assert_disjoint(assigned)
    raise AssertionError("members give partitions up again and again")


def assert_disjoint(assigned: Assigned) -> None:
    everything = [topic_partition for owned in assigned.values() for topic_partition in owned]
    assert len(everything) == len(set(everything))


def assert_sound(counts: Mapping[str, int], members: Sequence[JoinedMember], assigned: Assigned) -> None:
    """Disjoint, complete, and of subscribed topics only."""
    assert_disjoint(assigned)
    assert assigned.keys() == {member.id for member in members}
    wanted = {topic for member in members for topic in member.subscription.topics}
    everything = {TopicPartition(topic, number) for topic in wanted for number in range(counts.get(topic, 0))}
    assert {topic_partition for owned in assigned.values() for topic_partition in owned} == everything
    for member in members:
        assert {topic for topic, _ in assigned[member.id]} <= set(member.subscription.topics)


def assert_balanced(members: Sequence[JoinedMember], assigned: Assigned) -> None:
    """Balanced as KIP-54 has it: no partition can move to a member with at least two fewer."""
    for giver in members:
        for taker in members:
            if len(assigned[giver.id]) >= len(assigned[taker.id]) + 2:
                assert not {topic for topic, _ in assigned[giver.id]} & set(taker.subscription.topics)


@pytest.mark.parametrize("name", STRATEGIES)
@given(counts=COUNTS, topics=LISTS, static=st.lists(st.booleans(), max_size=6), seed=st.integers(0, 99))
def test_each_partition_goes_to_one_member_whatever_the_order_of_members(
    name: str, counts: dict[str, int], topics: list[set[str]], static: list[bool], seed: int
) -> None:
    members = joined(topics, static)
    assigned = STRATEGIES[name].assign(counts, members)
    assert_sound(counts, members, assigned)
    random.Random(seed).shuffle(members)
    assert STRATEGIES[name].assign(counts, members) == assigned


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@given(counts=COUNTS, topics=LISTS | EQUAL)
def test_sticky_assignments_are_balanced_and_stay(name: str, counts: dict[str, int], topics: list[set[str]]) -> None:
    members = joined(topics)
    assigned = STRATEGIES[name].assign(counts, members)
    assert_balanced(members, assigned)
    after = STRATEGIES[name].assign(counts, again(name, members, assigned))
    assert {member: set(owned) for member, owned in after.items()} == {
        member: set(owned) for member, owned in assigned.items()
    }


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@given(counts=COUNTS, topics=LISTS | EQUAL, extra=SUBSCRIBED, grown=COUNTS, leaves=st.integers(0, 5))
def test_a_changed_group_is_balanced_again(
    name: str, counts: dict[str, int], topics: list[set[str]], extra: set[str], grown: dict[str, int], leaves: int
) -> None:
    members = joined([*topics, extra])
    assigned = STRATEGIES[name].assign(counts, members[:-1])
    left = [member for number, member in enumerate(members) if number != leaves or len(members) == 1]
    more = {topic: count + grown.get(topic, 0) for topic, count in counts.items()}
    after = settle(name, more, left, assigned)
    assert_sound(more, left, after)
    assert_balanced(left, after)


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@given(counts=COUNTS, topics=EQUAL)
def test_members_keep_all_but_what_balance_takes(name: str, counts: dict[str, int], topics: list[set[str]]) -> None:
    members = joined([*topics, topics[0]])
    few = STRATEGIES[name].assign(counts, members[:-1])
    more = settle(name, counts, members, few)
    sizes = sorted(map(len, more.values()))
    assert sizes[-1] - sizes[0] <= 1
    for member in members[:-1]:
        assert set(more[member.id]) <= set(few[member.id])
    fewer = settle(name, counts, members[1:], more)
    for member in members[1:]:
        assert set(more[member.id]) <= set(fewer[member.id])


def test_a_partition_is_free_only_once_its_owner_has_given_it_up() -> None:
    counts = {"a": 4}
    first, second = joined([{"a"}, {"a"}])
    strategy = STRATEGIES["cooperative-sticky"]
    alone = strategy.assign(counts, [first])
    members = again("cooperative-sticky", [first, second], alone)
    step = strategy.assign(counts, members)
    assert (len(step[first.id]), step[second.id]) == (2, [])
    members = again("cooperative-sticky", [first, second], step, 2)
    assert set(strategy.assign(counts, members)[second.id]) == set(alone[first.id]) - set(step[first.id])


@pytest.mark.parametrize("generations", [(3, 4), (4, 4)])
def test_a_partition_that_two_members_claim_belongs_to_the_newer_claim(generations: tuple[int, int]) -> None:
    partition = TopicPartition("a", 0)
    members = [
        JoinedMember(
            id=f"m{number}",
            subscription=MemberSubscription(topics=("a",), user_data=encode_previous([partition], generation)),
        )
        for number, generation in enumerate(generations)
    ]
    assigned = STRATEGIES["sticky"].assign({"a": 1}, members)
    assert assigned == (
        {"m0": [], "m1": [partition]} if generations[0] != generations[1] else {"m0": [partition], "m1": []}
    )
    cooperative = [
        JoinedMember(
            id=member.id, subscription=MemberSubscription(topics=("a",), owned=(partition,), generation=generation)
        )
        for member, generation in zip(members, generations, strict=True)
    ]
    withheld = STRATEGIES["cooperative-sticky"].assign({"a": 1}, cooperative)
    assert withheld == {"m0": [], "m1": []}


def test_user_data_of_other_clients_are_read() -> None:
    written = encode_previous([TopicPartition("b", 1), TopicPartition("a", 7)], 3)
    claim = PartitionClaim(partitions=frozenset({TopicPartition("b", 1), TopicPartition("a", 7)}), generation=3)
    assert decode_previous(written) == claim
    assert decode_previous(written[:-4]) == PartitionClaim(partitions=claim.partitions, generation=-1)
    assert [decode_previous(data) for data in (None, b"", b"x", written[:9])] == [NO_CLAIM] * 4
    old = JoinedMember(
        id="old",
        subscription=MemberSubscription(topics=("a",), user_data=b"\0\0\0\7", owned=(TopicPartition("a", 0),)),
    )
    new = JoinedMember(
        id="new", subscription=MemberSubscription(topics=("a",), generation=6, owned=(TopicPartition("a", 1),))
    )
    assigned = STRATEGIES["cooperative-sticky"].assign({"a": 2}, [old, new])
    assert assigned == {"old": [TopicPartition("a", 0)], "new": [TopicPartition("a", 1)]}
