"""`pipeline group`: list, describe and delete consumer groups, and reset their offsets."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import trio
import typer

from pipeline.cli.group_progress import (
    PartitionProgress,
    lag_of_all,
    lags_of,
    leaders_of,
    progress_of,
    read_assignments,
)
from pipeline.cli.group_transfer import export_offsets, import_offsets
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import TIMEOUT_S, Bootstrap, Json, ZooKeeper, connected, find_offsets_at, find_topic
from pipeline.cli.terminal.times import TIME_HELP, read_time_ms
from pipeline.client.admin import groups
from pipeline.client.admin.groups import CommittedOffset, GroupDescription, GroupMember
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import ConfigurationError
from pipeline.model import MAX_INT64, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

app = typer.Typer(no_args_is_help=True, help="Consumer groups of a cluster.")
app.command("export-offsets")(export_offsets)
app.command("import-offsets")(import_offsets)

MAX_NAMED = 10
"""Partitions named in one message."""
Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]


@app.command("list")
def list_(
    lag: Annotated[bool, typer.Option("--lag", help="The lag of each group too; - if it is unknown.")] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """List all groups: state, protocol, coordinator."""

    async def run() -> list[tuple[groups.GroupListing, int | None]]:
        async with connected(bootstrap, zookeeper, "pipeline-group") as cluster:
            found = await groups.list_groups(cluster, timeout_s=TIMEOUT_S)
            lags = await lags_of(cluster, found) if lag else {}
            return [(group, lags.get(group.id)) for group in found]

    rows = [
        {
            "group": group.id,
            "state": group.state,
            "protocol_type": group.protocol_type,
            "coordinator": group.coordinator,
            **({"lag": behind} if lag else {}),
        }
        for group, behind in trio.run(run)
    ]
    if json:
        output.print_json({"groups": rows})
    else:
        headings = ["GROUP", "STATE", "PROTOCOL-TYPE", "COORDINATOR", *(["LAG"] if lag else [])]
        output.say(output.table(headings, [[None if v == "" else v for v in row.values()] for row in rows]))


@app.command()
def describe(name: Name, bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None, json: Json = False) -> None:
    """Show a group: state, members, and for each partition committed offset, end and lag.

    The lag is unknown while a partition has no committed offset. Exit code 1 if no broker reports the end of a
    partition: the lag is unknown then, too.
    """
    group, progress, unreadable = trio.run(partial(_describe, name, bootstrap, zookeeper))
    silent = [str(partition.topic_partition) for partition in progress if partition.is_silent]
    lag = lag_of_all(progress)
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
            named = output.printable(f"{member.id} ({member.client_id}, {member.host})")
            output.say(f"The assignment of member {named} cannot be read: its partitions are shown without a member.")
    if silent:
        named = output.enumeration(silent, MAX_NAMED)
        output.exit_with(f"no broker reports the end of {named}: `pipeline cluster describe` lists the brokers")


@app.command("reset-offsets")
def reset_offsets(
    name: Name,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record in the log.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: only new records are read.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, max=MAX_INT64, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help=f"To the first record since this time: {TIME_HELP}."),
    ] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by", help="By this many records, back if negative.")] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Set the offsets; the default only shows them.")
    ] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Reset the offsets of a group without members. Without --execute nothing is changed.

    Default: all topics with committed offsets; --topic chooses others. Offsets outside of the log are moved to its
    nearest end.
    """
    target = _read_target(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    changes = trio.run(partial(_reset, name, topic or [], target, execute, bootstrap, zookeeper))
    rows = [
        {"topic": topic_partition.topic, "partition": topic_partition.partition, "committed": before, "new": after}
        for topic_partition, (before, after) in sorted(changes.items())
    ]
    if json:
        output.print_json({"group": name, "executed": execute, "partitions": rows})
        return
    output.say(output.table(["TOPIC", "PARTITION", "COMMITTED", "NEW"], [list(row.values()) for row in rows]))
    output.say(f"Set the offsets of group {name}." if execute else "Nothing was changed: --execute sets these offsets.")


@app.command("delete-offsets")
def delete_group_offsets(
    name: Name,
    topic: Annotated[list[str], typer.Option("--topic", metavar="TOPIC", help="Topic; may be repeated.")],
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Delete the offsets of a group in topics that no member reads."""

    async def run() -> int:
        async with connected(bootstrap, zookeeper, "pipeline-group") as cluster:
            with _explained(name):
                committed = await groups.fetch_offsets(cluster, name, timeout_s=TIMEOUT_S)
                meant = [each for each in committed if each.topic in topic]
                if meant:
                    await groups.delete_offsets(cluster, name, meant, timeout_s=TIMEOUT_S)
                return len(meant)

    count = trio.run(run)
    if not count:
        output.exit_with(f"group {name} has no offsets in {', '.join(topic)}")
    output.say(f"Deleted {output.counted(count, 'offset')} of group {name}.")


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
    """The new position of a group: a position of ListOffsets, an offset, or a distance."""

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
        targets.append(_Target(position=read_time_ms("--to-datetime", to_datetime)))
    if shift_by is not None:
        targets.append(_Target(distance=shift_by))
    if len(targets) != 1:
        raise ConfigurationError(
            "reset-offsets", "needs one of --to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by"
        )
    return targets[0]


async def _describe(
    name: str, bootstrap: str | None, zookeeper: str | None
) -> tuple[GroupDescription, list[PartitionProgress], list[GroupMember]]:
    """Return the group, its progress, and the members whose assignment is unreadable."""
    async with connected(bootstrap, zookeeper, "pipeline-group") as cluster:
        with _explained(name):
            try:
                group = await groups.describe_group(cluster, name, timeout_s=TIMEOUT_S)
            except KafkaError as error:
                if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                    await _refuse_other_protocols(cluster, name)
                raise
        owners, unreadable = read_assignments(group)
        return group, await progress_of(cluster, name, owners), unreadable


async def _reset(
    name: str, topics: Sequence[str], target: _Target, execute: bool, bootstrap: str | None, zookeeper: str | None
) -> dict[TopicPartition, tuple[int | None, int]]:
    """Return each partition's committed offset and its new one."""
    async with connected(bootstrap, zookeeper, "pipeline-group") as cluster:
        with _explained(name):
            committed = await groups.fetch_offsets(cluster, name, timeout_s=TIMEOUT_S)
        partitions = [p for p in committed if not topics]
        for topic in topics:
            view = await find_topic(cluster, topic)
            partitions += [TopicPartition(topic, index) for index in view.partitions]
        if not partitions:
            output.exit_with(f"group {name} has not committed any offsets; choose topics with --topic")
        wanted = await _new_offsets(cluster, target, partitions, committed)
        if execute:
            with _explained(name):
                offsets = {p: CommittedOffset(offset=offset) for p, offset in wanted.items()}
                await groups.commit_offsets(cluster, name, offsets, timeout_s=TIMEOUT_S)
        return {p: (committed[p].offset if p in committed else None, offset) for p, offset in wanted.items()}


async def _new_offsets(
    cluster: Cluster,
    target: _Target,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, int]:
    existing = list(await leaders_of(cluster, partitions))
    ends, starts = await find_offsets_at(cluster, existing, LATEST), await find_offsets_at(cluster, existing, EARLIEST)
    if target.position is not None:
        found = await find_offsets_at(cluster, existing, target.position)
        wanted = {p: ends[p] if offset < 0 else offset for p, offset in found.items()}
    elif target.offset is not None:
        wanted = dict.fromkeys(existing, target.offset)
    else:
        wanted = {p: committed[p].offset + (target.distance or 0) for p in existing if p in committed}
    return {p: min(max(offset, starts[p]), ends[p]) for p, offset in wanted.items()}


async def _refuse_other_protocols(cluster: Cluster, name: str) -> None:
    """End the command if the group exists, though its coordinator does not describe it."""
    if name in {group.id for group in await groups.list_groups(cluster, timeout_s=TIMEOUT_S)}:
        output.exit_with(
            f"group {name} has the protocol of KIP-848, whose members this command cannot show; "
            "`pipeline group list --lag` shows its lag"
        )


@contextmanager
def _explained(group: str) -> Iterator[None]:
    """End the command with one sentence if the group refuses a request."""
    try:
        yield
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            output.exit_with(f"group {group} does not exist: `pipeline group list` lists groups")
        if error.code in {ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}:
            output.exit_with(f"group {group} has members: stop its consumers first")
        raise
