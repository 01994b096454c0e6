"""`pipeline group`: list, describe and delete consumer groups, and set where they go on."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, ZooKeeper, connected, find_topic
from pipeline.client.admin import groups
from pipeline.client.admin.groups import CommittedOffset, GroupDescription, GroupMember
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.consumer.consumer_protocol import CONSUMER, decode_assignment
from pipeline.errors import ConfigurationError, DeadlineExceededError, NetworkError, ProtocolError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.settings import MAX_INT64

app = typer.Typer(no_args_is_help=True, help="Consumer groups of a cluster.")

TIMEOUT_S = 30.0
MAX_NAMED = 10
"""Partitions named in one message."""
Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """How far a group is in a partition. `end` is None when the partition is gone, or its leader does not tell it."""

    topic_partition: TopicPartition
    committed: int | None
    end: int | None
    member: GroupMember | None
    is_silent: bool = False
    """True if the partition exists, and nobody tells its end."""

    @property
    def lag(self) -> int | None:
        """Records that the group has not read yet."""
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)

    def to_json(self) -> dict[str, object]:
        """As `--json` shows it."""
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "committed": self.committed,
            "end": self.end,
            "lag": self.lag,
            "member": None if self.member is None else self.member.id,
            "client_id": None if self.member is None else self.member.client_id,
            "host": None if self.member is None else self.member.host,
        }


@app.command("list")
def list_(bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None, json: Json = False) -> None:
    """List all groups: state, protocol, coordinator."""

    async def run() -> Sequence[groups.GroupListing]:
        async with connected(bootstrap, zookeeper, "pipeline-group") as cluster:
            return await groups.list_groups(cluster, timeout_s=TIMEOUT_S)

    found = trio.run(run)
    rows = [
        {"group": g.id, "state": g.state, "protocol_type": g.protocol_type, "coordinator": g.coordinator} for g in found
    ]
    if json:
        output.print_json({"groups": rows})
    else:
        headings = ["GROUP", "STATE", "PROTOCOL-TYPE", "COORDINATOR"]
        output.say(output.table(headings, [[value or None for value in row.values()] for row in rows]))


@app.command()
def describe(name: Name, bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None, json: Json = False) -> None:
    """Show a group: state, members, and for each partition committed offset, end and lag.

    Exit code 1 if nobody tells the end of a partition: the lag is unknown then.
    """
    group, progress = trio.run(partial(_describe, name, bootstrap, zookeeper))
    silent = [str(partition.topic_partition) for partition in progress if partition.is_silent]
    lag = None if silent else sum(partition.lag or 0 for partition in progress)
    _, unreadable = read_assignments(group)
    if json:
        output.print_json(
            {
                "group": name,
                "state": group.state,
                "protocol_type": group.protocol_type,
                "assignor": group.protocol,
                "coordinator": group.coordinator,
                "members": [
                    {
                        "member": m.id,
                        "instance": m.instance_id,
                        "client_id": m.client_id,
                        "host": m.host,
                        "has_readable_assignment": m not in unreadable,
                    }
                    for m in group.members
                ],
                "partitions": [partition.to_json() for partition in progress],
                "partitions_without_end": silent,
                "lag": lag,
            }
        )
    else:
        output.say(
            f"{name}: {group.state}, {len(group.members)} member(s), assignor {group.protocol or output.NO_VALUE}, "
            f"coordinator {group.coordinator}, lag {'unknown' if lag is None else lag}"
        )
        headings = ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "CLIENT-ID", "HOST"]
        output.say(output.table(headings, [list(partition.to_json().values()) for partition in progress]))
        for member in unreadable:
            told = output.printable(f"{member.id} ({member.client_id}, {member.host})")
            output.say(f"The assignment of member {told} cannot be read: its partitions are not shown as its own.")
    if silent:
        named = ", ".join(silent[:MAX_NAMED]) + (f" and {len(silent) - MAX_NAMED} more" if silent[MAX_NAMED:] else "")
        output.fail(f"nobody tells the end of {named}: `pipeline cluster describe` says which brokers are missing")


@app.command("reset-offsets")
def reset_offsets(
    name: Name,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the last record.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, max=MAX_INT64, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option("--to-datetime", metavar="TIME", help="To the first record from this time on (ISO).")
    ] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by", help="By so many records, back if negative.")] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Set the offsets, or (default) only show them.")
    ] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Set where a group goes on. The group must have no members; without --execute nothing is changed.

    Topics are those for which it has offsets, unless --topic names others. Offsets end up within what the log holds.
    """
    target = _read_target(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    changes = trio.run(partial(_reset, name, topic or [], target, execute, bootstrap, zookeeper))
    rows = [
        {"topic": at.topic, "partition": at.partition, "committed": before, "new": after}
        for at, (before, after) in sorted(changes.items())
    ]
    if json:
        output.print_json({"group": name, "executed": execute, "partitions": rows})
        return
    output.say(output.table(["TOPIC", "PARTITION", "COMMITTED", "NEW"], [list(row.values()) for row in rows]))
    output.say(
        f"Group {name} goes on there." if execute else "Nothing was changed: add --execute to set these offsets."
    )


@app.command()
def delete(name: Name, bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None) -> None:
    """Delete a group without members, and its offsets."""

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-group") as cluster:
            with _explained(name):
                await groups.delete_group(cluster, name, timeout_s=TIMEOUT_S)

    trio.run(run)
    output.say(f"Deleted group {name}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Where offsets are to be set: a position of ListOffsets, an offset, or a distance."""

    position: int | None = None
    offset: int | None = None
    distance: int | None = None


def _read_target(
    to_earliest: bool, to_latest: bool, to_offset: int | None, to_datetime: str | None, shift_by: int | None
) -> _Target:
    targets = []
    if to_earliest:
        targets.append(_Target(position=EARLIEST))
    if to_latest:
        targets.append(_Target(position=LATEST))
    if to_offset is not None:
        targets.append(_Target(offset=to_offset))
    if to_datetime is not None:
        targets.append(_Target(position=_milliseconds(to_datetime)))
    if shift_by is not None:
        targets.append(_Target(distance=shift_by))
    if len(targets) != 1:
        raise ConfigurationError(
            "reset-offsets", "needs one of --to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by"
        )
    return targets[0]


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise ConfigurationError("--to-datetime", f"{text!r} is no time such as 2026-01-31T12:00:00Z") from error
    milliseconds = int(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise ConfigurationError("--to-datetime", f"{text} lies before 1970")
    return milliseconds


async def _describe(
    name: str, bootstrap: str | None, zookeeper: str | None
) -> tuple[GroupDescription, list[PartitionProgress]]:
    async with connected(bootstrap, zookeeper, "pipeline-group") as cluster:
        with _explained(name):
            group = await groups.describe_group(cluster, name, timeout_s=TIMEOUT_S)
        return group, await progress_of(cluster, group)


async def progress_of(
    cluster: Cluster, group: GroupDescription, *, timeout_s: float = TIMEOUT_S
) -> list[PartitionProgress]:
    """Return the progress of a group in each partition that it has committed or that a member was given.

    Ends that leaders do not tell are None. Raises KafkaError, NetworkError or DeadlineExceededError if the coordinator
    does not answer.
    """
    committed = await groups.fetch_offsets(cluster, group.id, timeout_s=timeout_s)
    owners, _ = read_assignments(group)
    partitions = sorted(committed.keys() | owners.keys())
    topics = await list_topics(cluster)
    leaders = {
        at: topics[at.topic].partitions[at.partition].leader
        for at in partitions
        if at.topic in topics and at.partition in topics[at.topic].partitions
    }
    ends = await _ends_told(cluster, leaders, timeout_s)
    return [
        PartitionProgress(
            topic_partition=at,
            committed=committed[at].offset if at in committed else None,
            end=ends.get(at),
            member=owners.get(at),
            is_silent=at in leaders and at not in ends,
        )
        for at in partitions
    ]


def read_assignments(group: GroupDescription) -> tuple[dict[TopicPartition, GroupMember], list[GroupMember]]:
    """Return the owner of each partition of a consumer group, and the members whose assignment is unreadable. Pure."""
    owners: dict[TopicPartition, GroupMember] = {}
    unreadable = []
    for member in group.members if group.protocol_type == CONSUMER else ():
        try:
            owners.update(dict.fromkeys(decode_assignment(member.assignment), member))
        except ProtocolError:
            unreadable.append(member)
    return owners, unreadable


async def _ends_told(
    cluster: Cluster, leaders: Mapping[TopicPartition, BrokerId | None], timeout_s: float
) -> dict[TopicPartition, int]:
    """Return the ends of those partitions whose leaders answer."""
    ends: dict[TopicPartition, int] = {}
    shares: dict[BrokerId, list[TopicPartition]] = {}
    for at, leader in leaders.items():
        if leader is not None:
            shares.setdefault(leader, []).append(at)

    async def ask(share: Sequence[TopicPartition]) -> None:
        with suppress(KafkaError, NetworkError, DeadlineExceededError):
            ends.update(await _offsets_at(cluster, share, LATEST, timeout_s))

    async with trio.open_nursery() as nursery:
        for share in shares.values():
            nursery.start_soon(ask, share)
    return ends


async def _reset(
    name: str, topics: Sequence[str], target: _Target, execute: bool, bootstrap: str | None, zookeeper: str | None
) -> dict[TopicPartition, tuple[int | None, int]]:
    """Each partition's committed offset, and the one that it is to have."""
    async with connected(bootstrap, zookeeper, "pipeline-group") as cluster:
        with _explained(name):
            committed = await groups.fetch_offsets(cluster, name, timeout_s=TIMEOUT_S)
        partitions = [at for at in committed if not topics]
        for topic in topics:
            view = await find_topic(cluster, topic)
            partitions += [TopicPartition(topic, index) for index in view.partitions]
        if not partitions:
            output.fail(f"group {name} has no offsets; name the topics with --topic")
        wanted = await _new_offsets(cluster, target, partitions, committed)
        if execute:
            with _explained(name):
                offsets = {at: CommittedOffset(offset=offset) for at, offset in wanted.items()}
                await groups.commit_offsets(cluster, name, offsets, timeout_s=TIMEOUT_S)
        return {at: (committed[at].offset if at in committed else None, offset) for at, offset in wanted.items()}


async def _new_offsets(
    cluster: Cluster,
    target: _Target,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, int]:
    ends = await _existing_ends(cluster, partitions)
    existing = [at for at in partitions if at in ends]
    starts = await _offsets_at(cluster, existing, EARLIEST)
    if target.position is not None:
        found = await _offsets_at(cluster, existing, target.position)
        wanted = {at: ends[at] if offset < 0 else offset for at, offset in found.items()}
    elif target.offset is not None:
        wanted = dict.fromkeys(existing, target.offset)
    else:
        wanted = {at: committed[at].offset + (target.distance or 0) for at in existing if at in committed}
    return {at: min(max(offset, starts[at]), ends[at]) for at, offset in wanted.items()}


async def _existing_ends(cluster: Cluster, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    topics = await list_topics(cluster)
    existing = [at for at in partitions if at.topic in topics and at.partition in topics[at.topic].partitions]
    return await _offsets_at(cluster, existing, LATEST)


async def _offsets_at(
    cluster: Cluster, partitions: Sequence[TopicPartition], position: int, timeout_s: float = TIMEOUT_S
) -> dict[TopicPartition, int]:
    listed = await list_offsets(cluster, dict.fromkeys(partitions, position), timeout_s=timeout_s)
    return {at: found.offset for at, found in listed.items()}


@contextmanager
def _explained(group: str) -> Iterator[None]:
    """Ends the command with a sentence for what a group refuses."""
    try:
        yield
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            output.fail(f"group {group} does not exist: `pipeline group list` shows those that do")
        if error.code in {ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}:
            output.fail(f"group {group} has members: stop its consumers first")
        raise
