"""DescribeCluster (60), versions 0 to 2: brokers and controller (KIP-700).

Version 1 asks for brokers or controllers (KIP-919), 2 for fenced brokers too (KIP-1073).
The tagged field 10000, ours, says that the answering broker knows nothing new of the cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Bool, Int8, Int16, Int32, Int64, Message, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterRequest(Message):
    """A question for the brokers or controllers of the cluster."""

    API_KEY: ClassVar[int] = 60
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, Wire(since=1)] = 1
    include_fenced_brokers: Annotated[Bool, Wire(since=2)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterBroker:
    """A live broker."""

    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None
    is_fenced: Annotated[Bool, Wire(since=2, ignorable=True)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterResponse(Message):
    """The cluster."""

    API_KEY: ClassVar[int] = 60
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, Wire(since=1, ignorable=True)] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: Sequence[DescribeClusterBroker] = ()
    cluster_authorized_operations: Int32 = -2147483648
    zookeeper_silence_ms: Annotated[Int64, Wire(since=0, tag=10000, ignorable=True)] = 0
    """For how long the broker has not reached ZooKeeper, once that is the session timeout or longer; else 0."""
    problem: Annotated[String, Wire(since=0, tag=10001, ignorable=True)] = ""
    """Why the broker could not join its cluster again now; empty if it could."""
    lost_znodes: Annotated[Sequence[String], Wire(since=0, tag=10002, ignorable=True)] = ()
    """Paths of topics' znodes that ZooKeeper lost, the first hundred."""
