"""`pipeline registry`: the schema registry, a service."""

import gc
from functools import partial
from typing import TYPE_CHECKING

import trio
import typer

from pipeline.cli.foreground import Config, run_service, service_metrics
from pipeline.cli.terminal.connect import randomness, wall_clock
from pipeline.cli.terminal.settings import Settings

if TYPE_CHECKING:
    from pipeline.schema_registry.config import RegistryConfig

app = typer.Typer(no_args_is_help=True, help="The schema registry, a service that keeps Avro schemas.")


@app.command()
def start(config: Config) -> None:
    """Run a schema registry in the foreground; see docs/registry.md for its settings."""
    run_service(_read, _run, config)


def _read(settings: Settings) -> "tuple[RegistryConfig]":
    from pipeline.schema_registry.config import RegistryConfig

    return (RegistryConfig.from_settings(settings),)


async def _run(config: "RegistryConfig") -> None:
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig
    from pipeline.net.garbage import RARE_COLLECTIONS, SlowCollections
    from pipeline.schema_registry.server import run_registry

    client = ClientConfig(bootstrap=config.bootstrap_servers, client_id="pipeline-registry", security=config.security)
    async with open_cluster(client) as cluster, trio.open_nursery() as nursery:
        registry = partial(run_registry, config, cluster, clock=wall_clock, rng=randomness(), metrics=service_metrics())
        with RARE_COLLECTIONS:  # a replay creates objects for every schema, and hardly any garbage
            await nursery.start(registry)
        gc.freeze()  # schemas need no collection, which would stop the event loop
        SlowCollections().watch()
