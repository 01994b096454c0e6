"""CreateAcls (30), v1 to v3: add ACLs in ZooKeeper, where every broker reads them (KIP-140).

The rules of a resource are written at once. This broker answers when they are in force here.
"""

import trio

from pipeline.broker.failures import failure_of
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.security.acl_changes import AclChanges
from pipeline.broker.security.acl_filters import read_creation
from pipeline.coordination.acl_znodes import AclPattern, AclRule
from pipeline.errors import PipelineError
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)

NO_ACLS = AclCreationResult(
    error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
)
TIMEOUT_S = 30.0
"""Time for all resources of a request."""


async def handle(
    broker: BrokerContext, request: CreateAclsRequest, _version: int, _caller: Caller
) -> CreateAclsResponse:
    """Answer when all is written."""
    if broker.acls is None:
        return CreateAclsResponse(results=(NO_ACLS,) * len(request.creations))
    results: dict[int, AclCreationResult] = {}
    wanted: dict[AclPattern, dict[int, AclRule]] = {}
    for number, asked in enumerate(request.creations):
        try:
            pattern, rule = read_creation(asked)
            wanted.setdefault(pattern, {})[number] = rule
        except PipelineError as error:
            results[number] = _result_of(error)
    changes = AclChanges(broker.session.zookeeper, broker.acls)
    deadline = trio.current_time() + TIMEOUT_S
    for pattern, rules in wanted.items():
        result = AclCreationResult()
        try:
            with trio.fail_at(deadline):
                await changes.add(pattern, frozenset(rules.values()))
        except trio.TooSlowError:
            result = AclCreationResult(
                error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="ZooKeeper did not answer in time."
            )
        except PipelineError as error:
            result = _result_of(error)
        results |= dict.fromkeys(rules, result)
    return CreateAclsResponse(results=tuple(results[number] for number in sorted(results)))


def _result_of(error: PipelineError) -> AclCreationResult:
    failure = failure_of(error)
    return AclCreationResult(error_code=failure.code, error_message=failure.message)
