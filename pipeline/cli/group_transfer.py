"""`pipeline group export-offsets` and `import-offsets`: committed offsets as a JSON document."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import trio
import typer

from pipeline.cli.group_progress import leaders_of, reported_offsets
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import TIMEOUT_S, Bootstrap, ZooKeeper, connected
from pipeline.cli.terminal.files import read_text
from pipeline.client.admin import groups
from pipeline.client.admin.groups import CommittedOffset
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import ConfigurationError
from pipeline.model import MAX_INT64, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.settings import MAX_INT32

MAX_NAMED = 5
"""Partitions named in one message."""
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]


def export_offsets(name: Group, bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None) -> None:
    """Print the offsets of a group as JSON, which import-offsets reads."""

    async def run() -> dict[TopicPartition, CommittedOffset]:
        async with connected(bootstrap, zookeeper, "pipeline-group") as cluster:
            return await groups.fetch_offsets(cluster, name, timeout_s=TIMEOUT_S)

    found = trio.run(run)
    if not found:
        output.exit_with(f"group {name} has not committed any offsets")
    rows = [
        {"topic": topic, "partition": number, "offset": committed.offset, "metadata": committed.metadata}
        for (topic, number), committed in sorted(found.items())
    ]
    output.print_json({"group": name, "offsets": rows})


def import_offsets(
    name: Group,
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="File that export-offsets printed.")],
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Set the offsets of a group without members to those of a file; offsets of other partitions stay.

    If a partition does not exist, or an offset is outside of its log, none is set.
    """
    wanted = _read_offsets(file)

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-group") as cluster:
            await _require_within_logs(cluster, wanted)
            try:
                await groups.commit_offsets(cluster, name, wanted, timeout_s=TIMEOUT_S)
            except KafkaError as error:
                if error.code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}:
                    output.exit_with(f"group {name} has members: stop its consumers first")
                raise

    trio.run(run)
    output.say(f"Set {output.counted(len(wanted), 'offset')} of group {name}.")


def _read_offsets(file: Path) -> dict[TopicPartition, CommittedOffset]:
    try:
        rows: Any = json.loads(read_text(file))["offsets"]
        found = {_partition(row): _committed(row) for row in rows}
        twice = len(rows) - len(found)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigurationError(str(file), "is not a document of export-offsets") from error
    if not found:
        raise ConfigurationError(str(file), "has no offsets")
    if twice:
        raise ConfigurationError(str(file), "names a partition twice")
    return found


async def _require_within_logs(cluster: Cluster, wanted: Mapping[TopicPartition, CommittedOffset]) -> None:
    """End the command for an offset at which no consumer could continue: its policy of resets would choose another.

    Logs whose leaders do not answer are not compared.
    """
    leaders = await leaders_of(cluster, wanted)
    if missing := sorted(wanted.keys() - leaders.keys()):
        named = output.enumeration(missing, MAX_NAMED)
        output.exit_with(f"no offset was set: the cluster has no partition {named}")
    starts = await reported_offsets(cluster, leaders, EARLIEST)
    ends = await reported_offsets(cluster, leaders, LATEST)
    outside = [
        f"{each} at {committed.offset} (log: {starts[each]} to {ends[each]})"
        for each, committed in sorted(wanted.items())
        if each in starts and each in ends and not starts[each] <= committed.offset <= ends[each]
    ]
    if outside:
        output.exit_with(
            f"no offset was set: {output.enumeration(outside, MAX_NAMED)}. Records were deleted since the export, or "
            "the topic was recreated: change the file, or see `pipeline group reset-offsets`"
        )


def _partition(row: Any) -> TopicPartition:
    topic, number = row["topic"], row["partition"]
    if not isinstance(topic, str) or type(number) is not int or not 0 <= number <= MAX_INT32:
        raise ValueError(f"no partition: {row}")
    return TopicPartition(topic, number)


def _committed(row: Any) -> CommittedOffset:
    offset, metadata = row["offset"], row.get("metadata", "")
    if type(offset) is not int or not 0 <= offset <= MAX_INT64 or not isinstance(metadata, str | None):
        raise ValueError(f"no offset: {row}")
    return CommittedOffset(offset=offset, metadata=metadata)
