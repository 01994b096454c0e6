"""DescribeCluster (60), v0 to v2: brokers and controller (KIP-700).

- Tagged fields of ours report a lost contact to ZooKeeper, a wrong cluster id, and topics with unreadable znodes.
- There are no separate controllers (KIP-919), and a registered broker is never fenced (KIP-1073).
"""

from itertools import islice

from pipeline.broker.requests.authorized_operations import CLUSTER_OPERATIONS
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from pipeline.protocol.messages.metadata import NOT_ASKED_FOR

BROKERS = 1
CONTROLLERS = 2
MAX_LOST_ZNODES = 100


def handle(
    broker: BrokerContext, request: DescribeClusterRequest, _version: int, caller: Caller
) -> DescribeClusterResponse:
    """Answer at once, as this broker sees the cluster."""
    if request.endpoint_type != BROKERS:
        is_known = request.endpoint_type == CONTROLLERS
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return DescribeClusterResponse(
            error_code=code, error_message="This is a broker.", endpoint_type=request.endpoint_type
        )
    return DescribeClusterResponse(
        cluster_id=broker.view.cluster_id,
        controller_id=broker.view.controller,
        brokers=[
            DescribeClusterBroker(broker_id=endpoint.id, host=address.host, port=address.port, rack=endpoint.rack)
            for endpoint in broker.view.brokers.values()
            if (address := endpoint.address_on(caller.listener)) is not None
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
        zookeeper_silence_ms=0 if broker.session.problem is None else round(broker.session.silence_s * 1000),
        problem=broker.view.problem or "",
        lost_znodes=list(islice(broker.view.lost_znodes, MAX_LOST_ZNODES)),
    )
