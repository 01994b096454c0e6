"""The table of api keys: which messages, and which versions our broker serves. A further key is a file and a line."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from pipeline.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from pipeline.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from pipeline.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from pipeline.protocol.messages.fetch import FetchRequest, FetchResponse
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pipeline.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataResponse
from pipeline.protocol.messages.produce import ProduceRequest, ProduceResponse
from pipeline.protocol.schema import Message


class ApiKey(IntEnum):
    """An api key, as its number and as a row of the table: messages, and the versions that our broker serves."""

    request: type[Message]
    response: type[Message]

    if not TYPE_CHECKING:

        def __new__(cls, request: type[Message], response: type[Message]) -> Self:  # noqa: D102
            member = int.__new__(cls, request.API_KEY)
            member._value_ = request.API_KEY
            member.request = request
            member.response = response
            return member

    PRODUCE = ProduceRequest, ProduceResponse
    FETCH = FetchRequest, FetchResponse
    LIST_OFFSETS = ListOffsetsRequest, ListOffsetsResponse
    METADATA = MetadataRequest, MetadataResponse
    API_VERSIONS = ApiVersionsRequest, ApiVersionsResponse
    CREATE_TOPICS = CreateTopicsRequest, CreateTopicsResponse
    DELETE_TOPICS = DeleteTopicsRequest, DeleteTopicsResponse
    INIT_PRODUCER_ID = InitProducerIdRequest, InitProducerIdResponse
    CREATE_PARTITIONS = CreatePartitionsRequest, CreatePartitionsResponse

    @property
    def key(self) -> int:
        """The number on the wire."""
        return int(self)

    @property
    def min_version(self) -> int:
        """The first version served."""
        return self.request.VERSIONS[0]

    @property
    def max_version(self) -> int:
        """The last version served."""
        return self.request.VERSIONS[1]

    @property
    def flexible_since(self) -> int:
        """The first flexible version (KIP-482)."""
        return self.request.FLEXIBLE_SINCE

    def serves(self, version: int) -> bool:
        """Whether our broker serves this version."""
        return self.min_version <= version <= self.max_version


API: Mapping[int, ApiKey] = MappingProxyType({key.value: key for key in ApiKey})
"""Every api key by its number."""
