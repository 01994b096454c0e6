"""`pipeline mirror`: copy the logs of live clusters into the offline one."""

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pipeline.cli.entry import uncollected
from pipeline.cli.foreground import Config, run_service, service_metrics
from pipeline.cli.mirror.counting import counting_copies
from pipeline.cli.mirror.failover import promote, reverse
from pipeline.cli.mirror.gaps import gaps
from pipeline.cli.mirror.pausing import pause_copying, resume_copying
from pipeline.cli.mirror.retire import retire
from pipeline.cli.mirror.settings import apply_settings, show_plan
from pipeline.cli.mirror.status import status
from pipeline.cli.mirror.verify import verify
from pipeline.cli.terminal.connect import randomness, wall_clock
from pipeline.cli.terminal.settings import Settings, read_settings

if TYPE_CHECKING:
    from pipeline.mirror.config import MirrorConfig

app = typer.Typer(no_args_is_help=True, help="The mirror, a service that copies live clusters into the offline one.")


@app.command()
def start(config: Config) -> None:
    """Run the mirror service in the foreground; see docs/mirror/settings.md for its settings."""
    run_service(_read, partial(_run, config.absolute()), config)


app.command()(status)
app.command()(gaps)
app.command("pause")(pause_copying)
app.command("resume")(resume_copying)
app.command("plan")(show_plan)
app.command("apply")(apply_settings)
app.command()(verify)
app.command()(promote)
app.command()(reverse)
app.command()(retire)


def _read(settings: Settings) -> "tuple[MirrorConfig]":
    from pipeline.mirror.config import MirrorConfig

    return (MirrorConfig.from_settings(settings),)


async def _run(file: Path, config: "MirrorConfig") -> None:
    with uncollected():
        from pipeline.client.cluster.cluster import Cluster, open_cluster
        from pipeline.client.cluster.config import ClientConfig
        from pipeline.mirror.config import SourceConfig
        from pipeline.mirror.service import run_mirror
        from pipeline.net.garbage import expect_large_answers
        from pipeline.net.heap import keep_one_heap
        from pipeline.net.waiting import Waiting

    expect_large_answers()
    keep_one_heap()

    def connect(source: SourceConfig) -> AbstractAsyncContextManager[Cluster]:
        return open_cluster(
            ClientConfig(bootstrap=source.bootstrap, client_id="pipeline-mirror", security=source.security)
        )

    async with AsyncExitStack() as stack:
        observer = None
        hub = ClientConfig(
            bootstrap=config.destination, client_id="pipeline-mirror", security=config.destination_security
        )
        destination = await stack.enter_async_context(open_cluster(hub))
        coordination = None
        if config.zookeeper_connect is not None:
            from pipeline.coordination.zookeeper import begun_zookeeper

            coordination = await stack.enter_async_context(
                begun_zookeeper(
                    config.zookeeper_connect,
                    session_timeout_ms=config.zookeeper_session_timeout_ms,
                    security=config.zookeeper_security,
                )
            )

        async def connect_coordination(waiting: Waiting) -> None:
            if coordination is not None:
                party = f"the hub's ZooKeeper at {config.zookeeper_connect}"
                await waiting.wait_for(party, coordination.connect, coordination.why_not_connected)

        if config.datacenter is not None:
            observer = await stack.enter_async_context(counting_copies(config, destination))
        await run_mirror(
            config,
            connect,
            destination,
            clock=wall_clock,
            rng=randomness(),
            metrics=service_metrics(),
            read_file=partial(read_settings, file),
            coordination=coordination,
            connect_coordination=connect_coordination,
            observer=observer,
        )
