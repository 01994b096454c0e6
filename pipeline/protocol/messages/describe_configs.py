"""DescribeConfigs (32), versions 1 to 4: the settings of topics and brokers.

Version 1 adds source and synonyms (KIP-226), 3 types and documentation (KIP-569), 4 is flexible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Bool, Int8, Int16, Int32, Message, String, Wire


class ResourceType(IntEnum):
    """Kinds of resources that have settings (Kafka's ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4


class ConfigSource(IntEnum):
    """The place that a value comes from."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """The values that a setting takes."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResource:
    """A topic or broker; no keys stand for all."""

    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: Sequence[String] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest(Message):
    """Topics and brokers to describe."""

    API_KEY: ClassVar[int] = 32
    VERSIONS: ClassVar[tuple[int, int]] = (1, 4)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    resources: Sequence[DescribeConfigsResource] = ()
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Wire(since=3)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsSynonym:
    """Another place where a setting can be made, in order of precedence."""

    name: String = ""
    value: String | None = ""
    source: Int8 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResourceResult:
    """A setting: value, source and documentation."""

    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: Sequence[DescribeConfigsSynonym] = ()
    config_type: Annotated[Int8, Wire(since=3, ignorable=True)] = 0
    documentation: Annotated[String | None, Wire(since=3, ignorable=True)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResult:
    """The settings of a topic or broker."""

    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: Sequence[DescribeConfigsResourceResult] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse(Message):
    """The settings."""

    API_KEY: ClassVar[int] = 32
    VERSIONS: ClassVar[tuple[int, int]] = (1, 4)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    throttle_time_ms: Int32 = 0
    results: Sequence[DescribeConfigsResult] = ()
