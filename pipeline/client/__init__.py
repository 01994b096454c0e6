"""The Python client: clusters, producers, consumers, administration, schema registries and Avro.

`from pipeline.client import ...` is for applications. A name loads its module when it is first used, so that a program
without Avro or columns does not wait for fastavro, numba or pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.client.admin.admin import Admin
    from pipeline.client.admin.client_quotas import ClientQuotaEntity
    from pipeline.client.admin.elections import Reassignment, alter_reassignments, elect_leaders, list_reassignments
    from pipeline.client.admin.groups import CommittedOffset
    from pipeline.client.admin.leader_epochs import EpochEnd, ends_of_epochs
    from pipeline.client.admin.offsets import (
        ALL_RECORDS,
        ListedOffset,
        PartlyDeletedError,
        delete_records,
        list_offsets,
    )
    from pipeline.client.admin.resource_configs import ConfigResource, alter_configs, describe_configs
    from pipeline.client.admin.topics import (
        NewTopic,
        TopicsRefusedError,
        create_partitions,
        create_topics,
        delete_topics,
        describe_topics,
        list_topics,
    )
    from pipeline.client.cluster.cluster import Cluster, open_cluster
    from pipeline.client.cluster.config import Acks, ClientConfig, ConsumerConfig, OffsetReset, ProducerConfig
    from pipeline.client.cluster.discovery import from_zookeeper
    from pipeline.client.connector.config import ConnectorConfig
    from pipeline.client.connector.connector import (
        ConsumerConnector,
        MessageStreamsExistError,
        open_consumer_connector,
    )
    from pipeline.client.connector.ownership import OwnershipLostError
    from pipeline.client.consumer.consumer import Consumer, open_consumer
    from pipeline.client.consumer.errors import (
        PartitionBatchError,
        PartitionFetchError,
        PartitionOffsetOutOfRangeError,
        PartitionTruncatedError,
    )
    from pipeline.client.consumer.fetch_plan import FetchedBatches
    from pipeline.client.consumer.messages import (
        DeadLetters,
        DecodedMessage,
        ErrorPolicy,
        MessageDecodeError,
        RaiseErrors,
        SkipErrors,
    )
    from pipeline.client.consumer.record import ConsumerRecord
    from pipeline.client.encoding.decoders import AwaitedDecoder, BytesDecoder, Decoder, JsonDecoder, StrDecoder
    from pipeline.client.encoding.encoders import AwaitedEncoder, BytesEncoder, Encoder, JsonEncoder, StrEncoder
    from pipeline.client.group.config import GroupConfig
    from pipeline.client.group.errors import CommitFailedError, NoCommittedOffsetError
    from pipeline.client.group.group_consumer import GroupConsumer, open_group_consumer
    from pipeline.client.group.listener import RebalanceListener
    from pipeline.client.producer.batches import DeliveryError, RecordMetadata
    from pipeline.client.producer.columns import ColumnsDelivery, ColumnsNotAcceptedError
    from pipeline.client.producer.delivery import Deliveries, Delivery, PartlyAcceptedError
    from pipeline.client.producer.interceptors import ProducerInterceptor
    from pipeline.client.producer.partitioner import Partitioner
    from pipeline.client.producer.producer import Producer, open_producer
    from pipeline.client.producer.record import ProducerRecord, UndeliveredRecord
    from pipeline.client.registry.avro import AvroDeserializer, AvroEncoder, AvroSerializer
    from pipeline.client.registry.client import SchemaRegistryClient, SchemaRegistryError, open_schema_registry
    from pipeline.client.registry.config import SerializerConfig
    from pipeline.client.registry.errors import SchemaMismatchError, SerializationError
    from pipeline.client.registry.framing import SchemaIdSerializer
    from pipeline.client.registry.schemas import SchemaText, VersionReference
    from pipeline.client.registry.subjects import (
        record_name_strategy,
        topic_name_strategy,
        topic_record_name_strategy,
    )
    from pipeline.client.simple.simple_consumer import MultiFetchResponse, SimpleConsumer, open_simple_consumer
    from pipeline.client.streams.stream import MessageStream
    from pipeline.client.streams.topic_filter import BlackList, TopicFilter, WhiteList
    from pipeline.client.sync.core_thread import ProducerThreadError
    from pipeline.client.sync.deliveries import ResultTimeoutError, SentColumns, SentRecord, SentRecords
    from pipeline.client.sync.sync_producer import SyncProducer
    from pipeline.coordination.zookeeper import open_zookeeper
    from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
    from pipeline.errors import (
        ConfigurationError,
        CorruptBatchError,
        DeadlineExceededError,
        MemoryExhaustedError,
        NetworkError,
        PipelineError,
    )
    from pipeline.model import HostPort, TopicPartition
    from pipeline.protocol.errors import ErrorCode, KafkaError
    from pipeline.protocol.messages.describe_configs import ResourceType
    from pipeline.protocol.messages.elect_leaders import ElectionType
    from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
    from pipeline.records.columns import ARROW_SCHEMA, open_batches, open_in_portions
    from pipeline.records.compression import Codec
    from pipeline.settings import parse_addresses

__all__ = [
    "ALL_RECORDS",
    "ARROW_SCHEMA",
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Acks",
    "Admin",
    "AvroDeserializer",
    "AvroEncoder",
    "AvroSerializer",
    "AwaitedDecoder",
    "AwaitedEncoder",
    "BlackList",
    "BytesDecoder",
    "BytesEncoder",
    "ClientConfig",
    "ClientQuotaEntity",
    "Cluster",
    "Codec",
    "ColumnsDelivery",
    "ColumnsNotAcceptedError",
    "CommitFailedError",
    "CommittedOffset",
    "ConfigResource",
    "ConfigurationError",
    "ConnectorConfig",
    "Consumer",
    "ConsumerConfig",
    "ConsumerConnector",
    "ConsumerRecord",
    "CorruptBatchError",
    "DeadLetters",
    "DeadlineExceededError",
    "DecodedMessage",
    "Decoder",
    "Deliveries",
    "Delivery",
    "DeliveryError",
    "ElectionType",
    "Encoder",
    "EpochEnd",
    "ErrorCode",
    "ErrorPolicy",
    "FetchedBatches",
    "GroupConfig",
    "GroupConsumer",
    "HostPort",
    "JsonDecoder",
    "JsonEncoder",
    "KafkaError",
    "ListedOffset",
    "MemoryExhaustedError",
    "MessageDecodeError",
    "MessageStream",
    "MessageStreamsExistError",
    "MultiFetchResponse",
    "NetworkError",
    "NewTopic",
    "NoCommittedOffsetError",
    "OffsetReset",
    "OwnershipLostError",
    "PartitionBatchError",
    "PartitionFetchError",
    "PartitionOffsetOutOfRangeError",
    "PartitionTruncatedError",
    "Partitioner",
    "PartlyAcceptedError",
    "PartlyDeletedError",
    "PipelineError",
    "Producer",
    "ProducerConfig",
    "ProducerInterceptor",
    "ProducerRecord",
    "ProducerThreadError",
    "RaiseErrors",
    "Reassignment",
    "RebalanceListener",
    "RecordMetadata",
    "ResourceType",
    "ResultTimeoutError",
    "SchemaIdSerializer",
    "SchemaMismatchError",
    "SchemaRegistryClient",
    "SchemaRegistryError",
    "SchemaText",
    "SentColumns",
    "SentRecord",
    "SentRecords",
    "SerializationError",
    "SerializerConfig",
    "SimpleConsumer",
    "SkipErrors",
    "StrDecoder",
    "StrEncoder",
    "SyncProducer",
    "TopicFilter",
    "TopicPartition",
    "TopicsRefusedError",
    "UndeliveredRecord",
    "VersionReference",
    "WhiteList",
    "ZooKeeperSecurity",
    "alter_configs",
    "alter_reassignments",
    "create_partitions",
    "create_topics",
    "delete_records",
    "delete_topics",
    "describe_configs",
    "describe_topics",
    "elect_leaders",
    "ends_of_epochs",
    "from_zookeeper",
    "list_offsets",
    "list_reassignments",
    "list_topics",
    "open_batches",
    "open_cluster",
    "open_consumer",
    "open_consumer_connector",
    "open_group_consumer",
    "open_in_portions",
    "open_producer",
    "open_schema_registry",
    "open_simple_consumer",
    "open_zookeeper",
    "parse_addresses",
    "record_name_strategy",
    "topic_name_strategy",
    "topic_record_name_strategy",
]  # fmt: skip

_HOMES = (
    "pipeline.model", "pipeline.errors", "pipeline.settings", "pipeline.protocol.errors",
    "pipeline.client.cluster.cluster", "pipeline.client.cluster.config", "pipeline.client.cluster.discovery",
    "pipeline.client.admin.topics", "pipeline.client.admin.offsets", "pipeline.protocol.messages.list_offsets",
    "pipeline.client.admin.leader_epochs", "pipeline.client.admin.admin", "pipeline.client.admin.client_quotas",
    "pipeline.client.admin.groups",
    "pipeline.client.admin.elections", "pipeline.client.admin.resource_configs",
    "pipeline.client.producer.producer", "pipeline.client.producer.delivery", "pipeline.client.producer.batches",
    "pipeline.client.producer.record", "pipeline.client.producer.interceptors", "pipeline.client.producer.partitioner",
    "pipeline.client.encoding.encoders", "pipeline.client.encoding.decoders",
    "pipeline.client.consumer.consumer", "pipeline.client.consumer.errors", "pipeline.client.consumer.fetch_plan",
    "pipeline.client.consumer.messages", "pipeline.client.consumer.record",
    "pipeline.client.streams.topic_filter", "pipeline.client.streams.stream",
    "pipeline.client.group.config", "pipeline.client.group.errors", "pipeline.client.group.listener",
    "pipeline.client.group.group_consumer", "pipeline.coordination.zookeeper",
    "pipeline.client.connector.config", "pipeline.client.connector.ownership", "pipeline.client.connector.connector",
    "pipeline.client.simple.simple_consumer", "pipeline.client.sync.sync_producer",
    "pipeline.client.sync.deliveries", "pipeline.client.sync.core_thread",
    "pipeline.records.compression", "pipeline.client.registry.schemas",
    "pipeline.client.registry.subjects", "pipeline.client.registry.framing", "pipeline.client.registry.config",
    "pipeline.client.registry.errors", "pipeline.client.registry.client", "pipeline.client.registry.avro",
    "pipeline.records.columns", "pipeline.client.producer.columns",
)  # fmt: skip
"""Modules that define the names, the costly ones last: a name is looked up in this order."""

if not TYPE_CHECKING:  # otherwise mypy would accept every name

    def __getattr__(name: str) -> object:
        if name in __all__:
            for home in map(import_module, _HOMES):
                if hasattr(home, name):
                    return globals().setdefault(name, getattr(home, name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
