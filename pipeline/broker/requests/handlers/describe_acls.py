"""DescribeAcls (29), v1 to v3: the ACLs that match a filter (KIP-140), as this broker has them."""

from collections import defaultdict

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.security.acl_filters import read_filter
from pipeline.coordination.acl_znodes import AclPattern
from pipeline.net.answers import LargeAnswer
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

NO_ACLS = "No Authorizer is configured on the broker"


def handle(broker: BrokerContext, request: DescribeAclsRequest, _version: int, _caller: Caller) -> LargeAnswer:
    """Answer at once."""
    return LargeAnswer(_answer(broker, request))


def _answer(broker: BrokerContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    if broker.acls is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_ACLS)
    try:
        matches = read_filter(request)
    except KafkaError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=str(error))
    found: defaultdict[AclPattern, list[AclDescription]] = defaultdict(list)
    for pattern, rule in broker.acls:
        if matches(pattern, rule):
            found[pattern].append(
                AclDescription(
                    principal=rule.principal,
                    host=rule.host,
                    operation=rule.operation,
                    permission_type=rule.permission,
                )
            )
    return DescribeAclsResponse(
        resources=tuple(
            DescribeAclsResource(
                resource_type=pattern.resource_type,
                resource_name=pattern.name,
                pattern_type=pattern.pattern_type,
                acls=tuple(acls),
            )
            for pattern, acls in found.items()
        )
    )
