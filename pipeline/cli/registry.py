"""`pipeline registry` and `pipeline schema`: the service that keeps Avro contracts, and its entries."""

from pathlib import Path
from typing import Annotated

import trio
import typer

from pipeline.cli import output
from pipeline.cli.connect import Json, randomness, wall_clock
from pipeline.cli.service import Config, read_json, run_service
from pipeline.cli.settings import Settings

app = typer.Typer(no_args_is_help=True, help="The service that keeps Avro contracts.")
schema_app = typer.Typer(no_args_is_help=True, help="Avro schemas in a registry.")

Url = Annotated[str, typer.Option("--registry", metavar="URL", help="HTTP address of the registry.")]
Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="Such as clicks-value for the values of topic clicks.")]


@app.command()
def start(config: Config) -> None:
    """Run a schema registry in the foreground; see docs/registry.md for its settings."""
    run_service(_run, config)


async def _run(settings: Settings) -> None:
    from prometheus_client import CollectorRegistry

    from pipeline.client.cluster import open_cluster
    from pipeline.client.config import ClientConfig
    from pipeline.schema_registry.config import RegistryConfig
    from pipeline.schema_registry.server import run_registry

    config = RegistryConfig.from_settings(settings)
    client = ClientConfig(bootstrap=config.bootstrap_servers, client_id="pipeline-registry")
    async with open_cluster(client) as cluster:
        await run_registry(config, cluster, clock=wall_clock, random=randomness(), metrics=CollectorRegistry())


@schema_app.command("list")
def list_(url: Url, json: Json = False) -> None:
    """Name all subjects with their versions."""
    subjects = {name: read_json(f"{url}/subjects/{name}/versions") for name in read_json(f"{url}/subjects")}
    if json:
        output.print_json({"subjects": subjects})
    else:
        rows = [[name, ", ".join(map(str, versions))] for name, versions in subjects.items()]
        output.say(output.table(["SUBJECT", "VERSIONS"], rows))


@schema_app.command()
def show(
    subject: Subject,
    url: Url,
    version: Annotated[str, typer.Option(help="A number, or latest.")] = "latest",
    json: Json = False,
) -> None:
    """Print a version of a subject, as it was registered."""
    document = read_json(f"{url}/subjects/{subject}/versions/{version}")
    if json:
        output.print_json(document)
    else:
        output.say(document["schema"])


@schema_app.command()
def register(
    subject: Subject,
    file: Annotated[Path, typer.Argument(metavar="FILE.avsc")],
    url: Url,
    json: Json = False,
) -> None:
    """Register a schema under a subject; the same schema again gets the same id."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        output.fail(f"{file}: {error.strerror}")
    schema_id = trio.run(_register, url, subject, text)
    if json:
        output.print_json({"subject": subject, "id": schema_id})
    else:
        output.say(f"{subject} has schema id {schema_id}.")


async def _register(url: str, subject: str, text: str) -> int:
    from pipeline.client.registry import SchemaRegistryClient

    async with SchemaRegistryClient([url]) as client:
        return await client.register(subject, text)
