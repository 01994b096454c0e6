"""Machines that lose their power, and disks that refuse a sync or are full."""

from collections.abc import Sequence

import trio

from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.testing.simulation.administration import ManagedTopic
from pipeline.testing.simulation.fault_context import WHOLE_TIMEOUT_S, FaultContext, FaultKinds
from pipeline.testing.simulation.machine import Machine
from pipeline.testing.simulation.operator_client import OperatorClient, open_operator

LEFT_TIMEOUT_S = 40.0
LATE_S = (3.0, 9.0)
"""Now and then longer than the session of the life before: until that has ended the next life does not join."""
SENT_S = (0.1, 0.6)
"""Some time in which a follower sends a fetch."""
MOVE_TIMEOUT_S = 6.0
MOVE_LOOK_S = 0.005
FLUSH_MS = 100
"""Logs that were never flushed are gone with the power, and tell of no lost tail."""


async def lose_power(context: FaultContext) -> None:
    """Only while the cluster is whole, and alone until the others know that the broker may have lost its tail."""
    machine = context.victim()
    context.is_exclusive = True
    try:
        if machine.name in context.doubtful_disks or not await context.wait_until(
            lambda: context.active == 1 and context.is_whole(), WHOLE_TIMEOUT_S
        ):
            return
        if context.rng.random() < 0.5:
            machine.disk.crash_in = context.rng.randint(1, 20)
            await trio.sleep(context.rng.uniform(0, 2))
        machine.lose_power()
        await context.outage()
        context.restart(machine)
        await context.wait_until(lambda: _has_left_or_returned(context, machine), LEFT_TIMEOUT_S)
    finally:
        context.is_exclusive = False


async def lose_power_with_late_fetches(context: FaultContext) -> None:
    """Fail the power of a follower whose fetches are late: some arrive when it is back and lacks what they told of.

    Its promises are those of `lose_power`. Of a topic that both replicas hold, nothing is committed meanwhile, so that
    a late fetch would be enough to join the ISR.
    """
    assert context.administration is not None
    leader, controller = context.victim(), context.cluster.controller()
    followers = [machine for machine in _sound(context) if machine not in {leader, controller}]
    if not followers:
        return
    follower = context.rng.choice(followers)
    context.is_exclusive = True
    try:
        async with open_operator(context.administration) as operator:
            topic = await operator.make([leader.id, follower.id])
            if await context.wait_until(
                lambda: context.active == 1 and context.is_whole() and bool(topic.acknowledged), WHOLE_TIMEOUT_S
            ):
                await _lose_power_while_late(context, leader, follower)
    except PipelineError as error:
        context.tell(f"nothing can be made: {error}")
    finally:
        context.is_exclusive = False


async def _lose_power_while_late(context: FaultContext, leader: Machine, follower: Machine) -> None:
    context.tell(f"what {follower.name} sends to {leader.name} is late")
    late_s = context.rng.uniform(*LATE_S)
    context.cluster.network.delay(follower.name, leader.name, late_s)
    await trio.sleep(context.rng.uniform(*SENT_S))
    if context.is_whole():
        follower.lose_power()
        context.restart(follower)
        await context.wait_until(lambda: _has_left_or_returned(context, follower), LEFT_TIMEOUT_S)
        await trio.sleep(late_s)
    context.cluster.network.heal()


def _sound(context: FaultContext) -> list[Machine]:
    """The machines of which it is known what their disks hold."""
    return [machine for machine in context.cluster.machines if machine.name not in context.doubtful_disks]


async def lose_power_under_a_move(context: FaultContext) -> None:
    """Fail the power of the only replica of a partition while it is moved; all other partitions do without it."""

    def alone() -> Machine | None:
        states = context.cluster.states()
        origins = {name: context.cluster.zookeeper.partitions.origin_ids(name) for name in states}
        if context.active > 1 or any(
            state.leader < 0 or not set(origins[name]) <= set(state.isr) for name, state in states.items()
        ):
            return None
        moved = (name for name in states if len(origins[name]) == 1 < len(context.cluster.replica_ids(name)))
        found = (context.cluster.machine(states[name].leader) for name in moved if states[name].isr == origins[name])
        return next((one for one in found if one is not None and one.name not in context.doubtful_disks), None)

    assert context.administration is not None
    context.is_exclusive = True
    try:
        async with open_operator(context.administration) as operator:
            async with trio.open_nursery() as requests:
                requests.start_soon(_move_a_single_replica, context, operator)
                await context.wait_until(lambda: alone() is not None, MOVE_TIMEOUT_S, MOVE_LOOK_S)
                machine = alone()
                if machine is not None:
                    context.tell(f"{machine.name} has the only replica of a partition that is moved")
                    machine.lose_power()
                requests.cancel_scope.cancel()
            if machine is not None:
                await context.outage()
                context.restart(machine)
                await context.wait_until(lambda: _has_left_or_returned(context, machine), LEFT_TIMEOUT_S)
    except PipelineError as error:
        context.tell(f"nothing can be moved: {error}")
    finally:
        context.is_exclusive = False


async def _move_a_single_replica(context: FaultContext, operator: OperatorClient) -> None:
    here, there = context.rng.sample(context.cluster.machines, 2)
    topic = await operator.make([here.id])
    if await context.wait_until(lambda: bool(topic.acknowledged) and context.is_whole(), MOVE_TIMEOUT_S):
        await operator.move(topic, [there.id])


async def lose_power_under_a_recreation(context: FaultContext) -> None:
    """Fail the power of both replicas of a topic, which is deleted and recreated before anybody misses them.

    All other partitions have an in-sync replica elsewhere, or are promised nothing.
    """
    assert context.administration is not None
    others = [machine for machine in _sound(context) if machine is not context.cluster.controller()]
    if len(others) < 2:
        return
    lost = context.rng.sample(others, 2)
    context.is_exclusive = True
    try:
        # Nobody vouches for what the topic had: once the power is lost, the operator works on when the time is over.
        with trio.CancelScope() as undisturbed:
            async with open_operator(context.administration) as operator:
                topic = await operator.make([machine.id for machine in lost], flush_ms=FLUSH_MS)
                if await context.wait_until(lambda: _is_left_alone(context, topic, lost), WHOLE_TIMEOUT_S):
                    undisturbed.shield = True
                    for machine in lost:
                        machine.lose_power()
                    await operator.remake(topic, [machine.id for machine in lost])
                    undisturbed.shield = False
                    await context.outage()
                    for machine in lost:
                        context.restart(machine)
                    await context.wait_until(
                        lambda: all(_has_left_or_returned(context, machine) for machine in lost), LEFT_TIMEOUT_S
                    )
    except PipelineError as error:
        context.tell(f"nothing can be recreated: {error}")
    finally:
        context.is_exclusive = False


def _is_left_alone(context: FaultContext, topic: ManagedTopic, lost: Sequence[Machine]) -> bool:
    """True if a topic, whose records are in part on their disks, is all that these machines hold alone."""
    brokers, controller = {machine.id for machine in lost}, context.cluster.controller()
    replicas = context.cluster.replicas(TopicPartition(topic.name, 0)).values()
    if context.active > 1 or not context.is_whole() or topic.is_doomed:
        return False
    if brokers != {replica.own_id for replica in replicas} or any(
        not replica.log.recovery_point for replica in replicas
    ):
        return False
    return controller not in {None, *lost} and not any(
        set(state.isr) <= brokers and len(context.cluster.replica_ids(name)) > 1 and name.topic != topic.name
        for name, state in context.cluster.states().items()
    )


def _has_left_or_returned(context: FaultContext, machine: Machine) -> bool:
    """Return True if no partition counts on what the machine may have lost."""
    if machine.is_serving:
        return True
    return all(machine.id not in state.isr for state in context.cluster.states().values())


async def fail_sync(context: FaultContext) -> None:
    """The disk refuses to sync; the broker is replaced some time later."""
    machine = context.victim()
    context.doubtful_disks[machine.name] = None
    machine.disk.fail_sync_in = context.rng.randint(1, 5)
    context.tell(f"a sync of {machine.name} will fail")
    await context.outage()
    machine.disk.fail_sync_in = None
    if machine.has_failed_disk:
        await context.kill_and_restart(machine)


async def fail_sync_and_power(context: FaultContext) -> None:
    """Fail a sync, and then the power, of one broker that syncs before it acknowledges."""
    machine = context.victim()
    machine.disk.fail_sync_in = context.rng.randint(1, 5)
    context.tell(f"a sync of {machine.name} will fail, and then its power")
    await trio.sleep(context.rng.uniform(0.5, 3))
    machine.disk.fail_sync_in = None
    machine.lose_power()
    context.restart(machine)


async def lose_power_of_all(context: FaultContext) -> None:
    """Beyond the promise."""
    for machine in context.cluster.machines:
        machine.lose_power()
    await context.outage()
    for machine in context.cluster.machines:
        context.restart(machine)


async def lose_power_of_one(context: FaultContext) -> None:
    """Fail the power of one broker that syncs before it acknowledges; with several brokers, beyond the promise."""
    machine = context.victim()
    if context.rng.random() < 0.5:
        machine.disk.crash_in = context.rng.randint(1, 20)
        await trio.sleep(context.rng.uniform(0, 2))
    machine.lose_power()
    await context.outage()
    context.restart(machine)


async def fill_disk(context: FaultContext) -> None:
    """Let the disk of a machine take little more."""
    machine = context.victim()
    context.tell(f"the disk of {machine.name} is nearly full")
    machine.disk.capacity_bytes = machine.disk.used_bytes + context.rng.randint(0, 2000)
    await context.outage()
    machine.disk.capacity_bytes = None
    if machine.has_failed_disk:
        await context.kill_and_restart(machine)


ADMINISTERED_KINDS: FaultKinds = {
    "power and late fetches": lose_power_with_late_fetches,
    "power under a move": lose_power_under_a_move,
    "power under a recreation": lose_power_under_a_recreation,
}
"""Faults that need an administrator's topics."""
KINDS: FaultKinds = {
    "power": lose_power,
    **ADMINISTERED_KINDS,
    "sync": fail_sync,
    "full": fill_disk,
    "sync and power": fail_sync_and_power,
    "power of one": lose_power_of_one,
    "power of all": lose_power_of_all,
}
