"""`pipeline acl`: who may do what, on our brokers and on Apache Kafka."""

from collections.abc import Sequence
from typing import Annotated, Any

import trio
import typer

from pipeline.cli.acl.arguments import (
    AclResources,
    AclSubjects,
    FilterPattern,
    RulePattern,
    added_acls,
    listed_acls,
    parse_operation,
    removed_acls,
)
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import TIMEOUT_S, Bootstrap, Json, ZooKeeper, connected
from pipeline.client.admin.acl_values import Acl
from pipeline.client.admin.acls import create_acls, delete_acls, describe_acls
from pipeline.coordination.acl_znodes import camel_case
from pipeline.protocol.messages.describe_acls import AclPatternType

app = typer.Typer(no_args_is_help=True, help="Access control lists: who may do what.")
Names = list[str] | None
HEADINGS = ["RESOURCE", "NAME", "PATTERN", "PERMISSION", "PRINCIPAL", "HOST", "OPERATION"]

Topics = Annotated[Names, typer.Option("--topic", metavar="TOPIC", help="A topic, or '*' for all; may be repeated.")]
Groups = Annotated[
    Names, typer.Option("--group", metavar="GROUP", help="A consumer group, or '*' for all; may be repeated.")
]
TransactionalIds = Annotated[
    Names, typer.Option("--transactional-id", metavar="ID", help="A transactional id, or '*' for all; may be repeated.")
]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
AllowPrincipals = Annotated[
    Names, typer.Option("--allow-principal", metavar="User:NAME", help="A user to allow; User:* is everyone.")
]
DenyPrincipals = Annotated[
    Names, typer.Option("--deny-principal", metavar="User:NAME", help="A user to deny; denials win.")
]
AllowHosts = Annotated[
    Names, typer.Option("--allow-host", metavar="IP", help="Address from which the allowed users come. Default: any.")
]
DenyHosts = Annotated[
    Names, typer.Option("--deny-host", metavar="IP", help="Address from which the denied users come. Default: any.")
]
Operations = Annotated[
    Names,
    typer.Option(
        "--operation", metavar="NAME", help="Read, Write, Create, Delete, Alter, Describe, ...; may be repeated."
    ),
]
Producer = Annotated[bool, typer.Option("--producer", help="All that a producer needs on --topic.")]
Consumer = Annotated[bool, typer.Option("--consumer", help="All that a consumer needs on --topic and --group.")]


@app.command()
def add(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OfCluster = False,
    resource_pattern_type: Annotated[
        RulePattern, typer.Option("--resource-pattern-type", help="Meaning of the names of resources.")
    ] = RulePattern.LITERAL,
    allow_principal: AllowPrincipals = None,
    deny_principal: DenyPrincipals = None,
    allow_host: AllowHosts = None,
    deny_host: DenyHosts = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Add ACLs: each user, from each host, for each operation (default: All), on each resource.

    They are in force on all brokers within a second.
    """
    resources = _resources(topic, group, transactional_id, resource_pattern_type.value, cluster=cluster)
    wanted = added_acls(
        resources,
        AclSubjects(
            allow_principals=allow_principal or (),
            deny_principals=deny_principal or (),
            allow_hosts=allow_host or (),
            deny_hosts=deny_host or (),
            operations=tuple(map(parse_operation, operation or ())),
            producer=producer,
            consumer=consumer,
        ),
    )

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-acl") as opened:
            await create_acls(opened, wanted, timeout_s=TIMEOUT_S)

    trio.run(run)
    _show("added", "Added", wanted, json=json)


@app.command()
def remove(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OfCluster = False,
    resource_pattern_type: Annotated[
        FilterPattern,
        typer.Option("--resource-pattern-type", help="Rules to remove: those of these names, or match, or any."),
    ] = FilterPattern.LITERAL,
    allow_principal: AllowPrincipals = None,
    deny_principal: DenyPrincipals = None,
    allow_host: AllowHosts = None,
    deny_host: DenyHosts = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Remove the ACLs of resources that match all options; without --allow-principal and its like, all of them.

    What is left out means any: user, host, operation. Exit code 1 if no ACL matches.
    """
    resources = _resources(topic, group, transactional_id, resource_pattern_type.value, cluster=cluster)
    filters = removed_acls(
        resources,
        AclSubjects(
            allow_principals=allow_principal or (),
            deny_principals=deny_principal or (),
            allow_hosts=allow_host or (),
            deny_hosts=deny_host or (),
            operations=tuple(map(parse_operation, operation or ())),
            producer=producer,
            consumer=consumer,
        ),
    )

    async def run() -> list[Acl]:
        async with connected(bootstrap, zookeeper, "pipeline-acl") as opened:
            return await delete_acls(opened, filters, timeout_s=TIMEOUT_S)

    found = trio.run(run)
    if found or json:
        _show("removed", "Removed", found, json=json)
    if not found:
        output.exit_with("no ACL matches, so none is removed: `pipeline acl list` lists all")


@app.command("list")
def list_(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OfCluster = False,
    resource_pattern_type: Annotated[
        FilterPattern,
        typer.Option("--resource-pattern-type", help="Rules to show; match: all that are about these names."),
    ] = FilterPattern.MATCH,
    principal: Annotated[
        Names, typer.Option("--principal", metavar="User:NAME", help="Only rules for this user; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """List ACLs: all of them, or those about resources or users.

    Rules for everyone are shown under User:* alone, and super users have no rules.
    """
    resources = _resources(topic, group, transactional_id, resource_pattern_type.value, cluster=cluster)
    filters = listed_acls(resources, principal or ())

    async def run() -> list[Acl]:
        async with connected(bootstrap, zookeeper, "pipeline-acl") as opened:
            return [acl for each in filters for acl in await describe_acls(opened, each, timeout_s=TIMEOUT_S)]

    _show("acls", None, sorted(set(trio.run(run))), json=json)


def _resources(topics: Names, groups: Names, ids: Names, pattern_type: str, *, cluster: bool) -> AclResources:
    return AclResources(
        topics=topics or (),
        groups=groups or (),
        transactional_ids=ids or (),
        cluster=cluster,
        pattern_type=AclPatternType[pattern_type.upper()],
    )


def _show(key: str, done: str | None, acls: Sequence[Acl], *, json: bool) -> None:
    rows = [_row(acl) for acl in acls]
    if json:
        output.print_json({key: rows})
        return
    if done is not None:
        output.say(f"{done} {output.counted(len(rows), 'ACL')}:")
    output.say(output.table(HEADINGS, [list(row.values()) for row in rows]))


def _row(acl: Acl) -> dict[str, Any]:
    """Return an ACL with Kafka's names of its parts."""
    pattern, rule = acl
    return {
        "resource_type": camel_case(pattern.resource_type),
        "name": pattern.name,
        "pattern_type": pattern.pattern_type.name.lower(),
        "permission": camel_case(rule.permission),
        "principal": rule.principal,
        "host": rule.host,
        "operation": camel_case(rule.operation),
    }
