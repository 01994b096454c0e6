"""`pipeline mirror promote` and `reverse`: replicas that take producers, and failed clusters that follow them."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.client_config import client_security, read_client_config
from pipeline.cli.terminal.connect import Bootstrap, Json, ZooKeeper, addresses, connected, randomness, wall_clock
from pipeline.cli.terminal.settings import read_settings
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.model import HostPort, TopicPartition
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity
from pipeline.promotion import Promotion

if TYPE_CHECKING:
    from pipeline.client.cluster.cluster import Cluster
    from pipeline.mirror.failover.missing_records import MissingRecords
    from pipeline.mirror.failover.promotion import PromotedTopic
    from pipeline.mirror.journals.table import Assignment

CLIENT_ID = "pipeline-mirror"
TIMEOUT_S = 60.0
"""Time in which the brokers of the hub must take over the settings of a topic."""
SOURCE_TIMEOUT_S = 5.0
UNKNOWN = "unknown"
TOPICS_AT_ONCE = 10
MAX_NAMED = 10

Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source-bootstrap",
        metavar="NAME=HOST:PORT,...",
        help="Brokers of a source, to count the records that are missing; may be repeated.",
    ),
]
MirrorFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.toml", help="Settings of the mirror: addresses of the hub and its sources."),
]

Row = dict[str, Any]


def promote(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Replica topics of the hub.")],
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    source_bootstrap: Sources = None,
    config: MirrorFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the same, and change nothing.")] = False,
    json: Json = False,
) -> None:
    """End the copying of replica topics and let producers write to them; show the records that are missing.

    All partitions of a topic become writable, whatever their sources are. May be repeated: a topic that was promoted
    stays as it is, and an interrupted promotion is finished. The options name the hub.
    """
    sources = {
        name: SourceAddress(addresses(text), client_security())
        for name, text in map(_name_and_addresses, source_bootstrap or ())
    }
    security = client_security()
    if config is not None:
        hub, found = _read_mirror_file(config)
        sources = found | sources
        if bootstrap is None and zookeeper is None:
            bootstrap, security = ",".join(map(str, hub.bootstrap)), hub.security
    hub_options = (bootstrap, zookeeper, security)
    rows, failures = trio.run(_promote, list(dict.fromkeys(topics)), hub_options, sources, dry_run)
    if json:
        output.print_json({"dry_run": dry_run, "topics": rows, "failures": failures})
    else:
        _print_rows(rows, dry_run=dry_run)
    if failures:
        output.exit_with("; ".join(failures))


def _name_and_addresses(text: str) -> tuple[str, str]:
    name, separator, listed = text.partition("=")
    if not (name and separator and listed):
        raise ConfigurationError("--source-bootstrap", f"{text!r} is not NAME=HOST:PORT,...")
    return name, listed


class SourceAddress(NamedTuple):
    """Addresses of a cluster, and the protection of the connections to it."""

    bootstrap: Sequence[HostPort]
    security: ClientSecurity = OPEN_SECURITY


def _read_mirror_file(config: Path) -> tuple[SourceAddress, dict[str, SourceAddress]]:
    from pipeline.mirror.config import MirrorConfig

    try:
        settings = MirrorConfig.from_settings(read_settings(config))
        settings.require_equal_offsets("pipeline mirror promote")
    except ConfigurationError as error:
        raise ConfigurationError(f"{config}: {error.key}", error.reason) from error
    hub = SourceAddress(settings.destination, settings.destination_security)
    return hub, {each.name: SourceAddress(each.bootstrap, each.security) for each in settings.sources}


async def _promote(
    topics: Sequence[str],
    hub_options: tuple[str | None, str | None, ClientSecurity],
    sources: Mapping[str, SourceAddress],
    dry_run: bool,
) -> tuple[list[Row], list[str]]:
    """Promote all topics, and return a row for each that is promoted, and the failures of the others."""
    from pipeline.mirror.failover.promotion import Promoter

    rows: dict[str, PromotedTopic] = {}
    failures: dict[str, str] = {}
    bootstrap, zookeeper, security = hub_options
    async with connected(bootstrap, zookeeper, CLIENT_ID, {"security": security}) as hub:
        promoter = Promoter(hub, clock=wall_clock, timeout_s=TIMEOUT_S)
        limiter = trio.CapacityLimiter(TOPICS_AT_ONCE)

        async def promote_topic(topic: str) -> None:
            async with limiter:
                try:
                    rows[topic] = await (promoter.preview(topic) if dry_run else promoter.promote(topic))
                except PipelineError as error:
                    failures[topic] = str(error)

        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(promote_topic, topic)
        origins: dict[TopicPartition, Assignment] = {}
        try:
            origins = await read_table(hub, rows)
        except PipelineError as error:  # what was promoted must be shown nevertheless
            failures[""] = f"the sources of the partitions are unknown: {error}"
        missing = await ask_sources(hub, sources, rows.values(), origins)
        uncopied = await ask_uncopied(sources, origins)
    done = [
        _row_of(rows[topic], origins, missing) | {"uncopied": uncopied.get(topic, [])}
        for topic in topics
        if topic in rows
    ]
    return done, list(failures.values())


async def read_table(hub: "Cluster", topics: Iterable[str]) -> dict[TopicPartition, "Assignment"]:
    """Return the entries of the partition table of these replica topics, by replica partition."""
    from pipeline.client.admin.topics import list_topics
    from pipeline.mirror.journals.table import TABLE_TOPIC
    from pipeline.mirror.journals.table_journal import TableJournal

    journal = TableJournal(hub, lambda _skipped: None)
    if TABLE_TOPIC in await list_topics(hub):
        await journal.read_on()
    wanted = set(topics)
    return {entry.replica: entry for entry in journal.table.assignments() if entry.replica.topic in wanted}


async def ask_sources(
    hub: "Cluster",
    sources: Mapping[str, SourceAddress],
    promoted: Iterable["PromotedTopic"],
    origins: Mapping[TopicPartition, "Assignment"],
    *,
    timeout_s: float = SOURCE_TIMEOUT_S,
) -> dict[TopicPartition, "MissingRecords"]:
    """Return for each replica partition with a known source the records that it lacks."""
    from pipeline.mirror.failover.missing_records import CopiedPartition, MissingRecords, find_missing

    shares: dict[str, list[CopiedPartition]] = {}
    for topic in promoted:
        for number, end in enumerate(topic.ends):
            entry = origins.get(TopicPartition(topic.topic, number))
            if entry is not None:
                shares.setdefault(entry.source.cluster, []).append(CopiedPartition(entry, end))
    found: dict[TopicPartition, MissingRecords] = {}

    async def ask(name: str, copies: Sequence[CopiedPartition]) -> None:
        if name not in sources:
            reason = f"the addresses of {name} were not given (--source-bootstrap {name}=HOST:PORT)"
            found.update({copy.entry.replica: MissingRecords(reason=reason) for copy in copies})
        else:
            async with _opened(sources[name]) as source:
                found.update(await find_missing(hub, source, copies, timeout_s=timeout_s))

    async with trio.open_nursery() as nursery:
        for name, copies in shares.items():
            nursery.start_soon(ask, name, copies)
    return found


async def ask_uncopied(
    sources: Mapping[str, SourceAddress],
    origins: Mapping[TopicPartition, "Assignment"],
    *,
    timeout_s: float = SOURCE_TIMEOUT_S,
) -> dict[str, list[Row]]:
    """Return by replica topic the partitions of its source topics that have no replica, and their records."""
    from pipeline.mirror.failover.missing_records import find_uncopied

    replicas = {(entry.source.cluster, entry.source.partition): each.topic for each, entry in origins.items()}
    topics = {(name, partition.topic): topic for (name, partition), topic in replicas.items()}
    known = {entry.source.cluster: entry.source.cluster_id for entry in origins.values()}
    found: dict[str, list[Row]] = {}

    async def ask(name: str) -> None:
        copied = {partition for source, partition in replicas if source == name}
        async with _opened(sources[name]) as source:
            answers = await find_uncopied(source, copied, timeout_s=timeout_s)
            if None not in (known[name], source.view.cluster_id) and known[name] != source.view.cluster_id:
                return  # the rows of its replicas say so
        for each, missing in answers.items():
            row = {"source": name, "source_topic": each.topic, "source_partition": each.partition}
            found.setdefault(topics[name, each.topic], []).append(row | {"missing": asdict(missing)})

    async with trio.open_nursery() as nursery:
        for name in {source for source, _ in replicas if source in sources}:
            nursery.start_soon(ask, name)
    return found


@asynccontextmanager
async def _opened(source: SourceAddress) -> AsyncIterator["Cluster"]:
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig

    settings = ClientConfig(bootstrap=tuple(source.bootstrap), client_id=CLIENT_ID, security=source.security)
    async with open_cluster(settings) as cluster:
        yield cluster


def _row_of(
    topic: "PromotedTopic",
    origins: Mapping[TopicPartition, "Assignment"],
    missing: Mapping[TopicPartition, "MissingRecords"],
) -> Row:
    from pipeline.mirror.failover.missing_records import MissingRecords

    partitions = []
    for number, end in enumerate(topic.ends):
        replica = TopicPartition(topic.topic, number)
        entry = origins.get(replica)
        unknown = MissingRecords(reason="the partition table of the hub has no entry for it")
        partitions.append(
            {
                "partition": number,
                "source": None if entry is None else entry.source.cluster,
                "source_topic": None if entry is None else entry.source.partition.topic,
                "source_partition": None if entry is None else entry.source.partition.partition,
                "end": end,
                "missing": asdict(missing.get(replica, unknown)),
            }
        )
    return {
        "topic": topic.topic,
        "promoted_at": None if topic.at_ms is None else Promotion(at_ms=topic.at_ms).time,
        "was_promoted": topic.was_promoted,
        "partitions": partitions,
    }


def _print_rows(rows: Sequence[Row], *, dry_run: bool) -> None:
    headings = ["PARTITION", "SOURCE", "COPIED-UP-TO", "SOURCE-END", "MISSING-OFFSETS", "BYTES-ESTIMATE", "SECONDS"]
    lines = [
        [
            f"{row['topic']}-{each['partition']}",
            None if each["source"] is None else _source_partition(each),
            each["end"],
            *_numbers(each["missing"]),
        ]
        for row in rows
        for each in row["partitions"]
    ]
    uncopied = [each for row in rows for each in row["uncopied"]]
    lines += [["none", _source_partition(each), 0, *_numbers(each["missing"])] for each in uncopied]
    if lines:
        output.say(output.table(headings, lines))
    for row in rows:
        topic, sources = row["topic"], sorted({each["source"] for each in row["partitions"]} - {None})
        of_sources = f", the partitions of {output.enumeration(sources, MAX_NAMED)} alike" if len(sources) > 1 else ""
        if row["was_promoted"]:
            output.say(f"{topic} was promoted before, at {row['promoted_at']}: nothing was changed")
        elif dry_run:
            output.say(f"{topic} is a replica; a promotion makes all its partitions writable{of_sources}")
        else:
            output.say(f"{topic} is promoted: producers may write to all its partitions{of_sources}")
    if uncopied:
        output.say("none: the partition has no replica, and nothing of it was copied")
    reasons = [each["missing"]["reason"] for row in rows for each in (*row["partitions"], *row["uncopied"])]
    for reason in dict.fromkeys(reason for reason in reasons if reason is not None):
        output.say(f"{UNKNOWN}: {output.printable(reason)}")


def _source_partition(row: Row) -> str:
    return f"{row['source']}/{row['source_topic']}-{row['source_partition']}"


def _numbers(missing: Row) -> list[Any]:
    names = ("high_watermark", "offsets", "bytes", "seconds")
    return [UNKNOWN if missing[name] is None else missing[name] for name in names]


def reverse(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Promoted topics of the hub.")],
    source_bootstrap: Annotated[
        str, typer.Option("--source-bootstrap", metavar="NAME=HOST:PORT,...", help="Brokers of the failed cluster.")
    ],
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="Directory for the records that only the cluster has.")
    ],
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    source_client_config: Annotated[
        Path | None,
        typer.Option(
            "--source-client-config",
            metavar="FILE",
            help="Client settings of the failed cluster; without them those of --client-config, which the hub has.",
        ),
    ] = None,
    hub_name: Annotated[
        str, typer.Option("--hub-name", metavar="NAME", help="Name of the hub in the settings of the new mirror.")
    ] = "hub",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be saved, and change nothing.")] = False,
    json: Json = False,
) -> None:
    """Have topics of a failed cluster follow the promoted topics of the hub.

    Records that only the failed cluster has are saved to files. Then its topic is DELETED and created again as a
    replica, which a mirror fills from the hub. May be repeated, and continues after an interruption. --bootstrap and
    --zookeeper name the hub.
    """
    name, listed = _name_and_addresses(source_bootstrap)
    security = client_security() if source_client_config is None else read_client_config(source_client_config)
    old = (name, listed, security)
    rows, failures = trio.run(_reverse, topics, bootstrap, zookeeper, old, hub_name, directory, dry_run)
    if json:
        output.print_json({"dry_run": dry_run, "topics": rows, "failures": failures})
    else:
        _print_reversed(rows)
        if rows and not (failures or dry_run):
            named = ", ".join(f'"{topic}"' for topic in dict.fromkeys(topics))
            output.say(_MIRROR_SETTINGS.format(old=listed, hub_name=hub_name, topics=named))
    if failures:
        output.exit_with("; ".join(failures))


_MIRROR_SETTINGS = """
Start a mirror beside {old} with these settings, and the addresses of the hub's brokers in the last one:

destination.bootstrap.servers = "{old}"
topics = [{topics}]
http.listen = "127.0.0.1:8090"

[[sources]]
name = "{hub_name}"
bootstrap.servers = "HUB:9092\""""


async def _reverse(
    topics: Sequence[str],
    bootstrap: str | None,
    zookeeper: str | None,
    old_cluster: tuple[str, str, ClientSecurity],
    hub_name: str,
    directory: Path,
    dry_run: bool,
) -> tuple[list[Row], list[str]]:
    from pipeline.client.admin.topics import list_topics
    from pipeline.log.files import DiskFiles
    from pipeline.mirror.failover.failback import Reverser
    from pipeline.mirror.journals.gap_journal import GapJournal
    from pipeline.mirror.journals.gaps import GAPS_TOPIC

    rows: list[Row] = []
    failures: list[str] = []
    name, listed, security = old_cluster
    async with (
        connected(bootstrap, zookeeper, CLIENT_ID) as hub,
        connected(listed, None, CLIENT_ID, {"security": security}) as old,
    ):
        origins = await read_table(hub, topics)
        gaps = GapJournal(hub, clock=wall_clock, rng=randomness())
        if GAPS_TOPIC in await list_topics(hub):
            await gaps.read_on()
        reverser = Reverser(
            hub, old, name, hub_name, directory, DiskFiles(), clock=wall_clock, rng=randomness(), timeout_s=TIMEOUT_S
        )
        for topic in dict.fromkeys(topics):
            try:
                done = await reverser.reverse(topic, origins, list(gaps.ledger), dry_run=dry_run)
            except PipelineError as error:
                failures.append(f"{topic}: {error}")
            else:
                rows.append(asdict(done))
    return rows, failures


def _print_reversed(rows: Sequence[Row]) -> None:
    headings = ["PARTITION", "FIRST", "LAST", "BYTES", "REASON", "FILE"]
    lines = [
        [
            f"{row['topic']}-{each['partition']}",
            each["first"],
            each["end"] - 1,
            each["bytes"] if row["is_done"] else None,
            each["reason"],
            each["file"],
        ]
        for row in rows
        for each in row["ranges"]
    ]
    if lines:
        output.say(output.table(headings, lines))
    for row in rows:
        count = output.counted(len(row["ranges"]), "range")
        done = "is a replica of the hub now" if row["is_done"] else "would be deleted and created again"
        saved = "saved" if row["is_done"] else "to save"
        output.say(f"{row['topic']} {done}; {count} of offsets {saved}")
