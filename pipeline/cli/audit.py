"""`pipeline audit`: the audit service, and its report of counts at every step."""

import time
import urllib.parse
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.foreground import Config, http_url, read_json, run_service, service_metrics
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, wall_clock
from pipeline.cli.terminal.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from pipeline.audit.reconcile import Route as ReplicaRoute
    from pipeline.audit.server import ReadRoutes
    from pipeline.client.cluster.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="The audit, a service that compares the counts of every step.")

POLL_INTERVAL_S = 0.5
STAGES = ("produced", "live", "replica", "loaded")


@app.command()
def start(config: Config) -> None:
    """Run the audit service in the foreground; see docs/audit.md for its settings."""
    run_service(_run, config)


@app.command()
def report(
    url: Annotated[
        str, typer.Option("--audit", metavar="URL", parser=http_url, help="HTTP address of the audit service.")
    ],
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    wait: Annotated[
        float, typer.Option("--wait", min=0, max=3600, help="Wait up to this many seconds until every hour is exact.")
    ] = 0.0,
    json: Json = False,
) -> None:
    """Compare the counts of producers, brokers, mirror and loads by topic and hour.

    Exits with 4 unless every hour is exact.
    """
    query = f"?{urllib.parse.urlencode({'topic': topic})}" if topic else ""
    deadline = time.monotonic() + wait
    while True:
        document = read_json(f"{url}/v1/report{query}")
        if document["exact"] or time.monotonic() >= deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    if json:
        output.print_json(document)
    else:
        output.say(render(document, topic))
    if not document["exact"]:
        raise typer.Exit(output.EXIT_NOT_EXACT)


def render(document: dict[str, Any], topic: str | None = None) -> str:
    """Return the report for people: a line for each topic and hour, differences, unreadable clusters."""
    hours = document["hours"]
    shown = [stage for stage in STAGES if any(stage in hour["stages"] for hour in hours)]
    rows = [
        [
            hour["topic"],
            hour["hour"],
            *(hour["stages"][stage]["records"] if stage in hour["stages"] else None for stage in shown),
            hour["status"],
        ]
        for hour in hours
    ]
    lines = [output.table(["TOPIC", "HOUR", *(stage.upper() for stage in shown), "STATUS"], rows)] if rows else []
    lines += [finding["text"] for hour in hours for finding in hour["findings"]]
    clusters = document["clusters"]
    lines += [f"{name}: {state['error']}" for name, state in clusters.items() if state["error"]]
    lines += [
        f"{name}: {state['unreadable']} records of its audit topic cannot be read by this version"
        for name, state in clusters.items()
        if state["unreadable"]
    ]
    if document["routes_error"]:
        lines.append(
            f"the mirror's table could not be read, so the report uses its last known state: {document['routes_error']}"
        )
    exact = sum(hour["status"] == "exact" for hour in hours)
    explained = sum(hour["status"] == "explained" for hour in hours)
    nothing = "No counts yet." if topic is None else f"No counts yet for topic {topic}."
    lines.append(f"{exact} of {len(hours)} hours exact." if hours else nothing)
    recompressed = sum(hour["status"] == "recompressed" for hour in hours)
    if recompressed:
        lines.append(
            f"{recompressed} hours are recompressed: records, batches and headers are equal. `pipeline mirror verify` "
            "compares the contents of replicas."
        )
    if explained:
        lines.append(f"{explained} hours lack records as the mirror's gaps explain: see `pipeline mirror gaps`.")
    if not document["complete"]:
        lines.append("Some counts are not known yet, so no verdict is certain.")
    return "\n".join(lines)


async def _run(settings: Settings) -> None:
    from pipeline.audit.config import AuditConfig
    from pipeline.audit.server import run_audit
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig

    config = AuditConfig.from_settings(settings)
    async with AsyncExitStack() as stack:
        clusters = {
            cluster.name: await stack.enter_async_context(
                open_cluster(ClientConfig(bootstrap=cluster.bootstrap, client_id="pipeline-audit"))
            )
            for cluster in config.clusters
        }
        metrics = service_metrics()
        read_routes = _mirror_routes(clusters[config.replica[0].name] if config.replica else None, metrics)
        await run_audit(config, clusters, read_routes=read_routes, clock=wall_clock, metrics=metrics)


def _mirror_routes(replica: "Cluster | None", metrics: "CollectorRegistry") -> "ReadRoutes":
    """Return a reader of the mirror's partition table and gaps; both are empty until a topic is mirrored."""
    from random import Random

    from pipeline.audit.reconcile import Route
    from pipeline.client.admin.topics import list_topics
    from pipeline.mirror.journals.gap_journal import GapJournal
    from pipeline.mirror.journals.gaps import GAPS_TOPIC
    from pipeline.mirror.journals.table import TABLE_TOPIC
    from pipeline.mirror.journals.table_journal import TableJournal
    from pipeline.mirror.metrics import table_records_skipped

    if replica is None:
        return _no_routes
    journal = TableJournal(replica, table_records_skipped(metrics).inc)
    gaps = GapJournal(replica, clock=wall_clock, rng=Random())

    async def read_routes() -> list[Route]:
        topics = await list_topics(replica)
        if TABLE_TOPIC in topics:
            await journal.read_on()
        if GAPS_TOPIC in topics:
            await gaps.read_on()
        deleted = gaps.ledger.deleted_offsets()
        return [
            Route(
                cluster=line.source.cluster,
                source=line.source.partition,
                replica=line.replica,
                deleted_offsets=deleted.get((line.source.cluster, line.replica), 0),
            )
            for line in journal.table.newest_assignments()  # live brokers report the newest topic of a name, too
        ]

    return read_routes


async def _no_routes() -> list["ReplicaRoute"]:
    return []
