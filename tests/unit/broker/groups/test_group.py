"""The classic protocol, case by case, on simulated time. What is expected is what Apache Kafka 4 does."""

import struct
import time
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.broker.groups.joins import NEW_MEMBER_TIMEOUT_MS
from pipeline.broker.groups.lifecycle import load
from pipeline.broker.groups.member import subscribed_topics
from pipeline.broker.groups.model import Generation, GroupMetadataValue, GroupState, MemberId, MemberMetadataValue
from pipeline.broker.groups.transitions import REMOVE, UNLOAD
from pipeline.protocol.errors import ErrorCode
from tests.support.groups import Driver, error_of


def test_a_dynamic_member_is_given_an_id_and_comes_back_with_it(driver: Driver) -> None:
    first = driver.answers[driver.ask_join()]
    assert (first.error_code, first.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
    assert driver.group.state is GroupState.EMPTY
    second = driver.ask_join(first.member_id)
    assert driver.group.state is GroupState.PREPARING
    driver.wait(3000)
    answer = driver.answers[second]
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, first.member_id)
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert [(member.member_id, member.metadata) for member in answer.members] == [(first.member_id, b"on")]


def test_an_old_client_enters_at_once(driver: Driver) -> None:
    join = driver.ask_join(must_know_id=False)
    driver.wait(3000)
    assert driver.answers[join].member_id == "client-1"


def test_an_id_that_never_comes_back_is_forgotten(driver: Driver) -> None:
    given = driver.answers[driver.ask_join(session_ms=10_000)].member_id
    driver.wait(10_000)
    assert driver.group.roster.pending == set()
    assert error_of(driver, driver.ask_join(given)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_first_rebalance_waits_longer_while_members_come(driver: Driver) -> None:
    joins = []
    for _ in range(4):
        joins.append(driver.enter()[1])
        driver.wait(2000)
    assert driver.waiting == set(joins)
    driver.wait(6000)
    assert not driver.waiting
    assert [len(driver.answers[join].members) for join in joins] == [4, 0, 0, 0]


def test_the_first_rebalance_waits_no_longer_than_the_rebalance_timeout(driver: Driver) -> None:
    joins = []
    for _ in range(10):
        joins.append(driver.enter(rebalance_ms=7_000)[1])
        driver.wait(900)
    assert driver.group.generation == 1
    assert driver.answers[joins[0]].generation_id == 1


def test_a_group_without_delay_starts_at_once() -> None:
    driver = Driver(delay_ms=0)
    _, join = driver.enter()
    driver.wait(0)
    assert driver.answers[join].generation_id == 1


def test_followers_wait_for_what_the_leader_gives() -> None:
    driver = Driver(auto_write=False)
    joins = [driver.enter()[1] for _ in range(3)]
    driver.wait(6000)
    leader, one, other = (driver.answers[join].member_id for join in joins)
    early = driver.ask_sync(one)
    brought = driver.ask_sync(leader, assignments={leader: b"L", one: b"1"})
    assert driver.waiting == {early, brought}
    assert driver.group.state is GroupState.COMPLETING
    driver.end_write()
    assert driver.group.state is GroupState.STABLE
    late = driver.ask_sync(other)
    assert [driver.answers[sync].assignment for sync in (brought, early, late)] == [b"L", b"1", b""]
    [value] = driver.written
    assert (value.generation, value.protocol, value.leader) == (1, "range", leader)
    assert {member.member_id: member.assignment for member in value.members} == {leader: b"L", one: b"1", other: b""}


def test_an_assignment_that_cannot_be_written_is_given_to_nobody() -> None:
    driver = Driver(auto_write=False)
    joins = [driver.enter()[1] for _ in range(2)]
    driver.wait(6000)
    leader, follower = (driver.answers[join].member_id for join in joins)
    syncs = [driver.ask_sync(follower), driver.ask_sync(leader, assignments={leader: b"L", follower: b"F"})]
    driver.end_write(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert {error_of(driver, sync) for sync in syncs} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert driver.group.state is GroupState.PREPARING
    assert all(member.assignment == b"" for member in driver.group.roster.members.values())


def test_a_write_that_ends_after_the_next_generation_began_changes_nothing() -> None:
    driver = Driver(auto_write=False)
    leader, _ = driver.enter()
    driver.wait(3000)
    driver.ask_sync(leader, assignments={leader: b"old"})
    driver.ask_join(leader, protocols=(("range", b"other"),))
    assert (driver.group.state, driver.group.generation) == (GroupState.COMPLETING, 2)
    driver.end_write()
    assert driver.group.state is GroupState.COMPLETING
    assert driver.group.roster.members[MemberId(leader)].assignment == b""


def test_a_newcomer_makes_all_members_rejoin(driver: Driver) -> None:
    leader, follower = driver.stable(2)
    newcomer, join = driver.enter()
    assert driver.group.state is GroupState.PREPARING
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    assert error_of(driver, driver.ask_sync(leader)) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.commit(leader, generation=1) is ErrorCode.NONE
    joins = [driver.ask_join(leader), driver.ask_join(follower), join]
    assert not driver.waiting
    assert {driver.answers[join].generation_id for join in joins} == {2}
    assert driver.commit(leader, generation=2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(newcomer) is ErrorCode.NONE
    driver.settle(joins)


def test_a_member_that_does_not_rejoin_in_time_is_removed(driver: Driver) -> None:
    leader, slow = driver.stable(2, rebalance_ms=20_000)
    _, join = driver.enter(rebalance_ms=20_000)
    back = driver.ask_join(leader)
    for _ in range(4):
        assert driver.heartbeat(slow) is ErrorCode.REBALANCE_IN_PROGRESS
        driver.wait(5000)
    assert {driver.answers[waiter].generation_id for waiter in (join, back)} == {2}
    assert driver.heartbeat(slow) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_joins_again_starts_a_rebalance_and_a_follower_does_not(driver: Driver) -> None:
    leader, follower = driver.stable(2)
    same = driver.answers[driver.ask_join(follower)]
    assert (same.generation_id, same.leader, same.members) == (1, leader, ())
    assert driver.group.state is GroupState.STABLE
    driver.ask_join(leader)
    assert driver.group.state is GroupState.PREPARING


def test_a_changed_subscription_starts_a_rebalance(driver: Driver) -> None:
    _, follower = driver.stable(2)
    driver.ask_join(follower, protocols=(("range", b"more topics"),))
    assert driver.group.state is GroupState.PREPARING


def test_an_answer_that_got_lost_is_given_again(driver: Driver) -> None:
    leader, join = driver.enter()
    driver.wait(3000)
    again = driver.answers[driver.ask_join(leader)]
    assert again == driver.answers[join]


def test_the_protocol_with_the_most_votes_that_all_support_is_taken(driver: Driver) -> None:
    both = (("sticky", b"s"), ("range", b"r"))
    joins = [driver.enter(protocols=both)[1] for _ in range(2)]
    joins.append(driver.enter(protocols=both[::-1])[1])
    joins.append(driver.enter(protocols=(("other", b""), *both))[1])
    driver.wait(6000)
    assert {driver.answers[join].protocol_name for join in joins} == {"sticky"}


def test_a_member_without_a_common_protocol_is_refused(driver: Driver) -> None:
    driver.stable(1)
    refused = {"protocols": (("other", b""),)}, {"protocol_type": "connect"}, {"protocols": ()}
    assert {error_of(driver, driver.ask_join(**more)) for more in refused} == {ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
    empty = Driver()
    assert error_of(empty, empty.ask_join(protocol_type="")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(empty, empty.ask_join(protocols=())) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_sync_names_the_protocol_of_the_group(driver: Driver) -> None:
    leader, _ = driver.stable(2)
    for wrong in (
        driver.ask_sync(leader, protocol="sticky"),
        driver.ask_sync(leader, protocol_type="connect"),
    ):
        assert error_of(driver, wrong) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(driver, driver.ask_sync(leader, protocol="range", protocol_type="consumer")) is ErrorCode.NONE


def test_strangers_and_old_generations_are_told_so(driver: Driver) -> None:
    leader, _ = driver.stable(2)
    assert driver.heartbeat("nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(leader, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(driver, driver.ask_sync("nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(driver, driver.ask_sync(leader, generation=7)) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(driver, driver.ask_join("nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit(leader, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit("nobody", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit() is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave("nobody", leader) == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]


def test_an_empty_group_accepts_commits_of_clients_that_never_join(driver: Driver) -> None:
    assert driver.commit() is ErrorCode.NONE
    assert driver.commit("somebody", generation=3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat("somebody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(driver, driver.ask_sync("somebody")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_out_after_its_session(driver: Driver) -> None:
    leader, follower = driver.stable(2, session_ms=10_000)
    for _ in range(3):
        driver.wait(5000)
        assert driver.heartbeat(leader) in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}
    assert set(driver.group.roster.members) == {leader}
    assert driver.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID
    join = driver.ask_join(leader)
    assert [member.member_id for member in driver.answers[join].members] == [leader]


def test_waiting_members_are_not_silent(driver: Driver) -> None:
    leader, follower = driver.stable(2, session_ms=10_000)
    driver.enter(session_ms=10_000)
    back = driver.ask_join(leader, session_ms=10_000)
    for _ in range(6):
        driver.heartbeat(follower)
        driver.wait(8_000)
    assert back in driver.waiting
    driver.wait(12_000)
    assert driver.answers[back].error_code == 0


def test_a_new_member_that_never_gets_in_is_given_up(driver: Driver) -> None:
    driver.stable(1, rebalance_ms=10**6)
    leader = next(iter(driver.group.roster.members))
    _, join = driver.enter(rebalance_ms=10**6)
    for _ in range(NEW_MEMBER_TIMEOUT_MS // 5000):
        driver.heartbeat(leader)
        driver.wait(5000)
    assert error_of(driver, join) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.answers[join].member_id == ""


def test_a_member_that_never_syncs_is_removed_after_the_rebalance_timeout(driver: Driver) -> None:
    joins = [driver.enter(rebalance_ms=20_000)[1] for _ in range(2)]
    driver.wait(6000)
    leader, lazy = (driver.answers[join].member_id for join in joins)
    driver.ask_sync(leader)
    assert driver.group.state is GroupState.STABLE
    for _ in range(4):
        driver.heartbeat(leader), driver.heartbeat(lazy)
        driver.wait(5000)
    assert set(driver.group.roster.members) == {leader}
    assert driver.group.state is GroupState.PREPARING


def test_the_last_to_leave_empties_the_group(driver: Driver) -> None:
    leader, follower = driver.stable(2)
    assert driver.leave(leader, follower) == [ErrorCode.NONE, ErrorCode.NONE]
    assert (driver.group.state, driver.group.generation) == (GroupState.EMPTY, 2)
    value = driver.written[-1]
    assert (value.generation, value.members, value.protocol, value.leader) == (2, (), None, None)
    assert value.protocol_type == "consumer"
    assert driver.group.subscribed_topics == frozenset()


def test_a_member_that_leaves_while_it_waits_is_answered(driver: Driver) -> None:
    leader, join = driver.enter()
    assert driver.leave(leader) == [ErrorCode.NONE]
    assert error_of(driver, join) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.wait(3000)
    assert driver.group.state is GroupState.EMPTY


def test_an_id_given_out_can_leave_before_it_comes_back(driver: Driver) -> None:
    leader, _ = driver.stable(2)
    given = driver.answers[driver.ask_join()].member_id
    assert driver.leave(given) == [ErrorCode.NONE]
    assert driver.group.state is GroupState.STABLE
    assert driver.heartbeat(leader) is ErrorCode.NONE


def test_a_second_join_of_the_same_member_sends_the_first_away(driver: Driver) -> None:
    leader, first = driver.enter()
    driver.ask_join(leader)
    assert error_of(driver, first) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.wait(3000)
    assert not driver.waiting


def test_a_full_group_takes_nobody_else() -> None:
    driver = Driver(max_size=2)
    members = driver.stable(2)
    refused = driver.answers[driver.ask_join()]
    assert (refused.error_code, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert driver.heartbeat(members[0]) is ErrorCode.NONE


def test_a_group_that_was_loaded_too_large_lets_the_first_come_back() -> None:
    members = tuple(
        MemberMetadataValue(
            member_id=MemberId(f"m{number}"),
            client_id="c",
            client_host="/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            subscription=b"",
            assignment=b"",
        )
        for number in range(3)
    )
    driver = Driver(max_size=2)
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=Generation(4),
        protocol="range",
        leader=MemberId("m0"),
        state_since_ms=1,
        members=members,
    )
    driver.do(load(driver.group, value, 0))
    assert driver.group.state is GroupState.PREPARING
    joins = [driver.ask_join(f"m{number}") for number in range(3)]
    assert error_of(driver, joins[2]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [driver.answers[join].generation_id for join in joins[:2]] == [5, 5]


class TestLoading:
    def test_a_group_goes_on_where_it_was(self, driver: Driver) -> None:
        leader, follower = driver.stable(2)
        successor = Driver()
        successor.do(load(successor.group, driver.written[-1], 0))
        assert successor.group.metadata() == driver.written[-1]
        assert successor.heartbeat(leader, generation=1) is ErrorCode.NONE
        assert successor.answers[successor.ask_sync(follower)].assignment == follower.encode()
        successor.wait(20_000)
        assert successor.group.state is GroupState.EMPTY

    def test_unloading_sends_all_members_to_the_next_coordinator(self, driver: Driver) -> None:
        leader, join = driver.enter()
        driver.do(UNLOAD.react(driver.group, None, 0))
        assert error_of(driver, join) is ErrorCode.NOT_COORDINATOR
        assert driver.heartbeat(leader) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert error_of(driver, driver.ask_join()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert error_of(driver, driver.ask_sync(leader)) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    def test_a_group_with_members_is_not_removed(self, driver: Driver) -> None:
        driver.stable(2)
        assert REMOVE.react(driver.group, None, 0).error is ErrorCode.NON_EMPTY_GROUP
        empty = Driver()
        assert REMOVE.react(empty.group, None, 0).error is ErrorCode.NONE
        assert REMOVE.react(empty.group, None, 0).error is ErrorCode.GROUP_ID_NOT_FOUND
        assert empty.group.state is GroupState.DEAD


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 3, len(topics)) + names + b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("protocol_type", "subscriptions", "topics"),
    [
        ("consumer", [subscription("a", "b"), subscription("b", "c")], {"a", "b", "c"}),
        ("consumer", [subscription()], set()),
        ("consumer", [subscription("a"), b"\x00\x01\x00\x00\x00\x02\x00\x05ab"], None),
        ("consumer", [b""], None),
        ("consumer", [struct.pack(">hih", 0, 1, 2) + b"\xff\xfe"], None),
        ("connect", [subscription("a")], None),
    ],
)
def test_topics_are_read_where_they_can_be(
    driver: Driver, protocol_type: str, subscriptions: Sequence[bytes], topics: Any
) -> None:
    for said in subscriptions:
        driver.enter(protocols=(("range", said),), protocol_type=protocol_type)
    driver.wait(6000)
    assert driver.group.subscribed_topics == topics


def test_subscriptions_are_not_decoded_while_members_join(driver: Driver) -> None:
    """However long it is; and one that names more topics than anybody reads is as good as unknown."""
    names = struct.pack(">hi", 3, 5_000_000) + bytes(10_000_000)
    started = time.thread_time()
    driver.enter(protocols=(("range", names),))
    driver.wait(6000)
    assert driver.group.state is GroupState.COMPLETING
    assert driver.group.subscribed_topics is None
    assert time.thread_time() - started < 0.2


@pytest.mark.parametrize(("members", "is_known"), [(9, True), (11, False)])
def test_topics_are_read_up_to_a_bound_of_the_whole_group(members: int, is_known: bool) -> None:
    topics = subscribed_topics([subscription(*map(str, range(10_000)))] * members)
    assert topics == (frozenset(map(str, range(10_000))) if is_known else None)


def test_ids_that_were_given_out_count_as_members() -> None:
    """Or a client that asks for ids and never comes back could fill the memory."""
    driver = Driver(max_size=2)
    given = [driver.answers[driver.ask_join()] for _ in range(3)]
    assert [answer.error_code for answer in given] == [
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]
    driver.ask_join(given[0].member_id)
    assert error_of(driver, driver.ask_join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.wait(10_001)
    assert error_of(driver, driver.ask_join()) is ErrorCode.MEMBER_ID_REQUIRED
