"""Groups in the shell: requests that wait, timers, writes in order, loading and unloading, and many members at once."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.broker.groups import coordinator_runtime, timers, transitions
from pipeline.broker.groups.events import CoordinatorResult, Identity, Join, Leaver, Sync, Timer
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.joins import join_time_over
from pipeline.broker.groups.model import GroupState, LoadedGroup, MemberId
from pipeline.broker.groups.records import encode_group_key, encode_group_value
from pipeline.broker.groups.syncs import assignment_written
from pipeline.broker.groups.transitions import JOIN, JOIN_TIME_OVER, WRITTEN, Transition
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.coordinators import SESSION_MS, answer_of, ask_join, commit, enter_alone, join, running, sync
from tests.support.groups import identity


async def test_a_member_enters_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with running(delay_ms=3000) as (coordinator, journal, _):
        started = trio.current_time()
        joined = await enter_alone(coordinator)
        assert trio.current_time() - started == pytest.approx(3, abs=0.01)
        assert coordinator.find("g").state is GroupState.STABLE
        assert coordinator.runtime.rebalances == 1
        [(key, value)] = journal.records
        assert key == encode_group_key("g")
        assert joined.member_id.encode() in value


async def test_a_silent_member_is_taken_out_after_its_session(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (coordinator, *_):
        joined = await enter_alone(coordinator)
        sender = identity(joined.member_id, None, 1)
        for _ in range(5):
            await trio.sleep(SESSION_MS / 1000 - 1)
            assert coordinator.heartbeat("g", sender) is ErrorCode.NONE
        await trio.sleep(SESSION_MS / 1000 - 0.1)
        assert coordinator.find("g").state is GroupState.STABLE
        await trio.sleep(0.2)
        assert coordinator.find("g").state is GroupState.EMPTY
        assert coordinator.heartbeat("g", sender) is ErrorCode.UNKNOWN_MEMBER_ID
        assert coordinator.standing("g").empty_since_ms == 1_431_849_903_000


async def test_a_timer_that_is_earlier_than_all_others_fires_in_time(autojump_clock: trio.testing.MockClock) -> None:
    async with running(delay_ms=3000) as (coordinator, *_):
        await enter_alone(coordinator, "slow")
        started = trio.current_time()
        await join(coordinator, "g")
        assert trio.current_time() - started == pytest.approx(3, abs=0.01)


async def test_an_assignment_is_not_sent_before_it_is_written(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (coordinator, journal, _):
        journal.delay_s = 5
        joined = await join(coordinator)
        started = trio.current_time()
        await sync(coordinator, joined, assignments={joined.member_id: b"all"})
        assert trio.current_time() - started == pytest.approx(5)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_write_that_fails_is_told_and_the_group_starts_again(
    autojump_clock: trio.testing.MockClock, error: ErrorCode, told: ErrorCode
) -> None:
    async with running() as (coordinator, journal, _):
        joined = await join(coordinator)
        journal.error = error
        assert (await sync(coordinator, joined)).error_code == told
        assert coordinator.find("g").state is GroupState.PREPARING
        journal.error = None
        again = await join(coordinator, member_id=joined.member_id)
        assert (again.generation_id, (await sync(coordinator, again)).error_code) == (2, 0)


async def test_writes_of_a_group_keep_their_order(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (coordinator, journal, _):
        journal.delay_s = 5
        joined = await join(coordinator)
        with trio.move_on_after(1):
            await sync(coordinator, joined)
        coordinator.leave("g", [Leaver(joined.member_id)])
        await trio.sleep(20)
        assert len(journal.records) == 2
        last = replace(coordinator.find("g").metadata(), state_since_ms=1_431_849_903_000)
        assert (last.generation, journal.records[-1]) == (2, (encode_group_key("g"), encode_group_value(last)))


async def test_a_client_that_has_gone_leaves_its_join_behind(autojump_clock: trio.testing.MockClock) -> None:
    async with running(delay_ms=3000) as (coordinator, *_):
        with trio.move_on_after(1):
            await join(coordinator)
        await trio.sleep(10)
        assert coordinator.find("g").state is GroupState.COMPLETING
        await trio.sleep(SESSION_MS / 1000 + 1)
        assert coordinator.find("g").state is GroupState.EMPTY


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
async def test_groups_of_others_are_refused(code: ErrorCode) -> None:
    async with running() as (coordinator, journal, _):
        journal.refusal = code
        sender = identity("m", None, 1)
        requests: list[Callable[[], object]] = [
            lambda: coordinator.heartbeat("g", sender),
            lambda: coordinator.leave("g", []),
            lambda: coordinator.find("g"),
            lambda: coordinator.check_commit("g", MemberId("m"), 1, None),
        ]
        for ask in requests:
            with pytest.raises(KafkaError) as refused:
                ask()
            assert refused.value.code is code
        with pytest.raises(KafkaError):
            await join(coordinator)


async def test_requests_for_unknown_groups_are_refused() -> None:
    async with running() as (coordinator, *_):
        assert (await join(coordinator, member_id="m")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        sender = identity("m", None, 1)
        request = Sync(waiter=coordinator.new_waiter(), sender=sender)
        assert coordinator.sync("g", request).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert coordinator.heartbeat("g", sender) is ErrorCode.UNKNOWN_MEMBER_ID
        assert (
            coordinator.leave("g", [Leaver(MemberId("m")), Leaver(MemberId("n"))]) == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
        )
        assert coordinator.find("g") is coordinator.standing("g") is None
        with pytest.raises(KafkaError) as refused:
            coordinator.check_commit("g", MemberId("m"), 1, None)
        assert refused.value.code is ErrorCode.ILLEGAL_GENERATION
        with pytest.raises(KafkaError) as refused:
            await coordinator.remove_group("g")
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_group_that_nobody_entered_is_not_kept(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (coordinator, *_):
        request = Join(
            waiter=coordinator.new_waiter(),
            fresh_id=MemberId("a"),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(("range", b""),),
        )
        assert coordinator.join("g", request).error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert len(coordinator.groups) == 1
        await trio.sleep(SESSION_MS / 1000 + 1)
        assert not coordinator.groups


async def test_a_commit_that_is_refused_leaves_no_group_behind() -> None:
    async with running() as (coordinator, *_):
        for number in range(3):
            coordinator.check_commit(f"group-{number}", "", -1, None)
        assert not coordinator.groups
        coordinator.note_commit("group-1")
        assert [group.id for group in coordinator.groups] == ["group-1"]


async def test_a_commit_makes_a_group_that_is_removed_with_a_tombstone() -> None:
    async with running() as (coordinator, journal, _):
        coordinator.check_commit("g", "", -1, None)
        coordinator.note_commit("g")
        assert coordinator.standing("g").empty_since_ms is None
        assert not coordinator.standing("g").has_members
        await coordinator.remove_group("g")
        assert journal.records == [(encode_group_key("g"), None)]
        assert coordinator.find("g") is None


async def test_a_group_with_members_is_not_removed(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (coordinator, *_):
        await enter_alone(coordinator)
        with pytest.raises(KafkaError) as refused:
            await coordinator.remove_group("g")
        assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
        assert coordinator.standing("g").has_members
        assert coordinator.count_by_state()[GroupState.STABLE] == 1


@pytest.mark.parametrize("error", [None, ErrorCode.NOT_COORDINATOR])
async def test_joins_and_commits_are_refused_while_their_group_is_removed(
    autojump_clock: trio.testing.MockClock, error: ErrorCode | None
) -> None:
    async with running() as (coordinator, journal, nursery):
        coordinator.check_commit("g", "", -1, None)
        coordinator.note_commit("g")
        journal.delay_s = 1
        outcomes: list[Any] = []

        async def remove() -> None:
            try:
                await coordinator.remove_group("g", first)
                outcomes.append(None)
            except KafkaError as failure:
                outcomes.append(failure.code)

        async def first(group_id: str) -> None:
            await journal.write(group_id, [(b"offset", None)])

        nursery.start_soon(remove)
        for _ in range(2):
            await trio.sleep(0.9)
            for enter in (
                lambda: join(coordinator),
                lambda: commit(coordinator),
                lambda: coordinator.remove_group("g"),
            ):
                with pytest.raises(KafkaError) as refused:
                    await enter()
                assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        journal.error = error
        await trio.sleep(1)
        assert outcomes == [error]
        assert (coordinator.find("g") is None) is (error is None)
        journal.error, journal.delay_s = None, 0
        await enter_alone(coordinator)


async def test_waiting_members_are_sent_to_the_next_coordinator(autojump_clock: trio.testing.MockClock) -> None:
    async with running(delay_ms=3000) as (coordinator, journal, nursery):
        answers = []

        async def enter(group_id: str) -> None:
            answers.append((await join(coordinator, group_id)).error_code)

        nursery.start_soon(enter, "a")
        nursery.start_soon(enter, "b")
        await trio.sleep(1)
        coordinator.on_unloaded(journal.partition_for("a"))
        await trio.sleep(0.1)
        assert answers == [ErrorCode.NOT_COORDINATOR]
        assert [group.id for group in coordinator.groups] == ["b"]


async def test_the_next_coordinator_goes_on_with_the_group(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as (coordinator, *_):
        joined = await enter_alone(coordinator)
        value = coordinator.find("g").metadata()
    async with running() as (successor, journal, _):
        for group_id, loaded in (("g", LoadedGroup(metadata=value)), ("offsets only", LoadedGroup())):
            successor.on_loaded(journal.partition_for(group_id), {group_id: loaded})
        sender = identity(joined.member_id, None, 1)
        assert successor.heartbeat("g", sender) is ErrorCode.NONE
        assert successor.count_by_state() == {
            state: int(state in {GroupState.STABLE, GroupState.EMPTY}) for state in GroupState
        }
        await trio.sleep(SESSION_MS / 1000 + 1)
        assert successor.find("g").state is GroupState.EMPTY


async def test_a_group_that_breaks_its_rules_starts_anew_alone(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was that happened: a timer, a write, a request."""
    async with running(delay_ms=3000) as (coordinator, *_):
        other = await enter_alone(coordinator, "other")
        for _ in range(3):
            joined = await join(coordinator)
            generation, broken = joined.generation_id, Transition(assignment_written, frozenset())
            with monkeypatch.context() as patch:
                patch.setitem(WRITTEN.transitions, GroupState.COMPLETING, broken)
                answer = await sync(coordinator, joined)
            assert answer.error_code == ErrorCode.NOT_COORDINATOR
            sender = Identity(member_id=joined.member_id, generation=generation)
            assert coordinator.heartbeat("g", sender) is ErrorCode.UNKNOWN_MEMBER_ID
            assert coordinator.find("g").state is GroupState.EMPTY
        assert generation == 3
        with monkeypatch.context() as patch:
            patch.setitem(JOIN_TIME_OVER.transitions, GroupState.PREPARING, Transition(join_time_over, frozenset()))
            no_function: Any = None
            patch.setitem(JOIN.transitions, GroupState.PREPARING, Transition(no_function, frozenset()))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(join, coordinator)
                await trio.sleep(0.1)
                with pytest.raises(KafkaError) as refused:
                    await join(coordinator)
                assert refused.value.code is ErrorCode.NOT_COORDINATOR
            assert (await join(coordinator)).error_code == ErrorCode.NOT_COORDINATOR
        await enter_alone(coordinator)
        sender = identity(other.member_id, None, 1)
        assert coordinator.heartbeat("other", sender) is ErrorCode.NONE


@pytest.mark.long
async def test_five_hundred_groups_with_two_thousand_members_hold(autojump_clock: trio.testing.MockClock) -> None:
    """Their heartbeats, every 3 s, cost a small share of one core; no task is kept for any of them."""
    async with running() as (coordinator, _, nursery):
        members: dict[Any, Any] = {}

        async def enter(group_id: str) -> None:
            joined = await join(coordinator, group_id)
            members.setdefault(group_id, []).append(joined.member_id)
            await sync(coordinator, joined, group_id)

        async with trio.open_nursery() as entering:
            for number in range(2000):
                entering.start_soon(enter, f"group-{number % 500}")
        assert coordinator.count_by_state()[GroupState.STABLE] == 500
        assert sum(len(group.roster.members) for group in coordinator.groups) == 2000
        assert len(nursery.child_tasks) == 1
        seconds, spent_s = 300, 0.0
        for _ in range(seconds // 3):
            before = time.process_time()
            for group in coordinator.groups:
                for member_id in group.roster.members:
                    sender = Identity(member_id=member_id, generation=group.generation)
                    assert coordinator.heartbeat(group.id, sender) is ErrorCode.NONE
            await trio.sleep(3)
            spent_s += time.process_time() - before
        assert coordinator.count_by_state()[GroupState.STABLE] == 500
        assert spent_s / seconds < 0.05


async def test_timers_that_mean_nothing_any_more_are_forgotten(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "MIN_TIMERS", 10)
    async with running() as (coordinator, *_):
        for _ in range(100):
            joined = await enter_alone(coordinator)
            (error,) = coordinator.leave("g", [Leaver(member_id=joined.member_id)])
            assert error is ErrorCode.NONE
        assert len(coordinator.runtime.timers) <= 11
        joined = await enter_alone(coordinator)
        await trio.sleep(SESSION_MS / 1000 + 1)
        assert coordinator.find("g").state is GroupState.EMPTY


async def test_an_id_that_nobody_used_takes_no_group_of_others_with_it(autojump_clock: trio.testing.MockClock) -> None:
    """A client gets an id and leaves with it, so the group goes; others form one of that name. When the id's session
    would have ended, they are still there, and their generations go on.
    """
    async with running() as (coordinator, *_):
        given = ask_join(coordinator, must_know_id=True)
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert list(coordinator.leave("g", [Leaver(given.member_id)])) == [ErrorCode.NONE]
        assert coordinator.find("g") is None
        await trio.sleep(SESSION_MS / 2000)
        joined = await enter_alone(coordinator)
        await trio.sleep(SESSION_MS / 2000 + 1)
        assert coordinator.heartbeat("g", identity(joined.member_id, None, 1)) is ErrorCode.NONE


async def test_a_write_decided_before_the_group_was_given_away_is_not_written_after_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Neither when another broker leads, nor when this one does again and has loaded what the log holds."""
    async with running() as (coordinator, journal, nursery):
        joined = await enter_alone(coordinator)
        journal.delay_s = 5
        coordinator.leave("g", [Leaver(joined.member_id)])
        answers = []

        async def enter() -> None:
            answers.append(await sync(coordinator, await join(coordinator)))

        nursery.start_soon(enter)
        await trio.sleep(1)
        assert len(journal.records) == 1
        coordinator.on_unloaded(journal.partition_for("g"))
        coordinator.on_loaded(journal.partition_for("g"), {})
        await trio.sleep(20)
        assert [answer.error_code for answer in answers] == [ErrorCode.NOT_COORDINATOR]
        assert len(journal.records) == 2
        assert coordinator.find("g") is None


@pytest.mark.parametrize(
    "name", ["protocol_type", "protocol", "group_instance_id", "client_id", "client_host", "group"]
)
async def test_a_record_too_large_for_the_journal_ends_its_write_alone(
    autojump_clock: trio.testing.MockClock, name: str
) -> None:
    long = "x" * 40_000
    more = {"protocols": ((long, b""),)} if name == "protocol" else {} if name == "group" else {name: long}
    group_id = long if name == "group" else "g"
    async with running() as (coordinator, *_):
        joined = await join(coordinator, group_id, **more)
        answer = await sync(coordinator, joined, group_id)
        assert (joined.error_code, answer.error_code) == (0, ErrorCode.UNKNOWN_SERVER_ERROR)
        await trio.sleep(10 * SESSION_MS / 1000)
        assert coordinator.find(group_id).state is GroupState.EMPTY
        await enter_alone(coordinator, "other")
        assert all(not entry.is_writing and not entry.jobs for entry in coordinator.runtime.entries)


async def test_an_id_made_of_the_longest_name_fits_where_ids_go() -> None:
    async with running() as (coordinator, *_):
        made = coordinator.new_member_id("\N{SNOWMAN}" * 10_922)
        assert len(made.encode()) < 32_767
        assert made != coordinator.new_member_id("\N{SNOWMAN}" * 10_922)
        assert coordinator.new_member_id("x" * 249).startswith("x" * 249 + "-")


@pytest.mark.parametrize("rebalance_timeout_ms", [-(2**31), -1, 0, 1, 2**31 - 1])
async def test_a_silent_static_member_is_waited_for_in_peace(
    autojump_clock: trio.testing.MockClock, rebalance_timeout_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever time it asked for to come back in: until its session ends, and the group is not asked all the time."""
    async with running() as (coordinator, _, nursery):
        waiting = ask_join(
            coordinator, group_instance_id="a", fresh_id="a-1", rebalance_timeout_ms=rebalance_timeout_ms
        )
        joined = await join(coordinator)
        static = await answer_of(waiting)
        for member in sorted((joined, static), key=lambda answer: answer.leader != answer.member_id):
            sender = Identity(member_id=member.member_id, generation=member.generation_id)
            nursery.start_soon(answer_of, coordinator.sync("g", Sync(waiter=coordinator.new_waiter(), sender=sender)))
        await trio.sleep(1)
        assert coordinator.find("g").state is GroupState.STABLE
        coordinator.leave("g", [Leaver(joined.member_id)])
        fired = []

        def fire(group: Group, timer: Timer, now_ms: int) -> CoordinatorResult:
            fired.append(timer)
            return transitions.fire(group, timer, now_ms)

        monkeypatch.setattr(coordinator_runtime, "fire", fire)
        with trio.move_on_after(2 * SESSION_MS / 1000):
            while coordinator.find("g").state is not GroupState.EMPTY:
                await trio.sleep(1)
        assert len(fired) < 20
        assert coordinator.find("g").state is GroupState.EMPTY


async def test_unloading_a_partition_of_very_many_groups_holds_up_no_other_request() -> None:
    async with running() as (coordinator, journal, _):
        for number in range(20_000):
            coordinator.check_commit(f"group-{number}", "", -1, None)
            coordinator.note_commit(f"group-{number}")
        lost = {group.id for group in coordinator.groups if journal.partition_for(group.id) == 3}
        started = time.thread_time()
        for partition in range(10):
            if partition != 3:
                coordinator.on_unloaded(partition)
        assert time.thread_time() - started < 0.1
        assert {group.id for group in coordinator.groups} == lost
