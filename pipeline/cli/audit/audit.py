"""`pipeline audit`: the audit service, and its report of counts at every step."""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import typer

from pipeline.cli.audit.count import count
from pipeline.cli.audit.daily import daily
from pipeline.cli.audit.explain import explain_hour
from pipeline.cli.audit.report import report
from pipeline.cli.audit.watch import watch
from pipeline.cli.foreground import Config, run_service, service_metrics
from pipeline.cli.terminal.connect import wall_clock
from pipeline.cli.terminal.settings import Settings

if TYPE_CHECKING:
    from pipeline.audit.config import AuditConfig

app = typer.Typer(no_args_is_help=True, help="The audit, a service that compares the counts of every step.")


@app.command()
def start(config: Config) -> None:
    """Run the audit service in the foreground; see docs/audit/service.md for its settings."""
    run_service(_read, _run, config)


app.command()(report)
app.command()(count)
app.command()(watch)
app.command("explain")(explain_hour)
app.command()(daily)


def _read(settings: Settings) -> "tuple[AuditConfig]":
    from pipeline.audit.config import AuditConfig

    return (AuditConfig.from_settings(settings),)


async def _run(config: "AuditConfig") -> None:
    from pipeline.audit.narrowing.narrower import Narrower
    from pipeline.audit.page.audit_page import audit_page_routes
    from pipeline.audit.server import run_audit
    from pipeline.cli.audit.expectations_reader import MirrorJournals, expectations_reader
    from pipeline.cli.audit.log_access import BrokerLogs
    from pipeline.cli.audit.table_access import TableFiles
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig
    from pipeline.net.heap import free_large_blocks, keep_one_heap

    keep_one_heap()
    free_large_blocks()
    async with AsyncExitStack() as stack:
        clusters = {
            cluster.name: await stack.enter_async_context(
                open_cluster(
                    ClientConfig(bootstrap=cluster.bootstrap, client_id="pipeline-audit", security=cluster.security)
                )
            )
            for cluster in config.clusters
        }
        metrics = service_metrics()
        hub = config.replica[0].name if config.replica else None
        journals = None if hub is None else MirrorJournals(clusters[hub], clock=wall_clock, metrics=metrics)
        reader = expectations_reader(
            {cluster.name: clusters[cluster.name] for cluster in config.live},
            None if hub is None else (hub, clusters[hub]),
            clock=wall_clock,
            metrics=metrics,
            journals=journals,
        )
        logs = BrokerLogs(clusters, hub, None if journals is None else journals.gaps)
        narrower = Narrower(logs, hub, tables=TableFiles(config.load_roots) if config.load_roots else None)
        await run_audit(
            config,
            clusters,
            read_expectations=reader.read,
            narrow=narrower.narrow,
            clock=wall_clock,
            metrics=metrics,
            page=audit_page_routes(),
        )
