"""`pipeline mirror`: copy the logs of live clusters into the offline one."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.foreground import Config, http_url, read_json, run_service
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, ZooKeeper, connected, randomness, wall_clock
from pipeline.cli.terminal.settings import Settings

if TYPE_CHECKING:
    from pipeline.mirror.gaps import Gap

Mirror = Annotated[str, typer.Option("--mirror", metavar="URL", parser=http_url, help="HTTP address of the mirror.")]

app = typer.Typer(no_args_is_help=True, help="The mirror, a service that copies live clusters into the offline one.")


@app.command()
def start(config: Config) -> None:
    """Run the mirror service in the foreground; see docs/mirror.md for its settings."""
    run_service(_run, config)


@app.command()
def status(
    url: Mirror,
    json: Json = False,
) -> None:
    """Show the mirrored partitions, their lag and their errors."""
    document = read_json(f"{url}/v1/status")
    if json:
        output.print_json(document)
        return
    rows = [
        [
            source["name"],
            f"{partition['topic']}-{partition['partition']}",
            f"{partition['replica_topic']}-{partition['replica_partition']}",
            partition["position"],
            partition["lag"],
            partition["error"] or "",
        ]
        for source in document["sources"]
        for partition in source["partitions"]
    ]
    output.say(output.table(["SOURCE", "PARTITION", "REPLICA", "POSITION", "LAG", "ERROR"], rows))
    if document["error"]:
        output.say(f"destination: {document['error']}")
    for source in document["sources"]:
        if source["error"]:
            output.say(f"{source['name']}: {source['error']}")
        if source.get("groups"):  # older mirrors have none
            _say_groups(source["name"], source["groups"])


def _say_groups(source: str, groups: Mapping[str, Any]) -> None:
    """Say how far the committed offsets of a source's groups were copied."""
    age = "not compared yet" if groups["age_seconds"] is None else f"compared {groups['age_seconds']:.1f} s ago"
    output.say(
        f"{source}: offsets of groups: {age}, {groups['copied']} copied, {groups['waiting']} wait, "
        f"{groups['left_alone_count']} left alone"
    )
    for one in groups["left_alone"]:
        partition = f" in {one['topic']}-{one['partition']}" if "topic" in one else ""
        output.say(f"{source}: group {output.printable(one['group'])}{partition} {one['reason']}")
    if groups["error"]:
        output.say(f"{source}: offsets of groups: {groups['error']}")


@app.command()
def gaps(
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only gaps of this source.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only gaps of this topic.")] = None,
    json: Json = False,
) -> None:
    """List the offsets that replicas lack, from the hub's gap ledger; the options name the hub."""
    ledger, unreadable = trio.run(_read_ledger, bootstrap, zookeeper)
    found = [gap for gap in ledger if source in (None, gap.source) and topic in (None, gap.partition.topic)]
    if json:
        listed = [{**gap.to_json(), "missing_at_most": gap.missing_at_most} for gap in found]
        output.print_json({"gaps": listed, "unreadable_records": unreadable})
        return
    output.say(_table_of_gaps([gap.to_json() for gap in found]))
    if unreadable:
        output.say(f"{output.counted(unreadable, 'record')} of the ledger could not be read and left out.")


@app.command()
def resume(
    names: Annotated[
        list[str], typer.Argument(metavar="TOPIC[-PARTITION]...", help="Halted partitions, or topics with some.")
    ],
    url: Mirror,
    source: Annotated[
        str | None, typer.Option("--source", metavar="NAME", help="Only partitions of this source.")
    ] = None,
    skip: Annotated[bool, typer.Option("--skip", help="Record the gaps, and continue behind them.")] = False,
    json: Json = False,
) -> None:
    """Have halted partitions continue behind the records that they cannot get. Without --skip, show these records."""
    document = read_json(f"{url}/v1/resume", {"names": names, "source": source, "skip": skip})
    if json:
        output.print_json(document)
    else:
        output.say(_table_of_gaps(document["gaps"]))
    if not skip:
        output.exit_with("nothing was skipped; to record these gaps and continue behind them, add --skip")


def _table_of_gaps(found: list[dict[str, Any]]) -> str:
    rows = [
        [
            gap["source"],
            f"{gap['topic']}-{gap['partition']}",
            f"{gap['replica_topic']}-{gap['replica_partition']}",
            gap["first"],
            gap["last"],
            gap["last"] - gap["first"] + 1,
            gap["reason"],
            datetime.fromtimestamp(gap["time_ms"] / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            gap["detail"],
        ]
        for gap in found
    ]
    headings = ["SOURCE", "PARTITION", "REPLICA", "FIRST", "LAST", "MISSING-AT-MOST", "REASON", "TIME", "DETAIL"]
    return output.table(headings, rows)


async def _read_ledger(bootstrap: str | None, zookeeper: str | None) -> tuple[list["Gap"], int]:
    """Return all gaps, and the number of records that are no gaps."""
    from pipeline.client.admin.topics import list_topics
    from pipeline.mirror.gap_journal import GapJournal
    from pipeline.mirror.gaps import GAPS_TOPIC

    async with connected(bootstrap, zookeeper, "pipeline-mirror") as hub:
        journal = GapJournal(hub, clock=wall_clock, rng=randomness())
        if GAPS_TOPIC in await list_topics(hub):
            await journal.read_on()
        return list(journal.ledger), journal.skipped


async def _run(settings: Settings) -> None:
    from prometheus_client import CollectorRegistry

    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig
    from pipeline.mirror.config import MirrorConfig
    from pipeline.mirror.service import run_mirror

    config = MirrorConfig.from_settings(settings)
    async with AsyncExitStack() as stack:
        destination = await stack.enter_async_context(
            open_cluster(ClientConfig(bootstrap=config.destination, client_id="pipeline-mirror"))
        )
        sources = {
            source.name: await stack.enter_async_context(
                open_cluster(ClientConfig(bootstrap=source.bootstrap, client_id="pipeline-mirror"))
            )
            for source in config.sources
        }
        await run_mirror(config, sources, destination, clock=wall_clock, rng=randomness(), metrics=CollectorRegistry())
