"""`pipeline cluster reassign`: plan, start, watch and cancel moves of partitions to other brokers."""

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import TIMEOUT_S, Bootstrap, Json, ZooKeeper, connected, find_topic
from pipeline.client.admin.brokers import describe_log_dirs
from pipeline.client.admin.elections import Reassignment, alter_reassignments, list_reassignments
from pipeline.client.admin.reassignment_plan import Placement, parse_plan, plan_reassignment, plan_to_json
from pipeline.client.admin.reassignment_throttle import Move, remove_throttle, set_throttle
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.errors import ConfigurationError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

app = typer.Typer(
    no_args_is_help=True, help="Move partitions to other brokers: plan, apply, then status until nothing is left."
)

POLL_S = 0.5
MISSING_TARGET_S = 60.0
"""Time that `apply --wait` gives a target broker that is not alive for a restart."""
CLIENT_ID = "pipeline-reassign"
MAX_NAMED = 5


@app.command("plan")
def plan_(
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", metavar="ID,...", help="Brokers that may hold replicas. Default: all live brokers."),
    ] = None,
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="TOPIC,...", help="Only these topics. Default: all.")
    ] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Print a plan that balances replicas over brokers and racks with few moves. Nothing is changed.

    The plan is printed on stdout as JSON that kafka-reassign-partitions reads too. Its cost is printed on stderr,
    unless --json is given.
    """

    async def run() -> tuple[dict[TopicPartition, Move], dict[TopicPartition, int], list[BrokerId]]:
        async with connected(bootstrap, zookeeper, CLIENT_ID) as cluster:
            view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
            moving = await list_reassignments(cluster, timeout_s=TIMEOUT_S)
            plan = await _plan(cluster, view, moving, brokers, topics)
            return split_plan(view, moving, plan)[0], *await _sizes(cluster, plan)

    moves, sizes, silent = trio.run(run)
    output.print_json(plan_to_json({topic_partition: move.target for topic_partition, move in moves.items()}))
    if not json:
        copies = sum(len(move.adding) for move in moves.values())
        size = sum(len(move.adding) * sizes.get(topic_partition, 0) for topic_partition, move in moves.items())
        unknown = f", without brokers that do not answer: {', '.join(map(str, silent))}" if silent else ""
        sys.stderr.write(f"{len(moves)} partitions change, {copies} replicas of {size} bytes are copied{unknown}\n")


@app.command("apply")
def apply_(
    file: Annotated[typer.FileText, typer.Argument(metavar="PLAN.json", help="The plan; - reads stdin.")],
    throttle: Annotated[
        int | None,
        typer.Option("--throttle", min=1, metavar="BYTES", help="Copy at most this many bytes per second and broker."),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until all partitions are moved, then lift the throttle."),
    ] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Start to move partitions as a plan says. Other moves of these partitions are replaced.

    Moves under way that agree with the plan continue; --throttle and --wait include them. With --wait the command ends
    with exit code 1 once a target broker has not been alive for a minute. With --throttle and without --wait the
    throttle stays until `reassign status --lift-throttle` finds no move under way. Ctrl-C while waiting leaves moves
    and throttle as they are.
    """
    try:
        plan = parse_plan(file.read())
    except ValueError as error:
        raise ConfigurationError("PLAN.json", str(error)) from error

    async def run() -> _Applied:
        async with connected(bootstrap, zookeeper, CLIENT_ID) as cluster:
            view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
            moving = await list_reassignments(cluster, timeout_s=TIMEOUT_S)
            moves, under_way = split_plan(view, moving, plan)
            planned = {**moves, **under_way}
            _require_alive(view, moves)
            if throttle is not None:
                await set_throttle(cluster, planned, throttle, timeout_s=TIMEOUT_S)
            targets = {topic_partition: move.target for topic_partition, move in moves.items()}
            refused = await alter_reassignments(cluster, targets, timeout_s=TIMEOUT_S) if targets else {}
            applied = _Applied(
                begun=[each for each in moves if each not in refused], under_way=list(under_way), refused=refused
            )
            if wait:
                awaited = {each: move for each, move in planned.items() if each not in refused}
                await _wait(cluster, awaited)
                if throttle is not None:
                    await remove_throttle(cluster, {each.topic for each in planned}, timeout_s=TIMEOUT_S)
                await _require_moved(cluster, awaited)
            return applied

    applied = trio.run(run)
    if json:
        output.print_json(
            {
                "partitions": list(map(_named, applied.begun)),
                "under_way": list(map(_named, applied.under_way)),
                "done": wait,
                "refused": [{**_named(each), "reason": str(why)} for each, why in sorted(applied.refused.items())],
            }
        )
    else:
        _say_applied(applied, is_done=wait)
    _fail_if_refused(applied.refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Applied:
    """Results for the partitions whose replicas differed from the plan."""

    begun: list[TopicPartition]
    under_way: list[TopicPartition]
    """Partitions whose moves were under way before."""
    refused: dict[TopicPartition, KafkaError]


def _say_applied(applied: _Applied, *, is_done: bool) -> None:
    if not applied.begun and not applied.under_way and not applied.refused:
        output.say("Nothing to move: all partitions agree with the plan.")
    elif is_done:
        output.say(f"Moved {len(applied.begun) + len(applied.under_way)} partitions.")
    else:
        if applied.begun or applied.refused:
            output.say(f"Started to move {len(applied.begun)} partitions.")
        if applied.under_way:
            output.say(f"{len(applied.under_way)} partitions are being moved there already.")


@app.command()
def status(
    lift_throttle: Annotated[
        bool,
        typer.Option(
            "--lift-throttle", help="If no partition is being moved, remove the throttles of all topics and brokers."
        ),
    ] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Show the partitions that are being moved, and the bytes left to copy."""

    async def run() -> list[_Progress]:
        async with connected(bootstrap, zookeeper, CLIENT_ID) as cluster:
            found = await _read_progress(cluster, await list_reassignments(cluster, timeout_s=TIMEOUT_S))
            if lift_throttle and not found:
                view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
                await remove_throttle(cluster, view.topics, timeout_s=TIMEOUT_S)
            return found

    found = trio.run(run)
    rows = [
        {
            **_named(item.topic_partition),
            "replicas": list(item.move.replicas),
            "adding": list(item.move.adding),
            "removing": list(item.move.removing),
            "bytes_left": item.bytes_left,
        }
        for item in found
    ]
    if json:
        output.print_json({"moving": rows, "bytes_left": _bytes_left(found)})
    elif not rows:
        output.say("No partition is being moved." + (" The throttles are lifted." if lift_throttle else ""))
    else:
        headings = ["TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING", "BYTES-LEFT"]
        cells = [list(map(output.joined, row.values())) for row in rows]
        output.say(output.table(headings, cells))
    if lift_throttle and rows:
        output.exit_with("the throttles stay while partitions are being moved")


@app.command()
def cancel(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Partitions of this topic; may be repeated.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All partitions that are being moved.")] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Cancel moves and return to the former replicas. If no move is left, the throttles are removed too."""
    if all_ == bool(topic):
        raise ConfigurationError("--topic", "give either --topic or --all")

    async def run() -> tuple[list[TopicPartition], dict[TopicPartition, KafkaError]]:
        async with connected(bootstrap, zookeeper, CLIENT_ID) as cluster:
            moving = await list_reassignments(cluster, timeout_s=TIMEOUT_S)
            meant = [each for each in moving if all_ or each.topic in (topic or ())]
            refused: dict[TopicPartition, KafkaError] = {}
            if meant:
                refused = await alter_reassignments(cluster, dict.fromkeys(meant), timeout_s=TIMEOUT_S)
            refused = {p: r for p, r in refused.items() if r.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
            if not await list_reassignments(cluster, timeout_s=TIMEOUT_S):
                view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
                await remove_throttle(cluster, view.topics, timeout_s=TIMEOUT_S)
            return [each for each in meant if each not in refused], refused

    cancelled, refused = trio.run(run)
    if json:
        output.print_json({"cancelled": list(map(_named, cancelled))})
    else:
        output.say(f"Cancelled {len(cancelled)} moves.")
    _fail_if_refused(refused)


async def _plan(
    cluster: Cluster,
    view: ClusterMetadata,
    moving: Mapping[TopicPartition, Reassignment],
    brokers: str | None,
    topics: str | None,
) -> Placement:
    """Plan the placement of topics on brokers. Replicas that are being added count as there."""
    allowed = sorted(view.brokers) if brokers is None else _read_brokers(brokers)
    missing = [broker for broker in allowed if broker not in view.brokers]
    if missing:
        raise ConfigurationError("--brokers", f"not alive: {', '.join(map(str, missing))}")
    current = {}
    for name in sorted(view.topics) if topics is None else [name.strip() for name in topics.split(",")]:
        topic = view.topics.get(name) or await find_topic(cluster, name)
        for index, partition in topic.partitions.items():
            topic_partition = TopicPartition(name, index)
            leaving = moving[topic_partition].removing if topic_partition in moving else ()
            current[topic_partition] = tuple(broker for broker in partition.replicas if broker not in leaving)
    return plan_reassignment(current, {broker: view.brokers[broker].rack for broker in allowed})


def _read_brokers(text: str) -> list[BrokerId]:
    try:
        return sorted({BrokerId(int(part)) for part in text.split(",")})
    except ValueError as error:
        raise ConfigurationError("--brokers", f"{text!r} is not a list of broker ids") from error


def split_plan(
    view: ClusterMetadata, moving: Mapping[TopicPartition, Reassignment], plan: Placement
) -> tuple[dict[TopicPartition, Move], dict[TopicPartition, Move]]:
    """Return the moves that a plan needs, and those under way that agree with it. Ends the command for a partition that
    does not exist.
    """
    moves, under_way = {}, {}
    for topic_partition, target in plan.items():
        partition = view.partition_of(topic_partition)
        if partition is None:
            output.exit_with(f"partition {topic_partition} does not exist")
        change = moving.get(topic_partition, Reassignment(replicas=partition.replicas, adding=(), removing=()))
        move = Move(now=[broker for broker in partition.replicas if broker not in change.adding], target=target)
        if tuple(broker for broker in partition.replicas if broker not in change.removing) != tuple(target):
            moves[topic_partition] = move
        elif topic_partition in moving:
            under_way[topic_partition] = move
    return moves, dict(sorted(under_way.items()))


def _require_alive(view: ClusterMetadata, moves: Mapping[TopicPartition, Move]) -> None:
    dead = sorted({broker for move in moves.values() for broker in move.adding if broker not in view.brokers})
    if dead:
        output.exit_with(f"target brokers are not alive: {', '.join(map(str, dead))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """A partition that is being moved."""

    topic_partition: TopicPartition
    move: Reassignment
    replicas_left: int
    bytes_left: int
    missing: tuple[BrokerId, ...]
    """Target brokers that are neither in sync nor alive."""


async def _read_progress(cluster: Cluster, moving: Mapping[TopicPartition, Reassignment]) -> list[_Progress]:
    """Return the progress of moves. A replica to be added lacks the bytes that the leader has more than it.

    If there is no leader, or it does not answer, the largest replica counts in its place.
    """
    if not moving:
        return []
    view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
    brokers = {broker for move in moving.values() for broker in move.replicas if broker in view.brokers}
    sizes: dict[BrokerId, dict[TopicPartition, int]] = {}
    for broker in sorted(brokers):
        with suppress(*UNREACHABLE):  # a broker that died or hangs leaves the view soon
            sizes[broker] = await _sizes_at(cluster, broker)
    found = []
    for topic_partition, move in sorted(moving.items()):
        partition = view.partition_of(topic_partition)
        if partition is None:
            continue
        known = {broker: there[topic_partition] for broker, there in sizes.items() if topic_partition in there}
        leader_bytes = max(known.values(), default=0)
        if partition.leader is not None:
            leader_bytes = known.get(partition.leader, leader_bytes)
        left = [broker for broker in move.adding if broker not in partition.isr]
        found.append(
            _Progress(
                topic_partition=topic_partition,
                move=move,
                replicas_left=len(left),
                bytes_left=sum(max(0, leader_bytes - known.get(broker, 0)) for broker in left),
                missing=tuple(broker for broker in left if broker not in view.brokers),
            )
        )
    return found


async def _wait(cluster: Cluster, partitions: Collection[TopicPartition]) -> None:
    """Wait until none of these partitions is being moved. Ends the command if a target is not alive for too long."""

    async def read() -> list[_Progress]:
        under_way = await list_reassignments(cluster, timeout_s=TIMEOUT_S)
        return await _read_progress(cluster, {p: under_way[p] for p in partitions if p in under_way})

    progress = await read()
    total = _bytes_left(progress)
    copied = 0
    away_since: dict[BrokerId, float] = {}
    with output.progress("Moving", total=total) as bar:
        while progress:
            now = trio.current_time()
            away_since = {broker: away_since.get(broker, now) for item in progress for broker in item.missing}
            overdue = [broker for broker, since in away_since.items() if now - since >= MISSING_TARGET_S]
            if overdue:
                _give_up(progress, overdue)
            bar.describe(f"{sum(item.replicas_left for item in progress)} replicas, bytes")
            await trio.sleep(POLL_S)
            progress = await read()
            now_copied = max(copied, total - _bytes_left(progress))
            bar.advance(now_copied - copied)
            copied = now_copied


def _give_up(progress: Sequence[_Progress], away: Sequence[BrokerId]) -> NoReturn:
    """End the command, since these target brokers are not alive."""
    waiting = sorted(item.topic_partition for item in progress if not set(away).isdisjoint(item.missing))
    named = output.enumeration(waiting, MAX_NAMED)
    topics = " ".join(f"--topic {topic}" for topic in sorted({each.topic for each in waiting}))
    brokers = ", ".join(map(str, sorted(away)))
    output.exit_with(
        f"{len(waiting)} partitions wait for brokers that have not been alive for {MISSING_TARGET_S:g} s: {brokers}"
        f" ({named}). Start the brokers, and the moves continue; `pipeline cluster reassign status --lift-throttle`"
        f" shows when they are done. Or cancel the moves: `pipeline cluster reassign cancel {topics}`"
    )


async def _require_moved(cluster: Cluster, moves: Mapping[TopicPartition, Move]) -> None:
    """End the command if another client cancelled a move meanwhile. Brokers learn of the end one after the other."""
    deadline = trio.current_time() + TIMEOUT_S / 3
    failures = 0
    while True:
        view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
        found = {each: view.partition_of(each) for each in moves}
        elsewhere = [
            each for each, now in found.items() if now is not None and now.replicas != tuple(moves[each].target)
        ]
        if not elsewhere:
            return
        failures += 1
        if not await cluster.back_off(failures, deadline):
            output.exit_with(f"cancelled or replaced by another client: {', '.join(map(str, sorted(elsewhere)))}")


def _bytes_left(progress: Sequence[_Progress]) -> int:
    return sum(item.bytes_left for item in progress)


async def _sizes(cluster: Cluster, plan: Placement) -> tuple[dict[TopicPartition, int], list[BrokerId]]:
    """Return the bytes of the largest replica of each partition, and the brokers that did not answer."""
    sizes: dict[TopicPartition, int] = {}
    silent = []
    for broker in sorted(cluster.view.brokers) if plan else ():
        try:
            found = await _sizes_at(cluster, broker)
        except UNREACHABLE:
            silent.append(broker)
            continue
        for topic_partition, size in found.items():
            sizes[topic_partition] = max(size, sizes.get(topic_partition, 0))
    return sizes, silent


async def _sizes_at(cluster: Cluster, broker: BrokerId) -> dict[TopicPartition, int]:
    log_dirs = await describe_log_dirs(cluster, broker, timeout_s=TIMEOUT_S)
    return {each: size for log_dir in log_dirs for each, size in log_dir.partitions.items()}


def _named(topic_partition: TopicPartition) -> dict[str, Any]:
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}


def _fail_if_refused(refused: Mapping[TopicPartition, KafkaError]) -> None:
    if refused:
        output.exit_with("; ".join(f"{each}: {refusal}" for each, refusal in sorted(refused.items())))
