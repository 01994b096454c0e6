"""`pipeline perf`: how fast a cluster takes and returns records."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.perf.figures import Throughput
from pipeline.cli.perf.payloads import random_payloads, read_payloads
from pipeline.cli.perf.producing import Published, publish_payloads
from pipeline.cli.terminal import output
from pipeline.cli.terminal.client_settings import (
    ClientSettings,
    asks_for_list,
    describe_settings,
    parse_client_settings,
)
from pipeline.cli.terminal.connect import (
    Bootstrap,
    Json,
    ZooKeeper,
    connected,
    find_offsets_at,
    find_topic,
    randomness,
    wall_clock,
)
from pipeline.cli.terminal.interruption import run_interruptibly
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.producer.batches import DeliveryError
from pipeline.client.producer.producer import open_producer
from pipeline.errors import ConfigurationError
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

app = typer.Typer(no_args_is_help=True, help="Performance tests: how fast a cluster takes and returns records.")

DEFAULT_SIZE = 1024
CLIENT_ID = "pipeline-perf"
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command("produce")
def measure_producing(
    topic: Topic,
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="Number of records to publish.")],
    size: Annotated[
        int | None,
        typer.Option(
            "--size", min=1, max=1 << 30, help=f"Bytes of each value, letters at random. Default: {DEFAULT_SIZE}."
        ),
    ] = None,
    payload_file: Annotated[
        Path | None,
        typer.Option("--payload-file", metavar="FILE", help="Publish the lines of this file, again and again."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Records per second. Default: as many as the cluster takes.")
    ] = None,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Publish records to a topic, and show how many a second were acknowledged, and how long each one took.

    Latencies count from the moment that a record is due: at a --rate that the cluster cannot keep they grow. A record
    that is not acknowledged ends the test with exit code 1.
    """
    if asks_for_list(settings):
        output.say(output.table(("SETTING", "DEFAULT"), describe_settings(ClientConfig, ProducerConfig)))
        return
    if payload_file is not None and size is not None:
        raise ConfigurationError("--payload-file", "give either --payload-file or --size")
    client, producing = parse_client_settings(settings, ClientConfig, ProducerConfig)
    config = ProducerConfig(**producing)
    rng = randomness()
    payloads = random_payloads(size or DEFAULT_SIZE, rng) if payload_file is None else read_payloads(payload_file)

    async def run() -> Published:
        async with connected(bootstrap, zookeeper, CLIENT_ID, client) as cluster:
            await find_topic(cluster, topic)
            async with open_producer(cluster, config, clock=wall_clock, rng=rng) as producer:
                published = await publish_payloads(producer, topic, payloads, records, rate)
                producer.close()
                return published

    _tell_published(topic, run_interruptibly(run), as_json=json)


def _tell_published(topic: str, published: Published, *, as_json: bool) -> None:
    latencies = published.latencies.to_json()
    if as_json:
        counts = {"failed": published.failed, "unknown": published.unknown}
        figures = published.throughput.to_json()
        output.print_json({"topic": topic, **figures, **counts, "latency_ms": latencies})
    else:
        output.say(f"{published.throughput}.")
        if latencies is not None:
            output.say("Latency in ms: " + ", ".join(f"{name} {value:.1f}" for name, value in latencies.items()) + ".")
    if published.error is not None:
        error = published.error
        reason = error.last_error or error if isinstance(error, DeliveryError) else error
        output.exit_with(
            f"the test ended early: {reason}; {output.counted(published.records, 'record')} acknowledged, "
            f"{published.failed} not published, {published.unknown} perhaps published"
        )


@app.command("consume")
def measure_consuming(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of topics.")],
    records: Annotated[
        int | None,
        typer.Option(
            "--records", "-n", min=1, help="Number of records to read, also later ones. Default: all that are there."
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="End if no record comes for so long.")
    ] = 10.0,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Read topics from their first records on, and show how many records a second came.

    Records are opened as columns, and their bytes are those of keys and values. Exit code 1 if fewer came than were
    asked for.
    """
    if asks_for_list(settings):
        output.say(output.table(("SETTING", "DEFAULT"), describe_settings(ClientConfig, ConsumerConfig)))
        return
    from pipeline.cli.perf.consuming import count_records
    from pipeline.client.consumer.consumer import open_consumer

    client, consuming = parse_client_settings(settings, ClientConfig, ConsumerConfig)
    config = ConsumerConfig(**consuming)

    async def run() -> tuple[Throughput, bool]:
        async with connected(bootstrap, zookeeper, CLIENT_ID, client) as cluster:
            partitions = [
                TopicPartition(topic, number)
                for topic in dict.fromkeys(topics)
                for number in sorted((await find_topic(cluster, topic)).partitions)
            ]
            starts = await find_offsets_at(cluster, partitions, EARLIEST)
            ends = await find_offsets_at(cluster, partitions, LATEST)
            async with open_consumer(cluster, config) as consumer:
                return await count_records(consumer, starts, ends, records, timeout_s)

    throughput, is_complete = run_interruptibly(run)
    if json:
        output.print_json({"topics": topics, **throughput.to_json(), "complete": is_complete})
    else:
        output.say(f"{throughput}.")
    if not is_complete:
        output.exit_with(f"no record came for {timeout_s:g} s before the end")
