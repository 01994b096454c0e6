"""Guards of the requests that concern the cluster as a whole."""

from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.broker.requests.guards.gate import Gate, Guard, Passage, Refused
from pipeline.broker.requests.guards.refusals import refused_as_whole
from pipeline.broker.requests.guards.topics import own_cluster_operations
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.describe_acls import AclOperation
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from pipeline.protocol.messages.metadata import NOT_ASKED_FOR


def cluster_guard(operation: AclOperation) -> Guard:
    """Return a guard of requests that are allowed or refused as a whole, by an operation on the cluster."""
    return partial(_guard_cluster, operation)


def _guard_cluster(operation: AclOperation, gate: Gate, body: Any, _version: int) -> Passage | Refused:
    if gate.may_cluster(operation):
        return Passage(body)
    return Refused(refused_as_whole(body, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))


def guard_describe_cluster(gate: Gate, body: DescribeClusterRequest, _version: int) -> Passage | Refused:
    """Show brokers to everybody; operations and faults of the cluster to who has DESCRIBE on it."""

    def merge(handled: DescribeClusterResponse) -> DescribeClusterResponse:
        every = handled.cluster_authorized_operations
        if every != NOT_ASKED_FOR:
            handled = replace(handled, cluster_authorized_operations=own_cluster_operations(gate, every))
        if gate.may_with_cluster(AclOperation.DESCRIBE):
            return handled
        return replace(handled, problem="", lost_znodes=())

    return Passage(body, merge)
