"""Scripts that give the services of a company the rights that they need, one for each datacenter."""

import shlex
from collections.abc import Iterator

from pipeline.cli.secured.roles import RIGHTS, Right
from pipeline.deployment.company import Company
from pipeline.deployment.files import header
from pipeline.deployment.protection import SERVICE_USERS
from pipeline.deployment.services import bootstrap_of
from pipeline.protocol.messages.describe_acls import AclPatternType, AclResourceType

OPTIONS = {AclResourceType.TOPIC: "--topic", AclResourceType.GROUP: "--group", AclResourceType.CLUSTER: "--cluster"}


def acl_scripts(company: Company, source: str) -> dict[str, str]:
    """Return the text of each script by its path below the folder of a render; none for services without logins."""
    if not company.security.sasl:
        return {}
    return {f"acls/{each.name}.sh": _script(company, each.name, source) for each in company.datacenters}


def _script(company: Company, datacenter: str, source: str) -> str:
    head = f"{header(source)}set -eu\nexport PIPELINE_BOOTSTRAP={bootstrap_of(company, datacenter)}\n"
    users = [user for user in SERVICE_USERS if user in RIGHTS]
    return head + "".join(f"{_command(user, right)}\n" for user in users for right in RIGHTS[user])


def _command(user: str, right: Right) -> str:
    return shlex.join(
        ["pipeline", "acl", "add", "--allow-principal", f"User:{user}", *_resource(right), *_operations(right)]
    )


def _resource(right: Right) -> Iterator[str]:
    pattern = right.pattern
    yield OPTIONS[pattern.resource_type]
    if pattern.resource_type is not AclResourceType.CLUSTER:
        yield pattern.name
    if pattern.pattern_type is AclPatternType.PREFIXED:
        yield from ("--resource-pattern-type", "prefixed")


def _operations(right: Right) -> Iterator[str]:
    for operation in right.operations.split():
        yield from ("--operation", operation.title().replace("_", ""))
