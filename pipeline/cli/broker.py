"""`pipeline broker`: run a broker, list and describe the brokers of a cluster."""

import gc
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import trio
import typer

from pipeline.cli.foreground import Config, run_service, service_metrics
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import TIMEOUT_S, Bootstrap, Json, ZooKeeper, connected, randomness, wall_clock
from pipeline.cli.terminal.settings import Settings, parse_changes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.audit.config import CountingConfig
    from pipeline.audit.counting.broker_counter import BrokerCounter
    from pipeline.broker.contract.verdicts import DatumWalk
    from pipeline.broker.server import BrokerHandle
    from pipeline.broker.settings.broker import BrokerConfig

LAST_WORD_TIMEOUT_S = 2.0
"""Time for the last report of a broker that stops."""

app = typer.Typer(no_args_is_help=True, help="Brokers, the services that store the records.")


@app.command()
def start(config: Config) -> None:
    """Run a broker in the foreground; see docs/broker.md for its settings."""
    run_service(read_broker_settings, _run, config)


@app.command("list")
def list_(bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None, json: Json = False) -> None:
    """List the live brokers of a cluster."""

    async def read() -> list[dict[str, object]]:
        async with connected(bootstrap, zookeeper, "pipeline-broker") as cluster:
            brokers = (await cluster.refresh()).brokers.values()
            return [{"id": b.id, "host": b.address.host, "port": b.address.port, "rack": b.rack} for b in brokers]

    rows = sorted(trio.run(read), key=lambda row: str(row["id"]))
    if json:
        output.print_json({"brokers": rows})
    else:
        output.say(output.table(["ID", "HOST", "PORT", "RACK"], [list(row.values()) for row in rows]))


@app.command()
def describe(
    broker_id: Annotated[int | None, typer.Argument(metavar="[ID]", help="Broker id. Default: all brokers.")] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Show brokers: controller, log dirs with bytes and partitions, API versions, settings other than defaults.

    Exit code 1 if a broker does not answer, or has a log dir that failed or is full.
    """
    from pipeline.cli.cluster.broker_description import gather_brokers, print_broker, troubles

    description = trio.run(partial(gather_brokers, bootstrap, zookeeper, broker_id))
    if json:
        output.print_json(description)
    else:
        print_broker(description)
    if found := troubles(description):
        output.exit_with("; ".join(found))


@app.command("configure")
def configure_broker(
    broker_id: Annotated[int | None, typer.Argument(metavar="[ID]", help="Broker id. Default: all brokers.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set KEY to VALUE; may be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="KEY", help="Remove the override of KEY; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Change dynamic settings of a broker, or the defaults of all: all of them, or none if one is refused."""
    from pipeline.client.admin.resource_configs import ConfigResource, alter_configs
    from pipeline.protocol.messages.describe_configs import ResourceType

    settings = parse_changes(set_, unset)
    resource = ConfigResource(ResourceType.BROKER, "" if broker_id is None else str(broker_id))

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-broker") as cluster:
            if broker_id is not None and broker_id not in cluster.view.brokers:
                alive = ", ".join(map(str, sorted(cluster.view.brokers)))
                output.exit_with(f"broker {broker_id} is not alive: brokers {alive} are")
            await alter_configs(cluster, {resource: settings}, timeout_s=TIMEOUT_S)

    trio.run(run)
    output.say(f"Configured {resource}.")


def read_broker_settings(settings: Settings) -> "tuple[BrokerConfig, CountingConfig]":
    """Split settings into those of the broker and of its audit counts. Raises ConfigurationError."""
    from pipeline.audit.config import CountingConfig
    from pipeline.broker.settings.broker import BrokerConfig
    from pipeline.settings import checked_together

    counting_names = {str(field.alias) for field in CountingConfig.model_fields.values()}
    of_counts = {key: value for key, value in settings.items() if key in counting_names}
    others = {key: value for key, value in settings.items() if key not in counting_names}
    broker, counting = checked_together(
        partial(BrokerConfig.from_settings, others), partial(CountingConfig.from_settings, of_counts)
    )
    return broker, counting


async def _run(config: "BrokerConfig", counting: "CountingConfig") -> None:
    from pipeline.broker.replication.observer import NoObserver
    from pipeline.broker.server import run_broker
    from pipeline.coordination.zookeeper import begun_zookeeper
    from pipeline.net.garbage import RARE_COLLECTIONS, SlowCollections
    from pipeline.net.heap import keep_one_heap
    from pipeline.net.open_files import raise_open_files_limit

    counter = None if config.datacenter is None else _counter(config.datacenter, counting, config)
    session_timeout_ms = config.zookeeper_session_timeout_ms
    keep_one_heap()
    raise_open_files_limit(config.max_connections)
    async with (
        begun_zookeeper(
            config.zookeeper_connect, session_timeout_ms=session_timeout_ms, security=config.zookeeper_security
        ) as zookeeper,
        trio.open_nursery() as nursery,
    ):
        is_gone = trio.Event()
        broker = partial(
            run_broker,
            config,
            zookeeper,
            clock=wall_clock,
            rng=randomness(),
            observer=counter or NoObserver(),
            metrics=service_metrics(),
            compile_schema=_compile_schema if config.schema_registry_urls else None,
            connect=lambda waiting: waiting.wait_for(
                f"ZooKeeper at {config.zookeeper_connect}", zookeeper.connect, zookeeper.why_not_connected
            ),
        )

        async def serve(*, task_status: trio.TaskStatus["BrokerHandle"]) -> None:
            try:
                await broker(task_status=task_status)
            finally:
                is_gone.set()

        with RARE_COLLECTIONS:  # a start creates objects for every partition, and hardly any garbage
            handle: BrokerHandle = await nursery.start(serve)
        gc.freeze()  # objects that live as long as the broker need no collection, which would stop the event loop
        SlowCollections().watch()
        if counter is not None:
            await _publish_counts(counter, handle, counting.interval_ms / 1000, config.log_dirs[0], is_gone)


def _compile_schema(texts: "Sequence[str]") -> "DatumWalk":
    """Compile an Avro schema for a topic whose data must decode."""
    from pipeline.hadoop.avro.datum_walk import compile_datums  # numba and fastavro, when a topic needs them

    return compile_datums(texts)


def _counter(datacenter: str, counting: "CountingConfig", config: "BrokerConfig") -> "BrokerCounter":
    """Return the counter of appended batches for the audit."""
    from pipeline.audit.counting.broker_counter import BrokerCounter, BrokerLife
    from pipeline.audit.counting.checkpoints import PartitionCheckpoints
    from pipeline.audit.counting.producer_counter import LifeClock
    from pipeline.log.files import DiskFiles

    life = BrokerLife(
        broker_id=config.broker_id,
        host=socket.gethostname(),
        started_ms=wall_clock(),
        interval_ms=counting.interval_ms,
    )
    checkpoints = PartitionCheckpoints(config.log_dirs, DiskFiles())
    times = LifeClock(wall_clock, partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    return BrokerCounter(datacenter, counting.window_ms, checkpoints, wall_clock, life, times=times)


async def _publish_counts(
    counter: "BrokerCounter", handle: "BrokerHandle", interval_s: float, directory: Path, is_gone: trio.Event
) -> None:
    """Publish the counts to the audit topic of the broker's own cluster, as any client would.

    The place of the last report is kept in `directory`. The last report says that the broker has stopped. It follows
    once other brokers have taken over, unless the broker has failed: `is_gone` is set once it serves no more.
    """
    from pipeline.audit.counting.published_place import PlaceFile
    from pipeline.audit.counting.publisher import open_publisher
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig
    from pipeline.log.files import DiskFiles

    place_file = PlaceFile(directory, DiskFiles())
    client = ClientConfig(
        bootstrap=(handle.inter_broker_address,),
        client_id="pipeline-broker-audit",
        security=handle.inter_broker_security,
    )
    async with (
        open_cluster(client) as cluster,
        open_publisher(cluster, counter, clock=wall_clock, rng=randomness(), place_file=place_file) as publisher,
    ):
        relieved, is_said = trio.Event(), trio.Event()

        async def last_word() -> None:
            relieved.set()
            await is_said.wait()

        handle.last_word = last_word
        try:
            await publisher.run(interval_s)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await _first_of(relieved, is_gone)
                counter.end()
                with trio.move_on_after(LAST_WORD_TIMEOUT_S if relieved.is_set() else 0):
                    await publisher.publish()
            raise
        finally:
            is_said.set()


async def _first_of(*events: trio.Event) -> None:
    """Wait for the first of some events."""

    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(wait, event)
