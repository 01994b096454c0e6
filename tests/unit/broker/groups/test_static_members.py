"""Static members of a group, on simulated time. What is expected is what Apache Kafka 4 does."""

import pytest

from pipeline.broker.groups.model import GroupState
from pipeline.protocol.errors import ErrorCode
from tests.support.groups import Driver, error_of


class TestStaticMembers:
    def test_a_static_member_enters_at_once(self, driver: Driver) -> None:
        join = driver.ask_join(instance="a")
        driver.wait(3000)
        assert (driver.answers[join].error_code, driver.answers[join].generation_id) == (0, 1)
        assert driver.answers[join].members[0].group_instance_id == "a"

    @pytest.mark.parametrize("can_skip", [True, False])
    def test_a_leader_that_restarts_keeps_its_part_without_rebalance(self, driver: Driver, can_skip: bool) -> None:
        leader, follower = driver.stable(0, instances=["a", "b"])
        answer = driver.answers[driver.ask_join(instance="a", can_skip_assignment=can_skip)]
        assert (answer.error_code, answer.generation_id, driver.group.state) == (0, 1, GroupState.STABLE)
        assert answer.member_id not in {leader, follower}
        assert answer.skip_assignment is can_skip
        assert answer.leader == (answer.member_id if can_skip else leader)
        assert len(answer.members) == (2 if can_skip else 0)
        sync = driver.ask_sync(answer.member_id, instance="a")
        assert driver.answers[sync].assignment == leader.encode()
        assert {member.member_id for member in driver.written[-1].members} == {answer.member_id, follower}

    def test_a_follower_that_restarts_keeps_its_part_without_rebalance(self, driver: Driver) -> None:
        leader, follower = driver.stable(0, instances=["a", "b"])
        answer = driver.answers[driver.ask_join(instance="b")]
        assert (answer.error_code, answer.leader, answer.skip_assignment, answer.members) == (0, leader, False, ())
        sync = driver.ask_sync(answer.member_id, instance="b")
        assert driver.answers[sync].assignment == follower.encode()

    def test_the_former_self_is_fenced(self, driver: Driver) -> None:
        leader, _ = driver.stable(0, instances=["a", "b"])
        driver.ask_join(instance="a")
        assert driver.heartbeat(leader, instance="a") is ErrorCode.FENCED_INSTANCE_ID
        assert driver.commit(leader, instance="a", generation=1) is ErrorCode.FENCED_INSTANCE_ID
        assert error_of(driver, driver.ask_sync(leader, instance="a")) is ErrorCode.FENCED_INSTANCE_ID
        assert error_of(driver, driver.ask_join(leader, instance="a")) is ErrorCode.FENCED_INSTANCE_ID
        assert driver.leave((leader, "a")) == [ErrorCode.FENCED_INSTANCE_ID]
        assert driver.heartbeat(leader) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_former_self_is_fenced_while_it_waits(self, driver: Driver) -> None:
        first = driver.ask_join(instance="a")
        second = driver.ask_join(instance="a")
        assert error_of(driver, first) is ErrorCode.FENCED_INSTANCE_ID
        driver.wait(3000)
        assert driver.answers[second].error_code == 0

    def test_an_unknown_instance_is_told_so(self, driver: Driver) -> None:
        leader, _ = driver.stable(2)
        assert driver.heartbeat(leader, instance="a") is ErrorCode.UNKNOWN_MEMBER_ID
        assert error_of(driver, driver.ask_join(leader, instance="a")) is ErrorCode.UNKNOWN_MEMBER_ID
        assert driver.leave(("", "a"), ("", None)) == [ErrorCode.UNKNOWN_MEMBER_ID] * 2

    def test_a_return_with_another_protocol_starts_a_rebalance(self, driver: Driver) -> None:
        driver.stable(0, instances=["a"], protocols=(("range", b""), ("sticky", b"")))
        join = driver.ask_join(instance="a", protocols=(("sticky", b""), ("range", b"")))
        assert driver.answers[join].generation_id == 2
        assert driver.answers[join].protocol_name == "sticky"

    def test_a_return_while_the_leader_assigns_starts_a_rebalance(self, driver: Driver) -> None:
        joins = [driver.ask_join(instance=name) for name in ("a", "b")]
        driver.wait(6000)
        follower = driver.ask_sync(driver.answers[joins[1]].member_id, instance="b")
        driver.ask_join(instance="a")
        assert error_of(driver, follower) is ErrorCode.REBALANCE_IN_PROGRESS
        assert driver.group.state is GroupState.PREPARING

    def test_a_return_that_cannot_be_written_is_taken_back(self) -> None:
        driver = Driver(auto_write=False)
        joins = [driver.ask_join(instance=name) for name in ("a", "b")]
        driver.wait(6000)
        leader, follower = (driver.answers[join].member_id for join in joins)
        driver.ask_sync(follower), driver.ask_sync(leader)
        driver.end_write()
        join = driver.ask_join(instance="a")
        assert join in driver.waiting
        driver.end_write(ErrorCode.NOT_COORDINATOR)
        assert (driver.answers[join].error_code, driver.answers[join].member_id) == (ErrorCode.NOT_COORDINATOR, "")
        assert driver.heartbeat(leader, instance="a") is ErrorCode.NONE
        assert set(driver.group.roster.members) == {leader, follower}

    @pytest.mark.parametrize("how", ["leaves", "is silent", "never syncs"])
    def test_the_only_other_goes_while_a_return_is_written(self, how: str) -> None:
        driver = Driver(auto_write=False)
        joins = [driver.ask_join(instance="a"), driver.enter(rebalance_ms=60_000)[1]]
        driver.wait(6000)
        leader, other = (driver.answers[join].member_id for join in joins)
        driver.ask_sync(leader)
        driver.end_write()
        if how != "never syncs":
            driver.ask_sync(other)
        join = driver.ask_join(instance="a")
        if how == "leaves":
            driver.leave(other)
        elif how == "is silent":
            driver.wait(10_000)
        else:
            for _ in range(12):
                driver.heartbeat(other)
                driver.wait(5000)
        assert (driver.answers[join].generation_id, driver.group.state) == (2, GroupState.COMPLETING)
        driver.end_write()
        assert driver.group.state is GroupState.COMPLETING

    def test_a_static_member_is_waited_for_until_its_session_ends(self, driver: Driver) -> None:
        leader, away = driver.stable(0, instances=["a", "b"], session_ms=40_000, rebalance_ms=20_000)
        join = driver.ask_join(leader, instance="a", session_ms=40_000, rebalance_ms=20_000)
        driver.wait(20_000)
        assert {member.member_id for member in driver.answers[join].members} == {leader, away}
        driver.ask_sync(leader, instance="a")
        assert driver.group.state is GroupState.STABLE

    def test_an_admin_removes_a_static_member_by_its_instance_id(self, driver: Driver) -> None:
        leader, follower = driver.stable(0, instances=["a", "b"])
        assert driver.leave(("", "b")) == [ErrorCode.NONE]
        assert set(driver.group.roster.members) == {leader}
        assert driver.group.roster.static == {"a": leader}
        assert driver.heartbeat(follower, instance="b") is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_group_of_static_members_that_do_not_rejoin_becomes_empty(self, driver: Driver) -> None:
        leader, follower = driver.stable(0, instances=["a", "b"], session_ms=60_000, rebalance_ms=10_000)
        driver.ask_join(leader, instance="a", protocols=(("range", b"x"),), session_ms=60_000, rebalance_ms=10_000)
        driver.leave((leader, "a"))
        driver.wait(25_000)
        assert driver.group.state is GroupState.PREPARING
        driver.wait(60_000)
        assert driver.group.state is GroupState.EMPTY
        assert driver.heartbeat(follower, instance="b") is ErrorCode.UNKNOWN_MEMBER_ID
