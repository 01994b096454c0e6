"""`pipeline registry` and `pipeline schema`: the schema registry, and the schemas in it."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import trio
import typer

from pipeline.cli.foreground import REGISTRY_TIMEOUT_S, Config, http_url, run_service
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, randomness, wall_clock
from pipeline.cli.terminal.files import read_text
from pipeline.cli.terminal.settings import Settings

if TYPE_CHECKING:
    from pipeline.client.registry.client import SchemaRegistryClient

app = typer.Typer(no_args_is_help=True, help="The schema registry, a service that keeps Avro schemas.")
schema_app = typer.Typer(no_args_is_help=True, help="Avro schemas in a registry.")

Url = Annotated[str, typer.Option("--registry", metavar="URL", parser=http_url, help="HTTP address of the registry.")]
Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="For the values of topic clicks: clicks-value.")]
SchemaFile = Annotated[Path, typer.Argument(metavar="FILE.avsc", help="File with the schema.")]
Result = TypeVar("Result")


@app.command()
def start(config: Config) -> None:
    """Run a schema registry in the foreground; see docs/registry.md for its settings."""
    run_service(_run, config)


async def _run(settings: Settings) -> None:
    from prometheus_client import CollectorRegistry

    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig
    from pipeline.schema_registry.config import RegistryConfig
    from pipeline.schema_registry.server import run_registry

    config = RegistryConfig.from_settings(settings)
    client = ClientConfig(bootstrap=config.bootstrap_servers, client_id="pipeline-registry")
    async with open_cluster(client) as cluster:
        await run_registry(config, cluster, clock=wall_clock, rng=randomness(), metrics=CollectorRegistry())


@schema_app.command("list")
def list_(url: Url, json: Json = False) -> None:
    """List all subjects with their versions."""

    async def ask(client: "SchemaRegistryClient") -> dict[str, list[int]]:
        return {subject: await client.versions(subject) for subject in await client.subjects()}

    subjects = _with_registry(url, ask)
    if json:
        output.print_json({"subjects": subjects})
    else:
        rows = [[name, ", ".join(map(str, versions))] for name, versions in subjects.items()]
        output.say(output.table(["SUBJECT", "VERSIONS"], rows))


@schema_app.command()
def show(
    subject: Subject,
    url: Url,
    version: Annotated[int | None, typer.Option(min=1, help="Version number. Default: the latest.")] = None,
    json: Json = False,
) -> None:
    """Print a version of a subject as it was registered."""
    found = _with_registry(url, lambda client: client.version(subject, version))
    if json:
        output.print_json({"subject": subject, "version": found.version, "id": found.id, "schema": found.text})
    else:
        output.say(found.text)


@schema_app.command()
def register(subject: Subject, file: SchemaFile, url: Url, json: Json = False) -> None:
    """Register a schema under a subject; the same schema again gets the same id."""
    text = read_text(file)
    schema_id = _with_registry(url, lambda client: client.register(subject, text))
    if json:
        output.print_json({"subject": subject, "id": schema_id})
    else:
        output.say(f"{subject} has schema id {schema_id}.")


@schema_app.command()
def check(subject: Subject, file: SchemaFile, url: Url, json: Json = False) -> None:
    """Check whether a schema can be the subject's next version. Exit code 1 if not, with the reasons."""
    text = read_text(file)
    reasons = _with_registry(url, lambda client: client.why_incompatible(subject, text))
    if json:
        output.print_json({"subject": subject, "compatible": not reasons, "reasons": reasons})
    elif reasons:
        output.say("\n".join(["Not compatible:", *reasons]))
    else:
        output.say("Compatible.")
    if reasons:
        raise typer.Exit(output.EXIT_FAILED)


def _with_registry(url: str, ask: "Callable[[SchemaRegistryClient], Awaitable[Result]]") -> "Result":
    from pipeline.client.registry.client import open_schema_registry

    async def run() -> Result:
        async with open_schema_registry([url], timeout_s=REGISTRY_TIMEOUT_S) as client:
            return await ask(client)

    return trio.run(run)
