"""`pipeline quota`: quotas of users and client ids."""

from typing import Annotated

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import TIMEOUT_S, Bootstrap, Json, ZooKeeper, connected
from pipeline.cli.terminal.settings import parse_changes
from pipeline.client.admin.client_quotas import ClientQuotaEntity, alter_client_quotas, describe_client_quotas
from pipeline.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Quotas of users and client ids.")


@app.command("list")
def list_(bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None, json: Json = False) -> None:
    """List all quotas. <default> stands for all that have none of their own."""

    async def run() -> list[dict[str, object]]:
        async with connected(bootstrap, zookeeper, "pipeline-quota") as cluster:
            found = await describe_client_quotas(cluster, timeout_s=TIMEOUT_S)
            return [
                {"user": entity.user, "client_id": entity.client_id, "ip": entity.ip, "quota": name, "value": value}
                for entity, quotas in found.items()
                for name, value in quotas.items()
            ]

    rows = sorted(trio.run(run), key=lambda row: [str(value) for value in row.values()])
    if json:
        output.print_json({"quotas": rows})
    else:
        output.say(output.table(["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"], [list(row.values()) for row in rows]))


@app.command()
def alter(
    user: Annotated[str | None, typer.Option("--user", help="A user, or <default>.")] = None,
    client_id: Annotated[str | None, typer.Option("--client-id", help="A client id, or <default>.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Quota, as producer_byte_rate=1000000; may be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="KEY", help="Remove the quota KEY; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Set or remove quotas of a user, of a client id, or of a client id of a user."""
    entity = ClientQuotaEntity(user=user, client_id=client_id)
    if user is None and client_id is None:
        raise ConfigurationError("--user", "is missing: give --user, --client-id, or both")
    quotas: dict[str, float | None] = {}
    for key, value in parse_changes(set_, unset).items():
        try:
            quotas[key] = None if value is None else float(value)
        except ValueError:
            raise ConfigurationError(f"--set {key}", f"{value!r} is no number") from None

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-quota") as cluster:
            await alter_client_quotas(cluster, {entity: quotas}, timeout_s=TIMEOUT_S)

    trio.run(run)
    output.say(f"Changed quotas of {entity}.")
