"""`pipeline cluster reassign`: partitions moved to other brokers, by a plan that says where they are to be."""

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, ZooKeeper, connected
from pipeline.client.admin.brokers import describe_log_dirs
from pipeline.client.admin.elections import Reassignment, alter_reassignments, list_reassignments
from pipeline.client.admin.reassignment_plan import Placement, parse_plan, plan_reassignment, plan_to_json
from pipeline.client.admin.reassignment_throttle import Move, remove_throttle, set_throttle
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.metadata import ClusterView
from pipeline.errors import ConfigurationError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

app = typer.Typer(
    no_args_is_help=True, help="Partitions moved to other brokers: plan, apply, then status until nothing is left."
)

TIMEOUT_S = 30.0
POLL_S = 0.5
MISSING_TARGET_S = 60.0
"""A broker that is to get replicas may be away for so long while `apply --wait` waits for it: time for a restart."""
CLIENT_ID = "pipeline-reassign"
MAX_NAMED = 5


@app.command("plan")
def plan_(
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers", metavar="ID,...", help="Brokers that may hold replicas. Default: all that are alive."
        ),
    ] = None,
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="TOPIC,...", help="Only these. Default: all.")
    ] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Print where replicas should be so that brokers hold equally many, racks are used, and little is moved.

    The plan goes to stdout in the JSON that kafka-reassign-partitions reads too; what it costs is told on stderr,
    unless --json is given. Nothing is changed.
    """

    async def run() -> tuple[dict[TopicPartition, Move], dict[TopicPartition, int], list[BrokerId]]:
        async with connected(bootstrap, zookeeper, CLIENT_ID) as cluster:
            view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
            moving = await list_reassignments(cluster, timeout_s=TIMEOUT_S)
            plan = _plan(view, moving, brokers, topics)
            return _moves(view, moving, plan), *await _sizes(cluster, plan)

    moves, sizes, silent = trio.run(run)
    plan = {name: move.target for name, move in moves.items()}
    output.print_json(plan_to_json(plan))
    if not json:
        copies = sum(len(move.adding) for move in moves.values())
        size = sum(len(move.adding) * sizes.get(name, 0) for name, move in moves.items())
        unknown = (
            f", without what is only on brokers that do not answer: {', '.join(map(str, silent))}" if silent else ""
        )
        sys.stderr.write(f"{len(plan)} partitions change, {copies} replicas of {size} bytes are copied{unknown}\n")


@app.command("apply")
def apply_(
    file: Annotated[typer.FileText, typer.Argument(metavar="PLAN.json", help="The plan; - reads it from stdin.")],
    throttle: Annotated[
        int | None,
        typer.Option("--throttle", min=1, metavar="BYTES", help="Bytes per second and broker for what is copied."),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Stay until all is moved, with progress on a terminal; lift the throttle then."),
    ] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Begin to move partitions as a plan says. What is under way for them already is replaced.

    Partitions that are on their way to where the plan wants them go on; --throttle and --wait count for them too.
    With --wait the command ends with code 1 once a broker that is to get replicas has been away for a minute.
    With --throttle and without --wait the throttle stays until `reassign status --lift-throttle` finds nothing under
    way. Ctrl-C while waiting leaves moves and throttle as they are.
    """
    try:
        plan = parse_plan(file.read())
    except ValueError as error:
        raise ConfigurationError("PLAN.json", str(error)) from error

    async def run() -> _Applied:
        async with connected(bootstrap, zookeeper, CLIENT_ID) as cluster:
            view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
            moving = await list_reassignments(cluster, timeout_s=TIMEOUT_S)
            moves, under_way = _moves(view, moving, plan), _under_way(view, moving, plan)
            _require_alive(view, moves)
            if throttle is not None:
                await set_throttle(cluster, {**moves, **under_way}, throttle, timeout_s=TIMEOUT_S)
            targets = {name: move.target for name, move in moves.items()}
            refused = await alter_reassignments(cluster, targets, timeout_s=TIMEOUT_S) if targets else {}
            applied = _Applied(
                begun=[name for name in moves if name not in refused], under_way=list(under_way), refused=refused
            )
            if wait:
                awaited = {name: move for name, move in {**moves, **under_way}.items() if name not in refused}
                await _wait(cluster, awaited)
                if throttle is not None:
                    await remove_throttle(cluster, {name.topic for name in {**moves, **under_way}}, timeout_s=TIMEOUT_S)
                await _require_moved(cluster, awaited)
            return applied

    applied = trio.run(run)
    if json:
        output.print_json(
            {
                "partitions": [_named(name) for name in applied.begun],
                "under_way": [_named(name) for name in applied.under_way],
                "done": wait,
                "refused": [{**_named(name), "reason": str(why)} for name, why in sorted(applied.refused.items())],
            }
        )
    else:
        _say_applied(applied, is_done=wait)
    _fail_if_refused(applied.refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Applied:
    """What became of the partitions of a plan that were not where it wants them."""

    begun: list[TopicPartition]
    under_way: list[TopicPartition]
    """On their way there before."""
    refused: dict[TopicPartition, KafkaError]


def _say_applied(applied: _Applied, *, is_done: bool) -> None:
    if not applied.begun and not applied.under_way and not applied.refused:
        output.say("Nothing to move: all partitions are where the plan wants them.")
    elif is_done:
        output.say(f"Moved {len(applied.begun) + len(applied.under_way)} partitions.")
    else:
        if applied.begun or applied.refused:
            output.say(f"Began to move {len(applied.begun)} partitions.")
        if applied.under_way:
            output.say(f"{len(applied.under_way)} partitions are on their way there already.")


@app.command()
def status(
    lift_throttle: Annotated[
        bool,
        typer.Option(
            "--lift-throttle", help="If nothing is under way: take the throttles of all topics and brokers back."
        ),
    ] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Show which partitions are being moved, and how many bytes are left to copy."""

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
            **_named(item.partition),
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
        cells = [[_cell(value) for value in row.values()] for row in rows]
        output.say(output.table(headings, cells))
    if lift_throttle and rows:
        output.fail("the throttles stay while partitions are being moved")


@app.command()
def cancel(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Partitions of this topic; may be repeated.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All that are under way.")] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Stop moving partitions and go back to the replicas they had. If nothing is left under way, throttles go too."""
    if all_ == bool(topic):
        raise ConfigurationError("--topic", "give it, or --all, to say which moves are meant")

    async def run() -> tuple[list[TopicPartition], dict[TopicPartition, KafkaError]]:
        async with connected(bootstrap, zookeeper, CLIENT_ID) as cluster:
            moving = await list_reassignments(cluster, timeout_s=TIMEOUT_S)
            meant = [name for name in moving if all_ or name.topic in (topic or ())]
            refused: dict[TopicPartition, KafkaError] = {}
            if meant:
                refused = await alter_reassignments(cluster, dict.fromkeys(meant), timeout_s=TIMEOUT_S)
            refused = {n: r for n, r in refused.items() if r.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
            if not await list_reassignments(cluster, timeout_s=TIMEOUT_S):
                view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
                await remove_throttle(cluster, view.topics, timeout_s=TIMEOUT_S)
            return [name for name in meant if name not in refused], refused

    cancelled, refused = trio.run(run)
    if json:
        output.print_json({"cancelled": [_named(name) for name in cancelled]})
    else:
        output.say(f"Cancelled {len(cancelled)} moves.")
    _fail_if_refused(refused)


def _plan(
    view: ClusterView, moving: Mapping[TopicPartition, Reassignment], brokers: str | None, topics: str | None
) -> Placement:
    """What is on its way already counts as there."""
    allowed = sorted(view.brokers) if brokers is None else _read_brokers(brokers)
    missing = [broker for broker in allowed if broker not in view.brokers]
    if missing:
        raise ConfigurationError("--brokers", f"not alive: {', '.join(map(str, missing))}")
    names = sorted(view.topics) if topics is None else [name.strip() for name in topics.split(",")]
    for name in names:
        if name not in view.topics:
            output.fail(f"topic {name} does not exist, `pipeline topic list` shows those that do")
    current = {}
    for name in names:
        for index, partition in view.topics[name].partitions.items():
            move = moving.get(TopicPartition(name, index))
            leaving = () if move is None else move.removing
            current[TopicPartition(name, index)] = tuple(b for b in partition.replicas if b not in leaving)
    return plan_reassignment(current, {broker: view.brokers[broker].rack for broker in allowed})


def _read_brokers(text: str) -> list[BrokerId]:
    try:
        return sorted({BrokerId(int(part)) for part in text.split(",")})
    except ValueError as error:
        raise ConfigurationError("--brokers", f"{text!r} is not a list of broker ids") from error


def _moves(
    view: ClusterView, moving: Mapping[TopicPartition, Reassignment], plan: Placement
) -> dict[TopicPartition, Move]:
    """Those partitions of a plan that are not, or will not be, as it wants them. Ends the command for one that does not
    exist.
    """
    moves = {}
    for name, target in plan.items():
        found = view.topics.get(name.topic)
        if found is None or name.partition not in found.partitions:
            output.fail(f"partition {name} does not exist")
        replicas = found.partitions[name.partition].replicas
        leaving = moving[name].removing if name in moving else ()
        if tuple(broker for broker in replicas if broker not in leaving) != tuple(target):
            coming = moving[name].adding if name in moving else ()
            moves[name] = Move(now=[broker for broker in replicas if broker not in coming], target=target)
    return moves


def _under_way(
    view: ClusterView, moving: Mapping[TopicPartition, Reassignment], plan: Placement
) -> dict[TopicPartition, Move]:
    """Those partitions of a plan that are on their way to where it wants them."""
    found = {}
    for name in sorted((plan.keys() & moving.keys()) - _moves(view, moving, plan).keys()):
        coming = moving[name].adding
        replicas = view.topics[name.topic].partitions[name.partition].replicas
        found[name] = Move(now=[broker for broker in replicas if broker not in coming], target=plan[name])
    return found


def _require_alive(view: ClusterView, moves: Mapping[TopicPartition, Move]) -> None:
    dead = sorted({broker for move in moves.values() for broker in move.adding if broker not in view.brokers})
    if dead:
        output.fail(f"brokers that are to get replicas are not alive: {', '.join(map(str, dead))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """A partition that is being moved."""

    partition: TopicPartition
    move: Reassignment
    replicas_left: int
    bytes_left: int
    missing: tuple[BrokerId, ...]
    """Brokers that are to get replicas, are not in sync and not alive."""


async def _read_progress(cluster: Cluster, moving: Mapping[TopicPartition, Reassignment]) -> list[_Progress]:
    """What is left: for each replica that is to come and is not in sync, what the leader has more than it.

    Where the leader does not answer, or there is none, the largest replica counts in its place.
    """
    if not moving:
        return []
    view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
    brokers = {broker for move in moving.values() for broker in move.replicas if broker in view.brokers}
    sizes: dict[BrokerId, dict[TopicPartition, int]] = {}
    for broker in sorted(brokers):
        with suppress(*UNREACHABLE):  # it has died, or hangs: soon it is not in the view any more
            sizes[broker] = await _sizes_at(cluster, broker)
    found = []
    for name, move in sorted(moving.items()):
        topic = view.topics.get(name.topic)
        if topic is None or name.partition not in topic.partitions:
            continue
        partition = topic.partitions[name.partition]
        known = {broker: found_there[name] for broker, found_there in sizes.items() if name in found_there}
        of_leader = max(known.values(), default=0)
        if partition.leader is not None:
            of_leader = known.get(partition.leader, of_leader)
        left = [broker for broker in move.adding if broker not in partition.isr]
        bytes_left = sum(max(0, of_leader - known.get(broker, 0)) for broker in left)
        missing = tuple(broker for broker in left if broker not in view.brokers)
        found.append(
            _Progress(partition=name, move=move, replicas_left=len(left), bytes_left=bytes_left, missing=missing)
        )
    return found


async def _wait(cluster: Cluster, partitions: Collection[TopicPartition]) -> None:
    """Until none of these is being moved any more. Ends the command if a target has been away for too long."""

    async def read() -> list[_Progress]:
        under_way = await list_reassignments(cluster, timeout_s=TIMEOUT_S)
        return await _read_progress(cluster, {name: under_way[name] for name in partitions if name in under_way})

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
    """End the command: these targets are not alive."""
    waiting = sorted(item.partition for item in progress if not set(away).isdisjoint(item.missing))
    named = ", ".join(map(str, waiting[:MAX_NAMED])) + (" and others" if len(waiting) > MAX_NAMED else "")
    topics = " ".join(f"--topic {topic}" for topic in sorted({name.topic for name in waiting}))
    brokers = ", ".join(map(str, sorted(away)))
    output.fail(
        f"{len(waiting)} partitions wait for brokers that have not been alive for {MISSING_TARGET_S:g} s: {brokers}"
        f" ({named}). Start them, and the moves go on by themselves; `pipeline cluster reassign status --lift-throttle`"
        f" tells when they are over. Or go back: `pipeline cluster reassign cancel {topics}`"
    )


async def _require_moved(cluster: Cluster, moves: Mapping[TopicPartition, Move]) -> None:
    """Ends the command if somebody else took a move back meanwhile. Brokers hear of the end one after the other."""
    deadline = trio.current_time() + TIMEOUT_S / 3
    failures = 0
    while True:
        view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
        elsewhere = [name for name, move in moves.items() if _replicas_of(view, name) not in {None, tuple(move.target)}]
        if not elsewhere:
            return
        failures += 1
        if not await cluster.back_off(failures, deadline):
            output.fail(f"cancelled or replaced by others meanwhile: {', '.join(map(str, sorted(elsewhere)))}")


def _replicas_of(view: ClusterView, partition: TopicPartition) -> tuple[BrokerId, ...] | None:
    topic = view.topics.get(partition.topic)
    found = None if topic is None else topic.partitions.get(partition.partition)
    return None if found is None else found.replicas


def _bytes_left(progress: Sequence[_Progress]) -> int:
    return sum(item.bytes_left for item in progress)


async def _sizes(cluster: Cluster, plan: Placement) -> tuple[dict[TopicPartition, int], list[BrokerId]]:
    """Bytes of these partitions, at the replica that has most; and the brokers that did not answer."""
    sizes: dict[TopicPartition, int] = {}
    silent = []
    for broker in sorted(cluster.view.brokers) if plan else ():
        try:
            found = await _sizes_at(cluster, broker)
        except UNREACHABLE:
            silent.append(broker)
            continue
        for name, size in found.items():
            sizes[name] = max(size, sizes.get(name, 0))
    return sizes, silent


async def _sizes_at(cluster: Cluster, broker: BrokerId) -> dict[TopicPartition, int]:
    log_dirs = await describe_log_dirs(cluster, broker, timeout_s=TIMEOUT_S)
    return {name: size for log_dir in log_dirs for name, size in log_dir.partitions.items()}


def _named(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _cell(value: Any) -> Any:
    return (",".join(map(str, value)) or None) if isinstance(value, list) else value


def _fail_if_refused(refused: Mapping[TopicPartition, KafkaError]) -> None:
    if refused:
        output.fail("; ".join(f"{name}: {refusal}" for name, refusal in sorted(refused.items())))
