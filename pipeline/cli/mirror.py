"""`pipeline mirror`: copy the logs of live clusters into the offline one."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer

from pipeline.cli.foreground import Config, http_url, read_json, run_service
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, randomness, wall_clock
from pipeline.cli.terminal.settings import Settings

app = typer.Typer(no_args_is_help=True, help="The mirror, a service that copies live clusters into the offline one.")


@app.command()
def start(config: Config) -> None:
    """Run the mirror service in the foreground; see docs/mirror.md for its settings."""
    run_service(_run, config)


@app.command()
def status(
    url: Annotated[str, typer.Option("--mirror", metavar="URL", parser=http_url, help="HTTP address of the mirror.")],
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
        if source["groups"]:
            _say_groups(source["name"], source["groups"])


def _say_groups(source: str, groups: Mapping[str, Any]) -> None:
    """Say how far the committed offsets of a source's groups were copied."""
    age = "not yet" if groups["age_seconds"] is None else f"{groups['age_seconds']:.1f} s ago"
    output.say(
        f"{source}: offsets of groups: compared {age}, {groups['copied']} copied, {groups['waiting']} wait, "
        f"{groups['left_alone_count']} left alone"
    )
    for one in groups["left_alone"]:
        partition = f" in {one['topic']}-{one['partition']}" if "topic" in one else ""
        output.say(f"{source}: group {output.printable(one['group'])}{partition} {one['reason']}")
    if groups["error"]:
        output.say(f"{source}: offsets of groups: {groups['error']}")


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
