"""`pipeline audit`: the audit service, and its report of counts at every step."""

from contextlib import AsyncExitStack

import typer

from pipeline.cli.audit.count import count
from pipeline.cli.audit.report import report
from pipeline.cli.foreground import Config, run_service, service_metrics
from pipeline.cli.terminal.connect import wall_clock
from pipeline.cli.terminal.settings import Settings

app = typer.Typer(no_args_is_help=True, help="The audit, a service that compares the counts of every step.")


@app.command()
def start(config: Config) -> None:
    """Run the audit service in the foreground; see docs/audit.md for its settings."""
    run_service(_run, config)


app.command()(report)
app.command()(count)


async def _run(settings: Settings) -> None:
    from pipeline.audit.config import AuditConfig
    from pipeline.audit.server import run_audit
    from pipeline.cli.audit.expectations import mirror_routes
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
        read_routes = mirror_routes(clusters[config.replica[0].name] if config.replica else None, metrics)
        await run_audit(config, clusters, read_routes=read_routes, clock=wall_clock, metrics=metrics)
