"""`pipeline topic`: create, list, describe, configure, grow and delete topics, and delete their records."""

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import TIMEOUT_S, Bootstrap, Json, ZooKeeper, connected, find_offsets_at, find_topic
from pipeline.cli.terminal.settings import parse_assignments, parse_changes
from pipeline.cli.terminal.times import TIME_HELP, read_time_ms
from pipeline.client.admin import offsets
from pipeline.client.admin.offsets import ALL_RECORDS
from pipeline.client.admin.resource_configs import ConfigEntry, ConfigResource, alter_configs, describe_configs
from pipeline.client.admin.topics import (
    BROKER_DEFAULT,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    list_topics,
)
from pipeline.client.cluster.metadata import TopicMetadata
from pipeline.errors import ConfigurationError
from pipeline.model import MAX_INT64, TopicPartition
from pipeline.protocol.messages.describe_configs import ConfigSource, ResourceType
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from pipeline.settings import MAX_INT16, MAX_INT32

app = typer.Typer(no_args_is_help=True, help="Topics of a cluster.")
POSITIONS = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}
MAX_NAMED = 5
"""Partitions named in one message."""
MAX_SHOWN_VALUE = 100
"""Characters of a setting in a table."""

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_INT32, help="Number of partitions. Default: the broker's setting num.partitions."),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, max=MAX_INT16, help="Replicas per partition. Default: the broker's setting.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="Topic setting; may be repeated.")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Leave a topic that exists as it is, and report no error.")
    ] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Create a topic and wait until all its partitions have a leader."""
    topic = NewTopic(
        name=name,
        partitions=partitions or BROKER_DEFAULT,
        replication_factor=replication_factor or BROKER_DEFAULT,
        configs=parse_assignments(config or []),
    )

    async def run() -> bool:
        async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
            is_known = if_not_exists and name in await list_topics(cluster)
            await create_topics(cluster, [topic], exist_ok=if_not_exists)
            return is_known

    is_known = trio.run(run)
    output.say(f"Topic {name} exists." if is_known else f"Created topic {name}.")


@app.command("list")
def list_(
    pattern: Annotated[
        str | None, typer.Argument(metavar="[REGEX]", help="Only topics whose whole name matches. Default: all.")
    ] = None,
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics of the cluster too.")] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """List topics: partitions, replicas per partition, partitions with less in sync or without leader."""
    is_meant = _matcher(pattern)
    topics = trio.run(partial(_read_topics, bootstrap, zookeeper))
    rows = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(p.replicas) for p in topic.partitions.values()), default=None),
            "under_replicated": sum(len(p.isr) < len(p.replicas) for p in topic.partitions.values()),
            "without_leader": len(topic.partitions) - len(topic.led_partitions),
        }
        for topic in topics.values()
        if is_meant(topic.name) and (internal or not topic.is_internal)
    ]
    if json:
        output.print_json({"topics": rows})
    else:
        headings = ["TOPIC", "PARTITIONS", "REPLICAS", "UNDER-REPLICATED", "WITHOUT-LEADER"]
        output.say(output.table(headings, [list(row.values()) for row in rows]))


@app.command("offsets")
def show_offsets(
    name: Name,
    time: Annotated[
        str,
        typer.Option(
            "--time",
            metavar="TIME",
            help=f"earliest, latest, max-timestamp, or a time, for the first record since then: {TIME_HELP}.",
        ),
    ] = "latest",
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Show the offset of each partition at a time, and the timestamp of the record there.

    Exit code 1 if a partition has no leader: its offset is unknown.
    """
    position = POSITIONS[time] if time in POSITIONS else read_time_ms("--time", time)

    async def run() -> dict[int, offsets.ListedOffset | None]:
        async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
            topic = await find_topic(cluster, name)
            led = {TopicPartition(name, number): position for number in topic.led_partitions}
            listed = await offsets.list_offsets(cluster, led, timeout_s=TIMEOUT_S)
            return {number: listed.get(TopicPartition(name, number)) for number in sorted(topic.partitions)}

    found = trio.run(run)
    rows = [
        {
            "partition": number,
            "offset": listed.offset if listed is not None and listed.offset >= 0 else None,
            "timestamp": listed.timestamp_ms if listed is not None and listed.timestamp_ms >= 0 else None,
        }
        for number, listed in found.items()
    ]
    if json:
        output.print_json({"topic": name, "partitions": rows})
    else:
        output.say(output.table(["PARTITION", "OFFSET", "TIMESTAMP"], [list(row.values()) for row in rows]))
    if unled := [f"{name}-{number}" for number, listed in found.items() if listed is None]:
        named = output.enumeration(unled, MAX_NAMED)
        output.exit_with(f"no leader: {named}; `pipeline cluster describe` shows the reason")


@app.command()
def describe(name: Name, bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None, json: Json = False) -> None:
    """Show a topic's partitions (leader, replicas, first and next offset) and settings.

    Offsets of a partition without leader are unknown; `pipeline cluster describe` shows the reason.
    """
    topic, ranges, settings = trio.run(partial(_describe, name, bootstrap, zookeeper))
    rows = [
        {
            "partition": number,
            "leader": partition.leader,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "log_start_offset": ranges[number][0] if number in ranges else None,
            "high_watermark": ranges[number][1] if number in ranges else None,
        }
        for number, partition in sorted(topic.partitions.items())
    ]
    if json:
        configs = {
            key: {"value": entry.value, "source": entry.source.name.lower()} for key, entry in sorted(settings.items())
        }
        output.print_json({"name": name, "topic_id": str(topic.id), "partitions": rows, "configs": configs})
    else:
        headings = ["PARTITION", "LEADER", "REPLICAS", "ISR", "LOG-START-OFFSET", "HIGH-WATERMARK"]
        output.say(output.table(headings, [list(row.values()) for row in rows]))
        own = [
            [key, _shortened(entry.value), entry.source.name.lower()]
            for key, entry in sorted(settings.items())
            if entry.source is not ConfigSource.DEFAULT
        ]
        if own:
            output.say("\n" + output.table(["SETTING", "VALUE", "SET-BY"], own))


@app.command()
def configure(
    name: Name,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set KEY to VALUE; may be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="KEY", help="Remove the override of KEY; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Change settings of a topic: all of them, or none if one is refused."""
    settings = parse_changes(set_, unset)

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
            await find_topic(cluster, name)
            await alter_configs(cluster, {ConfigResource(ResourceType.TOPIC, name): settings}, timeout_s=TIMEOUT_S)

    trio.run(run)
    output.say(f"Configured topic {name}.")


@app.command()
def delete_records(
    name: Name,
    before: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_INT64, help="Delete records before this offset. Default: all current records."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, max=MAX_INT32, help="Only in this partition; may be repeated. Default: all."),
    ] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Delete the oldest records of a topic for good."""

    async def run() -> dict[TopicPartition, int]:
        async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
            topic = await find_topic(cluster, name)
            unknown = sorted(set(partition or ()) - set(topic.partitions))
            if unknown:
                raise ConfigurationError("--partition", f"topic {name} has no partition {unknown[0]}")
            wanted = [TopicPartition(name, number) for number in partition or sorted(topic.partitions)]
            offset = ALL_RECORDS if before is None else before
            return await offsets.delete_records(cluster, dict.fromkeys(wanted, offset), timeout_s=TIMEOUT_S)

    starts = trio.run(run)
    rows = [[deleted.partition, start] for deleted, start in sorted(starts.items())]
    output.say(output.table(["PARTITION", "LOG-START-OFFSET"], rows))


@app.command()
def grow(
    name: Name,
    partitions: Annotated[int, typer.Option(min=1, max=MAX_INT32, help="New number of partitions.")],
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Add partitions to a topic."""

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
            await find_topic(cluster, name)
            await create_partitions(cluster, {name: partitions})

    trio.run(run)
    output.say(f"Topic {name} has {partitions} partitions.")


@app.command()
def delete(
    names: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Names of topics.")] = None,
    matching: Annotated[
        str | None,
        typer.Option("--matching", metavar="REGEX", help="Topics whose whole name matches, but no internal ones."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Delete topics and all their records.

    Asks first on a terminal; elsewhere --matching needs --yes, and so do names of internal topics of the cluster.
    """
    if not names and matching is None:
        raise ConfigurationError("TOPIC", "is missing: give names of topics, or --matching REGEX")
    is_meant = _matcher(matching)
    is_terminal = sys.stdin.isatty()

    async def find() -> dict[str, TopicMetadata]:
        async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
            found = {name: await find_topic(cluster, name) for name in names or ()}
            known = await list_topics(cluster) if matching is not None else {}
            return found | {name: topic for name, topic in known.items() if is_meant(name) and not topic.is_internal}

    async def run(found: list[str]) -> None:
        async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
            await delete_topics(cluster, found)

    found = trio.run(find)
    if not found:
        output.say(f"No topic matches {matching}.")
        return
    internal = [name for name, topic in found.items() if topic.is_internal]
    warning = f" The cluster keeps its own data in {', '.join(internal)}." if internal else ""
    if not yes and is_terminal:
        _confirm(f"Delete {', '.join(found)}, with all records?{warning} [y/N]: ")
    elif not yes and (matching is not None or internal):
        output.exit_with(f"--yes would delete {', '.join(found)}.{warning}".rstrip("."), output.EXIT_USAGE)
    trio.run(run, list(found))
    output.say("\n".join(f"Deleted topic {name}." for name in found))


def _confirm(question: str) -> None:
    """Ask on the terminal. Ends the command unless the answer is yes; Ctrl-C ends it with 130."""
    sys.stderr.write(question)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        output.exit_with("nothing was deleted")


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    if pattern is None:
        return lambda _: True
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError("REGEX", f"{pattern!r} is no regular expression: {error}") from error
    return lambda name: compiled.fullmatch(name) is not None


def _shortened(value: str | None) -> str | None:
    """Return a value that fits in a table; `--json` shows the whole one."""
    return value if value is None or len(value) <= MAX_SHOWN_VALUE else f"{value[:MAX_SHOWN_VALUE]}..."


async def _read_topics(bootstrap: str | None, zookeeper: str | None) -> dict[str, TopicMetadata]:
    async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
        return await list_topics(cluster)


async def _describe(
    name: str, bootstrap: str | None, zookeeper: str | None
) -> tuple[TopicMetadata, dict[int, tuple[int, int]], dict[str, ConfigEntry]]:
    async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
        topic = await find_topic(cluster, name)
        partitions = [TopicPartition(name, number) for number in topic.led_partitions]
        starts = await find_offsets_at(cluster, partitions, EARLIEST)
        ends = await find_offsets_at(cluster, partitions, LATEST)
        resource = ConfigResource(ResourceType.TOPIC, name)
        settings = await describe_configs(cluster, [resource], timeout_s=TIMEOUT_S)
        ranges = {p.partition: (starts[p], ends[p]) for p in partitions}
        return topic, ranges, settings[resource]
