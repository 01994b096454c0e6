"""ACLs of a cluster: DescribeAcls, CreateAcls and DeleteAcls (KIP-140, pattern types by KIP-290).

An ACL is a resource (`AclPattern`) and a rule for it (`AclRule`). Any broker takes the requests.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TypeVar

from pipeline.client.admin.acl_values import Acl, AclFilter
from pipeline.client.cluster.cluster import Cluster
from pipeline.coordination.acl_znodes import AclPattern, AclRule
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from pipeline.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from pipeline.protocol.messages.describe_acls import (
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_Kind = TypeVar("_Kind", bound=IntEnum)


async def create_acls(cluster: Cluster, acls: Sequence[Acl], *, timeout_s: float) -> None:
    """Add ACLs; those that exist stay. Brokers other than the asked one learn of them within a second.

    A request whose answer was lost may have been done, and is safe to repeat. Raises KafkaError for the first ACL that
    is refused, and says how many were added.
    """
    creations = tuple(
        AclCreation(
            resource_type=pattern.resource_type,
            resource_name=pattern.name,
            resource_pattern_type=pattern.pattern_type,
            principal=rule.principal,
            host=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        for pattern, rule in acls
    )
    response: CreateAclsResponse = await cluster.request_any(
        CreateAclsRequest(creations=creations), timeout_s=timeout_s
    )
    refused = [
        (acl, result) for acl, result in zip(acls, response.results, strict=True) if result.error_code != ErrorCode.NONE
    ]
    if refused:
        (pattern, _), result = refused[0]
        added = f"; {len(acls) - len(refused)} of {len(acls)} ACLs were added" if len(acls) > 1 else ""
        reason = result.error_message or "refused"
        raise KafkaError(result.error_code, f"ACL of {pattern.resource_type.name} {pattern.name}: {reason}{added}")


async def describe_acls(cluster: Cluster, wanted: AclFilter, *, timeout_s: float) -> list[Acl]:
    """Return the ACLs that match, sorted by resource. Raises KafkaError."""
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    response: DescribeAclsResponse = await cluster.request_any(request, timeout_s=timeout_s)
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(response.error_code, f"ACLs: {response.error_message or 'refused'}")
    return sorted(
        Acl(
            _pattern(resource.resource_type, resource.pattern_type, resource.resource_name),
            _rule(acl.principal, acl.host, acl.operation, acl.permission_type),
        )
        for resource in response.resources
        for acl in resource.acls
    )


async def delete_acls(cluster: Cluster, filters: Sequence[AclFilter], *, timeout_s: float) -> list[Acl]:
    """Remove the ACLs that match one of the filters, and return them, sorted by resource.

    A request whose answer was lost may have been done, and is safe to repeat. Raises KafkaError for the first filter or
    ACL that is refused, and says how many were removed.
    """
    asked = tuple(
        DeleteAclsFilter(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission,
        )
        for wanted in filters
    )
    response: DeleteAclsResponse = await cluster.request_any(DeleteAclsRequest(filters=asked), timeout_s=timeout_s)
    matching = [acl for result in response.filter_results for acl in result.matching_acls]
    removed = _removed(matching)
    outcomes = [(result.error_code, result.error_message) for result in response.filter_results]
    outcomes += [(acl.error_code, acl.error_message) for acl in matching]
    for code, message in outcomes:
        if code != ErrorCode.NONE:
            raise KafkaError(code, f"ACLs: {message or 'refused'}; {len(removed)} were removed")
    return removed


def _removed(matching: Iterable[DeleteAclsMatchingAcl]) -> list[Acl]:
    return sorted(
        {
            Acl(
                _pattern(acl.resource_type, acl.pattern_type, acl.resource_name),
                _rule(acl.principal, acl.host, acl.operation, acl.permission_type),
            )
            for acl in matching
            if acl.error_code == ErrorCode.NONE
        }
    )


def _pattern(resource_type: int, pattern_type: int, name: str) -> AclPattern:
    return AclPattern(_known(AclResourceType, resource_type), _known(AclPatternType, pattern_type), name)


def _rule(principal: str, host: str, operation: int, permission: int) -> AclRule:
    return AclRule(principal, host, _known(AclOperation, operation), _known(AclPermission, permission))


def _known(kind: type[_Kind], number: int) -> _Kind:
    """Return the member of the number; UNKNOWN for one that a later Kafka may have."""
    return kind(number) if number in kind.__members__.values() else kind(0)
