"""DeleteAcls (31), v1 to v3: remove the ACLs that match filters (KIP-140)."""

from collections import defaultdict

import trio

from pipeline.broker.failures import failure_of
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.security.acl_changes import AclChanges
from pipeline.broker.security.acl_filters import read_filter
from pipeline.broker.security.acl_table import AclTable
from pipeline.coordination.acl_znodes import AclPattern, AclRule
from pipeline.errors import PipelineError
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

NO_ACLS = DeleteAclsFilterResult(
    error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
)
TIMEOUT_S = 30.0
"""Time for all filters of a request."""


async def handle(
    broker: BrokerContext, request: DeleteAclsRequest, _version: int, _caller: Caller
) -> DeleteAclsResponse:
    """Answer when all is written."""
    if broker.acls is None:
        return DeleteAclsResponse(filter_results=(NO_ACLS,) * len(request.filters))
    changes = AclChanges(broker.session.zookeeper, broker.acls)
    deadline = trio.current_time() + TIMEOUT_S
    results = [await _delete(broker.acls, changes, asked, deadline) for asked in request.filters]
    return DeleteAclsResponse(filter_results=tuple(results))


async def _delete(
    acls: AclTable, changes: AclChanges, asked: DeleteAclsFilter, deadline: float
) -> DeleteAclsFilterResult:
    try:
        matches = read_filter(asked)
    except PipelineError as error:
        failure = failure_of(error)
        return DeleteAclsFilterResult(error_code=failure.code, error_message=failure.message)
    found: defaultdict[AclPattern, set[AclRule]] = defaultdict(set)
    for pattern, rule in acls:
        if matches(pattern, rule):
            found[pattern].add(rule)
    matching: list[DeleteAclsMatchingAcl] = []
    for pattern, rules in found.items():
        code, message = ErrorCode.NONE, None
        try:
            with trio.fail_at(deadline):
                await changes.remove(pattern, frozenset(rules))
        except trio.TooSlowError:
            code, message = ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not answer in time."
        except PipelineError as error:
            failure = failure_of(error)
            code, message = failure.code, failure.message
        matching += [_matched(pattern, rule, code, message) for rule in sorted(rules)]
    return DeleteAclsFilterResult(matching_acls=tuple(matching))


def _matched(pattern: AclPattern, rule: AclRule, code: ErrorCode, message: str | None) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=code,
        error_message=message,
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )
