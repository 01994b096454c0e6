"""`pipeline topic`: create, list, describe, grow and delete topics."""

from functools import partial
from typing import Annotated

import trio
import typer

from pipeline.cli import output
from pipeline.cli.connect import Bootstrap, Json, ZooKeeper, connected, find_topic
from pipeline.cli.settings import parse_assignments
from pipeline.client import admin
from pipeline.client.metadata import TopicView
from pipeline.model import TopicPartition

app = typer.Typer(no_args_is_help=True, help="Topics of a cluster.")

TIMEOUT_S = 30.0
Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many. Default: the broker's setting num.partitions.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Copies of each partition. Default: the broker's setting.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="KEY=VALUE", help="A topic setting; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Create a topic and wait until it can be used."""
    topic = admin.NewTopic(
        name=name,
        partitions=partitions or admin.BROKER_DEFAULT,
        replication_factor=replication_factor or admin.BROKER_DEFAULT,
        configs=parse_assignments(config or []),
    )

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
            await admin.create_topics(cluster, [topic])

    trio.run(run)
    output.say(f"Created topic {name}.")


@app.command("list")
def list_(bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None, json: Json = False) -> None:
    """List all topics."""
    topics = trio.run(partial(_read_topics, bootstrap, zookeeper))
    if json:
        output.print_json({"topics": [{"name": t.name, "partitions": len(t.partitions)} for t in topics.values()]})
    else:
        output.say(output.table(["TOPIC", "PARTITIONS"], [[t.name, len(t.partitions)] for t in topics.values()]))


@app.command()
def describe(name: Name, bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None, json: Json = False) -> None:
    """Show a topic's partitions: leader, replicas, first and next offset."""
    topic, ranges = trio.run(partial(_describe, name, bootstrap, zookeeper))
    rows = [
        {
            "partition": number,
            "leader": partition.leader,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "log_start_offset": ranges[number][0],
            "high_watermark": ranges[number][1],
        }
        for number, partition in sorted(topic.partitions.items())
    ]
    if json:
        output.print_json({"name": name, "topic_id": str(topic.id), "partitions": rows})
    else:
        headings = ["PARTITION", "LEADER", "REPLICAS", "ISR", "LOG-START-OFFSET", "HIGH-WATERMARK"]
        output.say(output.table(headings, [list(row.values()) for row in rows]))


@app.command()
def grow(
    name: Name,
    partitions: Annotated[int, typer.Option(min=1, help="How many partitions it is to have.")],
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Add partitions to a topic."""

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
            await find_topic(cluster, name)
            await admin.create_partitions(cluster, {name: partitions})

    trio.run(run)
    output.say(f"Topic {name} has {partitions} partitions.")


@app.command()
def delete(name: Name, bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None) -> None:
    """Delete a topic and all its records."""

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
            await find_topic(cluster, name)
            await admin.delete_topics(cluster, [name])

    trio.run(run)
    output.say(f"Deleted topic {name}.")


async def _read_topics(bootstrap: str | None, zookeeper: str | None) -> dict[str, TopicView]:
    async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
        return await admin.list_topics(cluster)


async def _describe(
    name: str, bootstrap: str | None, zookeeper: str | None
) -> tuple[TopicView, dict[int, tuple[int, int]]]:
    async with connected(bootstrap, zookeeper, "pipeline-topic") as cluster:
        topic = await find_topic(cluster, name)
        partitions = [TopicPartition(name, number) for number in topic.partitions]
        starts = await admin.list_offsets(cluster, dict.fromkeys(partitions, admin.EARLIEST), timeout_s=TIMEOUT_S)
        ends = await admin.list_offsets(cluster, dict.fromkeys(partitions, admin.LATEST), timeout_s=TIMEOUT_S)
        return topic, {p.partition: (starts[p].offset, ends[p].offset) for p in partitions}
