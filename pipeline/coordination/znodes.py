"""Kafka's znodes (0.10 to 2.8) as values: each owns its path, `encode` and `decode`. Pure.

Znodes are written in the newest version of ZooKeeper-based Kafka, and read in every older one. Unknown keys are
ignored, since a newer broker may have written them. `decode` raises only `CoordinationError`, with the znode's path.
Source: Kafka's ZkData; KIP-516 (topic ids), KIP-455 (reassignment), KIP-584 (features), KIP-36 (rack).
"""

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError

from pipeline.errors import CoordinationError
from pipeline.model import BROKER_IDS, MAX_INT64, NO_BROKER_EPOCH, BrokerEndpoint, BrokerId, HostPort, LeaderEpoch
from pipeline.records.producer_marks import MARK
from pipeline.settings import MAX_INT32

BROKER_EPOCHS = "/brokers/epochs"
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
ALL_BROKERS = "<default>"
"""Name under which the settings of all brokers are stored."""

PLAINTEXT = "PLAINTEXT"
MAX_PORT = 65_535
MAX_TEXT = 1_000
"""More letters than any meaningful host, rack or id has. A number or text beyond these bounds is unreadable, because it
would not fit into an answer to a client."""

NodeId = Annotated[BrokerId, Field(ge=0, le=MAX_INT32)]
"""A valid broker id."""
NodeIdOrNone = Annotated[BrokerId, Field(ge=-1, le=MAX_INT32)]
"""A valid broker id, or -1 for no broker."""
Int32 = Annotated[int, Field(ge=0, le=MAX_INT32)]
_Text = Annotated[str, Field(max_length=MAX_TEXT)]
_Port = Annotated[int, Field(ge=-1, le=MAX_PORT)]
_Replicas = dict[Int32, tuple[NodeId, ...]]


def broker_path(broker_id: BrokerId) -> str:
    """`/brokers/ids/<id>`: ephemeral."""
    return f"{BROKER_IDS}/{broker_id}"


def broker_epoch_path(broker_id: BrokerId) -> str:
    """`/brokers/epochs/<id>`: ours, empty. Its version is the broker epoch, which each registration raises."""
    return f"{BROKER_EPOCHS}/{broker_id}"


def topic_path(topic: str) -> str:
    """`/brokers/topics/<topic>`."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """`/brokers/topics/<topic>/partitions`, whose children are partition numbers."""
    return f"{topic_path(topic)}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """`/brokers/topics/<topic>/partitions/<partition>`, the parent of the state."""
    return f"{partitions_path(topic)}/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    """`/brokers/topics/<topic>/partitions/<partition>/state`."""
    return f"{partition_path(topic, partition)}/state"


def copier_path(topic: str, partition: int) -> str:
    """`.../partitions/<partition>/copier`: ours, the highest copier epoch of a mirrored partition."""
    return f"{partition_path(topic, partition)}/copier"


def topic_config_path(topic: str) -> str:
    """`/config/topics/<topic>`: the settings of a topic that differ from the broker's."""
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(name: str) -> str:
    """`/config/brokers/<id>`, or `<default>` for all: settings that were changed while brokers ran (KIP-226)."""
    return f"{BROKER_CONFIGS}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address of a broker, with its name and security protocol."""

    name: str = PLAINTEXT
    security_protocol: str = PLAINTEXT
    address: HostPort


class _BrokerJson(BaseModel):
    version: int
    host: _Text | None = None
    port: _Port = -1
    jmx_port: int = -1
    timestamp: int = -1
    endpoints: list[_Text] | None = None
    rack: _Text | None = None
    listener_security_protocol_map: dict[str, str] | None = None
    directories: list[str] = []
    locks: list[_Text] = []
    shutting_down: bool = False
    epoch: int = NO_BROKER_EPOCH
    offline_replicas: dict[str, tuple[int, ...]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A live broker: `/brokers/ids/<id>`, ephemeral."""

    id: BrokerId
    listeners: tuple[Listener, ...]
    rack: str | None = None
    timestamp_ms: int
    """Time of the registration."""
    directories: tuple[uuid.UUID, ...] = ()
    """Ids of the log dirs (KIP-858), which Kafka's brokers report to a KRaft controller only."""
    locks: tuple[str, ...] = ()
    """Ours: ids of the log dirs' lock files, which a copy of a log dir does not share. Empty if unknown."""
    is_shutting_down: bool = False
    """Ours: True if the broker asks to hand over its leaderships, as Kafka's brokers do by ControlledShutdown."""
    epoch: int = NO_BROKER_EPOCH
    """Ours: the version of `broker_epoch_path` when the broker registered."""
    offline_replicas: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Ours: partitions, by topic, whose replica on this broker has a failed disk. Kafka's brokers report them in the
    answer to LeaderAndIsr."""

    @property
    def path(self) -> str:
        """`/brokers/ids/<id>`."""
        return broker_path(self.id)

    def endpoint(self, listener_name: str = PLAINTEXT) -> BrokerEndpoint | None:
        """Return the broker as others reach it by this listener; None if it has no such listener."""
        addresses = {listener.name: listener.address for listener in self.listeners}
        if listener_name not in addresses:
            return None
        return BrokerEndpoint(
            id=self.id,
            address=addresses[listener_name],
            rack=self.rack,
            epoch=self.epoch,
            addresses={} if len(addresses) == 1 else addresses,
        )

    def encode(self) -> bytes:
        """Encode as JSON version 5. `host` and `port` repeat the plaintext listener for readers of version 1."""
        plaintext = next((item.address for item in self.listeners if item.security_protocol == PLAINTEXT), None)
        fields: dict[str, Any] = {
            "version": 5,
            "host": plaintext.host if plaintext else None,
            "port": plaintext.port if plaintext else -1,
            "jmx_port": -1,
            "timestamp": str(self.timestamp_ms),
            "endpoints": [f"{item.name}://{item.address}" for item in self.listeners],
            "listener_security_protocol_map": {item.name: item.security_protocol for item in self.listeners},
            "features": {},
        }
        if self.rack is not None:
            fields["rack"] = self.rack
        if self.directories:
            fields["directories"] = [encode_uuid(directory) for directory in self.directories]
        if self.locks:
            fields["locks"] = list(self.locks)
        if self.is_shutting_down:
            fields["shutting_down"] = True
        if self.epoch != NO_BROKER_EPOCH:
            fields["epoch"] = self.epoch
        if self.offline_replicas:
            fields["offline_replicas"] = {topic: list(found) for topic, found in sorted(self.offline_replicas.items())}
        return to_json(fields)

    @classmethod
    def decode(cls, broker_id: BrokerId, data: bytes) -> Self:
        """Decode JSON version 1 (host and port), 2 (endpoints), 3 (rack), 4 (security protocols) or 5 (features)."""
        path = broker_path(broker_id)
        fields = from_json(path, data, _BrokerJson)
        listeners: tuple[Listener, ...]
        if fields.endpoints is None:
            if fields.host is None:
                raise CoordinationError(path, "holds a broker registration without host and endpoints")
            listeners = (Listener(address=HostPort(fields.host, fields.port)),)
        else:
            protocols = fields.listener_security_protocol_map or {}
            listeners = tuple(_parse_listener(path, endpoint, protocols) for endpoint in fields.endpoints)
        return cls(
            id=broker_id,
            listeners=listeners,
            rack=fields.rack,
            timestamp_ms=fields.timestamp,
            directories=tuple(decode_uuid(path, text) for text in fields.directories),
            locks=tuple(fields.locks),
            is_shutting_down=fields.shutting_down,
            epoch=fields.epoch,
            offline_replicas=fields.offline_replicas,
        )


class _TopicJson(BaseModel):
    version: int
    partitions: _Replicas
    topic_id: str | None = None
    adding_replicas: _Replicas = {}
    removing_replicas: _Replicas = {}
    deleted: bool = False


Replicas = Mapping[int, tuple[BrokerId, ...]]
"""Partition number to broker ids, the preferred leader first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAssignment:
    """A topic and the replicas of its partitions: `/brokers/topics/<topic>`."""

    topic: str
    topic_id: uuid.UUID | None
    """The topic id; None for a topic created before Kafka 2.8."""
    partitions: Replicas
    adding_replicas: Replicas = field(default_factory=dict)
    removing_replicas: Replicas = field(default_factory=dict)
    is_deleted: bool = False
    """Ours: True if the topic is deleted and its znodes are being removed. It has no partitions then."""

    @property
    def path(self) -> str:
        """`/brokers/topics/<topic>`."""
        return topic_path(self.topic)

    @property
    def id(self) -> uuid.UUID:
        """The topic id, or, for a topic created before Kafka 2.8, an id derived from the name."""
        return self.topic_id or uuid.uuid5(uuid.NAMESPACE_URL, self.topic)

    def encode(self) -> bytes:
        """Encode as JSON version 3, or 2 for a topic without id."""
        fields: dict[str, Any] = {
            "version": 2 if self.topic_id is None else 3,
            "partitions": _replicas_to_json(self.partitions),
            "adding_replicas": _replicas_to_json(self.adding_replicas),
            "removing_replicas": _replicas_to_json(self.removing_replicas),
        }
        if self.topic_id is not None:
            fields["topic_id"] = encode_uuid(self.topic_id)
        if self.is_deleted:
            fields["deleted"] = True
        return to_json(fields)

    @classmethod
    def decode(cls, topic: str, data: bytes) -> Self:
        """Decode JSON version 1 (partitions), 2 (reassignment) or 3 (topic id)."""
        path = topic_path(topic)
        fields = from_json(path, data, _TopicJson)
        for index, replicas in fields.partitions.items():
            if len(set(replicas)) < len(replicas) or set(replicas) <= {*fields.removing_replicas.get(index, ())}:
                raise CoordinationError(
                    path, f"names no replicas, or one twice, for partition {index}: {list(replicas)}"
                )
        return cls(
            topic=topic,
            topic_id=None if fields.topic_id is None else decode_uuid(path, fields.topic_id),
            partitions=fields.partitions,
            adding_replicas=fields.adding_replicas,
            removing_replicas=fields.removing_replicas,
            is_deleted=fields.deleted,
        )


class _PartitionStateJson(BaseModel):
    version: int
    controller_epoch: Annotated[int, Field(ge=-1, le=MAX_INT32)]
    leader: NodeIdOrNone
    leader_epoch: Annotated[LeaderEpoch, Field(ge=0, le=MAX_INT32)]
    isr: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The leader of a partition and its ISR: `/brokers/topics/<topic>/partitions/<partition>/state`."""

    topic: str
    partition: int
    leader: BrokerId
    """-1 if there is none."""
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    controller_epoch: int

    @property
    def path(self) -> str:
        """`/brokers/topics/<topic>/partitions/<partition>/state`."""
        return partition_state_path(self.topic, self.partition)

    def encode(self) -> bytes:
        """JSON version 1."""
        return to_json(
            {
                "version": 1,
                "controller_epoch": self.controller_epoch,
                "leader": self.leader,
                "leader_epoch": self.leader_epoch,
                "isr": list(self.isr),
            }
        )

    @classmethod
    def decode(cls, topic: str, partition: int, data: bytes) -> Self:
        """JSON version 1."""
        fields = from_json(partition_state_path(topic, partition), data, _PartitionStateJson)
        return cls(
            topic=topic,
            partition=partition,
            leader=fields.leader,
            leader_epoch=fields.leader_epoch,
            isr=fields.isr,
            controller_epoch=fields.controller_epoch,
        )


class _CopierJson(BaseModel):
    version: int
    topic_id: str
    epoch: Annotated[int, Field(ge=0, le=MAX_INT64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopierEpoch:
    """The highest epoch of the copiers that have claimed a mirrored partition; see `copier_path`."""

    topic_id: uuid.UUID
    """Id of the topic. An epoch of a deleted topic of the same name does not count."""
    epoch: int

    def encode(self) -> bytes:
        """JSON version 1."""
        return to_json({"version": 1, "topic_id": encode_uuid(self.topic_id), "epoch": self.epoch})

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """JSON version 1."""
        fields = from_json(path, data, _CopierJson)
        return cls(topic_id=decode_uuid(path, fields.topic_id), epoch=fields.epoch)


class _ConfigJson(BaseModel):
    version: int
    config: dict[str, str]


def encode_config(settings: Mapping[str, str]) -> bytes:
    """Encode settings as every znode below `/config` holds them: JSON version 1."""
    return to_json({"version": 1, "config": dict(settings)})


USERS = "/config/users/"


def decode_config(path: str, data: bytes) -> Mapping[str, str]:
    """Decode settings as every znode below `/config` holds them. Raises CoordinationError.

    A user's znode without data has none: it is only the parent of the quotas of client ids.
    """
    return {} if not data and path.startswith(USERS) else from_json(path, data, _ConfigJson).config


class _ClusterIdJson(BaseModel):
    id: _Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterId:
    """The id of the cluster: `/cluster/id`."""

    PATH = "/cluster/id"

    id: str

    def encode(self) -> bytes:
        """Encode as JSON version "1", which Kafka writes as text."""
        return to_json({"version": "1", "id": self.id})

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode JSON version "1"."""
        return cls(id=from_json(cls.PATH, data, _ClusterIdJson).id)


class _ProducerIdBlockJson(BaseModel):
    version: int
    broker: BrokerId
    block_start: Annotated[int, Field(ge=0, le=MARK - 1)]
    block_end: Annotated[int, Field(ge=0, le=MARK - 1_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    """The block of producer ids that was claimed last, both ends included: `/latest_producer_id_block`.

    A broker claims the next block by a conditional write of this znode.
    """

    PATH = "/latest_producer_id_block"

    broker: BrokerId
    first: int
    last: int

    def encode(self) -> bytes:
        """Encode as JSON version 1, with the bounds as text."""
        return to_json(
            {"version": 1, "broker": self.broker, "block_start": str(self.first), "block_end": str(self.last)}
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """JSON version 1."""
        fields = from_json(cls.PATH, data, _ProducerIdBlockJson)
        return cls(broker=fields.broker, first=fields.block_start, last=fields.block_end)


def encode_uuid(value: uuid.UUID) -> str:
    """Encode a topic or cluster id as Kafka does: base64url of the 16 bytes, 22 letters, no padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_uuid(path: str, text: str) -> uuid.UUID:
    """Decode the text of `encode_uuid`, read from the znode of this path. Raises CoordinationError."""
    try:
        return uuid.UUID(bytes=base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True))
    except ValueError as error:
        raise CoordinationError(path, f"holds {text!r}, which is not an id of 16 bytes in base64url") from error


def _parse_listener(path: str, endpoint: str, protocols: Mapping[str, str]) -> Listener:
    """Parse `NAME://host:port`. A name that is not in `protocols` is itself the protocol."""
    name, scheme, address = endpoint.partition("://")
    host, colon, port = address.rpartition(":")
    if not (scheme and colon and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= MAX_PORT):
        raise CoordinationError(path, f"holds the endpoint {endpoint!r}, which is not NAME://host:port")
    host = host.removeprefix("[").removesuffix("]")
    return Listener(name=name, security_protocol=protocols.get(name, name), address=HostPort(host, int(port)))


def _replicas_to_json(replicas: Replicas) -> dict[str, list[int]]:
    return {str(partition): list(brokers) for partition, brokers in sorted(replicas.items())}


def to_json(fields: Mapping[str, Any]) -> bytes:
    """Encode the fields of a znode, without spaces, as Kafka does."""
    return json.dumps(fields, separators=(",", ":")).encode()


_Fields = TypeVar("_Fields", bound=BaseModel)


def from_json(path: str, data: bytes, form: type[_Fields]) -> _Fields:
    """Decode the fields of the znode at `path`. Raises CoordinationError, which names the first wrong field."""
    try:
        return form.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CoordinationError(path, f"cannot be read: {where}: {first['msg']}") from error
