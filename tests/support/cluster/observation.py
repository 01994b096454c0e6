"""What a cluster says about itself, asked as any client would: leaders, in-sync replicas, controller, coordinators."""

import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cluster.systems import KAFKA, ClusterProcesses

OFFSETS_TOPIC = "__consumer_offsets"
REQUEST_TIMEOUT_S = 5.0
DEADLINE_S = 180.0
POLL_S = 0.05
QUICKLY = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 4000, "log_level": 0}

DESCRIBE_QUORUM = struct.pack(">hhih4sB", 55, 0, 1, 4, b"test", 0) + (
    b"\x02" + b"\x13__cluster_metadata" + b"\x02" + struct.pack(">i", 0) + b"\x00" + b"\x00" + b"\x00"
)
"""The request for the state of a KRaft quorum (KIP-595): header version 2, body version 0."""
QUORUM_LEADER = struct.Struct(">ihi")
"""Partition, error and leader, in the response."""


class Observer:
    """Answers questions about one running cluster; there is one once every broker knows all of them."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUICKLY})
        for node in cluster.nodes.values():
            address = f"{node.host}:{node.port}"
            wait_until(f"{address} knows all brokers", partial(self._knows_all, address))

    def partitions(self, topic: str) -> dict[int, Any]:
        """Metadata by partition: `leader`, `replicas`, `isrs`. Empty while the topic is not known."""
        with suppress(KafkaException):
            return dict(self._admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].partitions)
        return {}

    def leader(self, topic: str, partition: int = 0) -> int:
        """Waits for one."""
        found = -1

        def is_led() -> bool:
            nonlocal found
            described = self.partitions(topic).get(partition)
            found = -1 if described is None else described.leader
            return found >= 0

        wait_until(f"{topic} {partition} has a leader", is_led)
        return found

    def controller(self) -> int:
        """Waits for one. Brokers of Apache Kafka name any of them to clients; the quorum knows."""
        found = -1

        def is_known() -> bool:
            nonlocal found
            found = self._quorum_leader() if self._cluster.name == KAFKA else self._named_controller()
            return found >= 0

        wait_until("there is a controller", is_known)
        return found

    def coordinators(self) -> dict[int, int]:
        """The coordinator by partition of the topic of offsets."""
        return {number: described.leader for number, described in self.partitions(OFFSETS_TOPIC).items()}

    def is_in_sync(self, topics: Sequence[str]) -> bool:
        """Whether every partition has a leader and all of its replicas."""
        try:
            described = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        except KafkaException:
            return False
        partitions = [part for topic in topics if topic in described for part in described[topic].partitions.values()]
        known = all(topic in described and described[topic].partitions for topic in topics)
        return known and all(part.leader >= 0 and set(part.isrs) == set(part.replicas) for part in partitions)

    def wait_until_in_sync(self, topics: Sequence[str], deadline_s: float = DEADLINE_S) -> None:
        """Raises TimeoutError."""
        wait_until(f"{', '.join(topics[:3])} in sync", lambda: self.is_in_sync(topics), deadline_s)

    def create_topic(self, topic: str, assignment: Sequence[Sequence[int]]) -> None:
        """With these replicas by partition; waits until they are in sync."""
        new = NewTopic(topic, len(assignment), replica_assignment=[list(replicas) for replicas in assignment])
        self._admin.create_topics([new], operation_timeout=30)[topic].result(DEADLINE_S)
        self.wait_until_in_sync([topic])

    def create_topics(self, topics: Sequence[str], partitions: int, replicas: int) -> float:
        """Spread by the cluster; seconds until all partitions are led and in sync."""
        patient = AdminClient({"bootstrap.servers": self._cluster.bootstrap})
        started = time.monotonic()
        new = [NewTopic(topic, partitions, replicas) for topic in topics]
        for future in patient.create_topics(new, operation_timeout=60, request_timeout=60).values():
            future.result(DEADLINE_S)
        self.wait_until_in_sync(topics)
        return time.monotonic() - started

    def elect_preferred(self) -> None:
        """Every partition is led by its first replica again, where it can."""
        with suppress(KafkaException):  # none needed it, or somebody is still away
            self._admin.elect_leaders(ElectionType.PREFERRED, None).result(DEADLINE_S)

    def _knows_all(self, address: str) -> bool:
        """A new client asks the one broker that it was told of."""
        with suppress(KafkaException):
            asking = AdminClient({"bootstrap.servers": address, **QUICKLY})
            return len(asking.list_topics(timeout=REQUEST_TIMEOUT_S).brokers) == len(self._cluster.nodes)
        return False

    def _named_controller(self) -> int:
        with suppress(KafkaException):
            return int(self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).controller_id)
        return -1

    def _quorum_leader(self) -> int:
        for node in self._cluster.nodes.values():
            with suppress(OSError, struct.error, ValueError):
                return _ask_for_quorum_leader(node.host, node.port)
        return -1


def wait_until(what: str, condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Poll; raises TimeoutError."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {deadline_s:.0f} s")
        time.sleep(POLL_S)


def coordinator_partition(group: str, partitions: int) -> int:
    """Which partition of the topic of offsets a group belongs to: Java's hash of its name, made positive."""
    code = 0
    for character in group:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions


def _ask_for_quorum_leader(host: str, port: int) -> int:
    with socket.create_connection((host, port), timeout=2) as connection:
        connection.sendall(struct.pack(">i", len(DESCRIBE_QUORUM)) + DESCRIBE_QUORUM)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
            received = connection.recv(65536)
            if not received:
                raise ValueError("closed")
            answer += received
    at = answer.index(b"__cluster_metadata") + len(b"__cluster_metadata") + 1
    _, error, leader = QUORUM_LEADER.unpack_from(answer, at)
    if error:
        raise ValueError(f"error {error}")
    return int(leader)
